"""Charts: escaped, gaps shown as gaps, small sparklines; colours that all people can tell apart."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import Any

import pytest

from jobq.observe.chart import (
    HALF_LABEL,
    LEFT,
    WIDTH,
    Bar,
    ChartFrame,
    ChartLine,
    Mark,
    TimeAxis,
    bar_chart,
    column_chart,
    key,
    line_chart,
    sparkline,
    spread,
    style_sheet,
)

HOSTILE = "\"'><script>alert(1)</script>\x1b[2J"
FRAME = ChartFrame("backlog", HOSTILE, HOSTILE)
STATES = ("ready", "delayed", "running", "done", "retry", "dead", "paused")
SERIES = ("ready", "retry", "done", "delayed", "dead", "running")
#: Machado 2009, severity 1: what of linear RGB is left.
VISION: dict[str, Any] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}  # fmt: skip


def number(value: float) -> str:
    return f"{value:g}"


def test_every_text_of_a_chart_is_escaped_and_the_chart_is_markup():
    line = ChartLine(HOSTILE, "ready", [(0, 1), (60, 2)])
    drawn = [
        line_chart(FRAME, [line], TimeAxis(marks=[Mark(30, HOSTILE)]), lambda _: HOSTILE),
        key([line]),
        bar_chart(FRAME, [Bar({"job": HOSTILE}, 1, HOSTILE)]),
        column_chart(FRAME, [(HOSTILE, 2)], lambda _: HOSTILE),
    ]
    for one in drawn:
        assert one.__html__() == one
        assert "<script" not in one and "\x1b" not in one and 'style="' not in one


def test_unknown_points_interrupt_a_line_and_marks_outside_are_left_out():
    points = [(0, 1.0), (60, 2.0), (120, None), (180, 3.0)]
    axis = TimeAxis(since=0, until=240, marks=[Mark(30, "v2"), Mark(999, "v3")])
    drawn = line_chart(FRAME, [ChartLine("ready", "ready", points)], axis, number)
    assert drawn.count("<polyline") == 2
    assert "v2" in drawn and "v3" not in drawn
    assert line_chart(FRAME, [ChartLine("ready", "ready", [(0, None)])], axis, number) == ""


def test_sparkline_of_sixty_points_is_small():
    drawn = sparkline([1_000_000 - i * 7_919 % 900_000 for i in range(60)])
    assert len(re.findall('d="([^"]*)"', drawn)[0]) <= 400
    assert sparkline([None, 3, None]) == ""


def test_points_are_spread_over_equal_parts_of_the_time():
    points = [(0, 1.0), (1, 9.0), (50, None), (99, 4.0), (100, 5.0), (101, 99.0)]
    assert spread(points, 0, 100, 4) == [9.0, None, None, 5.0]


def tokens(theme: int) -> dict[str, str]:
    """Each colour of the light theme (0) or the dark one (1)."""
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style_sheet())
    return {name: colours[theme] for name, *colours in found}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]


def luminance(colour: str) -> float:
    return sum(
        share * one for share, one in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True)
    )


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    rgb = linear(colour)
    seen = [
        min(1, max(0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in VISION[vision]
    ]
    white = (0.95047, 1, 1.08883)
    to_xyz = (
        (0.4124564, 0.3575761, 0.1804375),
        (0.2126729, 0.7151522, 0.072175),
        (0.0193339, 0.119192, 0.9503041),
    )
    xyz = [
        sum(a * b for a, b in zip(row, seen, strict=True)) / most
        for row, most in zip(to_xyz, white, strict=True)
    ]
    x, y, z = (
        one ** (1 / 3) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in xyz
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_are_told_apart_by_everybody(theme):
    found = tokens(theme)
    for name in STATES:
        assert contrast(found[name], found["paper"]) >= 3, name
        assert contrast(found[name], found["panel"]) >= 3, name
    for vision in VISION:
        for chart in (("ready", "delayed", "running"), ("done", "retry", "dead"), SERIES):
            for one, other in combinations(chart, 2):
                a, b = lab(found[one], vision), lab(found[other], vision)
                distance = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
                assert distance >= 18, (vision, one, other, distance)


@pytest.mark.parametrize(
    ("most", "labels"),
    [(1, ["0", "1"]), (2, ["0", "1", "2"]), (5, ["0", "2", "4", "6", "8"]), (80, ["0", "20", "40", "60", "80"]),
     (9, ["0", "5", "10"])],
)  # fmt: skip
def test_lines_of_counts_are_at_whole_numbers_once_each(most, labels):
    line = ChartLine("ready", "ready", [(0.0, 0.0), (60.0, float(most))])
    drawn = line_chart(
        ChartFrame("c", "Counts", "Counts."), [line], TimeAxis(), lambda value: f"{value:.0f}"
    )
    assert re.findall(r'class="tick end"[^>]*>([^<]*)<', drawn)[: len(labels)] == labels


@pytest.mark.parametrize("late_h", [0, 2, 6, 12, 23])
def test_labels_of_a_week_are_apart_and_inside_when_a_day_begins_near_an_edge(late_h):
    first = 20_000 * 86_400 + late_h * 3600
    line = ChartLine("ready", "ready", [(first, 1.0), (first + 7 * 86_400, 2.0)])
    drawn = line_chart(ChartFrame("c", "Counts", "Counts."), [line], TimeAxis(), "{:.0f}".format)
    found = re.findall(r'class="tick middle" x="([^"]*)"[^>]*>(\d\d \w+)<', drawn)
    places = [float(x) for x, _ in found]
    assert len(places) == 7
    assert min(b - a for a, b in pairwise(places)) >= 2 * HALF_LABEL
    assert places[0] >= LEFT and places[-1] + HALF_LABEL <= WIDTH
