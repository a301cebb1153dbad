"""The verb that counts: what became of a time range's messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    from jobq.queue.audit import Audit
    from jobq.queue.audited import Audited
    from jobq.queue.queue import Queue

    #: A time of the command line, by a queue's server.
    Moment = Callable[[Queue], int | None]

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

    Needs 'jobq events level all' before the range. Exit code 1: something is lost; 2: the events of a queue
    don't tell, and why. The other queues are audited all the same.
    """
    if following is not None and (since or until):
        raise ConfigError(f"--for {following:g} s starts now; leave out --since and --until")
    first, last = _moment(since), _moment(until)
    found: list[tuple[Queue, Audit]] = []
    for queue in session.readable(queues):
        with _tolerating(session, queue):
            found.append((queue, _begun(queue, first, last, following)))
    _follow(session, found, following or 0)
    lost = False
    for queue, one in found:
        with _tolerating(session, queue):
            result = one.result()
            show(session, result)
            lost = lost or bool(result.lost)
    return exits.NO if lost else exits.OK


@contextmanager
def _tolerating(session: Session, queue: Queue) -> Iterator[None]:
    """As the session's own; events that don't tell are a problem of their queue alone, too."""
    try:
        with session.tolerating(queue.name):
            yield
    except ConfigError as error:
        text = str(error).removeprefix(f"queue {queue.name!r}: ")
        session.problem(f"queue {queue.name}", ConfigError(text))


def _begun(queue: Queue, since: Moment, until: Moment, following: float | None) -> Audit:
    from jobq.queue.audit import Audit

    if following is not None:
        return Audit(queue, following=True)
    return Audit(queue, since(queue), until(queue))


def _moment(text: str | None) -> Moment:
    """What it stands for by the clock of a queue's server, epoch ms."""
    from jobq.queue.audit import server_ms

    if text is None:
        return lambda queue: None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        ago_ms = round(duration_s(text) * 1000)
        return lambda queue: server_ms(queue) - ago_ms
    if at.tzinfo is None:
        raise ConfigError(f"{text!r} has no time zone; append Z for UTC, or +01:00")
    at_ms = round(at.timestamp() * 1000)
    return lambda queue: at_ms


def _follow(session: Session, found: list[tuple[Queue, Audit]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for queue, one in found:
            with _tolerating(session, queue):
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
        "finished of earlier ones": result.earlier, "unreadable records": result.unreadable,
    }  # fmt: skip
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    session.say(asdict(result), f"{told} ({rest})" if rest else told)
    if result.clock_jumps:
        session.note(
            f"{result.queue}: the server's clock was set back in the range (clock_jump events: "
            f"{result.clock_jumps:,}), so some times came twice; what --since and --until leave out is not exact"
        )
    if not session.as_json:
        for mid in result.lost_mids[:TOLD_MIDS]:
            session.say({}, f"  lost: {mid}")
        if len(result.lost_mids) > TOLD_MIDS:
            click.echo(f"  and {len(result.lost_mids) - TOLD_MIDS:,} more; --json names all")
