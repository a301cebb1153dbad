"""Charts on the overview page and on the page of a queue, each with a table of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from jobq.durations import counted
from jobq.observe.chart import (
    ChartFrame,
    ChartLine,
    Drawing,
    Mark,
    TimeAxis,
    key,
    line_chart,
    sparkline,
    spread,
)
from jobq.queue.presence import WorkerEntry
from jobq.web import formats
from jobq.web.outcomes import DEAD, DONE, FAILED
from jobq.web.past import LONG_RANGES, Past, past_of
from jobq.web.sampler import ALL, DELAYED, DEQUEUED, READY, RUNNING, Sampling, Snapshot
from jobq.web.site import Site

#: Time ranges of charts, in seconds.
RANGES = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400}
#: Charts of ranges up to this length never need a lake.
LONG_S = 3_600
#: Maximum points of a line and rows of its table; below, points of a sparkline and its time range.
POINTS, ROWS = 150, 12
SPARK_POINTS, SPARK_S = 60, 900
#: Maximum number of minutes that a chart marks because workers started in them.
MAX_STARTS = 6
Points = Sequence[tuple[float, float | None]]


class ChartView(NamedTuple):
    """One chart with its legend and its table.

    Attributes:
        drawing: Empty while there is no data to draw.
    """

    name: str
    title: str
    drawing: Drawing
    key: Drawing
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class ChartRange(NamedTuple):
    """Time range of a page's charts.

    Attributes:
        word: A key of RANGES or LONG_RANGES.
        since, until: Start and end in epoch seconds.
    """

    word: str
    since: float
    until: float
    zone: tzinfo = UTC
    marks: Sequence[Mark] = ()

    @property
    def is_long(self) -> bool:
        """Return whether the range is longer than a day. Only a lake has figures for such a range."""
        return self.word in LONG_RANGES


def ranges_of(has_lake: bool) -> dict[str, int]:
    """Return the ranges that a page offers."""
    return RANGES | LONG_RANGES if has_lake else RANGES


def span_of(word: str, snapshot: Snapshot, zone: tzinfo, has_lake: bool = False) -> ChartRange:
    """Return the range named `word`, or the first of RANGES if the page doesn't offer that range."""
    ranges = ranges_of(has_lake)
    word = word if word in ranges else next(iter(RANGES))
    until = snapshot.at_ms / 1000
    since = until - ranges[word]
    return ChartRange(word, since, until, zone, starts(snapshot.workers, since))


def with_past(
    site: Site, sampling: Sampling, span: ChartRange, queue: str = ""
) -> tuple[ChartRange, Past | None]:
    """Return the range, with marks for the deploys recorded in the lake, and the lake's data about the range.

    Without a lake, or if the lake isn't needed, the data is None.
    """
    known = _known_since_s(sampling, queue or None)
    if not span.is_long and (RANGES[span.word] <= LONG_S or 0 < known <= span.since):
        return span, None
    past = past_of(site, span.word, span.since, span.until, queue)
    return (span._replace(marks=sorted([*span.marks, *past.marks])), past) if past else (span, None)


def starts(workers: Sequence[WorkerEntry], since_s: float) -> list[Mark]:
    """Mark the minutes in which the listed workers started; such a minute is usually a deploy.

    Return no marks for more than MAX_STARTS minutes, because then workers start and stop all the time.
    """
    counts: dict[int, int] = {}
    for worker in workers:
        if worker.started_at / 1000 >= since_s and not worker.damaged:
            minute = worker.started_at // 60_000
            counts[minute] = counts.get(minute, 0) + 1
    if len(counts) > MAX_STARTS:
        return []
    return [
        Mark(minute * 60, f"{counted(count, 'worker')} started")
        for minute, count in sorted(counts.items())
    ]


def backlog(sampling: Sampling, span: ChartRange, queue: str = ALL) -> ChartView:
    """Return the chart of ready, delayed and running messages."""
    lines = [
        (name, name, sampling.points(queue, figure, span.since, span.until))
        for name, figure in (("ready", READY), ("delayed", DELAYED), ("running", RUNNING))
    ]
    return _chart("backlog", "Messages", lines, span, formats.number)


def dequeued(sampling: Sampling, span: ChartRange, queue: str = ALL) -> ChartView:
    """Return the chart of messages dequeued per second."""
    points = sampling.points(queue, DEQUEUED, span.since, span.until)
    return _chart("dequeued", "Dequeued per second", [("dequeued", "running", points)], span, _rate)


def outcomes(
    sampling: Sampling, span: ChartRange, queue: str | None = None, past: Past | None = None
) -> ChartView:
    """Return the chart of done, failed and dead attempts per minute.

    Args:
        past: Data from before this process started reading.
    """
    known, since_s = sampling.outcomes, _since_s(sampling, span, queue)
    past = None if past and past.error else past
    minutes = past.step_s / 60 if past else 1
    lines = []
    for name, style, column in (
        ("done", "done", DONE),
        ("retry", "retry", FAILED),
        ("dead", "dead", DEAD),
    ):
        points = _from(since_s, known.counted(queue, column, span.since, span.until))
        if past:
            whole = [
                (point.at, (point.done, point.failed, point.dead)[column] / minutes)
                for point in past.points
            ]
            points = _with_past(span, since_s, past, whole, points)
        lines.append((name, style, points))
    if not any(value for _, _, points in lines for _, value in points):
        lines = []
    return _chart("outcomes", "Attempts per minute", lines, span, formats.number)


