"""The page: whole, escaped, and in a real browser within a phone's width and without a request."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jobq.observe.chart import HEIGHT, LEFT, RIGHT, WIDTH
from jobq.pipeline.report.compare import KEYS, change, compared, with_comparison
from jobq.pipeline.report.formats import document, is_number, spreadsheet
from jobq.pipeline.report.html import cards, page
from jobq.pipeline.report.plots import plot
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import (
    ERRORS,
    REGRESSIONS,
    REPORTS,
    RUN,
    THROUGHPUT,
    Report,
    ReportColumn,
)
from jobq.pipeline.report.run import EventsSeen, ReportResult
from tests import tools
from tests.pipeline.report.rows import NOON, at

HOSTILE = "<script src=//evil.example/x.js></script>\"'&\x1b[2J" + "x" * 90
ASKED = ReportQuery(since=NOON, until=NOON + timedelta(days=2))
DAYS = ASKED.until - ASKED.since
COMPARED = with_comparison(ASKED, "previous", ASKED.until)
SEEN = EventsSeen(1234, at(0), at(60), ("low", HOSTILE))
_BY_UNIT: dict[str, Any] = {
    "text": HOSTILE, "count": 1234, "ms": 1500, "us": 2_500_000, "share": 0.25, "times": 2.5,
    "decimal": 1.5, "kib": 90_000, "weekday": 3, "time": at(60),
}  # fmt: skip


def row(report: Report, i: int) -> dict[str, Any]:
    """A row of every unit, some of it null."""
    made = {column.name: _BY_UNIT[column.unit] for column in report.columns}
    if "at" in made:
        made |= {"at": at(3600 * i), "queue": f"queue {i % 8}"}
    if "hour" in made and report.name == "heatmap":
        made["hour"] = i % 24
    if "verdict" in made:
        made |= {
            "verdict": ["slower", "faster", "not enough data"][i % 3],
            "change": [0.4, -0.2, None][i % 3],
        }
    return made


def full() -> list[ReportResult]:
    """Every report with rows."""
    return [ReportResult(one, [row(one, i) for i in range(48)], ["A note <b>."]) for one in REPORTS]


def beside() -> list[ReportResult]:
    """Every report with rows, comparable reports with an earlier range that lacks some rows."""
    found = []
    for one in full():
        if one.report.name in KEYS:
            rows = [row(one.report, i) for i in range(0, 48, 5)]
            rows = [
                {**each, **({"at": each["at"] - DAYS} if one.report.chart.kind == "lines" else {})}
                for each in rows
            ]
            one = compared(one, COMPARED, replace(one, rows=rows))
        found.append(one)
    return found


class Elements(HTMLParser):
    """Every element and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_page_takes_nothing_from_elsewhere_whatever_jobs_are_called():
    said = page(full(), ASKED, SEEN)
    found = Elements(said).found
    [script] = re.findall(r"<script>(.*?)</script>", said, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert [tag for tag, _ in found].count(
        "script"
    ) == 1 and f"script-src 'sha256-{digest}'" in said
    assert not {"img", "iframe", "object", "base", "form"} & {tag for tag, _ in found}
    assert [
        a for _, attrs in found for a in attrs if a.startswith("on") or a in ("src", "srcset")
    ] == []
    # A heading sorts by these: the value itself, and nothing for null.
    assert {"1234", "0.25", "3", ""} <= {attrs["data-v"] for _, attrs in found if "data-v" in attrs}
    links = [attrs["href"] for tag, attrs in found if "href" in attrs]
    assert links and all((link or "").startswith("#") for link in links)
    assert "url(" not in said and "@import" not in said and "\x1b" not in said
    assert any((attrs.get("content") or "").startswith("default-src 'none'") for _, attrs in found)


def test_every_link_leads_to_a_section():
    found = Elements(page(full(), ASKED, SEEN)).found
    ids = {attrs["id"] for _, attrs in found if "id" in attrs}
    assert {attrs["href"] for _, attrs in found if "href" in attrs} == {
        f"#{one.name}" for one in REPORTS
    }
    assert {one.name for one in REPORTS} <= ids


def test_every_plot_says_what_it_shows_and_has_its_table():
    for one in full():
        said = page([one], ASKED, SEEN)
        tags = [tag for tag, _ in Elements(said).found]
        assert "table" in tags, one.report.name
        assert f'aria-labelledby="{one.report.name}-t {one.report.name}-d"' in said
        assert (
            f'<title id="{one.report.name}-t">' in said
            and f'<desc id="{one.report.name}-d">' in said
        )


def test_page_says_so_when_a_report_has_no_rows():
    said = page([ReportResult(one, []) for one in REPORTS], ASKED, SEEN)
    for one in REPORTS:
        assert one.empty.replace("'", "&#x27;") in said
    assert "Nothing failed" in said and "Not enough data to compare" in said


def test_table_of_a_page_is_cut_and_says_so():
    (errors,) = (one for one in REPORTS if one.name == "errors")
    said = page([ReportResult(errors, [row(errors, i) for i in range(300)])], ASKED, SEEN)
    assert said.count("<tr") == 201 and "100 further rows" in said


def test_time_line_has_its_end_at_the_top_of_its_table_and_queues_in_their_order():
    rows = [
        {"at": at(60 * i), "queue": queue, "done": 1, "failed": 0, "dead": 0, "done_per_s": 0.1}
        for i in range(150)
        for queue in ("high", "low")
    ]
    said = page([ReportResult(THROUGHPUT, rows)], ASKED, SEEN)
    found = re.findall(r"<td>(2026[^<]*)</td><td>(\w+)</td>", said)
    assert found[:3] == [
        ("2026-11-20 14:29", "high"),
        ("2026-11-20 14:29", "low"),
        ("2026-11-20 14:28", "high"),
    ]
    assert len(found) == 200 and "100 earlier rows" in said


@pytest.mark.parametrize(
    ("hours", "labels"),
    [
        (0.5, ["13:00", "13:05", "13:10", "13:15", "13:20", "13:25", "13:30"]),
        (30, ["18:00", "21 Nov", "06:00", "12:00", "18:00"]),
        (24 * 6, ["21 Nov", "22 Nov", "23 Nov", "24 Nov", "25 Nov", "26 Nov"]),
        (24 * 8, ["22 Nov", "24 Nov", "26 Nov", "28 Nov"]),
        (24 * 40, ["27 Nov", "04 Dec", "11 Dec", "18 Dec", "25 Dec"]),
        (24 * 70, ["30 Nov", "10 Dec", "20 Dec", "30 Dec", "09 Jan", "19 Jan", "29 Jan"]),
    ],
)
def test_ticks_of_a_time_line_are_on_the_round_by_the_zone_asked_for(hours, labels):
    rows = [{"at": at(i * hours * 900), "queue": "low", "done_per_s": 0.1} for i in range(5)]
    drawn = plot(ReportResult(THROUGHPUT, rows), replace(ASKED, zone="Europe/Berlin"))
    assert re.findall(rf'y="{HEIGHT - 8}">([^<]*)<', drawn) == labels


@pytest.mark.parametrize(
    ("zone", "since", "hours", "labels"),
    [
        ("Europe/Berlin", "2026-10-25T01:10Z", 1, ["02:15", "02:30", "02:45", "03:00"]),
        ("Europe/Berlin", "2026-10-25T00:00Z", 2, ["02:00", "02:30", "02:00", "02:30", "03:00"]),
        (
            "Europe/Berlin", "2026-03-29T00:00Z", 3,
            ["01:00", "01:30", "03:00", "03:30", "04:00", "04:30", "05:00"],
        ),
        (
            "Australia/Lord_Howe", "2026-04-04T13:30Z", 3,
            ["00:30", "01:00", "01:30", "01:30", "02:00", "02:30", "03:00"],
        ),
        ("Europe/Berlin", "2026-10-24T22:30Z", 15, ["03:00", "06:00", "09:00", "12:00"]),
        ("America/Havana", "2026-11-01T05:00Z", 72, ["12:00", "02 Nov", "12:00", "03 Nov", "12:00", "04 Nov"]),
        ("Pacific/Apia", "2011-12-29T10:00Z", 96, ["29 Dec", "31 Dec", "01 Jan", "02 Jan", "03 Jan"]),
    ],
)  # fmt: skip
def test_ticks_are_within_the_figure_and_each_there_once_where_clocks_change(
    zone, since, hours, labels
):
    first = datetime.fromisoformat(since)
    times = [first + timedelta(hours=hours * i / 4) for i in range(5)]
    rows = [{"at": one, "queue": "low", "done_per_s": 0.1} for one in times]
    drawn = plot(ReportResult(THROUGHPUT, rows), replace(ASKED, zone=zone))
    found = re.findall(rf'x="([^"]*)" y="{HEIGHT - 8}">([^<]*)<', drawn)
    assert [label for _, label in found] == labels
    places = [float(x) for x, _ in found]
    assert places[0] >= LEFT and places[-1] <= WIDTH - RIGHT
    assert places == sorted(set(places))


def test_label_of_a_bar_keeps_the_begin_of_an_error_and_the_end_of_a_name():
    row = {
        "error": "ReadTimeout: " + "x" * 80,
        "jobs": "a" * 80 + ".webhooks.deliver",
        "attempts": 3,
    }
    drawn = plot(ReportResult(ERRORS, [row]), ASKED)
    (label,) = re.findall(r'class="label"[^>]*>([^<]*)<', drawn)
    assert len(label) <= 52
    assert label.startswith("ReadTimeout: x") and label.endswith(".webhooks.deliver")


def test_bars_of_verdicts_are_coloured_and_what_may_be_chance_is_faint():
    drawn = plot(ReportResult(REGRESSIONS, [row(REGRESSIONS, i) for i in range(2)]), ASKED)
    assert 'class="bar slower"' in drawn and 'class="bar faster"' in drawn
    unsure = row(REGRESSIONS, 0) | {"verdict": "no change shown"}
    assert 'class="bar quiet"' in plot(ReportResult(REGRESSIONS, [unsure]), ASKED)


def test_error_on_a_card_is_short():
    made = {one.report.name: one for one in full()}
    failed = row(ERRORS, 0) | {"error": "E: " + "x" * 400, "jobs": "app.send"}
    made["errors"] = ReportResult(ERRORS, [failed])
    _, fails, _ = cards(list(made.values()), ASKED)
    assert fails.lines[0] == f"E: {'x' * 56}… in app.send: 1,234 attempts"


def test_cards_tell_the_worst_first():
    slower, fails, late = cards(full(), ASKED)
    assert slower.bad and slower.answer == "16 jobs got slower"
    assert slower.lines[0].endswith(" +40.0 %: 2.5 s to 2.5 s")
    assert late.bad and late.answer == "48 of 48 queues below 99 % within 30 s"
    assert [name for name, _ in fails.links] == ["errors", "dead", "retries"]


def test_cards_count_what_failed():
    made = {one.report.name: one for one in full()}
    (retries,) = (one.report for one in full() if one.report.name == "retries")
    counts = {"queue": "low", "job": "a", "attempts": 200, "done": 150, "dead": 7}
    made["retries"] = ReportResult(retries, [counts])
    _, fails, _ = cards(list(made.values()), ASKED)
    assert fails.answer == "25.0 % of 200 attempts failed"
    assert fails.lines[-1] == "7 messages died"


def test_line_of_one_point_and_plot_of_zeros_are_drawn():
    (backlog,) = (one for one in REPORTS if one.name == "backlog")
    one = {
        "at": at(0),
        "queue": "low",
        "enqueued": 0,
        "started": 0,
        "most": 0,
        "waiting": 0,
        "basis": "started messages",
    }
    assert 'class="line s0"' in page([ReportResult(backlog, [one])], ASKED, SEEN)


def test_backlog_is_drawn_at_its_highest_when_a_burst_was_over_by_the_end_of_the_stretch():
    (backlog,) = (one for one in REPORTS if one.name == "backlog")
    counts = {
        "at": at(0),
        "queue": "low",
        "enqueued": 800,
        "started": 800,
        "basis": "enqueued events",
    }
    drawn = plot(ReportResult(backlog, [{**counts, "most": 800, "waiting": 0}]), ASKED)
    assert ">800</text>" in drawn


def test_figures_are_beside_those_of_the_earlier_range():
    key = {"queue": "low", "job": "app.send"}
    zero = dict.fromkeys((one.name for one in RUN.columns), 0)
    now = [zero | key | {"attempts": 30, "p95_us": 3_000_000}, zero | key | {"job": "app.new"}]
    then = [zero | key | {"attempts": 40, "p95_us": 2_000_000}, zero | key | {"job": "app.gone"}]
    made = compared(ReportResult(RUN, now), COMPARED, ReportResult(RUN, then, ["Cut at noon."]))
    assert made.notes == ["Earlier range: Cut at noon.", "Only in the earlier range: low/app.gone."]
    said = page([made], COMPARED, SEEN)
    assert "3 s<small>2 s ↑ 50.0 %</small>" in said and "30<small>40 ↓ 25.0 %</small>" in said
    assert said.count("<small>new</small>") == sum(map(is_number, RUN.columns))
    assert "Compared with 2026-11-18 12:00 to 2026-11-20 12:00." in said
    drawn = plot(made, COMPARED)
    [wide, thin] = re.findall(
        r'class="(?:bar|before)"[^>]*width="([^"]*)" height="(?:10|3)"', drawn
    )[:2]
    assert (
        float(thin) / float(wide) == pytest.approx(2 / 3, abs=0.01) and "thin: the earlier" in drawn
    )
    head, first, _ = csv.reader(io.StringIO(spreadsheet(made)))
    assert dict(zip(head, first, strict=True))["p95_us_before"] == "2000000"
    nothing = page([ReportResult(RUN, now)], COMPARED, SEEN)
    assert "No data from" in nothing and "<small>" not in nothing


def test_page_and_json_name_the_server_when_a_report_is_of_one_source():
    of_eu, result = replace(ASKED, source="e<u"), ReportResult(RUN, [])
    assert ", server e&lt;u</p>" in page([result], of_eu, SEEN)
    assert json.loads(document([result], of_eu))["source"] == "e<u"
    assert "server" not in page([result], ASKED, SEEN).partition("</header>")[0]
    assert "source" not in json.loads(document([result], ASKED))


def test_comparison_says_when_the_limit_cut_the_earlier_range_and_names_no_hour():
    by_name = {one.report.name: one for one in full()}
    cut = compared(by_name["run-time"], COMPARED, replace(by_name["run-time"], more=True))
    assert (
        cut.notes[-1]
        == "The earlier range has more than 1,000 rows, so rows marked as new may be in it."
    )
    hours = by_name["heatmap"]
    alone = compared(replace(hours, rows=hours.rows[:1]), COMPARED, hours)
    assert alone.notes == [*hours.notes, *(f"Earlier range: {one}" for one in hours.notes)]
    assert alone.earlier and alone.earlier.pairs == [hours.rows[0]]
    head = next(csv.reader(io.StringIO(spreadsheet(alone))))
    assert "per_hour_before" in head and "hour_before" not in head


def test_lines_of_the_earlier_range_lie_over_those_of_this_one():
    rows = [
        {"at": at(3600 * n), "queue": name, "done_per_s": 1.0 + n}
        for n in range(3)
        for name in "ab"
    ]
    then = [
        one | {"at": one["at"] - DAYS, "done_per_s": 2.0} for one in rows if one["queue"] == "a"
    ]
    made = compared(ReportResult(THROUGHPUT, rows), COMPARED, ReportResult(THROUGHPUT, then))
    assert (
        made.earlier and [pair and pair["queue"] for pair in made.earlier.pairs] == ["a", None] * 3
    )
    drawn = plot(made, COMPARED)
    [over] = re.findall(r'class="line s0 before" points="([^"]*)"', drawn)
    [own] = re.findall(r'class="line s0" points="([^"]*)"', drawn)
    assert [one.split(",")[0] for one in over.split()] == [one.split(",")[0] for one in own.split()]
    assert drawn.count("earlier range</li>") == 1 and 'class="line s1 before"' not in drawn


@pytest.mark.parametrize(
    ("value", "before", "unit", "said"),
    [
        (3, 3, "count", "= 3"), (3, 0, "count", "0 ↑"), (0.2, 0.25, "share", "25.0 % ↓"), (5, None, "count", "–"),
        (None, 5, "count", "5"), (1000, 2000, "us", "2 ms ↓ 50.0 %"),
    ],
)  # fmt: skip
def test_a_change_says_the_earlier_figure_and_its_direction(value, before, unit, said):
    column = ReportColumn("x", "x", unit)
    assert change(value, {"x": before}, column, ASKED) == said


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore")
def test_page_fits_a_phone_and_asks_nobody_in_a_browser(tmp_path: Path):
    where = tools.chromium()
    from playwright.sync_api import sync_playwright

    place = tmp_path / "page.html"
    place.write_text(page(beside(), COMPARED, SEEN), encoding="utf-8")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=where, args=sandbox)
        for scheme, dark in (("light", False), ("dark", True)):
            for width in (360, 768, 1280):
                shown = browser.new_page(
                    viewport={"width": width, "height": 740}, color_scheme=scheme
                )
                asked, said = [], []
                shown.on("request", lambda request, asked=asked: asked.append(request.url))
                shown.on("console", lambda message, said=said: said.append(message.text))
                shown.goto(place.as_uri())
                assert asked == [place.as_uri()] and said == []
                assert shown.evaluate("document.documentElement.scrollWidth") == width, (
                    scheme,
                    width,
                )
                assert (max(_rgb(shown, "body", "backgroundColor")) < 60) == dark
                assert _too_faint(shown) == []
        browser.close()


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore")
def test_headings_sort_tables_in_a_browser(tmp_path: Path):
    where = tools.chromium()
    from playwright.sync_api import sync_playwright

    counts = [9, 1200, 80, *range(100, 148)]
    rows = [
        row(ERRORS, i) | {"error": f"E{i:02}", "attempts": count} for i, count in enumerate(counts)
    ]
    place = tmp_path / "page.html"
    place.write_text(page([ReportResult(ERRORS, rows)], ASKED, SEEN), encoding="utf-8")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=where, args=sandbox)
        shown = browser.new_page()
        shown.goto(place.as_uri())
        printed = shown.locator("tbody tr:not(.later)").count()
        attempts = next(column for column in ERRORS.columns if column.name == "attempts")
        button = shown.get_by_role("button", name=attempts.heading, exact=True)
        shown_first = []
        for _ in range(2):
            button.click()
            shown_first.append(
                [
                    shown.locator("tbody tr").nth(i).locator("td").nth(2).inner_text()
                    for i in range(2)
                ]
            )
        assert shown_first == [["E01", "E50"], ["E00", "E02"]]
        assert shown.locator("th[aria-sort=ascending]").count() == 1
        assert shown.locator("tbody tr:not(.later)").count() == printed < len(rows)
        browser.close()


def _rgb(shown: Any, place: str, what: str) -> list[int]:
    text = shown.evaluate(f"getComputedStyle(document.querySelector('{place}')).{what}")
    return [int(part) for part in text[4:-1].split(",")]


_CONTRAST = """
() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4) });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const under = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(c)) return c } };
  const faint = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (['TITLE', 'title', 'desc', 'STYLE'].includes(e.tagName)) continue;
    const s = getComputedStyle(e), ink = e.namespaceURI.endsWith('svg') ? s.fill : s.color;
    const a = light(ink), b = light(under(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.add(e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + ratio.toFixed(2));
  }
  return [...faint];
}
"""


def _too_faint(shown: Any) -> list[str]:
    """Texts whose contrast is below WCAG's AA."""
    return list(shown.evaluate(_CONTRAST))
