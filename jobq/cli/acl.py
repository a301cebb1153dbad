"""`jobq acl`: users with no more rights than their part in jobq needs."""

from __future__ import annotations

import click

from jobq.cli.options import command, option, queues_option
from jobq.cli.session import Session

ROLES = ("producer", "worker", "dashboard", "operator", "deployer")
#: Printed only when asked for.
MORE = ("topic",)


@command(
    "acl",
    examples="""
        jobq acl
        jobq acl producer --user shop --queues low,high
        jobq acl worker | valkey-cli
        jobq acl topic --user shop --queues orders
        jobq acl --file | tee users.acl
    """,
)
@click.argument("role", type=click.Choice((*ROLES, *MORE)), required=False)
@option("--user", metavar="NAME", help="The user's name.  [default: jobq_ and the role]")
@option("--file", "as_file", is_flag=True, help="As lines of an ACL file.")
@queues_option
def acl(
    session: Session, role: str | None, user: str | None, as_file: bool, queues: str | None
) -> None:
    """Print the commands that make users with the rights of ROLE, else one of each; no server is asked.

    topic is a user of topics, whose names --queues takes then; it is printed only when asked for.

    Rights are read from the scripts of this version, for processes with JOBQ_FUNCTIONS=1. No user has a
    password, so none can log in until one is given: ACL SETUSER name '>…'.
    """
    from jobq.config import parse_queues

    names = [name for name, _ in parse_queues(queues)] if queues else []
    for one in (role,) if role else ROLES:
        name = user or f"jobq_{one}"
        words = _rights(one, session.settings.namespace, names)
        record = {"role": one, "user": name, "rights": words}
        session.say(record, _line(name, words, as_file))
    session.note("No user has a password yet: ACL SETUSER name '>…'")


def _rights(role: str, namespace: str, names: list[str]) -> list[str]:
    if role == "topic":
        from jobq.compat.topic.rights import rights as of_topics

        return of_topics(namespace, names)
    from jobq.engine.rights import rights

    return rights(role, namespace, names)


def _line(name: str, words: list[str], as_file: bool) -> str:
    if as_file:
        return " ".join(["user", name, "on", *words])
    # A selector is one word to the server, whose command line takes quotes.
    quoted = (
        f'"{word}"'.replace("\\", "\\\\") if " " in word or "\\" in word else word for word in words
    )
    return " ".join(["ACL SETUSER", name, "reset", "on", *quoted])
