"""`jobq rsmq queue`: make queues, look at them, change them."""

from __future__ import annotations

from typing import Any

import click

from jobq.cli import output
from jobq.cli.options import Group, command, option, yes_option
from jobq.cli.rsmq_session import name_option, ns_option, opened, telling
from jobq.cli.session import Session


@click.group("queue", cls=Group)
def queue() -> None:
    """Queues and their settings."""


queue.examples = "jobq rsmq queue list\njobq rsmq queue create -n mails -t 60"


@command("list", examples="jobq rsmq queue list\njobq rsmq queue list --ns '{rsmq}'")
@ns_option
def list_(session: Session, ns: str) -> None:
    """Names of the queues, a JSON array. What somebody wrote there and can't be one is told on stderr."""
    from jobq.protocols.rsmq.checks import can_name

    with telling("Failed to list the queues"):
        names = opened(session, ns).list_queues()
    click.echo(output.json_text([name for name in names if can_name(name)]))
    for name in names:
        if not can_name(name):
            text = f"{name!r} is listed and can't be a queue's name; queue delete -n takes it off the list"
            click.echo(output.escaped(text), err=True)


@command("create", examples="jobq rsmq queue create -n mails -t 60 -d 5 -m -1")
@name_option
@option(
    "-t",
    "--visibility-timeout",
    "vt",
    key="vt",
    type=int,
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long a received message is hidden.",
)
@option(
    "-d",
    "--delay",
    type=int,
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="How long a sent message is hidden.",
)
@option(
    "-m",
    "--maxsize",
    type=int,
    default=65535,
    show_default=True,
    metavar="BYTES",
    help="Longest message, 1024 to 65536, -1 for any.",
)
@ns_option
def create(session: Session, name: str, vt: int, delay: int, maxsize: int, ns: str) -> None:
    """Make a queue. Exit code 1: there is one of this name."""
    with telling(f"Failed to create queue: {name}"):
        opened(session, ns).create_queue(name, vt, delay, maxsize)
    _say(session, name, "created")


@command("describe", examples="jobq rsmq queue describe -n mails")
@name_option
@ns_option
def describe(session: Session, name: str, ns: str) -> None:
    """Settings, totals and counts of a queue, as JSON."""
    with telling(f"Failed to describe queue: {name}"):
        attributes = opened(session, ns).get_queue_attributes(name)
    click.echo(output.json_line(attributes.as_dict()))


@command("set", examples="jobq rsmq queue set -n mails -t 120")
@name_option
@option(
    "-t",
    "--visibility-timeout",
    "vt",
    key="vt",
    type=int,
    metavar="SECONDS",
    help="How long a received message is hidden.",
)
@option("-d", "--delay", type=int, metavar="SECONDS", help="How long a sent message is hidden.")
@option(
    "-m", "--maxsize", type=int, metavar="BYTES", help="Longest message, 1024 to 65536, -1 for any."
)
@ns_option
def set_(session: Session, name: str, ns: str, **settings: Any) -> None:
    """Change what is given; prints what describe does."""
    with telling(f"Failed to set attributes of queue: {name}"):
        attributes = opened(session, ns).set_queue_attributes(name, **settings)
    click.echo(output.json_line(attributes.as_dict()))


@command("delete", examples="jobq rsmq queue delete -n mails")
@name_option
@ns_option
def delete(session: Session, name: str, ns: str) -> None:
    """Delete a queue with all its messages."""
    with telling(f"Failed to delete queue: {name}"):
        opened(session, ns).delete_queue(name)
    _say(session, name, "deleted")


@command("purge", examples="jobq rsmq queue purge -n mails --yes")
@name_option
@ns_option
@yes_option
def purge(session: Session, name: str, ns: str, yes: bool) -> None:
    """Delete all messages of a queue, hidden ones too; the queue stays."""
    session.confirmed(f"Delete all messages of {name}?", yes)
    with telling(f"Failed to purge queue: {name}"):
        gone = opened(session, ns).purge(name)
    session.say({"queue": name, "purged": gone}, f"{name}: {gone:,} messages deleted")


@command("heal", examples="jobq rsmq queue heal -n mails")
@name_option
@ns_option
def heal(session: Session, name: str, ns: str) -> None:
    """Remove what crashed clients left: ids without a body, fields of messages that are gone."""
    with telling(f"Failed to heal queue: {name}"):
        healed = opened(session, ns).heal(name)
    text = f"{name}: {healed.phantoms:,} ids without a body, {healed.fields:,} fields without a message"
    session.say({"queue": name, **healed._asdict()}, text)


@command(
    "redrive",
    examples="""
        jobq rsmq queue redrive -n mails-dead --to mails
        jobq rsmq queue redrive -n mails-dead --to mails --limit 1
    """,
)
@name_option
@option("--to", "target", required=True, metavar="QUEUE", help="Where they go.")
@option("--limit", type=click.IntRange(1), metavar="N", help="So many at most.  [default: all]")
@ns_option
def redrive(session: Session, name: str, target: str, limit: int | None, ns: str) -> None:
    """Move what is visible in one queue to another, as from a dead-letter queue back."""
    with telling(f"Failed to redrive from {name} to {target}"):
        moved = opened(session, ns).redrive(name, target, limit)
    session.say(
        {"queue": name, "to": target, "moved": moved},
        f"{name}: {moved:,} messages moved to {target}",
    )


def _say(session: Session, name: str, action: str) -> None:
    if session.as_json:
        session.say({"queue": name, "action": action}, "")


for verb in (list_, create, describe, set_, delete, purge, heal, redrive):
    queue.add_command(verb)
