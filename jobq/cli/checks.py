"""Verbs that judge: doctor for a server, fsck for queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobq.cli import exits, output
from jobq.cli.options import command, option, queues_option
from jobq.cli.session import Session

if TYPE_CHECKING:
    from jobq.engine.diagnosis import Finding
    from jobq.engine.message import Violation
    from jobq.engine.queue import Queue

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


@command("fsck", examples="jobq fsck\njobq fsck --queues low,high --json")
@queues_option
def fsck(session: Session, queues: str | None) -> int:
    """Check queues against the engine's invariants, while they are in use; nothing is mended.

    Exit code 1: something doesn't hold.
    """
    found = 0
    for queue in session.queues(queues):
        violations = _looked_over(session, queue)
        found += len(violations)
        for violation in violations:
            record = {"queue": queue.name, "rule": violation.rule, "mid": violation.mid}
            session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}")
        if not violations:
            session.say({"queue": queue.name, "rule": None, "mid": None}, f"{queue.name}: clean")
    return exits.NO if found else exits.OK


def _looked_over(session: Session, queue: Queue) -> list[Violation]:
    from jobq.engine.fsck import STRETCHES, steps

    found: list[Violation] = []
    length = len(STRETCHES) + sum(queue.counts()[:-1]) // 500
    with output.progress(length, f"fsck {queue.name}", quiet=session.as_json) as bar:
        for violations in steps(queue):
            found += violations
            bar.update(1)
    return found
