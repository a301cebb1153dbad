"""Verbs that judge: doctor for a server, fsck for queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobq.cli import exits, output
from jobq.cli.options import command, option, queues_option, yes_option
from jobq.cli.session import Session
from jobq.errors import ScriptError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobq.client.connection import Client
    from jobq.queue.diagnosis import Finding
    from jobq.queue.queue import Queue
    from jobq.queue.types import Violation

#: A key of another type hides what it held, so that a repair may uncover more.
REPAIRS = 3
COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@command(
    "doctor",
    examples="""
        jobq doctor
        jobq doctor --url rediss://app:secret@queue.example:6379 --strict
        jobq doctor --json | jq 'select(.level != "ok")'
    """,
)
@option("--strict", is_flag=True, help="Warnings count as failures.")
def doctor(session: Session, strict: bool) -> int:
    """Judge the server: can jobq work there, and what would be lost when.

    Every node of a Cluster is judged, and replicas that a Cluster or Sentinels may promote. Refuses eviction
    policies that lose jobs. Exit code 1: something failed.
    """
    from jobq.queue.doctor import findings

    found = findings(session.client)
    if not any(finding.check == "server" and finding.level == "fail" for finding in found):
        found += _unserved(session)
    for finding in found:
        show(session, finding)
    bad = {"fail", "warn"} if strict else {"fail"}
    return exits.NO if any(finding.level in bad for finding in found) else exits.OK


def _unserved(session: Session) -> Iterator[Finding]:
    """Queues with ready messages and no worker."""
    from jobq.queue.diagnosis import Finding
    from jobq.queue.directory import served

    with session.tolerating("workers", "list of"):
        workers = served(session.client)
        counted = session.from_each(None, lambda queue: [(queue.name, queue.admin.counts())])
        for name, counts in counted:
            if counts.ready and not counts.paused and name not in workers:
                value = f"queue {name}: {counts.ready:,} ready, and no worker serves it"
                yield Finding(
                    "workers", "warn", value, f"jobq worker --import MODULE --queues {name}"
                )


def show(session: Session, finding: Finding) -> None:
    """One finding: a JSON line, or its level and what was found, with the remedy below."""
    if session.as_json:
        session.say(finding._asdict(), "")
        return
    level = click.style(
        f"{finding.level:4}", fg=COLORS[finding.level], bold=finding.level == "fail"
    )
    of = f"{finding.node}: " if finding.node else ""
    click.echo(f"{level}  {finding.check:11}  {output.escaped(of + finding.value)}")
    if finding.remedy:
        click.echo(f"{'':19}→ {output.escaped(finding.remedy)}")


@command(
    "fsck",
    changes=True,
    examples="jobq fsck\njobq fsck --queues low,high --json\njobq fsck --queues low --repair",
)
@queues_option
@option("--repair", "repairs", is_flag=True, help="Repair what doesn't hold.")
@yes_option
def fsck(session: Session, queues: str | None, repairs: bool, yes: bool) -> int:
    """Check queues against the engine's invariants, while they are in use.

    --repair puts messages back into the place that they belong to, and counts again. It removes bytes that can't
    be a message id and entries among the dead that hold no message, and renames keys of another type.
    Exit code 1: something doesn't hold, and wasn't repaired.
    """
    left = 0 if queues else _names(session, repairs, yes)
    judged = session.from_each(
        queues, lambda queue: [_judged(session, queue, repairs, yes)], strange=False
    )
    left += sum(judged)
    return exits.NO if left else exits.OK


def _names(session: Session, repairs: bool, yes: bool) -> int:
    """How many names in the lists of queues and topics can't be one, and were left there."""
    from jobq.queue.directory import forget_queue, strange_queue_names
    from jobq.topics.binding import forget_topic, strange_topic_names

    return sum(
        _strange(session, kind, listed, forget if repairs else None, yes)
        for kind, listed, forget in (
            ("queue", strange_queue_names, forget_queue),
            ("topic", strange_topic_names, forget_topic),
        )
    )


def _strange(
    session: Session, kind: str, listed: Callable[[Client], list[bytes]],
    forget: Callable[[Client, bytes], object] | None, yes: bool,
) -> int:  # fmt: skip
    try:
        names = listed(session.client)
    except (UnavailableError, ScriptError) as error:
        if kind == "topic" and (session.client.is_cluster or isinstance(error, ScriptError)):
            session.problem("the list of topics", error)
        return 0  # that of queues is told where they are listed
    rule = f"not a {kind}'s name"
    shown = [name.decode("utf-8", "backslashreplace") for name in names]
    for text in shown:
        session.say({"queue": None, "rule": rule, "mid": text}, f"{rule}: {text}")
    if not names or forget is None:
        return len(names)
    session.confirmed(f"Remove {len(names)} from the list of {kind}s?", yes)
    for name, text in zip(names, shown, strict=True):
        forget(session.client, name)
        record = {"queue": None, "rule": rule, "mid": text, "repair": "removed"}
        session.say(record, f"{rule}: {text}: removed")
    return 0


def _judged(session: Session, queue: Queue, repairs: bool, yes: bool) -> int:
    """How many don't hold, after the repair if there is one."""
    violations = _checked(session, queue)
    for violation in violations:
        record = {"queue": queue.name, "rule": violation.rule, "mid": violation.mid}
        session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}")
    if not violations:
        session.say({"queue": queue.name, "rule": None, "mid": None}, f"{queue.name}: clean")
    elif repairs:
        session.confirmed(f"Repair {len(violations)} of queue {queue.name}?", yes)
        return _repaired(session, queue, violations)
    return len(violations)


def _repaired(session: Session, queue: Queue, violations: list[Violation]) -> int:
    """How many don't hold after all. What a repair uncovers is repaired too."""
    from jobq.queue.fsck import repair

    for _ in range(REPAIRS):
        for violation, done in repair(queue, violations):
            record = {
                "queue": queue.name, "rule": violation.rule, "mid": violation.mid, "repair": done
            }  # fmt: skip
            session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}: {done}")
        violations = _checked(session, queue)
        if not violations:
            break
    return len(violations)


def _checked(session: Session, queue: Queue) -> list[Violation]:
    from jobq.queue.fsck import PARTS, steps

    found: list[Violation] = []
    try:
        length = len(PARTS) + sum(queue.admin.counts()[:-1]) // 500
    except ScriptError:
        length = len(PARTS)  # a key of another type, which the check itself names
    with output.progress(length, f"fsck {queue.name}", quiet=session.as_json) as bar:
        for violations in steps(queue):
            found += violations
            bar.update(1)
    return found