def _known_since_s(sampling: Sampling, queue: str | None) -> float:
    """Return the time after which all events of a queue, or of all queues, were read; 0 if the time is unknown."""
    names = sampling.snapshot.queues if sampling.snapshot and queue is None else [queue or ""]
    begins = [since for name in names if (since := sampling.tail.since_ms(name)) is not None]
    return max(begins, default=0) / 1000


def _from(since_s: float, points: Points) -> Points:
    return [point if point[0] + 60 > since_s else (point[0], None) for point in points]


def _since_s(sampling: Sampling, span: ChartRange, queue: str | None) -> float:
    """Return the time at which a chart changes from the lake's data to this process's data."""
    return span.until if span.is_long else _known_since_s(sampling, queue)


def _with_past(
    span: ChartRange,
    since_s: float,
    past: Past,
    points: Sequence[tuple[int, float | None]],
    read: Points,
) -> Points:
    """Return the lake's points, followed by the points that this process read. In the lake's points, 0 stands for a
    missing value.
    """
    by_part = {round((at / 1000 - span.since) / past.step_s): value for at, value in points}
    before: list[tuple[float, float | None]] = []
    for part in range(int(((since_s or span.until) - span.since) // past.step_s)):
        at = span.since + (part + 0.5) * past.step_s
        known = past.since_s and at + past.step_s > past.since_s
        before.append((at, by_part.get(part, 0.0) if known else None))
    newest = before[-1][0] if before else span.since
    return [*before, *(point for point in read if point[0] > newest)]


def times(
    sampling: Sampling, span: ChartRange, queue: str = ALL, past: Past | None = None
) -> ChartView:
    """Return the chart of waiting times and run times: the 95th percentiles of each minute's attempts.

    For ranges longer than a day, it shows mean run times, because the lake keeps older data as hourly sums.

    Args:
        past: Data from before this process started reading.
    """
    if span.is_long and past and not past.error:
        means = [(point.at / 1000, point.run_mean_ms) for point in past.points]
        lines = [("run", "running", _seconds(means))]
        return _chart("times", "Run, mean", lines, span, formats.duration)
    waits, runs = sampling.outcomes.quantiles(queue, span.since, span.until)
    if past and not past.error:
        since_s = _since_s(sampling, span, queue)
        waits = [
            *_until(since_s, span, [(point.at, point.wait_p95_ms) for point in past.points]),
            *_after(since_s, waits),
        ]
        runs = [
            *_until(since_s, span, [(point.at, point.run_p95_ms) for point in past.points]),
            *_after(since_s, runs),
        ]
    lines = [("wait", "delayed", _seconds(waits)), ("run", "running", _seconds(runs))]
    return _chart("times", "Wait and run, 95th percentile", lines, span, formats.duration)


def _until(since_s: float, span: ChartRange, points: Sequence[tuple[int, float | None]]) -> Points:
    return [(at / 1000, value) for at, value in points if at / 1000 < (since_s or span.until)]


def _after(since_s: float, read: Points) -> Points:
    return [point for point in read if since_s and point[0] >= since_s]


def spark(sampling: Sampling, snapshot: Snapshot, queue: str = ALL, figure: int = READY) -> Drawing:
    """Return the sparkline of a figure over the last 15 minutes."""
    until = snapshot.at_ms / 1000
    points = sampling.spark_points(queue, figure, until - SPARK_S, until)
    return sparkline(spread(points, until - SPARK_S, until, SPARK_POINTS))


def _chart(
    name: str, title: str, lines: Sequence[tuple[str, str, Points]], span: ChartRange,
    label: Callable[[float], str],
) -> ChartView:  # fmt: skip
    width = (span.until - span.since) / POINTS
    drawn = [
        ChartLine(word, style, _thinned(points, span, POINTS, width))
        for word, style, points in lines
    ]
    says = (
        f"{title} over the last {span.word}: {', '.join(chart_line.name for chart_line in drawn)}."
    )
    axis = TimeAxis(
        zone=span.zone, since=span.since, until=span.until, marks=span.marks, height=180
    )
    drawing = line_chart(ChartFrame(name, title, says), drawn, axis, label)
    return ChartView(
        name, title, drawing, key(drawn) if len(drawn) > 1 else Drawing(),
        ("Until", *(chart_line.name for chart_line in drawn)), _rows(lines, span, label),
    )  # fmt: skip


def _thinned(
    points: Points, span: ChartRange, count: int, width: float
) -> list[tuple[float, float | None]]:
    if len(points) <= count:
        return list(points)
    values = spread(points, span.since, span.until, count)
    return [(span.since + (i + 0.5) * width, value) for i, value in enumerate(values)]


def _rows(
    lines: Sequence[tuple[str, str, Points]], span: ChartRange, label: Callable[[float], str]
) -> list[list[str]]:
    """Return the rows of a chart's table, latest first. A row shows each curve's maximum in one part of the range."""
    columns = [spread(points, span.since, span.until, ROWS) for _, _, points in lines]
    step = (span.until - span.since) / ROWS
    rows = []
    for i in reversed(range(ROWS)):
        values = [column[i] for column in columns]
        if any(value is not None for value in values):
            at = datetime.fromtimestamp(span.since + (i + 1) * step, span.zone)
            shown = [formats.UNKNOWN if value is None else label(value) for value in values]
            rows.append([f"{at:%d %b %H:%M}" if span.is_long else f"{at:%H:%M}", *shown])
    return rows


def _seconds(points: Points) -> list[tuple[float, float | None]]:
    return [(at, None if ms is None else ms / 1000) for at, ms in points]


def _rate(value: float) -> str:
    return formats.number(value) if value >= 10 or value == int(value) else f"{value:.1f}"
