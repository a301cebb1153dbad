"""`jobq acl`: print users with minimal rights for each role."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jobq.cli.arguments import names_of
from jobq.cli.options import option, queues_option
from jobq.cli.session import Session, command
from jobq.client.address import connection_options, parse
from jobq.limits.keys import reading as seeing_limits
from jobq.limits.keys import rights as of_limits
from jobq.limits.keys import within as within_limits
from jobq.protocols.reliable.keys import rights as of_reliable
from jobq.protocols.reliable.keys import rights_to_look as seeing_reliable
from jobq.protocols.rsmq.keys import rights as of_rsmq
from jobq.protocols.rsmq.keys import rights_to_look as seeing_rsmq
from jobq.protocols.ruby.key_names import rights_to_look as seeing_ruby
from jobq.queue.roles import DURABLE_ROLES, rights
from jobq.topics.keys import rights as of_topics
from jobq.topics.keys import rights_to_lag, rights_to_steer

ROLES = ("producer", "worker", "dashboard", "operator", "metrics", "deployer")
#: Printed only when asked for.
MORE = ("topic", "limit", "rsmq", "reliable", "pipeline")
#: Of protocols with names of their own.
_OF_OTHERS = ("rsmq", "reliable")
#: Roles that also use limits.
_WITH_LIMITS = ("worker", "operator")
#: Roles that read how far groups of topics are behind.
_WITH_LAG = ("dashboard", "metrics")


@command(
    "acl",
    "",
    "producer --user shop --queues low,high",
    "worker | valkey-cli",
    "worker --disk",
    "metrics --user exporter",
    "topic --user shop --queues orders",
    "rsmq --user shop --queues mails",
    "pipeline --user spark",
    "--file | tee users.acl",
)
@click.argument("role", type=click.Choice((*ROLES, *MORE)), required=False)
@option("--user NAME", "Name of the user.  [default: jobq_ and the role]")
@option("--ns NAME", "Prefix of the keys, for rsmq and reliable.  [default: the role]")
@option("--disk", "disk", "Allow durability disk, which needs to read the server's settings.")
@option("--file", "as_file", "Print the lines of an ACL file.")
@queues_option
def acl(
    session: Session, role: str | None, user: str | None, ns: str | None, disk: bool, as_file: bool,
    queues: str | None,
) -> None:  # fmt: skip
    """Print commands that create users with minimal rights.

    Without ROLE, the commands create one user for each of the first six roles. The roles `topic`, `rsmq` and `reliable`
    may use the topics or queues in --queues. The roles `limit`, `worker` and `operator` may use and set all limits.
    The role `pipeline` may read and write DataFrames, and fill lakes. The command does not connect to a server.

    The rights cover this version's scripts and functions, and the database in --url. The users can't log in until you
    set passwords: ACL SETUSER name '>…'.
    """
    if ns is not None and role not in _OF_OTHERS:
        raise click.UsageError("--ns needs the role rsmq or reliable")
    if disk and role not in (None, *DURABLE_ROLES):
        raise click.UsageError(f"--disk needs one of the roles {', '.join(DURABLE_ROLES)}")
    for chosen in (role,) if role else ROLES:
        name = user or f"jobq_{chosen}"
        words = _rights(chosen, session.settings.namespace, ns, queues or "", disk)
        words += _database(session.settings.url)
        record = {"role": chosen, "user": name, "rights": words}
        session.say(record, _line(name, words, as_file))
    session.note("these users have no password yet; set one with ACL SETUSER name '>…'")


def _rights(role: str, namespace: str, ns: str | None, queues: str, disk: bool) -> list[str]:
    if role == "reliable":
        # Their names may have colons, and are not followed by weights.
        return of_reliable(ns or role, [part.strip() for part in queues.split(",") if part.strip()])

    names = names_of(queues)
    if role == "rsmq":
        return of_rsmq(ns or role, names)
    if role == "topic":
        return of_topics(namespace, names)
    if role == "limit":
        return of_limits(namespace)
    if role == "pipeline":
        from jobq.pipeline.rights import rights as of_pipeline

        return of_pipeline(namespace, names)

    words = rights(role, namespace, names, disk=disk)
    if role in _WITH_LAG:
        words += rights_to_lag(namespace)
    if role == "operator":
        words += rights_to_steer(namespace)
    if role in _WITH_LIMITS:
        words += within_limits(namespace, repairing=role == "operator")
    if role == "dashboard":
        words += _seeing(namespace, names)
    return words


def _seeing(namespace: str, queues: Sequence[str]) -> list[str]:
    words = seeing_limits(namespace)
    if queues:
        return words
    return [*words, *seeing_rsmq(), *seeing_reliable(), *seeing_ruby(namespace)]


def _database(url: str | None) -> list[str]:
    if not url:
        return []

    _, options = connection_options(parse(url).plain)
    return [f"+select|{options['db']}"] if options.get("db") else []


def _line(name: str, words: list[str], as_file: bool) -> str:
    if as_file:
        return " ".join(["user", name, "on", *words])
    # A selector is one word to the server, whose command line takes quotes.
    quoted = (
        f'"{word}"'.replace("\\", "\\\\") if " " in word or "\\" in word else word for word in words
    )
    return " ".join(["ACL SETUSER", name, "reset", "on", *quoted])
