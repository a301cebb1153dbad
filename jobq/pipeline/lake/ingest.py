"""Ingest events and topics into the lake in batches. Each entry is stored once.

A batch plans ranges from the offsets in the table's last commit to the current ends of the streams. Its partitions read
and decode the ranges, and write files. Then one commit adds the files and the new offsets. After a crash, the next
batch begins where the last commit ended. Files without a commit are ignored.

A round runs batches until everything is read. `rounds` repeats rounds until a signal stops it.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from jobq.client.connection import Client
from jobq.durations import DAY_MS
from jobq.errors import JobqError, ScriptError
from jobq.pipeline import offsets
from jobq.pipeline.decode import TimeBounds
from jobq.pipeline.engine import Engine, raise_first
from jobq.pipeline.lake import audit_entries, dead_messages, quarantine
from jobq.pipeline.lake.commit import (
    OVERTAKEN,
    CommitConflictError,
    IngestState,
    commit_batch,
    offset_in,
    state_of,
    taken_back,
)
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.lake import PAUSE_S, Lake, LakeBusyError, locked
from jobq.pipeline.lake.partitions import (
    PARTITION_ENTRIES,
    PartitionResult,
    RangeResult,
    gathered,
    planned_partitions,
    run_partition,
    settings_of,
)
from jobq.pipeline.lake.store import remove_files
from jobq.pipeline.lake.tables import EVENTS, QUARANTINE, TOPICS, LakeTable, of_source, sourced
from jobq.pipeline.lake.tombstones import tombstone_files
from jobq.pipeline.offsets import LogOffset, LogRange, LogTail, Overrun, ReadPlan, clocks
from jobq.pipeline.options import EngineName
from jobq.queue.directory import queue_names
from jobq.queue.partitions import with_partitions
from jobq.topics.calls import topic_names

MAX_ROWS = 1_000_000
T = TypeVar("T")
#: Called with the name of an unreadable queue or topic, and the error.
Problem = Callable[[str, JobqError], None]


class IngestBatch(NamedTuple):
    """The result of one batch.

    Attributes:
        more: Whether there was more to read than fits in a batch.
        engine: `local` or `spark`.
        overruns: Event streams with more than half of their entries unread when the batch began.
    """

    table: str
    rows: int = 0
    files: int = 0
    bad: int = 0
    lost: Mapping[str, int] = MappingProxyType({})
    remade: Sequence[str] = ()
    more: bool = False
    engine: EngineName = "local"
    overruns: Mapping[str, Overrun] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Sources and batch sizes of an ingest.

    Attributes:
        names: Read only these queues and no topics. By default, read all queues and topics.
        max_rows: Approximate number of entries per batch.
        trim: Trim the event streams up to the entries that the lake has committed.
        partition_entries: Approximate number of entries per partition.
        source: Name of the server, if the lake contains events from several servers.
        audit_log: Also keep the entries of the audit log.
    """

    names: Sequence[str] | None = None
    max_rows: int = MAX_ROWS
    trim: bool = False
    partition_entries: int = PARTITION_ENTRIES
    source: str = ""
    audit_log: bool = False


