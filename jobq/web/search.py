"""Filtered lists of messages and events. A request reads a limited number of entries and returns a cursor for the next
request.

A list changes while a user pages through it, so a message may be listed twice or skipped. Actions therefore use
ids, never positions.
"""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import msgspec

from jobq.client.connection import Client
from jobq.client.names import base_of, is_partition
from jobq.client.pipelining import run_each
from jobq.errors import ConfigError, JobqError, ScriptError, UnavailableError
from jobq.events import Event
from jobq.jobs.states import StateWord, state_word
from jobq.observe.facts import event_of, newest
from jobq.observe.why import RunningOn
from jobq.queue import presence
from jobq.queue.partitions import with_readable_partitions
from jobq.queue.queue import Queue
from jobq.queue.types import Counts, DeadMessage, Entry, Place, Status
from jobq.web.contents import Contents, ShownCall
from jobq.web.filters import PLACES, Filter, Row

#: Maximum number of messages that a request searches, and maximum time.
MAX_MESSAGES, MAX_SECONDS = 20_000, 1.0
#: Messages per call; the server needs at most two milliseconds for such a call.
PER_CALL = 250
#: Rows of a page.
ROWS = 100
#: Maximum number of workers whose running jobs are read.
MAX_WORKERS = 200
#: The filter keys of each kind of list.
LIVE_KEYS = ("queue", "place", "job", "mid", "attempt", "crashes", "age", "due")
DEAD_KEYS = ("queue", "job", "mid", "error", "fingerprint", "attempt", "crashes", "age")
EVENT_KEYS = (
    "job",
    "mid",
    "kind",
    "error",
    "fingerprint",
    "attempt",
    "age",
    "worker",
    "trace",
    "by",
)
#: Kinds of events that users cause; such an event's `worker` field names the user.
_BY_PEOPLE = frozenset(("cancelled", "revived", "cleared"))
_ENTRY = re.compile(r"\+|\(\d{1,20}-\d{1,20}")
#: Where messages of a place are stored.
_STORED: dict[str, tuple[str, ...]] = {
    "ready": ("ready", "lines"), "due": ("due",), "running": ("circle",), "done": ("circle", "due"), "dead": ("dead",),
}  # fmt: skip


class SearchLimits(NamedTuple):
    """Limits of a search request."""

    messages: int = MAX_MESSAGES
    seconds: float = MAX_SECONDS
    rows: int = ROWS


@dataclass(frozen=True)
class ListedRow:
    """One row of a list.

    Attributes:
        at_ms: When a message was enqueued or died, or an event was written; 0 = unknown.
        call: The visible part of the message.
        status: The message's stored status, `dead`, or the kind of an event.
    """

    row: Row
    status: str
    at_ms: int = 0
    not_before: int = 0
    lock_expires_at: int = 0
    dead_id: str = ""
    size: int = 0
    run: RunningOn | None = None
    event: Event | None = None
    reading: Callable[[], ShownCall] = field(default=ShownCall, repr=False, compare=False)

    @cached_property
    def call(self) -> ShownCall:
        """The visible part of the message's content, decoded at first use."""
        return self.reading()

    @property
    def state(self) -> StateWord:
        """The public state of a message."""
        word = "dead" if self.row.place == "dead" else self.status
        return state_word(Status(word, max(0, self.row.attempt)))

    @property
    def is_damaged(self) -> bool:
        """Return whether the stored message is damaged."""
        return self.row.attempt < 0


class FoundRows(NamedTuple):
    """The matching rows of a list.

    Attributes:
        looked_at: Number of searched messages.
        total: Number of messages in the searched queues and states.
        cursor: Position at which the next request continues; '' at the end of the list.
        at_ms: Server time of the request, in epoch ms.
        problems: Queue name -> reason why the queue can't be read.
    """

    rows: list[ListedRow]
    looked_at: int
    total: int
    cursor: str
    at_ms: int
    problems: dict[str, str]


class SearchStep(msgspec.Struct, frozen=True, array_like=True):
    """Position of a search.

    Attributes:
        stored: Part of the queue that the search is reading.
        offset: Number of entries already read in this part.
    """

    queue: str
    stored: str
    offset: int = 0


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    step: SearchStep
    looked_at: int = 0


