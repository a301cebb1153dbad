"""`jobq web`: serve the dashboard, and manage its users."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from jobq.cli.arguments import pairs_of
from jobq.cli.lake import lake_option, source_option, storage_option
from jobq.cli.modules import load
from jobq.cli.options import CommandGroup, group, import_option, option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.client.connection import Client, connect
from jobq.errors import ConfigError
from jobq.metrics.serving import Endpoint, listen, parse_endpoint
from jobq.web.access import users
from jobq.web.access.identity import ROLE_WORDS, UserRole, role_of
from jobq.web.access.settings import AccessSettings

USERS = Listing(
    ("kind", "name", "role", "arguments", ":login", ":expires"),
    empty="the users file is empty; add a user with 'jobq web user add NAME'",
)
ROLES = "|".join(ROLE_WORDS)


class Listening(NamedTuple):
    """The dashboard's address, and its certificate for HTTPS."""

    endpoint: Endpoint
    hosts: tuple[str, ...]
    certificate: str | None
    key: str | None


def _listening(
    session: Session, bind: str, hosts: tuple[str, ...], tls_cert: str | None, tls_key: str | None
) -> Listening:
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("HTTPS needs both --tls-cert and --tls-key")
    return Listening(parse_endpoint(bind), hosts, tls_cert, tls_key)


def _allowing(
    session: Session, users_file: Path | None, auth_header: str | None, auth_role: str | None,
    proxies: tuple[str, ...], no_auth: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "users": users_file, "auth_header": auth_header or "", "trusted_proxies": proxies, "no_auth": no_auth,
        "auth_role": role_of(auth_role) if auth_role else UserRole.NONE,
    }  # fmt: skip


def _looking(
    session: Session,
    title: str,
    accent: str,
    prefix: str,
    read_only: bool,
) -> dict[str, Any]:
    return {
        "title": title,
        "accent": accent,
        "prefix": prefix,
        "read_only": read_only,
    }


def _showing(
    session: Session, redact: tuple[str, ...], hide_errors: bool, trace_url: str | None,
    modules: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    load(modules)
    return {
        "redact": redact, "hide_errors": hide_errors, "trace_url": trace_url or "", "modules": modules,
    }  # fmt: skip


def _remembering(
    session: Session, path: str | None, storage: tuple[str, ...], source: str
) -> dict[str, Any]:
    options = pairs_of("--storage-option", storage)
    return {"lake": path or "", "storage": options, "source": source}


def _operating(session: Session, url_operate: str | None) -> Client | None:
    return connect(url_operate, settings=session.settings) if url_operate else None


users_option = option(
    "--users FILE", "users_file", "File of users and tokens, accessible only to you.",
    type=click.Path(path_type=Path, dir_okay=False),
)  # fmt: skip


@command(
    "web",
    "",
    "--bind 127.0.0.1:8701 --title production --accent '#b3261e'",
    "--bind 0.0.0.0:8700 --host jobs.example.com --users users.json --trusted-proxy 10.0.0.0/8",
    "--auth-header X-Remote-User --auth-role read --trusted-proxy unix --bind unix:/run/jobq/web.sock",
    cls=CommandGroup,
    server="awaits",
)
@opens(
    "listening", _listening,
    option("--bind ADDRESS", "Listen at this host:port or unix:PATH.", default="127.0.0.1:8700"),
    option("--host NAME", "hosts", "Host name used by browsers; repeatable.", multiple=True),
    option("--tls-cert FILE", "Certificate, to serve HTTPS.", type=click.Path(exists=True)),
    option("--tls-key FILE", "Private key of the certificate.", type=click.Path(exists=True)),
)  # fmt: skip
@opens(
    "allowing", _allowing,
    users_option,
    option("--auth-header NAME", "Read the user's name from this header of a trusted proxy."),
    option(f"--auth-role {ROLES}", "Role of users named in the header but not in the users file.  [default: none]"),
    option(
        "--trusted-proxy CIDR", "proxies", "Trusted network, or unix for the socket; repeatable.",
        multiple=True,
    ),
    option("--no-auth", "Allow every process on this machine all actions, without a login."),
)  # fmt: skip
@opens(
    "looking", _looking,
    option("--title NAME", "Name of this cluster, shown in the header.", default="jobq"),
    option("--accent COLOUR", "Colour of this cluster, such as #1f5fa5.  [default: blue]", default=""),
    option("--prefix PATH", "Prefix of every path, such as /ops/jobq.  [default: none]", default=""),
    option("--read-only", "Disable all actions."),
)  # fmt: skip
@opens(
    "showing", _showing,
    option("--redact NAME", "Also hide the values of arguments with this name; repeatable.", multiple=True),
    option("--hide-errors", "Show the types of errors without their texts."),
    option("--trace-url URL", "URL of traces, containing {trace_id}."),
    import_option,
)  # fmt: skip
@opens(
    "remembering", _remembering,
    lake_option("for history that the server no longer has"),
    storage_option,
    source_option,
)  # fmt: skip
@opens(
    "operate", _operating,
    option("--url-operate URL", "Server URL for actions, with a user that has more rights.  [default: --url]"),
)  # fmt: skip
def web(
    session: Session, listening: Listening, allowing: dict[str, Any], looking: dict[str, Any],
    showing: dict[str, Any], remembering: dict[str, Any], operate: Client | None,
) -> None:  # fmt: skip
    """Serve the dashboard until TERM or INT.

    On a loopback address, the command prints a login link, which works once, within ten minutes. For any other address,
    encrypt the connection, and pass either --users, or both --auth-header and --trusted-proxy.
    """
    endpoint, hosts, certificate, key = listening
    access = AccessSettings(bind=endpoint, hosts=hosts, tls=certificate is not None, **allowing)
    from jobq.web.app import create_app
    from jobq.web.serving import BoundedServer
    from jobq.web.settings import WebSettings

    settings = WebSettings(**looking, **showing, **remembering, access=access)
    app = create_app(session.client, operate=operate, settings=settings)
    listens = listen(endpoint)
    _announce(session, address(endpoint, listens, certificate), settings, app.state.site.guard)
    server = BoundedServer(app, listens, ssl_certfile=certificate, ssl_keyfile=key)
    try:
        server.serve_until_signal()
    except KeyboardInterrupt:
        pass
    finally:
        app.state.site.close()
        session.client.close()
        if operate is not None:
            operate.close()


def _announce(session: Session, at: str, settings: Any, guard: Any) -> None:
    link = f"{at}{settings.prefix}/"
    if guard.settings.by_link:
        link += f"login?token={guard.links.make()}"
    session.say({"address": link}, f"dashboard at {link}")
    if guard.settings.no_auth:
        session.note("--no-auth: every process of this machine has all rights there")


def address(endpoint: Endpoint, listening: socket.socket, certificate: str | None = None) -> str:
    """Return the URL of a listening socket."""
    if endpoint.path:
        return f"http+unix://{endpoint.path}"
    name: Any = listening.getsockname()
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if certificate else 'http'}://{host}:{name[1]}"


