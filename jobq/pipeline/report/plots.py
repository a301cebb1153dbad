"""Bar charts, line charts and heat maps as static SVG; the page's style sheet sets the colours.

They are 400 units wide, so that the text is readable on a phone that shows 330 pixels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

from jobq.observe.escape import escaped
from jobq.pipeline.report.formats import WEEKDAYS, shown
from jobq.pipeline.report.query import STRETCHES, ReportQuery, zone_of
from jobq.pipeline.report.registry import Chart, ReportColumn
from jobq.pipeline.report.run import FASTER, SLOWER, ReportResult

WIDTH = 400
#: The most bars, and the most lines; the other lines are added up to one.
BARS, LINES = 12, 5
#: The most ticks of a time line, and the possible seconds between two.
TICKS = 7
TICK_STEPS = (*STRETCHES[:-1], 2 * 86_400, 4 * 86_400, 7 * 86_400)
#: Distance of two bars, and the height of a line chart.
STEP, HEIGHT = 34, 210
FIGURES = "the table has the figures."
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 26


def text(value: object) -> str:
    """Escape a text for HTML."""
    return escape(escaped(str(value)), quote=True)


def plot(result: ReportResult, query: ReportQuery) -> str:
    """Return the report's chart with its legend; empty if there is nothing to draw."""
    chart = result.report.chart
    rows = [row for row in result.rows if row[chart.y] is not None]
    if not rows:
        return ""
    return {"bars": _bars, "lines": _lines, "heat": _heat}[chart.kind](result, chart, rows, query)


def _framed(result: ReportResult, height: float, says: str, parts: Sequence[str]) -> str:
    name = result.report.name
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{text(result.report.title)}</title><desc id="{name}-d">{text(says)}</desc>'
        + "".join(parts) + "</svg>"
    )  # fmt: skip


def _short(label: str, most: int = 30, keeps_end: bool = False) -> str:
    if len(label) <= most:
        return label
    return "…" + label[1 - most :] if keeps_end else label[: most - 1] + "…"


def _label(parts: Mapping[str, str], most: int = 52) -> str:
    """Shorten parts to so many characters: keep the beginning of an error, and the end of a dotted name."""
    room, told = most - 3 * (len(parts) - 1), {}
    for i, name in enumerate(sorted(parts, key=lambda name: len(parts[name]))):
        told[name] = _short(parts[name], room // (len(parts) - i), name in ("job", "jobs"))
        room -= len(told[name])
    return " · ".join(told[name] for name in parts)


def _bars(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> str:
    most = rows if chart.ordered else sorted(rows, key=lambda row: -abs(row[chart.y]))
    most, column = most[:BARS], result.report.column(chart.y)
    values = [row[chart.y] for row in most]
    low, high = min(0, *values), max(0, chart.mark or 0, *values) or 1
    scale = (WIDTH - 76) / (high - low)
    parts = []
    for i, row in enumerate(most):
        label = {x: shown(row[x], result.report.column(x), query) for x in chart.x}
        value = shown(row[chart.y], column, query)
        parts.append(
            _bar(i * STEP, label, value, row[chart.y] * scale, -low * scale, _strength(row))
        )
    if low < 0:
        parts += _upright("zero", -low * scale, len(most))
    if chart.mark:
        parts += _upright("mark", (chart.mark - low) * scale, len(most))
    which = "first" if chart.ordered else "largest"
    says = f"{column.heading} by {', '.join(chart.x)}: the {len(most)} {which} of {len(rows)}; {FIGURES}"
    return _framed(result, STEP * len(most), says, parts)


def _upright(kind: str, x: float, count: int) -> list[str]:
    """Return a line across all bars, interrupted at their labels."""
    return [
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 15}" y2="{y + 29}"/>'
        for y in range(0, STEP * count, STEP)
    ]


def _bar(
    y: int, label: Mapping[str, str], value: str, length: float, zero: float, strength: str
) -> str:
    x, width = zero + min(0, length), max(1, abs(length))
    return (
        f"<g><title>{text(' · '.join(label.values()))}: {text(value)}</title>"
        f'<text class="label" x="0" y="{y + 12}">{text(_label(label))}</text>'
        f'<rect class="{strength}" x="{x:.1f}" y="{y + 17}" width="{width:.1f}" height="10" rx="2"/>'
        f'<text class="value" x="{x + width + 6:.1f}" y="{y + 26}">{text(value)}</text></g>'
    )


def _strength(row: Mapping[str, Any]) -> str:
    """Return the style of a bar: faint if the change may be chance."""
    if "verdict" not in row:
        return "bar"
    return f"bar {row['verdict']}" if row["verdict"] in (SLOWER, FASTER) else "bar quiet"


def _lines(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> str:
    series, column = _series(chart, rows), result.report.column(chart.y)
    times = sorted({row[chart.x[0]] for row in rows})
    top = _ceiling(max(max(points.values()) for _, points in series))
    first: float = times[0].timestamp()
    span: float = times[-1].timestamp() - first or 1

    def x_of(at: datetime) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at.timestamp() - first) / span

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)

    parts = _grid(column, top, y_of, query) + _times(times, x_of, query)
    for i, (name, points) in enumerate(series):
        path = [f"{x_of(at):.1f},{y_of(value):.1f}" for at, value in sorted(points.items())]
        # A line of one point would be invisible.
        path = path if len(path) > 1 else [path[0], f"{WIDTH - RIGHT},{path[0].split(',')[1]}"]
        drawn = f'<polyline class="line s{i}" points="{" ".join(path)}"/>'
        parts.append(f"<g><title>{text(name)}</title>{drawn}</g>")
    says = f"{column.heading} over time, a line per {chart.by}; {FIGURES}"
    return _framed(result, HEIGHT, says, parts) + _key([name for name, _ in series])


