"""Compare a report with the same report on an earlier time range: match the rows, and compute the changes.

In a report over time, a row matches the row at the same position in the earlier range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from jobq.durations import listed
from jobq.errors import ConfigError
from jobq.pipeline.report.engines import Row
from jobq.pipeline.report.formats import NOTHING, shown
from jobq.pipeline.report.query import ReportQuery, iso, moment
from jobq.pipeline.report.registry import Report, ReportColumn
from jobq.pipeline.report.run import EarlierRows, ReportResult

#: Columns by which rows of both ranges are matched, by report. Other reports compare ranges themselves, or simulate.
KEYS: Mapping[str, tuple[str, ...]] = {
    "errors": ("error", "fingerprint"), "dead": ("queue", "job", "error", "fingerprint"), "retries": ("queue", "job"),
    "slo": ("queue",), "queue-time": ("queue", "job"), "schedules": ("queue", "schedule"), "flows": ("flow", "step"),
    "backlog": ("at", "queue"), "run-time": ("queue", "job"), "throughput": ("at", "queue"),
    "heatmap": ("weekday", "hour"), "cost": ("job",), "keys": ("queue", "key"),
}  # fmt: skip
PREVIOUS = "previous"
#: Prefix of a note about the earlier range.
EARLIER = "Earlier range:"
_SHARE = ReportColumn("share", "", "share")


def with_comparison(query: ReportQuery, text: str, now: datetime) -> ReportQuery:
    """Return the query with an earlier range for a comparison. `text` is `previous` or `FROM..TO`."""
    if text == PREVIOUS:
        try:
            since = query.since - (query.until - query.since)
        except OverflowError as error:
            raise ConfigError("--since is before the year 1; use a later --since") from error
        return replace(query, compared=(since, query.since))
    first, dots, last = text.partition("..")
    if not dots:
        raise ConfigError(f"--compare {text!r:.80} is not a range; write previous, or FROM..TO")
    since, until = (moment(part, now, query.zone) for part in (first, last))
    if since >= until:
        raise ConfigError(f"--compare {text!r:.80} ends before it begins; swap its times")
    return replace(query, compared=(since, until))


def compared(result: ReportResult, query: ReportQuery, earlier: ReportResult) -> ReportResult:
    """Add the matching row of the earlier range to each row of the result."""
    before = query.earlier
    assert before is not None
    keyed, keyed_before = _keyed(result.report, query), _keyed(result.report, before)
    rows = {keyed_before(row): row for row in earlier.rows}
    mine = {keyed(row) for row in result.rows}
    notes = [*result.notes, *(f"{EARLIER} {note}" for note in earlier.notes)]
    if earlier.more:
        notes.append(
            f"The earlier range has more than {query.limit:,} rows, so rows marked as new may be in it."
        )
    named = result.report.chart.kind == "bars" and not result.more
    gone = [key for key in rows if named and key not in mine]
    if gone:
        names = ["/".join(str(part) for part in key if part) for key in gone]
        notes.append(f"Only in the earlier range: {listed(names)}.")
    pairs = [rows.get(keyed(row)) for row in result.rows]
    return replace(result, notes=notes, earlier=EarlierRows(pairs, list(earlier.rows)))


def _keyed(report: Report, query: ReportQuery) -> Callable[[Row], tuple[Any, ...]]:
    names, edges = KEYS[report.name], query.edges

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(
            bisect_right(edges, row["at"].timestamp()) if name == "at" else row[name]
            for name in names
        )

    return key


def change(value: Any, before: Row | None, column: ReportColumn, query: ReportQuery) -> str:
    """Return the earlier value of a figure and its change, such as `1.1 s ↑ 9.1 %`, `new` or `= 3`."""
    if before is None:
        return "new"
    was = before[column.name]
    if was is None:
        return NOTHING
    said = shown(was, column, query)
    if value is None:
        return said
    if said == shown(value, column, query):
        return f"= {said}"
    arrow = "↑" if value > was else "↓"
    # The relative change of a share, or from 0, says little.
    if column.unit == "share" or not was:
        return f"{said} {arrow}"
    return f"{said} {arrow} {shown(abs(value / was - 1), _SHARE, query)}"


def remarks(
    query: ReportQuery,
    results: Sequence[ReportResult],
    when: Callable[[datetime], str] = iso,
) -> str:
    """Return a sentence about the comparison for a report's page or tables; '' if the query has no comparison.

    Args:
        when: Function that formats a time.
    """
    if query.compared is None:
        return ""
    since, until = query.compared
    of = f"{when(since)} to {when(until)}"
    if not any(result.earlier for result in results):
        return f"No data from {of} to compare with."
    equal = until - since == query.until - query.since
    longer = "" if equal else " The ranges differ in length, and counts are not adjusted."
    return f"Compared with {of}.{longer}"