class Ingest:
    """Ingests from one server into one lake.

    Attributes:
        problem: Called with an unreadable queue or topic and the error; then the ingest continues with the others. If
            `problem` is not set, the error is raised.
    """

    def __init__(
        self,
        lake: Lake,
        client: Client,
        engine: Engine,
        options: IngestOptions | None = None,
        *,
        problem: Problem | None = None,
    ) -> None:
        self.lake, self.client, self.engine = lake, client, engine
        self.options = options or IngestOptions()
        self._problem = problem
        if self.options.source:
            sourced(self.options.source, "")

    def events(self) -> IngestBatch:
        """Ingest one batch of events."""
        state = state_of(self.lake, EVENTS)
        own = of_source(self.options.source, state.places)
        names = self.queues()
        local_tails = self._tails(names if self.options.names else sorted({*names, *own}))
        near = offsets.overruns(self.client, own, local_tails)
        tails = self._sourced(local_tails)
        batch = self._batch(EVENTS, self._counted(state, tails), tails)
        batch = batch._replace(
            overruns=self._sourced(
                {name: overrun for name, overrun in near.items() if overrun.is_near}
            )
        )
        if self.options.trim:
            self._drop(tails)
        return batch

    def topics(self) -> IngestBatch:
        """Ingest one batch of topics."""
        state = state_of(self.lake, TOPICS)
        names: set[str] = set()
        if self.options.names is None:
            names.update(of_source(self.options.source, state.places))
            with self.tolerating("the list of topics"):
                names.update(topic_names(self.client))
        topics = sorted(names)
        results = offsets.topic_tails(self.client, topics)
        tails = self._told("topic", topics, results)
        return self._batch(TOPICS, state, self._sourced(tails))

    def _sourced(self, by_name: Mapping[str, T]) -> dict[str, T]:
        return {sourced(self.options.source, name): value for name, value in by_name.items()}

    def _counted(self, state: IngestState, tails: Mapping[str, LogTail]) -> IngestState:
        """Set the entry numbers that `adopt` left UNCOUNTED because it used another server."""
        uncounted = {name for name in tails if name in state.places and state.places[name].n < 0}
        counted = {
            name: offset_in(self.client, tails[name], offsets.parsed_id(state.places[name].id))
            for name in uncounted
        }
        return replace(state, places={**state.places, **counted}) if counted else state

    def queues(self) -> list[str]:
        if names := self.options.names:
            return list(dict.fromkeys(place for name in names for place in self.places(name)))
        with self.tolerating("the list of queues"):
            return queue_names(self.client)
        return []

    def places(self, name: str) -> list[str]:
        """Return the names of a queue and of its partitions."""
        with self.tolerating(f"partitions of queue {name}"):
            return with_partitions(self.client, [name])
        return [name]

    @contextmanager
    def tolerating(self, what: str) -> Iterator[None]:
        """Report an error in reading a queue or topic as a problem, and continue with the others."""
        try:
            yield
        except ScriptError as error:
            if self._problem is None:
                raise
            self._problem(what, error)

    def _tails(self, queues: Sequence[str]) -> dict[str, LogTail]:
        streams = [offsets.events_key(self.client.namespace, queue) for queue in queues]
        return self._told("events of queue", queues, offsets.events_tails(self.client, streams))

    def _told(
        self, what: str, names: Sequence[str], results: Iterable[LogTail | JobqError]
    ) -> dict[str, LogTail]:
        """Map each queue or topic to its stream's current end. Unreadable queues and topics are left out."""
        tails = {}
        for name, tail in zip(names, results, strict=True):
            with self.tolerating(f"{what} {name}"):
                if isinstance(tail, JobqError):
                    raise tail
                tails[name] = tail
        return tails

    def _batch(
        self, table: LakeTable, state: IngestState, tails: Mapping[str, LogTail]
    ) -> IngestBatch:
        known = {name: state.places[name] for name in tails if name in state.places}
        plan = offsets.plan(known, tails, self.options.max_rows)
        if not plan.ranges and not plan.remade:
            return IngestBatch(table.name)
        answers = self._answers(table, plan, tails)
        results, kept, dropped = gathered(answers)
        self._forget(table, dropped)
        places = {name: tails[name].oldest for name in plan.remade}
        lost: dict[str, int] = {}
        for range_ in plan.ranges:
            places[range_.queue], missing = self._reached(range_, results[range_.queue])
            lost |= {range_.queue: missing} if missing else {}
        nbad = sum(answer.nbad for answer in kept)
        files = [file for answer in kept for file in answer.files]
        rows = sum(file.rows for file in files)
        after = state.following(places, rows, lost, bad=nbad, remade=plan.remade)
        self._commit(table, kept, after)
        more = any(places[range_.queue].n < range_.end.n for range_ in plan.ranges)
        engine = self.engine.chosen(_expected(plan))
        return IngestBatch(table.name, rows, len(files), nbad, lost, plan.remade, more, engine)

    def _answers(
        self, table: LakeTable, plan: ReadPlan, tails: Mapping[str, LogTail]
    ) -> list[PartitionResult]:
        settings, store = settings_of(self.client), self.lake.below(table.name)
        self.lake.made(table.name)
        firsts = {range_.queue: self._first(range_, tails[range_.queue]) for range_ in plan.ranges}
        bounds = self._bounds(tails) if table is EVENTS else None
        todo = planned_partitions(
            table.name, settings, store, plan.ranges, firsts, self.options.partition_entries, bounds
        )
        erased = tombstone_files(self.lake)
        todo = (
            [planned_partition._replace(erased=erased) for planned_partition in todo]
            if erased
            else todo
        )
        if table is EVENTS:
            there = quarantine.quarantine_of(self.lake, plan.remade)
            todo = [planned_partition.with_quarantine(there) for planned_partition in todo]
        answers = list(self.engine.run_units(run_partition, todo, _expected(plan)))
        try:
            raise_first([answer.failed for answer in answers])
        except JobqError:
            self._forget(table, answers)
            raise
        return answers

    def _bounds(self, tails: Mapping[str, LogTail]) -> TimeBounds:
        """Return the times that events can have: from a day before the oldest known event to one day from now."""
        earlier, later = clocks(self.client)
        oldest = [offsets.parsed_id(tail.first_id)[0] for tail in tails.values() if tail.length]
        for file in live_files(self.lake.table(EVENTS.name))[:1]:
            oldest.append(round(datetime.fromisoformat(f"{file.dt}T00Z").timestamp() * 1000))
        return TimeBounds(max(0, min(*oldest, earlier) - DAY_MS), later + DAY_MS)

    def _first(self, range_: LogRange, now: LogTail) -> LogTail:
        """Return `now`, with the id of the range's first entry as `first_id` if the range must be divided by time."""
        if (
            not range_.limit
            or range_.limit <= self.options.partition_entries
            or "-" not in range_.upto
        ):
            return now
        page = self.client.command(
            "XRANGE", range_.key, f"({range_.after}", range_.upto, "COUNT", 1
        )
        return now._replace(first_id=page[0][0].decode()) if page else now

    def _reached(self, range_: LogRange, done: RangeResult) -> tuple[LogOffset, int]:
        """Return the offset after the last entry read, and the number of entries trimmed before they were read."""
        last = done.reads[-1]
        if "-" not in range_.upto:
            upto = last.source.upto
            return LogOffset(upto, int(upto)), sum(read.lost for read in done.reads)
        if last.source.upto == range_.upto and not last.cut:
            return range_.end, offsets.lost(range_, done.entries)
        if not done.entries:
            # The first part was trimmed before it could be read. The following part may still exist.
            oldest = offsets.events_tail(self.client, range_.key).oldest
            dropped = max(0, oldest.n - range_.start.n)
            return (oldest, dropped) if dropped else (range_.start, 0)
        asked = range_._replace(limit=done.entries)
        return offsets.offset_reached(
            self.client, asked, done.entries, done.last_id or range_.after
        )

    def _commit(
        self, table: LakeTable, kept: Sequence[PartitionResult], after: IngestState
    ) -> None:
        files = [file for answer in kept for file in answer.files]
        with taken_back(self.lake.below(table.name), files):
            quarantine.commit(self.lake, [answer.kept for answer in kept])
            commit_batch(self.lake, table, files, after)

    def _forget(self, table: LakeTable, answers: Iterable[PartitionResult]) -> None:
        """Delete the files of discarded results."""
        answers = list(answers)
        remove_files(
            self.lake.below(table.name), [file.path for answer in answers for file in answer.files]
        )
        remove_files(
            self.lake.below(QUARANTINE.name),
            [f.path for answer in answers for f in answer.kept.files],
        )

    def _drop(self, tails: Mapping[str, LogTail]) -> None:
        """Trim each stream up to the last entry that the lake has."""
        places = state_of(self.lake, EVENTS).places
        ends = {
            tail.key: places[queue]
            for queue, tail in tails.items()
            if queue in places and places[queue].n > tail.dropped
        }
        for key, error in zip(ends, offsets.trim(self.client, ends), strict=True):
            with self.tolerating(key):
                if error is not None:
                    raise error


