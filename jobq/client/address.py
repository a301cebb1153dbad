"""Read URLs of servers: the kind of deployment, its hosts, and the connection options.

- ``redis://user:password@host:6379/0``, or ``rediss://`` for TLS
- ``unix:///path/redis.sock?db=0``
- ``redis+sentinel://host1:26379,host2:26379/service/0``, or ``rediss+sentinel://`` for TLS
- ``redis+cluster://host1:7000,host2:7001``, or ``rediss+cluster://`` for TLS

After ``?``, a URL may have options of redis-py's connections, and ``sentinel_username`` and ``sentinel_password`` for
Sentinels.
"""

from __future__ import annotations

import inspect
import re
import socket
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from redis.connection import AbstractConnection, Connection, parse_url

from jobq.config import servers_of_tests
from jobq.errors import ConfigError, masked

Host = tuple[str, int]

_KINDS = {
    "redis": ("single", "redis"),
    "rediss": ("single", "rediss"),
    "unix": ("single", "unix"),
    "redis+sentinel": ("sentinel", "redis"),
    "rediss+sentinel": ("sentinel", "rediss"),
    "redis+cluster": ("cluster", "redis"),
    "rediss+cluster": ("cluster", "rediss"),
}
#: redis-py's names of the options for Sentinels, by their names in a URL.
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
#: Options of redis-py that jobq doesn't use, with jobq's equivalents.
_OTHERWISE = {
    "health_check_interval": "jobq notices a dead connection at the next call, and repeats the call on another",
    "retry": "JOBQ_PATIENCE sets how long calls are repeated",
    "retry_on_timeout": "JOBQ_PATIENCE sets how long calls are repeated",
    "retry_on_error": "JOBQ_PATIENCE sets how long calls are repeated",
    "max_connections": "a process has one connection for each concurrent call",
    "timeout": "socket_timeout limits the wait for a reply, socket_connect_timeout the wait for a connection",
}
#: The system ends a TCP connection after this time without an answer.
SILENT_PEER_S = 30
#: Options of a TCP connection: after 10 idle seconds, up to four probes, 5 s apart. Sent data may stay unacknowledged
#: equally long.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in {
        "TCP_KEEPIDLE": SILENT_PEER_S - 20,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": SILENT_PEER_S * 1000,
    }.items()
    if hasattr(socket, name)
}


#: Matches a URL without a scheme: `localhost:6379`, `:password@10.0.0.7:6379/1`.
_WITHOUT_SCHEME = re.compile(r"([^/@\s]*@)?[\w.-]+(:\d+)?(/\d+)?")


class Address(NamedTuple):
    """The parts of a server's URL.

    Attributes:
        kind: 'single', 'sentinel' or 'cluster'.
        plain: A URL that redis-py understands.
        hosts: The hosts in the URL, with their ports; empty for a Unix socket.
        service: Name of the service that the Sentinels watch.
    """

    kind: str
    plain: str
    hosts: list[Host]
    service: str = ""

    def __repr__(self) -> str:
        return f"Address({self.kind!r}, {masked(self.plain)!r}, {self.hosts!r}, {self.service!r})"


def parse(url: str) -> Address:
    """Read a URL. Raises ConfigError if it is invalid; the error never shows the password."""
    if meant := masked(_with_scheme(url)):
        raise ConfigError(f"url {meant.partition('://')[2]!r} has no scheme; write {meant}")
    parts = _split(url)
    if parts.scheme in _KINDS and parts.scheme != "unix" and "://" not in url:
        raise ConfigError(f"the url has no // after {parts.scheme!r}; write {parts.scheme}://host")
    kind, scheme, query = _kind(url, parts)
    if scheme == "unix":
        return Address("single", f"unix://{parts.netloc}{parts.path}{query}", [])
    credentials, at, hosts = parts.netloc.rpartition("@")
    pairs = [_host(url, host, _PORTS[kind]) for host in hosts.split(",")]
    service, path = "", parts.path
    if kind == "sentinel":
        service, _, db = path.strip("/").partition("/")
        path = f"/{db}" if db else ""
        if not service:
            raise ConfigError(
                f"url {masked(url)!r} doesn't name the service that the Sentinels watch; append it: "
                "redis+sentinel://host:26379/mymaster"
            )
    elif len(pairs) > 1 and kind == "single":
        raise ConfigError(
            f"url {masked(url)!r} names several hosts; begin it with {scheme}+cluster:// for a Cluster, or "
            f"{scheme}+sentinel:// for Sentinels"
        )
    host, port = pairs[0]
    shown = f"[{host}]" if ":" in host else host
    return Address(kind, f"{scheme}://{credentials}{at}{shown}:{port}{path}{query}", pairs, service)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    # The path of a socket may contain @. In other URLs, an @ here means that a character in the password isn't escaped.
    a_path = parts is not None and parts.scheme == "unix" and not parts.netloc
    if parts is None or ("@" in parts.path + parts.query + parts.fragment and not a_path):
        # Not `from error`: Python's error quotes the password.
        raise ConfigError(
            f"url {masked(url)!r} can't be read; put an IPv6 address in brackets, such as [::1]; in user and "
            "password, encode / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D and @ as %40"
        )
    return parts


