"""The verb that counts: what became of a time range's messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from jobq.cli import exits
from jobq.cli.options import DURATION, command, option, queues_option
from jobq.cli.session import Session
from jobq.config import duration_s
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.chaos.audit import Audit
    from jobq.engine.audited import Audited
    from jobq.engine.queue import Queue

READ_EVERY_S = 0.5
TOLD_MIDS = 20


@command(
    "audit",
    examples="""
        jobq audit --queues low --since 1h
        jobq audit --since 2026-11-21T07:00:00Z --until 2026-11-21T08:00:00Z --json
        jobq audit --queues high,low --for 10m
    """,
)
@queues_option
@option(
    "--since",
    metavar="WHEN",
    help="Accepted from then on: 1h (ago), or a moment with a zone.  [default: all on record]",
)
@option("--until", metavar="WHEN", help="Accepted up to then.  [default: now]")
@option(
    "--for", "following", type=DURATION, metavar="DURATION",
    help="From now on for so long, reading along, so that nothing is trimmed unread.",
)  # fmt: skip
def audit(
    session: Session,
    queues: str | None,
    since: str | None,
    until: str | None,
    following: float | None,
) -> int:
    """Count by the events what was accepted in a time range, and what became of it, while it goes on.

    Needs 'jobq events level all' before the range. Exit code 1: something is lost; 2: the events don't
    tell.
    """
    from jobq.chaos.audit import Audit, server_ms

    if following is not None and (since or until):
        raise ConfigError(f"--for {following:g} s starts now; leave out --since and --until")
    found: list[Audit] = []
    for queue in session.queues(queues):
        start = server_ms(queue) + 1 if following is not None else _moment(queue, since)
        found.append(Audit(queue, start, _moment(queue, until)))
    _follow(found, following or 0)
    results = [one.result() for one in found]
    for result in results:
        show(session, result)
    return exits.NO if any(result.lost for result in results) else exits.OK


def _moment(queue: Queue, text: str | None) -> int | None:
    from jobq.chaos.audit import server_ms

    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return server_ms(queue) - round(duration_s(text) * 1000)
    if at.tzinfo is None:
        raise ConfigError(f"{text!r} has no time zone; append Z for UTC, or +01:00")
    return round(at.timestamp() * 1000)


def _follow(found: list[Audit], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for one in found:
            one.read()
        time.sleep(min(left, READ_EVERY_S))


def show(session: Session, result: Audited, more: Mapping[str, int] | None = None) -> None:
    """One queue's answer; `more`: further figures by what they count."""
    told = (
        f"{result.queue}: {result.accepted:,} accepted, {result.finished:,} finished, "
        f"{result.duplicates:,} duplicates, {result.lost:,} lost"
    )
    counts = {
        **(more or {}), "waiting or running": result.live, "superseded by newer content": result.superseded,
        "finished of earlier ones": result.earlier,
    }  # fmt: skip
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    session.say(asdict(result), f"{told} ({rest})" if rest else told)
    if not session.as_json:
        for mid in result.lost_mids[:TOLD_MIDS]:
            session.say({}, f"  lost: {mid}")
        if len(result.lost_mids) > TOLD_MIDS:
            click.echo(f"  and {len(result.lost_mids) - TOLD_MIDS:,} more; --json names all")
