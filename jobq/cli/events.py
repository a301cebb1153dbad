"""`jobq events`: show recorded events, and set the kinds and the number of events that a queue keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import click

from jobq.cli import exits, output
from jobq.cli.options import group, limit_option, option, queues_arguments, queues_option
from jobq.cli.session import Session, command
from jobq.client.names import base_of, is_partition
from jobq.errors import BadRecordError
from jobq.events import ATTEMPTS, LEVELS, MAXLENS, Event, decode
from jobq.queue.folding import without_partitions
from jobq.queue.queue import Queue

POLL_EVERY_S = 0.25
PAGE = 1_000


@group("events", "tail --follow", "level all --queues low", "maxlen 1000000 --queues low")
def events() -> None:
    """Show recorded events, and set how much is recorded.

    By default a queue records each finished attempt.
    """


@command("level", "", "all --queues low", group=events, operation="events-level")
@click.argument("level", type=click.Choice(LEVELS), required=False)
@queues_option
def level(session: Session, level: str | None, queues: str | None) -> None:
    """Show or set the level of recorded events: off, attempts, or all (attempts and enqueues)."""
    # Change all queues before printing, so that a closed pipe can't interrupt the changes.
    with session.operation(queues, f"level:{level}", when=level is not None):
        levels = list(
            session.from_each(queues, lambda q: [(q.name, q.admin.events_level(level or ""))])
        )
    for name, now in without_partitions(levels):
        session.say({"queue": name, "level": now}, f"{name}: {now}")


@command("maxlen", "", "1000000 --queues low", group=events, operation="events-maxlen")
@click.argument("length", type=click.IntRange(*MAXLENS), required=False)
@queues_option
def maxlen(session: Session, length: int | None, queues: str | None) -> None:
    """Show or set the approximate number of events that each queue keeps. New events replace the oldest events."""
    with session.operation(queues, f"maxlen:{length}", when=length is not None):
        lengths = list(
            session.from_each(queues, lambda q: [(q.name, q.admin.events_maxlen(length))])
        )
    for name, now in without_partitions(lengths):
        session.say({"queue": name, "maxlen": now}, f"{name}: {now:,}")


@command("tail", "", "low -n 100 --json", "--follow", group=events)
@limit_option(20, PAGE)
@option("--follow", "Print new events until Ctrl-C.")
@queues_arguments
def tail(session: Session, limit: int, follow: bool, queues: str | None) -> int | bool:
    """Print the latest events in chronological order.

    Each line shows the time, queue, kind, job, message and attempt of an event, then the event's other fields. Exit
    code 1: there are no events.
    """
    streams = [_Stream(queue) for queue in session.readable(queues)]
    entries = sorted(_read(session, streams, lambda stream: stream.newest(limit)))
    shown = entries[max(0, len(entries) - limit) :]
    for entry in shown:
        _show(session, entry)
    try:
        while follow:
            output.pause(POLL_EVERY_S)
            for entry in sorted(_read(session, streams, _Stream.following)):
                _show(session, entry)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    if not shown:
        session.note("no events; 'jobq events level' shows which events the queues record")
    return bool(shown)


class _Entry(NamedTuple):
    """One event of a queue. Events are sorted by the time they were written."""

    at: int
    sequence: int
    queue: str
    fields: Sequence[bytes]


class _Stream:
    def __init__(self, queue: Queue) -> None:
        self.name, self._command = queue.name, queue.client.command
        self._key = f"{queue.prefix}events"
        self._after = "0-0"

    def newest(self, count: int) -> list[_Entry]:
        """Return the last `count` events, and let `following` continue after them."""
        reply = self._command("XREVRANGE", self._key, "+", "-", "COUNT", max(1, count))
        return self._read(reply[::-1])[:count]

    def following(self) -> Iterator[_Entry]:
        """Yield the events written since the last read."""
        while True:
            reply = self._command("XRANGE", self._key, f"({self._after}", "+", "COUNT", PAGE)
            yield from self._read(reply)
            if len(reply) < PAGE:
                return

    def _read(self, reply: Sequence[Any]) -> list[_Entry]:
        if reply:
            self._after = reply[-1][0].decode()
        entries = []
        for entry_id, fields in reply:
            at, _, sequence = entry_id.partition(b"-")
            entries.append(_Entry(int(at), int(sequence), self.name, fields))
        return entries


def _read(
    session: Session, streams: list[_Stream], read: Callable[[_Stream], Iterable[_Entry]]
) -> Iterator[_Entry]:
    for stream in streams:
        with session.tolerating(stream.name):
            yield from read(stream)


def _show(session: Session, entry: _Entry) -> None:
    head = {"id": f"{entry.at}-{entry.sequence}", "queue": base_of(entry.queue)}
    if is_partition(entry.queue):
        head["partition"] = entry.queue
    at = output.moment(entry.at)
    try:
        event = decode(entry.fields[1], entry.fields[0])
    except BadRecordError as error:
        raw = b"\x1f".join(entry.fields).decode("utf-8", "backslashreplace")
        text = f"{at}  {entry.queue}  not a record: {error}"
        session.say({**head, "bad": str(error), "fields": raw}, text)
        return
    columns = {name: getattr(event, name) for name in event.__struct_fields__}
    session.say(head | columns, f"{at}  {entry.queue}  {' '.join(_described(event))}")


def _described(event: Event) -> Iterator[str]:
    yield event.kind
    yield from (text for text in (event.job, event.mid) if text)
    if event.kind in ATTEMPTS and event.attempt:
        yield f"attempt {event.attempt}"
    if event.key:
        yield f"key {event.key}"
    if event.worker:
        yield f"waited {event.wait_ms:,} ms, ran {event.run_us / 1000:,.1f} ms in {event.worker}"
    if event.error:
        yield f"({event.error} {event.fingerprint}".rstrip() + ")"
    if event.trace_id:
        yield f"trace {event.trace_id}"