def _expected(plan: ReadPlan) -> int:
    return sum(range_.limit or range_.expected for range_ in plan.ranges)


class IngestRound(NamedTuple):
    """Totals of an ingest round.

    Attributes:
        engines: The engine used for each part, such as events.
        engine: `spark` if any part used executors.
    """

    events: int = 0
    topics: int = 0
    dead: int = 0
    quarantined: int = 0
    batches: int = 0
    lost: Mapping[str, int] = MappingProxyType({})
    remade: tuple[str, ...] = ()
    engine: EngineName = "local"
    overruns: Mapping[str, Overrun] = MappingProxyType({})
    audit: int = 0
    engines: Mapping[str, EngineName] = MappingProxyType({})

    def done_by(self, part: str, engine: EngineName) -> IngestRound:
        """Return the totals with `engine` recorded for `part`. `local` never replaces a recorded `spark`."""
        used: EngineName = "spark" if "spark" in (self.engines.get(part), engine) else engine
        return self._replace(
            engines={**self.engines, part: used},
            engine="spark" if "spark" in (self.engine, engine) else "local",
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the round stored nothing."""
        return not (self.batches or self.dead or self.audit)

    def plus(self, batch: IngestBatch) -> IngestRound:
        """Return the totals after adding a batch."""
        lost = dict(self.lost)
        for name, number in batch.lost.items():
            lost[name] = lost.get(name, 0) + number
        totals = self.done_by(batch.table, batch.engine) if batch.rows or batch.bad else self
        return totals._replace(
            **{batch.table: getattr(self, batch.table) + batch.rows},
            quarantined=self.quarantined + batch.bad,
            batches=self.batches + (batch.rows + batch.bad > 0 or bool(batch.lost or batch.remade)),
            lost=lost,
            remade=(*self.remade, *batch.remade),
            overruns={**batch.overruns, **self.overruns},
        )


def one_round(
    ingest: Ingest, told: Callable[[IngestBatch], None], enough: Callable[[], bool]
) -> IngestRound:
    """Ingest all events and topic messages, then the dead messages and, if requested, the audit log.

    Stop between two batches if `enough()` returns true.
    """
    round_ = IngestRound()
    for step in (ingest.events, ingest.topics):
        more, overtaken = True, 0
        while more and not enough():
            try:
                batch = step()
            except CommitConflictError:
                overtaken += 1
                if overtaken >= OVERTAKEN:
                    raise
                continue
            more, round_ = batch.more, round_.plus(batch)
            told(batch)
    if not enough():
        # On a conflict, another ingest has just stored dead messages. The next round stores the rest.
        used: list[EngineName] = []
        with suppress(CommitConflictError):
            kept = dead_messages.keep_dead(
                ingest.lake, ingest.client, ingest.queues(), ingest.tolerating, ingest.options.source, ingest.engine,
                used.append,
            )  # fmt: skip
            round_ = round_._replace(dead=kept)
        for engine in used:
            round_ = round_.done_by("dead", engine)
        if ingest.options.audit_log:
            with suppress(CommitConflictError):
                kept = audit_entries.keep_audit(
                    ingest.lake, ingest.client, ingest.tolerating, ingest.options.source
                )
                round_ = round_._replace(audit=kept)
    return round_


class StopRequest:
    """A flag that SIGTERM or SIGINT sets. The ingest checks it between batches."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self, *_: Any) -> None:
        """Request the stop."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the stop is requested, for at most `seconds`. Return whether the stop was requested."""
        return self._event.wait(max(0.0, seconds))


@contextmanager
def stopped_by_signals() -> Iterator[StopRequest]:
    """Let SIGTERM and SIGINT stop the round between two batches. The same signal again ends the process as usual."""
    ending = StopRequest()
    before: dict[int, Any] = {}

    def once(number: int, frame: Any) -> None:
        ending.set()
        signal.signal(number, before[number])

    for number in (int(signal.SIGTERM), int(signal.SIGINT)):
        before[number] = signal.signal(number, once)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def rounds(
    ingest: Ingest, every_s: float | None, told: Callable[[IngestBatch], None], ending: StopRequest,
    after: Callable[[IngestRound], None], wait_s: float = 0.0,
) -> Iterator[IngestRound]:  # fmt: skip
    """Run one round, or a round every `every_s` seconds until `ending` is set. Call `after` at the end of each round.

    Each round holds the lake's lock; between rounds, other processes can acquire it. The first round waits for the lock
    for `wait_s` seconds, then raises LakeBusyError. Later rounds wait without limit.
    """
    while True:
        began = time.monotonic()
        try:
            with locked(ingest.lake, wait_s=wait_s, enough=ending):
                ingested = one_round(ingest, told, ending)
                after(ingested)
        except LakeBusyError:
            if wait_s < math.inf:
                raise
            return
        yield ingested
        if every_s is None or ending.wait(max(PAUSE_S, began + every_s - time.monotonic())):
            return
        wait_s = math.inf
