"""Compute figures per job and per error group, and list runs, from finished attempts.

`StreamHistory` reads a bounded number of the latest events from the server. `jobq.web.lake.LakeHistory` computes the
same figures from a lake.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

from msgspec import structs

from jobq.client.connection import Client
from jobq.client.names import base_of, partition_in
from jobq.client.numbered_calls import CallState
from jobq.client.pipelining import OverlappingCalls
from jobq.errors import BadRecordError, JobqError
from jobq.events import Event, decode
from jobq.queue import keys
from jobq.queue.partitions import with_readable_partitions
from jobq.records import JsonRecord, Moment, words

T = TypeVar("T")
Failure = TypeVar("Failure", "RunRow", "ErrorFigures")
#: Maximum number of events per search of the streams, and number of streams per call.
MAX_EVENTS, AT_ONCE = 20_000, 100
#: How long the result of a search is reused for equal searches, in seconds.
KEPT_S = 5.0
#: Event kinds that end a run, and the failures among them.
ENDS = ("done", "retry", "dead", "crashed", "recovered")
FAILED = ENDS[1:]
#: Points of a chart, and maximum rows in a list of runs and in a list of groups.
POINTS, SLOWEST, MAX_GROUPS = 60, 20, 1_000
#: Upper bounds of a histogram of run times, ms; one more bucket has the rest.
BOUNDS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
)  # fmt: skip


class Span(NamedTuple):
    """A time range from `since` until just before `until`, in epoch ms."""

    since: int
    until: int

    @property
    def step(self) -> int:
        """The time that a point of a chart covers, in ms."""
        return max(1, -(-(self.until - self.since) // POINTS))

    def point(self, at: int) -> int:
        """Return the number of the chart's point that contains this time."""
        return min(POINTS - 1, max(0, (at - self.since) // self.step))


class PastPoint(NamedTuple):
    """Outcomes of the attempts in one interval of a chart.

    Attributes:
        at: Start of the interval, in epoch ms.
        wait_p95_ms, run_p95_ms: 95th percentiles. None if there are no attempts, or only hourly sums.
        run_mean_ms: Mean run time, or None if there are no runs.
    """

    at: int
    done: int
    failed: int
    dead: int
    wait_p95_ms: float | None
    run_p95_ms: float | None
    run_mean_ms: float | None = None


class Percentiles(JsonRecord):
    """Percentiles in milliseconds, or nulls if there were no runs."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class JobFigures(JsonRecord):
    """Figures of one job in a range of time.

    Attributes:
        crashed: Runs that crashed, or whose lease ended.
        failed: Runs that ended in a retry, a death or a crash.
        cpu_ms: Mean CPU time of a run.
        rss_kib: The highest peak of resident memory.
    """

    job: str
    queues: tuple[str, ...]
    runs: int
    done: int
    retry: int
    dead: int
    crashed: int
    failed: int
    run_ms: Percentiles
    wait_ms: Percentiles
    cpu_ms: float | None
    rss_kib: int
    last_at: Moment


class ErrorFigures(JsonRecord):
    """Errors of one class from one place in the code.

    Attributes:
        group: Fingerprint of the errors. Errors without a fingerprint are grouped by class or by kind of event.
        trend: Failure counts in 60 equal parts of the range.
        place: File, line and function that raised the latest error. Empty if unknown, or if the figures are from a
            lake.
    """

    group: str
    error: str
    failures: int
    dead: int
    jobs: tuple[str, ...]
    queues: tuple[str, ...]
    workers: tuple[str, ...]
    first_at: Moment
    last_at: Moment
    trend: tuple[int, ...]
    place: str = ""


class RunRow(JsonRecord, order=True):
    """A finished attempt.

    Attributes:
        partition: Name of the partition; empty if the message wasn't in a partition.
    """

    at: Moment
    queue: str
    kind: Annotated[str, words(ENDS)]
    mid: str
    job: str
    attempt: int
    run_ms: float
    wait_ms: int
    worker: str
    error: str
    group: str
    trace_id: str
    partition: str = ""


class Point(JsonRecord):
    """One point of a job's chart."""

    at: Moment
    done: int
    failed: int
    p95_ms: float | None


class JobHistory(NamedTuple):
    """Figures of a job.

    Attributes:
        histogram: Number of runs up to each of BOUNDS_MS. The last value counts longer runs.
    """

    figures: JobFigures | None
    histogram: tuple[int, ...]
    points: tuple[Point, ...]
    slowest: tuple[RunRow, ...]


class ErrorHistory(NamedTuple):
    """One group of errors, and its latest runs."""

    figures: ErrorFigures | None
    newest: tuple[RunRow, ...]


class Wanted(NamedTuple):
    """Conditions for a list of runs; '' matches anything."""

    queue: str = ""
    job: str = ""
    kind: str = ""
    mid: str = ""
    group: str = ""
    worker: str = ""


ANYTHING = Wanted()


class RunPage(NamedTuple):
    """A page of runs, latest first.

    Attributes:
        next_cursor: Start of the next page, None at the end.
    """

    runs: tuple[RunRow, ...]
    next_cursor: str | None


class PastEvents(NamedTuple):
    """Result of a search for events.

    Attributes:
        since: No events after this time are missing.
        unread: Queue name -> reason why the queue can't be read.
    """

    events: tuple[tuple[str, Event], ...]
    since: int
    unread: dict[str, str]


def group_of(event: Event) -> str:
    """Return the key by which errors are grouped."""
    return event.fingerprint or event.error or event.kind


def shown_error(text: str, hidden: bool) -> str:
    """Return the error, or only its type if texts are hidden."""
    return text.partition(":")[0] if hidden else text


def with_shown_errors(rows: Iterable[Failure], hidden: bool) -> list[Failure]:
    """Return the rows. If error texts are `hidden`, each row has only the error's type: no text, no file, no line."""
    return [
        structs.replace(
            row,
            error=shown_error(row.error, hidden),
            **({"place": ""} if hidden and isinstance(row, ErrorFigures) else {}),
        )
        for row in rows
    ]


def percentiles(values: list[float]) -> Percentiles:
    """Return percentiles by nearest rank. Sorts `values` in place."""
    if not values:
        return Percentiles()
    values.sort()
    last = len(values) - 1
    return Percentiles(*(round(values[round(share * last)], 3) for share in (0.5, 0.95, 0.99)))


def run_of(queue: str, event: Event) -> RunRow:
    """Convert an event to a row."""
    return RunRow(
        event.finished_at, base_of(queue), event.kind, event.mid, event.job, event.attempt, event.run_us / 1000,
        event.wait_ms, event.worker, event.error, group_of(event) if event.kind in FAILED else "", event.trace_id,
        partition_in(queue),
    )  # fmt: skip


class StreamHistory:
    """Reads the newest events of queues from the server. It is thread-safe."""

    source = "events"

    def __init__(
        self, client: Client, names: Callable[[], Sequence[str]], most: int = MAX_EVENTS
    ) -> None:
        """Create a reader.

        Args:
            names: Returns the names of the queues.
            most: Maximum number of events per search.
        """
        self._client, self._names, self._most = client, names, most
        self._lock = threading.Lock()
        self._kept: dict[tuple[Span, tuple[str, ...]], tuple[float, PastEvents]] = {}

    def events_in(self, span: Span, queues: Sequence[str] = ()) -> PastEvents:
        """Return the events in a range from these queues and their partitions, or from all queues. If a queue has too
        many events, return only its latest events.
        """
        places, broken = (
            with_readable_partitions(self._client, queues) if queues else (self._names(), {})
        )
        names = tuple(places)
        # A range that moves with the clock is requested again and again, so close ranges share a result.
        key = (Span(span.since // 5_000, span.until // 5_000), names)
        with self._lock:
            now = time.monotonic()
            self._kept = {k: kept for k, kept in self._kept.items() if kept[0] > now}
            if key not in self._kept:
                self._kept[key] = now + KEPT_S, self._read(span, names)
            result = self._kept[key][1]
        unread = {name: str(error) for name, error in broken.items()}
        return result._replace(unread=result.unread | unread) if unread else result

    def since(self, span: Span, queues: Sequence[str] = ()) -> int:
        """Return the start of the period with complete figures."""
        return self.events_in(span, queues).since

    def jobs(self, span: Span, queues: Sequence[str] = ()) -> list[JobFigures]:
        """Return figures per job, most runs first."""
        by_job: defaultdict[str, list[tuple[str, Event]]] = defaultdict(list)
        for queue, event in self.events_in(span, queues).events:
            if event.kind in ENDS and event.job:
                by_job[event.job].append((queue, event))
        rows = [figures_of(job, events) for job, events in by_job.items()]
        return sorted(rows, key=lambda row: (-row.runs, row.job))[:MAX_GROUPS]

    def job(self, span: Span, job: str) -> JobHistory:
        """Return a job's figures, its chart and its slowest runs."""
        return history_of(
            job, span, [event for event in self.events_in(span).events if event[1].job == job]
        )

    def errors(self, span: Span, queues: Sequence[str] = (), job: str = "") -> list[ErrorFigures]:
        """Return groups of errors, most frequent first."""
        groups: defaultdict[str, list[tuple[str, Event]]] = defaultdict(list)
        for queue, event in self.events_in(span, queues).events:
            if event.kind in FAILED and job in ("", event.job):
                groups[group_of(event)].append((queue, event))
        rows = [error_figures(group, span, events) for group, events in groups.items()]
        return sorted(rows, key=lambda row: (-row.failures, row.group))[:MAX_GROUPS]

    def error(self, span: Span, group: str) -> ErrorHistory:
        """Return the figures and latest runs of one group of errors."""
        mine = [
            (queue, event)
            for queue, event in self.events_in(span).events
            if event.kind in FAILED and group_of(event) == group
        ]
        newest = sorted(mine, key=lambda failure: -failure[1].finished_at)[:SLOWEST]
        runs = tuple(run_of(*failure) for failure in newest)
        return ErrorHistory(error_figures(group, span, mine) if mine else None, runs)

    def failures_between(self, span: Span, group: str, moments: Sequence[int]) -> list[int]:
        """Return how often an error occurred in each part of the range. The times in `moments` divide the range."""
        counts = [0] * (len(moments) + 1)
        for _, event in self.events_in(span).events:
            if event.kind in FAILED and group_of(event) == group:
                counts[bisect_right(moments, event.finished_at)] += 1
        return counts

    def runs(
        self, span: Span, wanted: Wanted = ANYTHING, cursor: str = "", limit: int = 100
    ) -> RunPage:
        """Return runs, latest first, starting at a cursor."""
        before = _before(cursor)
        events = self.events_in(span, [wanted.queue] if wanted.queue else ()).events
        rows = sorted((run_of(*event) for event in events if event[1].kind in ENDS), reverse=True)
        kept = (row for row in rows if matches(row, wanted) and cursor_of(row) < before)
        return page_of(list(islice(kept, limit + 1)), limit)

    def _read(self, span: Span, names: Sequence[str]) -> PastEvents:
        events: dict[str, list[tuple[bytes, Any]]] = {name: [] for name in names}
        last = dict.fromkeys(names, str(span.until - 1))
        left, unread, complete = self._most, dict[str, str](), span.since
        while last and left > 0:
            quota = max(1, left // len(last))
            for name, reply in self._ask(dict(last), span.since, quota):
                if isinstance(reply, JobqError):
                    unread[name] = str(reply)
                    del last[name]
                    continue
                events[name] += reply
                left -= len(reply)
                if len(reply) < quota:
                    del last[name]
                else:
                    last[name] = f"({reply[-1][0].decode()}"
            if quota == 1:
                break
        for name in last:
            if events[name]:
                complete = max(complete, int(events[name][-1][0].partition(b"-")[0]))
        rows = tuple(
            (name, event)
            for name, entries in events.items()
            for event in _decoded(entries)
            if span.since <= event.finished_at < span.until
        )
        return PastEvents(rows, complete, unread)

    def _ask(self, last: dict[str, str], since: int, count: int) -> Iterator[tuple[str, Any]]:
        """Yield each queue's name with its next batch of events, newest first, or with the error."""
        left = list(last)
        while left:
            some = left[: 1 if self._client.is_cluster else AT_ONCE]
            replied = 0
            for reply in self._replies([(name, last[name]) for name in some], since, count):
                yield left[replied], reply
                replied += 1
            left = left[replied:]

    def _replies(self, some: Sequence[tuple[str, str]], since: int, count: int) -> Iterator[Any]:
        client = self._client
        streams = [keys.key(keys.prefix(client.namespace, name), "events") for name, _ in some]
        calls = OverlappingCalls(client, streams[0])
        try:
            for (_, last), stream in zip(some, streams, strict=True):
                words = ("XREVRANGE", stream, last, str(max(0, since)), "COUNT", count)
                calls.send(CallState(client, words))
            for _ in some:
                yield calls.reply()
        except JobqError as error:
            if client.is_lost(error):
                raise
            yield error
        finally:
            calls.close()


def _decoded(entries: Iterable[Any]) -> Iterator[Event]:
    for _, fields in entries:
        try:
            yield decode(fields[1], fields[0])
        except (BadRecordError, IndexError):
            continue  # `jobq events tail` shows entries that aren't records


def figures_of(job: str, events: Sequence[tuple[str, Event]]) -> JobFigures:
    """Return the figures of one job's runs."""
    kinds = Counter(event.kind for _, event in events)
    ran = [event for _, event in events if event.run_us]
    waits = [float(event.wait_ms) for event in ran if event.enqueued_at and event.attempt <= 1]
    crashed = kinds["crashed"] + kinds["recovered"]
    cpu_ms = sum(event.cpu_us for event in ran) / len(ran) / 1000 if ran else None
    return JobFigures(
        job, tuple(sorted({base_of(queue) for queue, _ in events})), len(events),
        kinds["done"], kinds["retry"], kinds["dead"], crashed, kinds["retry"] + kinds["dead"] + crashed,
        percentiles([event.run_us / 1000 for event in ran]), percentiles(waits),
        None if cpu_ms is None else round(cpu_ms, 3), max((event.rss_kib for event in ran), default=0),
        max(event.finished_at for _, event in events),
    )  # fmt: skip


def history_of(job: str, span: Span, events: Sequence[tuple[str, Event]]) -> JobHistory:
    """Return a job's history, computed from its events."""
    ends = [event for event in events if event[1].kind in ENDS]
    histogram = [0] * (len(BOUNDS_MS) + 1)
    times: list[list[float]] = [[] for _ in range(POINTS)]
    done, failed = [0] * POINTS, [0] * POINTS
    for _, event in ends:
        number = span.point(event.finished_at)
        (done if event.kind == "done" else failed)[number] += 1
        if event.run_us:
            histogram[bisect_left(BOUNDS_MS, event.run_us / 1000)] += 1
            times[number].append(event.run_us / 1000)
    points = tuple(
        Point(span.since + number * span.step, done[number], failed[number], percentiles(some).p95)
        for number, some in enumerate(times)
    )
    slowest = sorted(ends, key=lambda end: -end[1].run_us)[:SLOWEST]
    return JobHistory(
        figures_of(job, ends) if ends else None, tuple(histogram), points,
        tuple(run_of(*end) for end in slowest),
    )  # fmt: skip


def error_figures(group: str, span: Span, events: Sequence[tuple[str, Event]]) -> ErrorFigures:
    """Return the figures of one group of errors."""
    trend = [0] * POINTS
    for _, event in events:
        trend[span.point(event.finished_at)] += 1
    newest = max(events, key=lambda event: event[1].finished_at)[1]
    return ErrorFigures(
        group, newest.error or newest.kind, len(events), sum(event.kind == "dead" for _, event in events),
        _names(event.job for _, event in events), _names(base_of(queue) for queue, _ in events),
        _names(event.worker for _, event in events),
        min(event.finished_at for _, event in events), newest.finished_at, tuple(trend),
        max(((event.finished_at, event.place) for _, event in events if event.place), default=(0, ""))[1],
    )  # fmt: skip


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name}))[:MAX_GROUPS]


def matches(run: RunRow, wanted: Wanted) -> bool:
    """Return whether a run matches the conditions of a list."""
    if wanted.queue and wanted.queue == run.partition:
        wanted = wanted._replace(queue="")
    return all(asked in ("", getattr(run, name)) for name, asked in wanted._asdict().items())


#: A run's position in a list: its time, then fields that distinguish runs with the same time.
Cursor = tuple[int, str, str, str]


def cursor_of(run: RunRow) -> Cursor:
    """Return the position of a run in a list."""
    return run.at, run.queue, run.kind, run.mid


def _before(cursor: str) -> tuple[Any, ...]:
    at, *rest = cursor.split("\x1f", 3)
    if not cursor or not (at.isascii() and at.isdigit()) or len(at) > 15:
        return (1 << 62,)
    return int(at), *rest


def page_of(rows: Sequence[RunRow], limit: int) -> RunPage:
    """Return a page of up to `limit` rows. An extra row means that another page follows."""
    shown = tuple(rows[:limit])
    more = len(rows) > limit and bool(shown)
    return RunPage(shown, "\x1f".join(map(str, cursor_of(shown[-1]))) if more else None)