def messages(
    client: Client, contents: Contents, asked: Filter, queues: Sequence[str], places: Sequence[str] = PLACES,
    cursor: str = "", limits: SearchLimits | None = None,
) -> FoundRows:  # fmt: skip
    """List the matching messages in these queues and places, starting at `cursor`."""
    return _Search(client, contents, asked, limits or SearchLimits()).search(queues, places, cursor)


def names_in(asked: Filter, queues: Sequence[str]) -> list[str]:
    """Return the queues that can match the filter, and the partitions that the filter names."""
    partitions = {name for name in asked.only("queue") or () if base_of(name) in queues}
    return [name for name in sorted({*queues, *partitions}) if asked.may("queue", name)]


def counts_of(client: Client, names: Sequence[str]) -> tuple[dict[str, Counts], dict[str, str]]:
    """Return the counts of each queue and partition, and the errors of unreadable queues.

    A call takes one round trip, plus more for partitioned queues. On a Cluster, each queue takes a round trip.
    """
    counts, problems = dict[str, Counts](), dict[str, str]()
    asked, sealed = names, list[str]()
    while asked:
        calls = [Queue(name, client).admin.sample_call() for name in asked]
        for name, reply in zip(asked, run_each(client, calls), strict=True):
            if isinstance(reply, JobqError):
                problems[name] = str(reply)
                continue
            counts[name] = reply.counts
            if reply.sealed and not is_partition(name):
                sealed.append(name)
        places, unread = with_readable_partitions(client, sealed)
        problems |= {name: str(error) for name, error in unread.items()}
        asked = [name for name in places if name not in counts and name not in problems]
    return counts, problems


class _Search:
    def __init__(
        self, client: Client, contents: Contents, asked: Filter, limits: SearchLimits
    ) -> None:
        self.client, self.contents, self.asked, self.limits = client, contents, asked, limits
        self.rows: list[ListedRow] = []
        self.problems: dict[str, str] = {}
        self.looked_at = 0
        self.now_ms = client.clock_ms()
        self._until = time.monotonic() + limits.seconds
        self._fingerprints = DeadFingerprints(asked)

    def search(self, queues: Sequence[str], places: Sequence[str], cursor: str) -> FoundRows:
        wanted = [place for place in places if self.asked.may("place", place)]
        stored = list(dict.fromkeys(part for place in wanted for part in _STORED[place]))
        names = names_in(self.asked, queues)
        counts, self.problems = counts_of(self.client, names)
        steps = [
            SearchStep(name, part)
            for name in sorted(counts)
            for part in stored
            if _some(counts.get(name), part)
        ]
        before = 0
        if cursor:
            begun = _read_cursor(cursor)
            before, steps = begun.looked_at, _from(steps, begun.step)
        following = self._walk(steps, wanted)
        total = sum(_total(count, stored) for count in counts.values())
        left = _write_cursor(_Cursor(following, before + self.looked_at)) if following else ""
        looked_at = before + self.looked_at
        return FoundRows(
            self.rows, looked_at, max(total, looked_at), left, self.now_ms, self.problems
        )

    def _walk(self, steps: list[SearchStep], wanted: Sequence[str]) -> SearchStep | None:
        """Search until a limit is reached. Return the step at which the next request continues; None at the end."""
        for step in steps:
            here: SearchStep | None = step
            while here is not None:
                spent = self.looked_at >= self.limits.messages or time.monotonic() > self._until
                if len(self.rows) >= self.limits.rows or (spent and self.looked_at):
                    return here
                try:
                    here = self._page(here, wanted)
                except (ScriptError, UnavailableError) as error:
                    if self.client.is_lost(error):
                        raise
                    self.problems[step.queue] = str(error)
                    here = None
        return None

    def _page(self, step: SearchStep, wanted: Sequence[str]) -> SearchStep | None:
        """Read a page and add its matching rows. Return the step after the page, or after the last row that fits."""
        queue, room = Queue(step.queue, self.client), self.limits.rows - len(self.rows)
        queue.is_alone = True
        number = min(PER_CALL, max(1, self.limits.messages - self.looked_at))
        read = self._dead if step.stored == "dead" else self._live
        page, following = read(queue, step, number if self.asked else min(number, room))
        # If a page skipped entries, the positions of its rows are unknown, so all of them are listed.
        exact = following is None or following.offset == step.offset + len(page)
        for seen, listed in enumerate(page, 1):
            if listed.row.place in wanted and self.asked(listed.row):
                self.rows.append(listed)
            full = exact and step.stored != "lines" and len(self.rows) >= self.limits.rows
            if full and seen < len(page):
                self.looked_at += seen
                return SearchStep(step.queue, step.stored, step.offset + seen)
        self.looked_at += len(page)
        return following

    def _live(
        self, queue: Queue, step: SearchStep, number: int
    ) -> tuple[list[ListedRow], SearchStep | None]:
        place: Place = step.stored  # type: ignore[assignment]
        page = queue.admin.content(place, step.offset, number)
        listed = [self._entry(queue.name, step.stored, entry) for entry in page.entries]
        if page.next_offset is None:
            return listed, None
        return listed, SearchStep(step.queue, step.stored, page.next_offset)

    def _dead(
        self, queue: Queue, step: SearchStep, number: int
    ) -> tuple[list[ListedRow], SearchStep | None]:
        dead = queue.admin.dead(step.offset, number)
        listed = [dead_row(self.contents, queue.name, message, self.now_ms) for message in dead]
        listed = self._fingerprints.added(queue, listed)
        following = SearchStep(step.queue, "dead", step.offset + len(dead))
        return listed, following if dead else None

    def _entry(self, queue: str, stored: str, entry: Entry) -> ListedRow:
        job, at = self.contents.job(queue, entry.mid, entry.content)

        def call() -> ShownCall:
            return self.contents.call(queue, entry.mid, entry.content)

        row = Row(
            queue, entry.mid, _place(stored, entry), job, attempt=entry.attempts, crashes=entry.ncrashes,
            age_ms=max(0, self.now_ms - at) if at else None,
            due_ms=entry.not_before - self.now_ms if entry.not_before else None, arguments=lambda: _arguments(call()),
        )  # fmt: skip
        return ListedRow(
            row,
            entry.status,
            at,
            entry.not_before,
            entry.lock_expires_at,
            "",
            len(entry.content),
            reading=call,
        )