assert isinstance(web, CommandGroup)


@group(
    "user", "add anna --role operate --users users.json", "list --users users.json",
    "remove anna --users users.json", parent=web,
)  # fmt: skip
def user() -> None:
    """Add, list and remove users of the dashboard."""


@group(
    "token", "add grafana --expires 90d --users users.json", "remove grafana --users users.json",
    parent=web,
)  # fmt: skip
def token() -> None:
    """Add and remove tokens that programs need for the JSON API and /metrics."""


role_option = option(f"--role {ROLES}", "Role of the user.", default="read")
arguments_option = option("--arguments", "Allow seeing the arguments and results of jobs.")
file_option = option(
    "--users FILE", "users_file", "File of users and tokens.",
    type=click.Path(path_type=Path, dir_okay=False), shared=("JOBQ_WEB_USERS",), required=True,
)  # fmt: skip


@command(
    "add",
    "anna --role operate --users users.json",
    "ben --no-password --users users.json",
    group=user,
)
@click.argument("name")
@role_option
@arguments_option
@option("--no-password", "Only a trusted proxy can name this user: --auth-header.")
@option("--replace", "Change an existing user.")
@file_option
def add_user(
    session: Session, name: str, role: str, arguments: bool, no_password: bool, replace: bool, users_file: Path,
) -> None:  # fmt: skip
    """Add a user; the password is read from a prompt or a pipe.

    The file is created with mode 0600. A running dashboard applies the change immediately and ends the user's sessions.
    """
    password = None if no_password else _password(name)
    users.add_user(users_file, name, users.new_user(role, arguments, password), replace=replace)
    session.say({"user": name, "role": role}, f"{name} may {role}")


@command("list", "--users users.json", group=user)
@file_option
def list_users(session: Session, users_file: Path) -> None:
    """List users and tokens, with their roles."""
    entries = users.UsersFile(users_file).entries()
    rows = [
        {"kind": "user", "name": name, "role": entry.role, "arguments": entry.arguments,
         "login": "password" if entry.password else "proxy", "expires": ""}
        for name, entry in entries.users.items()
    ]  # fmt: skip
    rows += [
        {"kind": "token", "name": name, "role": entry.role, "arguments": entry.arguments, "login": "token",
         "expires": users.expiry_text(entry.expires)}
        for name, entry in entries.tokens.items()
    ]  # fmt: skip
    session.say_all(rows, USERS)


@command("remove", "anna --users users.json", group=user)
@click.argument("name")
@file_option
def remove_user(session: Session, name: str, users_file: Path) -> bool:
    """Remove a user and end the user's sessions.

    Exit code 1: there is no such user.
    """
    gone = users.remove_user(users_file, name)
    session.say({"user": name, "removed": gone}, f"{name}: {'removed' if gone else 'unknown'}")
    return gone


@command(
    "add",
    "grafana --expires 90d --users users.json",
    "ci --role operate --users users.json",
    group=token,
)
@click.argument("name")
@role_option
@arguments_option
@option("--expires DURATION", "Lifetime of the token.  [default: forever]", default=None)
@file_option
def add_token(
    session: Session, name: str, role: str, arguments: bool, expires: float | None, users_file: Path
) -> None:
    """Create a token for a program and print it. The users file has only the token's SHA-256, so the token can't be
    shown again.
    """
    until = None if expires is None else int(time.time() + expires)
    made = users.add_token(users_file, name, role, arguments, until)
    record = {"token": made, "name": name, "role": role, "expires": users.expiry_text(until)}
    session.say(record, made)
    session.note(f"send it as: Authorization: Bearer TOKEN; it expires: {record['expires']}")


@command("remove", "grafana --users users.json", group=token)
@click.argument("name")
@file_option
def remove_token(session: Session, name: str, users_file: Path) -> bool:
    """Remove a token.

    Exit code 1: there is no such token.
    """
    gone = users.remove_token(users_file, name)
    session.say({"token": name, "removed": gone}, f"{name}: {'removed' if gone else 'unknown'}")
    return gone


def _password(name: str) -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        return str(
            click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    given = (sys.stdin.readline() if sys.stdin is not None else "").rstrip("\r\n")
    if not given:
        raise ConfigError("no password given; type it at the prompt, or pipe one line")
    return given