def place(url: str) -> str:
    """Return a server's URL without database, credentials and options."""
    parts = urlsplit(url)
    return (
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path * (parts.scheme == 'unix')}"
    )


def refuse_outside_tests(url: str | None) -> None:
    """Raise ConfigError if a test would connect to a server that JOBQ_TEST_SERVERS doesn't list.

    Args:
        url: URL of the server; None means the embedded server.
    """
    allowed = servers_of_tests()
    if allowed is None or "*" in allowed:
        return
    if url is None or place(url) not in map(place, allowed):
        shown = masked(url) if url else "the embedded server"
        raise ConfigError(
            f"under pytest, jobq connects only to test servers, not to {shown}; use the fixture jobq, or allow the "
            "server with --jobq-url, with jobq_servers in the ini file, or with jobq.testing.allow_server(url)"
        )


def _kind(url: str, parts: SplitResult) -> tuple[str, str, str]:
    if parts.scheme not in _KINDS:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise ConfigError(f"url {masked(url)!r} must begin with one of {known}")
    kind, scheme = _KINDS[parts.scheme]
    options = dict(parse_qsl(parts.query))
    if options.pop("cluster", "").lower() in ("true", "1", "yes"):
        kind = "cluster"
    for name in _OF_SENTINELS if kind == "sentinel" else ():
        options.pop(name, None)
    return kind, scheme, f"?{urlencode(options)}" if options else ""


def _with_scheme(text: str) -> str:
    """Return the URL for a text without a scheme, such as `localhost:6379/0` or the path of a socket.

    Return '' for any other text.
    """
    if text.startswith("/") and not text.startswith("//"):
        return f"unix://{text}"
    return f"redis://{text}" if _WITHOUT_SCHEME.fullmatch(text) else ""


def sentinel_login(url: str) -> dict[str, str]:
    """Return the user and the password for the Sentinels, if the URL has them."""
    options = dict(parse_qsl(_split(url).query))
    return {option: options[name] for name, option in _OF_SENTINELS.items() if options.get(name)}


def connection_options(plain: str) -> tuple[Any, dict[str, Any]]:
    """Return redis-py's connection class for a plain URL, and its keyword arguments.

    Raises ConfigError if the URL can't be read or has an option without effect.
    """
    try:
        options: dict[str, Any] = dict(parse_url(plain))
    except ValueError as error:
        raise ConfigError(f"url {masked(plain)!r} can't be read: {masked(str(error))}") from None
    make = options.pop("connection_class", Connection)
    for name in options.keys() - _known(make):
        remedy = _OTHERWISE.get(name, "see Connections in the guide for the supported options")
        raise ConfigError(
            f"url {masked(plain)!r} has the option {name}, which has no effect in jobq; remove it: {remedy}"
        )
    if "socket_keepalive_options" in _known(make):
        options = {
            "socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE, **options,
        }  # fmt: skip
    return make, options


@cache
def _known(make: type[AbstractConnection]) -> frozenset[str]:
    """Return the options of redis-py's connection class that have an effect in jobq."""
    names = {name for part in make.__mro__[:-1] for name in inspect.signature(part).parameters}
    return frozenset(names - _OTHERWISE.keys())


def _host(url: str, text: str, port: int) -> Host:
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, number = text, str(port)
    if not number.isdigit() or not 0 < int(number) < 65536:
        raise ConfigError(f"url {masked(url)!r} needs a port between 1 and 65535")
    return host.strip("[]") or "localhost", int(number)
