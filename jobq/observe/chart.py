"""Line charts, bar charts, heat maps and sparklines as static SVG, for reports and the dashboard.

Style sheets set the colours. `style_sheet()` returns the CSS rules for charts, and the colours that reports and the
dashboard share. This module escapes every text. A chart is a Drawing, which templates don't escape again. Charts are
400 units wide by default, so that their text is readable on a phone screen of 330 pixels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

from jobq.observe.escape import escaped

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 26
#: Distance between two bars.
STEP = 34
#: Maximum number of ticks of a time axis, and the possible seconds between two ticks.
TICKS = 7
TICK_STEPS = (
    60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 2 * 86_400, 4 * 86_400, 7 * 86_400,
)  # fmt: skip
#: Half the width of the widest label of a time, `16 Nov`, with some space.
HALF_LABEL = 19
#: The size of a sparkline.
SPARK_WIDTH, SPARK_HEIGHT = 120, 24
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Drawing(str):
    """Markup that a template inserts without escaping it."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the markup; template engines call this method."""
        return str(self)


class ChartFrame(NamedTuple):
    """Name and description of a chart.

    Attributes:
        name: Prefix of the element ids of the chart in the page.
        says: The description of the chart, in one sentence.
    """

    name: str
    title: str
    says: str


class ChartLine(NamedTuple):
    """A line of a chart.

    Attributes:
        style: CSS class of the line, such as `s0` or `ready`.
        points: Pairs of epoch seconds and a value. The value None interrupts the line.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float | None]]


class Mark(NamedTuple):
    """A time that every chart marks, such as a deploy.

    Attributes:
        at: Time in epoch seconds.
    """

    at: float
    name: str


class Bar(NamedTuple):
    """A bar of a chart.

    Attributes:
        label: Parts of the label by name. A long label is shortened: `job` and `jobs` at the start, other parts at the
            end.
        shown: The value as text.
        before: Value in an earlier range, shown as a thin bar below.
    """

    label: Mapping[str, str]
    value: float
    shown: str
    style: str = "bar"
    before: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimeAxis:
    """The time axis of a line chart.

    Attributes:
        since, until: Range in epoch seconds, by default from the first to the last point.
    """

    zone: tzinfo = UTC
    since: float | None = None
    until: float | None = None
    marks: Sequence[Mark] = ()
    width: int = WIDTH
    height: int = HEIGHT


@cache
def style_sheet() -> str:
    """Return the CSS variables (colours of paper, text, states and series) and the CSS rules for charts."""
    here = files("jobq.observe")
    return "".join(
        (here / name).read_text(encoding="utf-8") for name in ("tokens.css", "chart.css")
    )


def text(value: object) -> str:
    """Escape a text for HTML."""
    return escape(escaped(str(value)), quote=True)


def short(label: str, most: int = 30, keeps_end: bool = False) -> str:
    """Shorten a text to at most `most` characters."""
    if len(label) <= most:
        return label
    return "…" + label[1 - most :] if keeps_end else label[: most - 1] + "…"


def _framed(frame: ChartFrame, width: float, height: float, parts: Sequence[str]) -> Drawing:
    name = text(frame.name)
    return Drawing(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{text(frame.title)}</title><desc id="{name}-d">{text(frame.says)}</desc>'
        + "".join(parts) + "</svg>"
    )  # fmt: skip


# Lines over time.


def line_chart(
    frame: ChartFrame, lines: Sequence[ChartLine], axis: TimeAxis, label: Callable[[float], str]
) -> Drawing:
    """Draw lines over time, with marks. The drawing is empty if no line has a value.

    Args:
        label: Formats a value.
    """
    times = sorted({at for line in lines for at, value in line.points if value is not None})
    if not times:
        return Drawing()
    top = ceiling(max(value for line in lines for _, value in line.points if value is not None))
    first = times[0] if axis.since is None else axis.since
    last = times[-1] if axis.until is None else axis.until
    place = _Place(axis.width, axis.height, first, last - first or 1, top)
    parts = [
        *_grid(place, label),
        *_time_ticks(place, first, last, axis.zone),
        *_marks(place, axis),
        *(_drawn(place, line) for line in lines),
    ]
    return _framed(frame, axis.width, axis.height, parts)


def key(lines: Sequence[ChartLine]) -> Drawing:
    """Draw the legend of a line chart."""
    items = "".join(
        '<li><svg viewBox="0 0 22 8" aria-hidden="true">'
        f'<line class="line {line.style}" x1="1" x2="21" y1="4" y2="4"/></svg>{text(short(line.name))}</li>'
        for line in lines
    )
    return Drawing(f'<ul class="key">{items}</ul>')


class _Place(NamedTuple):
    width: int
    height: int
    first: float
    span: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * (at - self.first) / self.span

    def y(self, value: float) -> float:
        return TOP + (self.height - TOP - BOTTOM) * (1 - value / self.top)


def _drawn(place: _Place, line: ChartLine) -> str:
    """Draw each uninterrupted part of a line. A single point becomes a short line, so that it is visible."""
    runs: list[list[str]] = [[]]
    for at, value in line.points:
        if value is None:
            runs.append([])
        elif place.first <= at <= place.first + place.span:
            runs[-1].append(f"{place.x(at):.1f},{place.y(value):.1f}")
    drawn = ""
    known = [run for run in runs if run]
    for run in known:
        if len(run) == 1:
            x, y = run[0].split(",")
            end = place.width - RIGHT if len(known) == 1 else min(place.width - RIGHT, float(x) + 2)
            run = [run[0], f"{end:g},{y}"]
        drawn += f'<polyline class="line {line.style}" points="{" ".join(run)}"/>'
    return f"<g><title>{text(line.name)}</title>{drawn}</g>"


def _grid(place: _Place, label: Callable[[float], str]) -> list[str]:
    marks = []
    parts = _parts(place.top, label)
    for i in range(parts + 1):
        value = place.top * i / parts
        y = place.y(value)
        marks.append(
            f'<line class="grid" x1="{LEFT}" x2="{place.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{text(label(value))}</text>'
        )
    return marks


def _parts(top: float, label: Callable[[float], str]) -> int:
    """Return the number of intervals of the value axis: four, or fewer if labels would repeat or be inexact."""
    rounds = label(0.5) in (label(0.0), label(1.0))
    for parts in (4, 2):
        values = [top * i / parts for i in range(parts + 1)]
        is_whole = not rounds or all(value == int(value) for value in values)
        if is_whole and len({label(value) for value in values}) == len(values):
            return parts
    return 1


def _marks(place: _Place, axis: TimeAxis) -> list[str]:
    bottom = place.height - BOTTOM
    return [
        f"<g><title>{text(mark.name)}</title>"
        f'<line class="event" x1="{place.x(mark.at):.1f}" x2="{place.x(mark.at):.1f}" y1="{TOP}" y2="{bottom}"/></g>'
        for mark in axis.marks
        if place.first <= mark.at <= place.first + place.span
    ]


def _time_ticks(place: _Place, first_s: float, last_s: float, zone: tzinfo) -> list[str]:
    """Return ticks at the starts of days, hours or shorter steps. If the range has no such time, return a tick at
    `first_s`.
    """
    first, last = (datetime.fromtimestamp(at, UTC) for at in (first_s, last_s))
    span = last_s - first_s
    days = math.ceil(span / TICKS / 86_400)
    step = next((step for step in TICK_STEPS if span / step <= TICKS), days * 86_400)
    parts = []
    before = -math.inf
    for at in _rounds(first, last, step, zone) or [first]:
        # A label at the right edge would be cut off; it is moved, or left out if it then touches the previous
        # label.
        local, x = at.astimezone(zone), min(place.x(at.timestamp()), place.width - HALF_LABEL)
        if x - before < 2 * HALF_LABEL:
            continue
        before = x
        label = local.strftime("%H:%M" if local.hour or local.minute or step < 3600 else "%d %b")
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{place.height - 8}">{label}</text>')
    return parts


def _rounds(first: datetime, last: datetime, step: int, zone: tzinfo) -> list[datetime]:
    """Return the times in the range at which the zone's clock shows a multiple of `step`."""
    if step > 3600:
        return _walls(first, last, step, zone)
    # When clocks change, an hour is repeated or skipped. In UTC each moment occurs once.
    at, moments = first, []
    while at <= last:
        wall = at.astimezone(zone).replace(tzinfo=None)
        over = (wall - datetime.min) % timedelta(seconds=step)
        if not over:
            moments.append(at)
        at += timedelta(seconds=step) - over
    return moments


