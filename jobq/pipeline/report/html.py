"""Write reports as one HTML page that loads no scripts, fonts or pictures. Its own script sorts tables.

The page begins with summary cards for slowdowns, failures and delays. text() escapes everything that comes from a
queue, and the page's content policy forbids all other scripts.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from jobq import __version__
from jobq.durations import counted, listed
from jobq.observe.chart import style_sheet, text
from jobq.pipeline.report.compare import change, remarks
from jobq.pipeline.report.formats import decimal, duration, is_figure, is_number, shown
from jobq.pipeline.report.plots import plot
from jobq.pipeline.report.query import ReportQuery, zone_of
from jobq.pipeline.report.registry import ReportColumn
from jobq.pipeline.report.run import SLOWER, TOO_FEW, EventsSeen, ReportResult

#: Maximum number of worst cases on a summary card.
TOLD = 3
#: Maximum length of an error on a card; the table has the rest.
MAX_LENGTH = 60
_SHARE, _CHANGE = ReportColumn("share", "", "share"), ReportColumn("change", "", "share")


class SummaryCard(NamedTuple):
    """A summary at the top of the page.

    Attributes:
        bad: Whether the card shows a problem; None if unknown.
        lines: The worst cases.
        links: Name and title of each report to read.
    """

    heading: str
    answer: str
    bad: bool | None
    lines: Sequence[str]
    links: Sequence[tuple[str, str]]


def cards(results: Sequence[ReportResult], query: ReportQuery) -> list[SummaryCard]:
    """Return the summary cards that have data."""
    by_name = {result.report.name: result for result in results}
    made: tuple[
        tuple[set[str], Callable[[Mapping[str, ReportResult], ReportQuery], SummaryCard]], ...
    ] = (
        ({"regressions", "anomalies"}, _slower),
        ({"errors", "retries", "dead"}, _fails),
        ({"slo", "backlog"}, _late),
    )
    return [card(by_name, query) for names, card in made if names <= set(by_name)]


def _slower(by_name: Mapping[str, ReportResult], query: ReportQuery) -> SummaryCard:
    rows, unusual = by_name["regressions"].rows, by_name["anomalies"].rows
    worse = [row for row in rows if row["verdict"] == SLOWER]
    evaluated = sum(row["verdict"] != TOO_FEW for row in rows)
    lines = [
        f"{row['job']} {shown(row['change'], _CHANGE, query)}: {duration(row['before_us'])} to "
        f"{duration(row['after_us'])}"
        for row in worse[:TOLD]
    ]
    if unusual:
        jobs = len({row["job"] for row in unusual})
        lines.append(f"{counted(len(unusual), 'unusual hour')} of {counted(jobs, 'job')}")
    answer = "Not enough data to compare"
    if evaluated:
        of = counted(len(worse), "job") if worse else f"None of {counted(evaluated, 'job')}"
        answer = f"{of} got slower"
    links = (("regressions", "Regressions"), ("anomalies", "Anomalies"))
    return SummaryCard("Slowdowns", answer, bool(worse) if evaluated else None, lines, links)


def _fails(by_name: Mapping[str, ReportResult], query: ReportQuery) -> SummaryCard:
    rows = by_name["retries"].rows
    attempts, dead = sum(row["attempts"] for row in rows), sum(row["dead"] for row in rows)
    failed = attempts - sum(row["done"] for row in rows)
    worst = sorted(by_name["errors"].rows, key=lambda row: -row["attempts"])[:TOLD]
    lines = [f"{_culprit(row)}: {counted(row['attempts'], 'attempt')}" for row in worst]
    if dead:
        lines.append(f"{counted(dead, 'message')} died")
    answer = "Nothing failed"
    if failed:
        share = shown(failed / attempts, _SHARE, query)
        answer = f"{share} of {counted(attempts, 'attempt')} failed"
    links = (("errors", "Errors"), ("dead", "Dead letters"), ("retries", "Retries"))
    return SummaryCard("What fails", answer, bool(failed), lines, links)


def _culprit(row: Mapping[str, Any]) -> str:
    jobs = row["jobs"].split(", ") if row["jobs"] else []
    many = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    error = row["error"] or "unnamed"
    error = error if len(error) <= MAX_LENGTH else error[: MAX_LENGTH - 1] + "…"
    return f"{error}{' in ' + jobs[0] + many if jobs else ''}"


def _late(by_name: Mapping[str, ReportResult], query: ReportQuery) -> SummaryCard:
    rows, backlog = by_name["slo"].rows, by_name["backlog"].rows
    burning = [row for row in rows if row["burn"] > 1]
    target = f"within {query.target_s:g} s"
    lines = [
        f"{row['queue']}: {shown(row['within'], _SHARE, query)} {target}, burn {decimal(row['burn'])}"
        for row in burning[:TOLD]
    ]
    last = max((row["at"] for row in backlog), default=None)
    waiting = sum(row["waiting"] for row in backlog if row["at"] == last)
    if waiting:
        lines.append(f"{counted(waiting, 'message')} waited at the end")
    goal = f"{100 * query.objective:.4g} % {target}"
    answer = (
        f"{counted(len(rows), 'queue')} in time ({goal})"
        if rows
        else "No starts with a recorded wait"
    )
    if burning:
        answer = f"{len(burning):,} of {counted(len(rows), 'queue')} below {goal}"
    links = (("slo", "Service level"), ("backlog", "Backlog"), ("queue-time", "Wait"))
    return SummaryCard("Delays", answer, bool(burning) if rows else None, lines, links)


#: Maximum number of a table's rows on the page, and on paper.
ROWS, PRINTED = 200, 40
#: Columns whose texts may break over lines.
_LONG = ("error", "jobs", "examples")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src 'sha256-{}'"


def page(
    results: Sequence[ReportResult],
    query: ReportQuery,
    seen: EventsSeen,
    now: datetime | None = None,
) -> str:
    """Return the whole page."""
    own, script = (
        (files("jobq.pipeline") / "report" / name).read_text(encoding="utf-8")
        for name in ("page.css", "sort.js")
    )
    style, digest = style_sheet() + own, b64encode(sha256(script.encode()).digest()).decode()
    single = results[0].report.title if len(results) == 1 else ""
    told = remarks(query, results, lambda at: _when(at, query))
    title = f"{single or 'Jobs'}, {_when(query.since, query)} to {_when(query.until, query)}"
    return "".join((
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{text(title)}</title><style>{style}</style></head><body>",
        _header(single, query, seen, told), _summary(results, query), _links(results), "<main>",
        *(_section(result, query) for result in results), "</main>",
        f"<footer><p>Made by jobq {__version__} at {_when(now or datetime.now(UTC), query)} ",
        f"({text(query.zone)}).</p></footer>",
        f"<script>{script}</script></body></html>\n",
    ))  # fmt: skip


def _when(at: datetime, query: ReportQuery) -> str:
    return at.astimezone(zone_of(query.zone)).strftime("%Y-%m-%d %H:%M")


def _header(single: str, query: ReportQuery, seen: EventsSeen, compared: str) -> str:
    queues = listed(seen.queues, 8)
    server = f", server {text(query.source)}" if query.source else ""
    return (
        f"<header><h1>{text(single or 'What the jobs did')}</h1>"
        f'<p class="soft">{_when(query.since, query)} to {_when(query.until, query)} ({text(query.zone)}), '
        f"{seen.events:,} events of {text(queues)}{server}</p>"
        + (f'<p class="compared">{text(compared)}</p>' if compared else "")
    )


def _summary(results: Sequence[ReportResult], query: ReportQuery) -> str:
    made = cards(results, query)
    return f'<div class="cards">{"".join(map(_card, made))}</div>' if made else ""


def _card(card: SummaryCard) -> str:
    style = {True: " bad", False: " well", None: ""}[card.bad]
    # Keep a figure and its unit on the same line.
    lines = "".join(f"<li>{text(line).replace(' %', '&nbsp;%')}</li>" for line in card.lines)
    links = ", ".join(f'<a href="#{name}">{text(title)}</a>' for name, title in card.links)
    return (
        f'<div class="card{style}"><h3>{text(card.heading)}</h3><strong>{text(card.answer)}</strong>'
        + (f"<ul>{lines}</ul>" if lines else "") + f"<p>{links}</p></div>"
    )  # fmt: skip


def _links(results: Sequence[ReportResult]) -> str:
    if len(results) < 2:
        return "</header>"
    items = "".join(
        f'<li><a href="#{result.report.name}">{text(result.report.title)}</a></li>'
        for result in results
    )
    return f'<nav aria-label="Reports"><ul>{items}</ul></nav></header>'


def _section(result: ReportResult, query: ReportQuery) -> str:
    report = result.report
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in result.notes)
    head = f'<section id="{report.name}"><h2>{text(report.title)}</h2>'
    head += f'<p class="soft">{text(report.question)}</p>'
    if not result.rows:
        return f'{head}{notes}<p class="none">{text(report.empty)}</p></section>'
    drawn = plot(result, query)
    figure = ""
    if drawn:
        figure = f"<figure><figcaption>{text(report.chart.caption)}</figcaption>{drawn}</figure>"
    return (
        f'{head}<div class="beside{"" if figure else " alone"}">{figure}<div>{notes}'
        f'<p class="beware">{text(report.beware)}</p></div></div>{_table(result, query)}</section>'
    )


def _table(result: ReportResult, query: ReportQuery) -> str:
    columns = result.report.columns
    late = result.report.chart.kind == "lines"
    then = [(pair,) for pair in result.earlier.pairs] if result.earlier else [()] * len(result.rows)
    rows = list(zip(result.rows, then, strict=True))
    if late:
        # Show the latest rows of a time line first.
        rows.sort(key=lambda pair: pair[0]["at"], reverse=True)
    rows = rows[:ROWS]
    head = "".join(
        f'<th scope="col"{_side(column)}>{text(column.heading)}</th>' for column in columns
    )
    body = "".join(
        f'<tr{" class=later" if i >= PRINTED else ""}>'
        + "".join(_cell(row[column.name], column, query, *before) for column in columns) + "</tr>"
        for i, (row, before) in enumerate(rows)
    )  # fmt: skip
    note = _left(result, len(result.rows) - len(rows), "earlier" if late else "further")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(result.report.title)}, table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _left(result: ReportResult, count: int, which: str) -> str:
    if not count and not result.more:
        return ""
    told = f"{count:,}{' or more' if result.more else ''} {which} rows"
    return f'<p class="more">{told}: jobq report {result.report.name} --format csv</p>'


def _side(column: ReportColumn) -> str:
    return ' class="n"' if is_number(column) else ""


def _cell(
    value: object, column: ReportColumn, query: ReportQuery, *before: Mapping[str, Any] | None
) -> str:
    """Return a table cell as HTML.

    Args:
        before: In a comparison, the earlier row, or None.
    """
    said = shown(value, column, query)
    written, kind = text(said), _side(column)
    if is_number(column) or column.unit == "weekday":
        kind += f' data-v="{"" if value is None else text(value)}"'
    if column.name in _LONG and len(said) > 24:
        kind = ' class="long"'
    elif column.name == "job":
        kind = ' class="job"'
    elif column.name == "verdict" and said in ("slower", "faster"):
        kind = f' class="{said}"'
    if column.name in ("job", "jobs"):
        # A long name may break between its parts.
        written = re.sub(r"([._])(?=\w)", r"\1<wbr>", written)
    if before and is_figure(column):
        said = change(value, dict(before[0]) if before[0] else None, column, query)
        written += f"<small>{text(said)}</small>"
    return f"<td{kind}>{written}</td>"