def _key(names: Sequence[str]) -> str:
    items = "".join(
        '<li><svg viewBox="0 0 22 8" aria-hidden="true">'
        f'<line class="line s{i}" x1="1" x2="21" y1="4" y2="4"/></svg>{text(_short(name))}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="key">{items}</ul>'


def _series(chart: Chart, rows: Sequence[Any]) -> list[tuple[str, dict[datetime, float]]]:
    """Return name and points of each line, the highest first; beyond LINES the rest are added up."""
    found: dict[str, dict[datetime, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        found[str(row[chart.by])][row[chart.x[0]]] += row[chart.y]
    ordered = sorted(found.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    if len(ordered) <= LINES + 1:
        return ordered
    rest: dict[datetime, float] = defaultdict(float)
    for _, points in ordered[LINES:]:
        for at, value in points.items():
            rest[at] += value
    return [*ordered[:LINES], (f"{len(ordered) - LINES} others", rest)]


def _grid(
    column: ReportColumn, top: float, y_of: Callable[[float], float], query: ReportQuery
) -> list[str]:
    lines = []
    for i in range(5):
        value = top * i / 4
        label = f"{value:,.0f}" if column.unit == "count" else shown(value, column, query)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}"/>'
            f'<text class="tick end" x="{LEFT - 6}" y="{y_of(value) + 4:.1f}">{text(label)}</text>'
        )
    return lines


def _times(
    times: Sequence[datetime], x_of: Callable[[datetime], float], query: ReportQuery
) -> list[str]:
    """Return ticks at the beginnings of days, hours or the like; the first moment if there are none."""
    span = (times[-1] - times[0]).total_seconds()
    days = math.ceil(span / TICKS / 86_400)
    step = next((step for step in TICK_STEPS if span / step <= TICKS), days * 86_400)
    parts = []
    for at in _rounds(times[0], times[-1], step, zone_of(query.zone)) or times[:1]:
        local, x = at.astimezone(zone_of(query.zone)), x_of(at)
        label = local.strftime("%H:%M" if local.hour or local.minute or step < 3600 else "%d %b")
        # A label that is partly outside would be cut off.
        side = "start" if x < LEFT + 16 else "end" if x > WIDTH - RIGHT - 16 else "middle"
        parts.append(f'<text class="tick {side}" x="{x:.1f}" y="{HEIGHT - 8}">{label}</text>')
    return parts


def _rounds(first: datetime, last: datetime, step: int, zone: ZoneInfo) -> list[datetime]:
    """Yield every `step` seconds of that zone's clock from midnight on; each moment once, none before `first`."""
    if step > 3600:
        return _walls(first, last, step, zone)
    # When clocks change, an hour is repeated or skipped. In UTC each moment is there once.
    at, found = first.astimezone(UTC), []
    while at <= last:
        wall = at.astimezone(zone).replace(tzinfo=None)
        over = (wall - datetime.min) % timedelta(seconds=step)
        if not over:
            found.append(at)
        at += timedelta(seconds=step) - over
    return found


def _walls(first: datetime, last: datetime, step: int, zone: ZoneInfo) -> list[datetime]:
    """Yield the same for steps over an hour, whose length changes with the clocks."""
    wall = first.astimezone(zone).replace(tzinfo=None)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    skipped = math.ceil((wall - midnight).total_seconds() / step)
    found: list[datetime] = []
    while (
        at := (midnight + timedelta(seconds=skipped * step)).replace(tzinfo=zone).astimezone(UTC)
    ) <= last:
        if at >= first and at not in found[-1:]:
            found.append(at)
        skipped += 1
    return found


def _ceiling(value: float) -> float:
    """Return the next of 1, 2, 4, 8, 10 times a power of ten, so that quarters are round."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return float(next(n * power for n in (1, 2, 4, 8, 10) if n * power >= value))


def _heat(result: ReportResult, chart: Chart, rows: Sequence[Any], query: ReportQuery) -> str:
    column, size, left = result.report.column(chart.y), 14.5, 36
    most = max(row[chart.y] for row in rows) or 1
    known = {(row[chart.x[0]], row[chart.x[1]]): row[chart.y] for row in rows}
    parts = []
    for day, name in enumerate(WEEKDAYS):
        parts.append(f'<text class="tick" x="0" y="{day * 22 + 14}">{name}</text>')
        for hour in range(24):
            value = known.get((day, hour), 0)
            opacity = 0.12 + 0.88 * value / most if value else 0
            parts.append(
                f'<rect class="cell" x="{left + hour * (size + 0.6):.1f}" y="{day * 22}" width="{size}" height="20" '
                f'rx="2" fill-opacity="{opacity:.2f}"><title>{name} {hour:02}:00: '
                f"{text(shown(value, column, query))}</title></rect>"
            )
    for hour in range(0, 24, 6):
        parts.append(
            f'<text class="tick" x="{left + hour * (size + 0.6):.1f}" y="{7 * 22 + 14}">{hour:02}:00</text>'
        )
    darkest = shown(most, column, query)
    says = f"{column.heading} by weekday and hour, {query.zone}; darkest: {darkest}; {FIGURES}"
    scale = f'<text class="tick end" x="{WIDTH}" y="{7 * 22 + 30}">darkest: {text(darkest)}</text>'
    return _framed(result, 7 * 22 + 36, says, [*parts, scale])
