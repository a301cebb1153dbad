"""Format results as table cells, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jobq.observe.chart import WEEKDAYS
from jobq.pipeline.report.query import ReportQuery, iso, zone_of
from jobq.pipeline.report.registry import ReportColumn
from jobq.pipeline.report.run import ReportResult

NOTHING = "–"
#: A spreadsheet runs a text that begins with such a character as a formula.
_FORMULA = ("=", "+", "-", "@")
_CONTROL = ("\t", "\r", "\n")


def duration(us: float) -> str:
    """Format a duration: `850 µs`, `12 ms`, `1.25 s`, `2 m 5 s`, `3 h 12 m`, `2 d 3 h`."""
    sign, us = ("-", -us) if us < 0 else ("", us)
    if us < 999.5:
        return f"{sign}{us:.0f} µs" if us > 0.5 else "0"
    if us < 999_500:
        return f"{sign}{us / 1000:.3g} ms"
    if us < 59_950_000:
        return f"{sign}{us / 1e6:.3g} s"
    seconds = round(us / 1e6)
    for big, small, large in (("m", "s", 60), ("h", "m", 3600), ("d", "h", 86_400)):
        if seconds < large * (60 if big == "m" else 24) or big == "d":
            rest = seconds % large // (large // (24 if big == "d" else 60))
            return f"{sign}{seconds // large:,} {big}" + (f" {rest} {small}" if rest else "")
    raise AssertionError


def memory(kib: float) -> str:
    """Format a size: `512 KiB`, `80 MiB`, `1.5 GiB`."""
    if kib < 1024:
        return f"{kib:.0f} KiB"
    return f"{kib / 1024:.0f} MiB" if kib < 1024**2 else f"{kib / 1024**2:.1f} GiB"


def decimal(value: float) -> str:
    """Format a number with three significant digits and at most three decimals."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else "< 0.001"


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "text": str, "count": "{:,}".format, "ms": lambda value: duration(value * 1000), "us": duration,
    "share": lambda value: f"{100 * value:.{0 if abs(value) >= 9.995 else 1}f} %".replace("-0.0", "0.0"),
    "times": lambda value: f"{decimal(value)} ×", "decimal": decimal,
    "kib": memory, "weekday": lambda value: WEEKDAYS[value],
}  # fmt: skip


def wall_time(local: datetime) -> str:
    """Format a local time to the minute, with its offset if the clocks repeat the hour."""
    both = {local.replace(fold=fold).utcoffset() for fold in (0, 1)}
    repeated = len(both) > 1
    return (local if repeated else local.replace(tzinfo=None)).isoformat(" ", "minutes")


def shown(value: Any, column: ReportColumn, query: ReportQuery) -> str:
    """Format one cell."""
    if value is None:
        return NOTHING
    if isinstance(value, datetime):
        return wall_time(value.astimezone(zone_of(query.zone)))
    if column.name == "change" and value > 0:
        return "+" + _SHOWN["share"](value)
    return _SHOWN[column.unit](value)


def is_number(column: ReportColumn) -> bool:
    """Return whether the column has numbers. Numbers are aligned to the right."""
    return column.unit not in ("text", "time", "weekday")


def is_figure(column: ReportColumn) -> bool:
    """Return whether the column is compared with an earlier range. In a heat map, the hour isn't compared."""
    return is_number(column) and column.name != "hour"


def cells(result: ReportResult, query: ReportQuery) -> Iterable[Sequence[str]]:
    """Format every row."""
    columns = result.report.columns
    return ([shown(row[column.name], column, query) for column in columns] for row in result.rows)


def document(results: Sequence[ReportResult], query: ReportQuery) -> str:
    """Return the results as JSON in ASCII, with times in ISO 8601 and UTC. For several reports, return a list."""
    whole: dict[str, Any] = {
        "since": iso(query.since), "until": iso(query.until), "queues": list(query.queues)
    }  # fmt: skip
    if query.source:
        whole["source"] = query.source
    if query.compared:
        since, until = query.compared
        whole["compared"] = {"since": iso(since), "until": iso(until)}
    told = [
        {
            "report": result.report.name,
            "notes": list(result.notes),
            "more": result.more,
            "rows": _rows(result),
        }
        for result in results
    ]
    whole |= told[0] if len(told) == 1 else {"reports": told}
    return json.dumps(whole, default=_plain, allow_nan=False)


def _rows(result: ReportResult) -> list[dict[str, Any]]:
    """Return the rows. In a comparison, `before` is the matching row of the earlier range, or None."""
    if result.earlier is None:
        return [dict(row) for row in result.rows]
    pairs = zip(result.rows, result.earlier.pairs, strict=True)
    return [row | {"before": before} for row, before in pairs]


def spreadsheet(result: ReportResult) -> str:
    """Return CSV as in RFC 4180, with the names of the columns and plain values."""
    text = io.StringIO()
    writer = csv.writer(text)
    names = [column.name for column in result.report.columns]
    if result.earlier is None:
        writer.writerow(names)
        writer.writerows([_cell(row[name]) for name in names] for row in result.rows)
        return text.getvalue()
    figures = [column.name for column in result.report.columns if is_figure(column)]
    writer.writerow([*names, *(f"{name}_before" for name in figures)])
    for row, before in zip(result.rows, result.earlier.pairs, strict=True):
        then = [_cell(before[name]) if before else None for name in figures]
        writer.writerow([*(_cell(row[name]) for name in names), *then])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and _may_run(value):
        return "'" + value
    return _plain(value) if isinstance(value, datetime) else value


def _may_run(text: str) -> bool:
    """Return whether a spreadsheet may interpret the text as a formula.

    Some spreadsheets skip invisible characters at the beginning, and some accept full-width signs (OWASP, "CSV
    Injection").
    """
    shown = "".join(
        char for char in text if not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf")
    )  # fmt: skip
    return unicodedata.normalize("NFKC", shown[:1]).startswith(_FORMULA) or text.startswith(
        _CONTROL
    )


def _plain(value: Any) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
