"""Draw the charts of reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jobq.observe.chart import (
    Bar,
    ChartFrame,
    ChartLine,
    Drawing,
    TimeAxis,
    bar_chart,
    heat_map,
    key,
    line_chart,
)
from jobq.pipeline.report.formats import shown
from jobq.pipeline.report.query import ReportQuery, zone_of
from jobq.pipeline.report.registry import Chart
from jobq.pipeline.report.run import FASTER, SLOWER, ReportResult

#: Maximum number of bars, and of lines. Further lines are added up into one line.
BARS, LINES = 12, 5
FIGURES = "the table has the figures."
EARLIER = "earlier range"


def plot(result: ReportResult, query: ReportQuery) -> Drawing:
    """Return the report's chart with its legend; empty if there is nothing to draw."""
    chart = result.report.chart
    rows = [row for row in result.rows if row[chart.y] is not None]
    if not rows:
        return Drawing()
    return {"bars": _bars, "lines": _lines, "heat": _heat}[chart.kind](result, chart, rows, query)


def _frame(result: ReportResult, says: str) -> ChartFrame:
    return ChartFrame(result.report.name, result.report.title, says)


def _bars(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> Drawing:
    most = rows if chart.ordered else sorted(rows, key=lambda row: -abs(row[chart.y]))
    most, column = most[:BARS], result.report.column(chart.y)
    pairs = result.earlier.pairs if result.earlier else [None] * len(result.rows)
    then = {id(row): pair for row, pair in zip(result.rows, pairs, strict=True) if pair}
    bars = [
        Bar(
            {x: shown(row[x], result.report.column(x), query) for x in chart.x},
            row[chart.y],
            shown(row[chart.y], column, query),
            _strength(row),
            then[id(row)][chart.y] if id(row) in then else None,
        )
        for row in most
    ]
    which = "first" if chart.ordered else "largest"
    of = f"the {len(most)} {which} of {len(rows)}; {_beside(result)}{FIGURES}"
    says = f"{column.heading} by {', '.join(chart.x)}: {of}"
    return bar_chart(_frame(result, says), bars, chart.mark)


def _strength(row: Mapping[str, Any]) -> str:
    """Return the CSS class of a bar: faint if the change may be due to chance."""
    if "verdict" not in row:
        return "bar"
    return f"bar {row['verdict']}" if row["verdict"] in (SLOWER, FASTER) else "bar quiet"


def _lines(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> Drawing:
    lines, column = _series(chart, rows), result.report.column(chart.y)
    legend = list(lines)
    if result.earlier:
        legend.append(ChartLine(EARLIER, "s0 before", ()))
        lines = [*_earlier(chart, result.earlier.rows, lines, query), *lines]

    def label(value: float) -> str:
        return f"{value:,.0f}" if column.unit == "count" else shown(value, column, query)

    says = f"{column.heading} over time, a line per {chart.by}; {_beside(result)}{FIGURES}"
    frame, axis = _frame(result, says), TimeAxis(zone=zone_of(query.zone))
    drawn = line_chart(frame, lines, axis, label)
    return Drawing(drawn + key(legend))


def _beside(result: ReportResult) -> str:
    return "thin: the earlier range; " if result.earlier else ""


def _earlier(
    chart: Chart, rows: Sequence[Any], lines: Sequence[ChartLine], query: ReportQuery
) -> list[ChartLine]:
    """Return the lines of the earlier range, shifted in time to the chart's range."""
    assert query.compared is not None
    later = query.since.timestamp() - query.compared[0].timestamp()
    names = [line.name for line in lines]
    sums: list[dict[float, float]] = [defaultdict(float) for _ in lines]
    for row in rows:
        at, name = row[chart.x[0]].timestamp() + later, str(row[chart.by])
        if name in names or len(lines) > LINES:
            sums[names.index(name) if name in names else -1][at] += row[chart.y] or 0
    last = query.until.timestamp()
    return [
        ChartLine(
            f"{line.name}, {EARLIER}",
            f"{line.style} before",
            sorted((at, value) for at, value in points.items() if at < last),
        )
        for line, points in zip(lines, sums, strict=True)
        if points
    ]


def _series(chart: Chart, rows: Sequence[Any]) -> list[ChartLine]:
    """Return a chart's lines, largest first. If there are more than LINES + 1, add up all after the first LINES."""
    sums: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        sums[str(row[chart.by])][row[chart.x[0]].timestamp()] += row[chart.y]
    ordered = sorted(sums.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    if len(ordered) > LINES + 1:
        rest: dict[float, float] = defaultdict(float)
        for _, points in ordered[LINES:]:
            for at, value in points.items():
                rest[at] += value
        ordered = [*ordered[:LINES], (f"{len(ordered) - LINES} others", rest)]
    return [
        ChartLine(name, f"s{i}", sorted(points.items())) for i, (name, points) in enumerate(ordered)
    ]


def _heat(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> Drawing:
    column = result.report.column(chart.y)
    known = {(row[chart.x[0]], row[chart.x[1]]): row[chart.y] for row in rows}
    darkest = shown(max(known.values()) or 1, column, query)
    says = f"{column.heading} by weekday and hour, {query.zone}; darkest: {darkest}; {FIGURES}"
    return heat_map(_frame(result, says), known, lambda value: shown(value, column, query))
