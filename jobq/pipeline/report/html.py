"""Reports as one page that needs nothing but itself: no script, no font, no picture from elsewhere. Pure.

Everything that came from a queue passes text(), which escapes it; the page's policy forbids the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files

from jobq import __version__
from jobq.pipeline.report.asked import Asked, zone_of
from jobq.pipeline.report.formats import is_number, shown
from jobq.pipeline.report.plots import plot, text
from jobq.pipeline.report.registry import Column
from jobq.pipeline.report.run import Result
from jobq.pipeline.report.summary import Card, cards
from jobq.pipeline.report.views import Seen

#: Rows of a table on the page, and of these on paper.
ROWS, PRINTED = 200, 40
#: Texts that may break over lines.
_LONG = ("error", "jobs", "examples")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(results: Sequence[Result], asked: Asked, seen: Seen, now: datetime | None = None) -> str:
    """The whole document."""
    style = (files("jobq.pipeline") / "report" / "page.css").read_text(encoding="utf-8")
    single = results[0].report.title if len(results) == 1 else ""
    title = f"{single or 'Jobs'}, {_when(asked.since, asked)} to {_when(asked.until, asked)}"
    return "".join((
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{text(title)}</title><style>{style}</style></head><body>",
        _header(single, asked, seen), _summary(results, asked), _links(results), "<main>",
        *(_section(one, asked) for one in results), "</main>",
        f"<footer><p>Made by jobq {__version__} at {_when(now or datetime.now(UTC), asked)} ",
        f"({text(asked.zone)}).</p></footer>",
        "</body></html>\n",
    ))  # fmt: skip


def _when(at: datetime, asked: Asked) -> str:
    return at.astimezone(zone_of(asked.zone)).strftime("%Y-%m-%d %H:%M")


def _header(single: str, asked: Asked, seen: Seen) -> str:
    queues = ", ".join(seen.queues[:8]) + (
        f" and {len(seen.queues) - 8} more" if len(seen.queues) > 8 else ""
    )
    return (
        f"<header><h1>{text(single or 'What the jobs did')}</h1>"
        f'<p class="soft">{_when(asked.since, asked)} to {_when(asked.until, asked)} ({text(asked.zone)}), '
        f"{seen.events:,} events of {text(queues)}</p>"
    )


def _summary(results: Sequence[Result], asked: Asked) -> str:
    made = cards(results, asked)
    return f'<div class="cards">{"".join(map(_card, made))}</div>' if made else ""


def _card(card: Card) -> str:
    mood = {True: " bad", False: " well", None: ""}[card.bad]
    # A figure and its unit stay together.
    lines = "".join(f"<li>{text(line).replace(' %', '&nbsp;%')}</li>" for line in card.lines)
    links = ", ".join(f'<a href="#{name}">{text(title)}</a>' for name, title in card.links)
    return (
        f'<div class="card{mood}"><h3>{text(card.heading)}</h3><strong>{text(card.answer)}</strong>'
        + (f"<ul>{lines}</ul>" if lines else "") + f"<p>{links}</p></div>"
    )  # fmt: skip


def _links(results: Sequence[Result]) -> str:
    if len(results) < 2:
        return "</header>"
    items = "".join(
        f'<li><a href="#{one.report.name}">{text(one.report.title)}</a></li>' for one in results
    )
    return f'<nav aria-label="Reports"><ul>{items}</ul></nav></header>'


def _section(result: Result, asked: Asked) -> str:
    report = result.report
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in result.notes)
    head = f'<section id="{report.name}"><h2>{text(report.title)}</h2>'
    head += f'<p class="soft">{text(report.question)}</p>'
    if not result.rows:
        return f'{head}{notes}<p class="none">{text(report.empty)}</p></section>'
    drawn = plot(result, asked)
    figure = ""
    if drawn:
        figure = f"<figure><figcaption>{text(report.chart.caption)}</figcaption>{drawn}</figure>"
    return (
        f'{head}<div class="beside{"" if figure else " alone"}">{figure}<div>{notes}'
        f'<p class="beware">{text(report.beware)}</p></div></div>{_table(result, asked)}</section>'
    )


def _table(result: Result, asked: Asked) -> str:
    columns = result.report.columns
    rows, late = result.rows, result.report.chart.kind == "lines"
    if late:
        # Of a time line the end matters, and comes first.
        rows = sorted(rows, key=lambda row: row["at"], reverse=True)
    rows = rows[:ROWS]
    head = "".join(
        f'<th scope="col"{_side(column)}>{text(column.heading)}</th>' for column in columns
    )
    body = "".join(
        f'<tr{" class=later" if i >= PRINTED else ""}>'
        + "".join(_cell(row[column.name], column, asked) for column in columns) + "</tr>"
        for i, row in enumerate(rows)
    )  # fmt: skip
    note = _left(result, len(result.rows) - len(rows), "earlier" if late else "further")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(result.report.title)}, table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _left(result: Result, count: int, which: str) -> str:
    if not count and not result.more:
        return ""
    told = f"{count:,}{' or more' if result.more else ''} {which} rows"
    return f'<p class="more">{told}: jobq report {result.report.name} --format csv</p>'


def _side(column: Column) -> str:
    return ' class="n"' if is_number(column) else ""


def _cell(value: object, column: Column, asked: Asked) -> str:
    said = shown(value, column, asked)
    written, kind = text(said), _side(column)
    if column.name in _LONG and len(said) > 24:
        kind = ' class="long"'
    elif column.name == "job":
        kind = ' class="job"'
    elif column.name == "verdict" and said in ("slower", "faster"):
        kind = f' class="{said}"'
    if column.name in ("job", "jobs"):
        # A long name may break where its parts meet.
        written = re.sub(r"([._])(?=\w)", r"\1<wbr>", written)
    return f"<td{kind}>{written}</td>"