def _walls(first: datetime, last: datetime, step: int, zone: tzinfo) -> list[datetime]:
    """Return ticks for steps of over an hour. If a clock change occurs, one step is longer or shorter."""
    wall = first.astimezone(zone).replace(tzinfo=None)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    skipped = math.ceil((wall - midnight).total_seconds() / step)
    moments: list[datetime] = []
    while (
        at := (midnight + timedelta(seconds=skipped * step)).replace(tzinfo=zone).astimezone(UTC)
    ) <= last:
        if at >= first and at not in moments[-1:]:
            moments.append(at)
        skipped += 1
    return moments


def ceiling(value: float) -> float:
    """Round a value up to 1, 2, 4, 8 or 10 times a power of ten, so that a quarter of the result is a round number."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return float(next(n * power for n in (1, 2, 4, 8, 10) if n * power >= value))


# Bars.


def bar_chart(frame: ChartFrame, bars: Sequence[Bar], mark: float | None = None) -> Drawing:
    """Draw horizontal bars.

    Args:
        mark: Value at which a dashed line crosses all bars.
    """
    values = [value for bar in bars for value in (bar.value, bar.before or 0)]
    low, high = min(0, *values, 0), max(0, mark or 0, *values) or 1
    scale = (WIDTH - 76) / (high - low)
    parts = [_bar(i * STEP, bar, scale, -low * scale) for i, bar in enumerate(bars)]
    if low < 0:
        parts += _upright("zero", -low * scale, len(bars))
    if mark:
        parts += _upright("mark", (mark - low) * scale, len(bars))
    return _framed(frame, WIDTH, STEP * len(bars), parts)


def _upright(kind: str, x: float, count: int) -> list[str]:
    return [
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 15}" y2="{y + 29}"/>'
        for y in range(0, STEP * count, STEP)
    ]


def _bar(y: int, bar: Bar, scale: float, zero: float) -> str:
    length = bar.value * scale
    x, width = zero + min(0, length), max(1, abs(length))
    then = "" if bar.before is None else _before(y, bar.before * scale, zero)
    return (
        f"<g><title>{text(' · '.join(bar.label.values()))}: {text(bar.shown)}</title>"
        f'<text class="label" x="0" y="{y + 12}">{text(_label(bar.label))}</text>'
        f'<rect class="{bar.style}" x="{x:.1f}" y="{y + 17}" width="{width:.1f}" height="10" rx="2"/>'
        f'{then}<text class="value" x="{x + width + 6:.1f}" y="{y + 26}">{text(bar.shown)}</text></g>'
    )


def _before(y: int, length: float, zero: float) -> str:
    x, width = zero + min(0, length), max(1, abs(length))
    return f'<rect class="before" x="{x:.1f}" y="{y + 28}" width="{width:.1f}" height="3" rx="1"/>'


def _label(parts: Mapping[str, str], most: int = 52) -> str:
    room, cut = most - 3 * (len(parts) - 1), {}
    for i, name in enumerate(sorted(parts, key=lambda name: len(parts[name]))):
        cut[name] = short(parts[name], room // (len(parts) - i), name in ("job", "jobs"))
        room -= len(cut[name])
    return " · ".join(cut[name] for name in parts)


# Columns: a histogram.


def column_chart(
    frame: ChartFrame, columns: Sequence[tuple[str, float]], label: Callable[[float], str]
) -> Drawing:
    """Draw a histogram with vertical, named bars. The drawing is empty if all values are 0."""
    most = max((value for _, value in columns), default=0)
    if not most:
        return Drawing()
    place = _Place(WIDTH, HEIGHT, 0, len(columns), ceiling(most))
    wide = (WIDTH - LEFT - RIGHT) / len(columns)
    parts = _grid(place, label)
    every = max(1, math.ceil(len(columns) / TICKS))
    for i, (name, value) in enumerate(columns):
        x, y = place.x(i), place.y(value)
        height = max(1, HEIGHT - BOTTOM - y) if value else 0
        parts.append(
            f'<rect class="bar" x="{x + 0.5:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" width="{max(1, wide - 1):.1f}" '
            f'height="{height:.1f}" rx="1"><title>{text(name)}: {text(label(value))}</title></rect>'
        )
        if i % every == 0:
            parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}">{text(name)}</text>')
    return _framed(frame, WIDTH, HEIGHT, parts)


# Heat maps of a week.


def heat_map(
    frame: ChartFrame, values: Mapping[tuple[int, int], float], shown: Callable[[float], str]
) -> Drawing:
    """Draw a heat map of weekdays and hours; keys of `values` are (weekday from Monday = 0, hour)."""
    size, left, most = 14.5, 36, max(values.values(), default=0) or 1
    parts = []
    for day, name in enumerate(WEEKDAYS):
        parts.append(f'<text class="tick" x="0" y="{day * 22 + 14}">{name}</text>')
        for hour in range(24):
            value = values.get((day, hour), 0)
            opacity = 0.12 + 0.88 * value / most if value else 0
            parts.append(
                f'<rect class="cell" x="{left + hour * (size + 0.6):.1f}" y="{day * 22}" width="{size}" height="20" '
                f'rx="2" fill-opacity="{opacity:.2f}"><title>{name} {hour:02}:00: '
                f"{text(shown(value))}</title></rect>"
            )
    for hour in range(0, 24, 6):
        parts.append(
            f'<text class="tick" x="{left + hour * (size + 0.6):.1f}" y="{7 * 22 + 14}">{hour:02}:00</text>'
        )
    scale = (
        f'<text class="tick end" x="{WIDTH}" y="{7 * 22 + 30}">darkest: {text(shown(most))}</text>'
    )
    return _framed(frame, WIDTH, 7 * 22 + 36, [*parts, scale])


# Sparklines.


def sparkline(values: Sequence[float | None], style: str = "ready") -> Drawing:
    """Draw a line without axes, from 0 to the greatest value. The value None means unknown.

    A drawing of 60 values has about 200 bytes. Screen readers skip the drawing, because the page also shows the figures
    as text.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Drawing()
    high, room = max(known) or 1, SPARK_HEIGHT - 4
    step = SPARK_WIDTH / (len(values) - 1)
    path, before = [], ""
    for i, value in enumerate(values):
        if value is None:
            before = ""
            continue
        path.append(
            f"{'L' if before else 'M'}{i * step:.0f} {SPARK_HEIGHT - 2 - room * value / high:.0f}"
        )
        before = path[-1]
    return Drawing(
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" aria-hidden="true">'
        f'<path class="line {style}" d="{"".join(path)}"/></svg>'
    )


def spread(
    points: Sequence[tuple[float, float | None]], since: float, until: float, count: int
) -> list[float | None]:
    """Divide the time into `count` equal parts, and return each part's maximum, or None for a part without values."""
    maxima: list[float | None] = [None] * count
    at = bisect_left(
        points, (since,)
    )  # a shorter tuple sorts before longer tuples with the same start
    for moment, value in points[at:]:
        if moment > until:
            break
        if value is not None:
            part = min(count - 1, int((moment - since) / (until - since) * count))
            before = maxima[part]
            maxima[part] = value if before is None else max(before, value)
    return maxima
