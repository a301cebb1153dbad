"""Verbs that judge: doctor for a server, fsck for queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobq.cli import exits, output
from jobq.cli.options import command, option, queues_option, yes_option
from jobq.cli.session import Session

if TYPE_CHECKING:
    from jobq.engine.diagnosis import Finding
    from jobq.engine.message import Violation
    from jobq.engine.queue import Queue

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

    Refuses eviction policies that lose jobs. Exit code 1: something failed.
    """
    from jobq.engine.doctor import findings

    found = findings(session.client)
    for finding in found:
        show(session, finding)
    bad = {"fail", "warn"} if strict else {"fail"}
    return exits.NO if any(finding.level in bad for finding in found) else exits.OK


def show(session: Session, finding: Finding) -> None:
    """One finding: a JSON line, or its level and what was found, with the remedy below."""
    if session.as_json:
        session.say(finding._asdict(), "")
        return
    level = click.style(
        f"{finding.level:4}", fg=COLORS[finding.level], bold=finding.level == "fail"
    )
    click.echo(f"{level}  {finding.check:11}  {output.escaped(finding.value)}")
    if finding.remedy:
        click.echo(f"{'':19}→ {output.escaped(finding.remedy)}")


@command(
    "fsck",
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
    left = 0
    for queue in session.queues(queues):
        violations = _checked(session, queue)
        for violation in violations:
            record = {"queue": queue.name, "rule": violation.rule, "mid": violation.mid}
            session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}")
        if violations and repairs:
            session.confirmed(f"Repair {len(violations)} of queue {queue.name}?", yes)
            left += _repaired(session, queue, violations)
        elif violations:
            left += len(violations)
        else:
            session.say({"queue": queue.name, "rule": None, "mid": None}, f"{queue.name}: clean")
    return exits.NO if left else exits.OK


def _repaired(session: Session, queue: Queue, violations: list[Violation]) -> int:
    """How many don't hold after all. What a repair uncovers is repaired too."""
    from jobq.engine.fsck import repair

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
    from jobq.engine.fsck import PARTS, steps

    found: list[Violation] = []
    length = len(PARTS) + sum(queue.counts()[:-1]) // 500
    with output.progress(length, f"fsck {queue.name}", quiet=session.as_json) as bar:
        for violations in steps(queue):
            found += violations
            bar.update(1)
    return found