def dead_row(contents: Contents, queue: str, message: DeadMessage, now_ms: int) -> ListedRow:
    """Return a dead message as a row."""

    def call() -> ShownCall:
        return contents.call(queue, message.mid, message.content)

    job = contents.job(queue, message.mid, message.content)[0]
    row = Row(
        queue, message.mid, "dead", job,
        contents.text("reason", queue, message.mid, message.reason, job=job), attempt=message.attempts,
        crashes=message.ncrashes,
        age_ms=max(0, now_ms - message.died_at), arguments=lambda: _arguments(call()),
    )  # fmt: skip
    return ListedRow(
        row,
        "dead",
        message.died_at,
        dead_id=message.dead_id,
        size=len(message.content),
        reading=call,
    )


class DeadFingerprints:
    """Reads the fingerprints of dead messages' errors from events, if the filter uses fingerprints.

    A message has no fingerprint if it died before the latest MAX_MESSAGES events of its queue.
    """

    def __init__(self, asked: Filter) -> None:
        self._asks = any(term.key == "fingerprint" for term in asked.terms)
        self._known: dict[str, dict[str, str]] = {}

    def added(self, queue: Queue, rows: list[ListedRow]) -> list[ListedRow]:
        """Return the rows, each with the fingerprint of its message's error."""
        if not self._asks or not rows:
            return rows
        if queue.name not in self._known:
            self._known[queue.name] = dict(self._read(queue))
        known = self._known[queue.name]
        return [
            replace(row, row=replace(row.row, fingerprint=known.get(row.row.mid, "")))
            for row in rows
        ]

    def _read(self, queue: Queue) -> Iterator[tuple[str, str]]:
        """Yield the message id and fingerprint of each death, oldest first."""
        for written in reversed(list(newest(queue, most=MAX_MESSAGES))):
            event = event_of(written)
            if event is not None and event.kind == "dead" and event.fingerprint:
                yield event.mid, event.fingerprint


def events(
    queue: Queue,
    contents: Contents,
    asked: Filter,
    cursor: str = "",
    limits: SearchLimits | None = None,
) -> FoundRows:
    """List the matching events of a queue, latest first, starting at `cursor`."""
    allowed, now_ms = limits or SearchLimits(), queue.client.clock_ms(queue.wake_key)
    begun = _read_cursor(cursor) if cursor else _Cursor(SearchStep("", "+"))
    if not _ENTRY.fullmatch(begun.step.stored):
        raise _unreadable()
    rows: list[ListedRow] = []
    looked_at, last = 0, ""
    until = time.monotonic() + allowed.seconds
    entries = newest(queue, before=begun.step.stored, most=allowed.messages + 1)
    for written in entries:
        if len(rows) >= allowed.rows or looked_at >= allowed.messages or time.monotonic() > until:
            break
        looked_at, last = looked_at + 1, written.entry_id
        event = event_of(written)
        if event is not None:
            listed = _event_row(contents, queue.name, event, now_ms)
            if asked(listed.row):
                rows.append(listed)
    else:
        last = ""
    seen = begun.looked_at + looked_at
    following = _write_cursor(_Cursor(SearchStep("", f"({last}"), seen)) if last else ""
    total = int(queue.client.command("XLEN", f"{queue.prefix}events"))
    return FoundRows(rows, seen, max(total, seen), following, now_ms, {})


def _event_row(contents: Contents, queue: str, event: Event, now_ms: int) -> ListedRow:
    people = event.kind in _BY_PEOPLE
    row = Row(
        queue, event.mid, "", event.job, contents.error(event.error, event.job), event.fingerprint, event.attempt,
        age_ms=max(0, now_ms - event.finished_at), worker="" if people else event.worker, kind=event.kind,
        trace=event.trace_id, by=event.worker if people else "",
    )  # fmt: skip
    return ListedRow(row, event.kind, event.finished_at, event=event)


def running(client: Client, queue: str, rows: Sequence[ListedRow]) -> list[ListedRow]:
    """Return the rows, each with the worker of its message, as reported by the latest heartbeats."""
    serving = [
        worker.name
        for worker in presence.workers(client)
        if worker.serves(queue) and worker.running
    ]
    places: dict[str, RunningOn] = {}
    for name, children in presence.running(client, serving[:MAX_WORKERS]).items():
        for child in children or ():
            for job in child.running:
                if job.queue == queue:
                    places[job.mid] = RunningOn(name, child.pid, job.started_at)
    return [
        ListedRow(
            row.row, row.status, row.at_ms, row.not_before, row.lock_expires_at, row.dead_id, row.size,
            places.get(row.row.mid), reading=row.reading,
        )
        for row in rows
    ]  # fmt: skip


def _unreadable() -> ConfigError:
    return ConfigError("the cursor can't be read; open the list again from its start")


def _read_cursor(text: str) -> _Cursor:
    try:
        decoded = msgspec.json.decode(urlsafe_b64decode(text.encode()), type=_Cursor)
        if (
            decoded.step.offset < 0
            or decoded.looked_at < 0
            or max(decoded.step.offset, decoded.looked_at) >= 2**53
        ):
            raise ValueError
        return decoded
    except (ValueError, RecursionError) as error:
        raise _unreadable() from error


def _write_cursor(cursor: _Cursor) -> str:
    return urlsafe_b64encode(msgspec.json.encode(cursor)).decode()


def _from(steps: list[SearchStep], begun: SearchStep) -> list[SearchStep]:
    """Return the remaining steps of a search that stopped at `begun`. Removed queues are skipped."""
    order = list(dict.fromkeys(part for parts in _STORED.values() for part in parts))
    if begun.stored not in order:
        raise _unreadable()

    def rank(step: SearchStep) -> tuple[str, int]:
        return step.queue, order.index(step.stored)

    left = [step for step in steps if rank(step) >= rank(begun)]
    return [begun if rank(step) == rank(begun) else step for step in left]


def _some(counts: Counts | None, stored: str) -> bool:
    if counts is None:
        return False
    return bool(counts.keys if stored == "lines" else _size(counts, stored))


def _total(counts: Counts, stored: Sequence[str]) -> int:
    return sum(_size(counts, part) for part in stored if part != "lines")


def _size(counts: Counts, stored: str) -> int:
    sizes = {"ready": counts.ready, "due": counts.delayed + counts.deduped, "circle": counts.circle}
    return sizes.get(stored, counts.dead)


def _place(stored: str, entry: Entry) -> str:
    if stored in ("ready", "lines"):
        return "ready"
    if entry.status.startswith("done-"):
        return "done"
    if stored == "due":
        return "due"
    return "running" if entry.status != "nil" else ""


def _arguments(call: ShownCall) -> tuple[list[object], dict[str, object]] | None:
    return (call.arguments.args, call.arguments.kwargs) if call.arguments else None
