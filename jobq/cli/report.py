"""`jobq report`: reports on the history of jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import output
from jobq.cli.arguments import names_of
from jobq.cli.lake import engine_option, lake_option, opened, source_option, storage_option
from jobq.cli.options import option, queues_option
from jobq.cli.session import Session, command
from jobq.cli.spark import master_option, memory_option
from jobq.config import settings_from_env
from jobq.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from jobq.pipeline.lake.lake import Lake
    from jobq.pipeline.report.engines import SqlEngine
    from jobq.pipeline.report.query import ReportQuery
    from jobq.pipeline.report.registry import Report
    from jobq.pipeline.report.run import EventsSeen, ReportResult
    from jobq.pipeline.report.sources import EventSource

PAGE = "jobq-report.html"


@command(
    "report",
    "all --html --lake ./lake --since 7d",
    "queue-time --queues low --since 2026-11-20T00:00Z --until 2026-11-21T00:00Z",
    "regressions --mark v2.4 --since 3d",
    "capacity --target-wait 10s --weights high:6,low:1",
    "errors --live --since 1h --format json",
    "all --html --since 7d --compare previous",
)
@click.argument("name", metavar="NAME")
@lake_option("required without --live")
@storage_option
@source_option
@option("--live", "Read the server's event streams, not a lake.")
@option("--since WHEN", "Start of the range: 7d (ago) or a time.", default="7d")
@option("--until WHEN", "End of the range.  [default: now]")
@queues_option
@option("--format table|json|csv|html", "form", "Output format.", default="table")
@option("--html", "Same as --format html.")
@option("-o, --output FILE", "target", f"File to write.  [default: stdout, or {PAGE} for a page]")
@option(
    "--mark NAME",
    "Regressions: mark that divides the range.  [default: the last in the range]",
)
@option("--at WHEN", "Regressions: time that divides the range.")
@option("--compare RANGE", "Compare with the previous range, or with FROM..TO.")
@option("--zone NAME", "Time zone of times without one, and of the output.", default="UTC")
@option(
    "--target-wait DURATION",
    "target_s",
    "Time within which messages should start.",
    default="30s",
)
@option(
    "--objective SHARE",
    "Share of messages that should start in time.",
    type=float,
    default=0.99,
)
@option(
    "--workers LIST",
    "Capacity: worker counts to try, 4,8,12 or 1-16.  [default: until the target is met]",
)
@option("--weights WEIGHTS", "Capacity: weights to try, high:6,low:1; repeatable.", multiple=True)
@option(
    "--trace-rows N",
    "Capacity: maximum number of arrivals to simulate.",
    type=click.IntRange(1),
    default=200_000,
)
@option("--limit N", "Show at most N rows, 0 for all.", type=click.IntRange(0), default=1000)
@engine_option
@memory_option
@master_option
def report(
    session: Session, name: str, form: str, html: bool, target: str | None, **given: Any
) -> None:
    """Report on history: waits, errors, costs, capacity.


    NAME is one of: all, regressions, anomalies, errors, dead, retries, slo, queue-time, schedules,
    flows, backlog, capacity, run-time, throughput, heatmap, cost, keys.
    """
    from jobq.pipeline.report.registry import named

    form = "html" if html else "json" if session.as_json and form == "table" else form
    reports = named(name)
    if form == "csv" and len(reports) > 1:
        raise ConfigError("--format csv prints one table, not all; name one report")
    lake = None if given["live"] else opened(session, given["path"], given["storage"])
    asked = _asked(given, lake)
    results, seen = _answers(session, reports, lake, asked, given)
    if form == "csv":
        for note in results[0].notes:
            session.note(note)
    target = target or (PAGE if form == "html" else "-")
    width = output.terminal_width() if target == "-" else None
    _write(_said(form, results, asked, seen, width), target, session)


def _asked(given: dict[str, Any], lake: Lake | None) -> ReportQuery:
    from jobq.pipeline.lake.tables import sourced
    from jobq.pipeline.report.compare import with_comparison
    from jobq.pipeline.report.query import ReportQuery, moment

    now, zone, source = datetime.now(UTC), given["zone"], given["source"]
    if source and lake is None:
        raise ConfigError(f"--source {source} names a server in a lake; leave it out with --live")
    since = moment(given["since"], now, zone)
    until = moment(given["until"], now, zone) if given["until"] else now
    at, at_name = _compared(given, lake, since, until, now)
    asked = ReportQuery(
        since=since, until=until, zone=zone, at=at, at_name=at_name, target_s=given["target_s"],
        queues=tuple(sourced(source, name) for name in names_of(given["queues"])), source=source,
        objective=given["objective"], workers=_counts(given["workers"]), weights=tuple(given["weights"]),
        limit=given["limit"], trace_rows=given["trace_rows"],
    )  # fmt: skip
    return with_comparison(asked, given["compare"], now) if given["compare"] else asked


def _compared(
    given: dict[str, Any], lake: Lake | None, since: datetime, until: datetime, now: datetime
) -> tuple[datetime | None, str]:
    from jobq.pipeline.lake.upkeep import marks
    from jobq.pipeline.report.query import marked, moment

    if given["at"] and given["mark"]:
        raise ConfigError(
            f"--at {given['at']} and --mark {given['mark']} can't be combined; use only one"
        )
    if given["at"]:
        return moment(given["at"], now, given["zone"]), "--at"
    if given["mark"] and lake is None:
        raise ConfigError(f"--mark {given['mark']} can't be used with --live; use --at")
    known = dict(marks(lake)) if lake else {}
    if given["mark"]:
        return marked(given["mark"], known), f"mark {given['mark']}"
    inside = {name: at for name, at in known.items() if since < at < until}
    if not inside:
        return None, ""
    last = max(inside, key=lambda name: inside[name])
    return inside[last], f"mark {last}"


def _counts(text: str | None) -> tuple[int, ...]:
    counts: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.partition("-")
        try:
            counts |= set(range(int(first), int(last if dash else first) + 1))
        except ValueError as error:
            raise ConfigError(f"--workers {part!r} is not a count; write 4,8,12 or 1-16") from error
    if text and (not counts or min(counts) < 1 or max(counts) > 10_000 or len(counts) > 200):
        raise ConfigError(
            f"--workers {text!r} is invalid; list 1 to 200 worker counts between 1 and 10000"
        )
    return tuple(sorted(counts))


def _answers(
    session: Session,
    reports: Sequence[Report],
    lake: Lake | None,
    asked: ReportQuery,
    given: dict[str, Any],
) -> tuple[list[ReportResult], EventsSeen]:
    from jobq.pipeline.report.run import answers, check_range

    expired = check_range(lake, asked) if lake else ""
    if expired:
        session.note(expired)
    engine, read = _engine(session, lake, asked, given)
    with output.progress(len(reports), "reports", quiet=session.as_json) as bar:
        results, seen = answers(engine, read, reports, asked, lambda _: bar.update(1))
    return _beside_earlier(session, lake, (engine, read), results, asked), seen


def _engine(
    session: Session, lake: Lake | None, asked: ReportQuery, given: dict[str, Any]
) -> tuple[SqlEngine, EventSource]:
    from jobq.pipeline.report.engines import LocalEngine, SparkEngine
    from jobq.pipeline.report.sources import engine_for, from_lake, from_server
    from jobq.pipeline.sessions import session as spark_session

    settings = session.settings
    # Options are seen in Spark's plans: an address of the environment isn't repeated there.
    server = (settings.url if settings.url != settings_from_env().url else None, settings.namespace)
    chosen = engine_for(given["engine"], lake, server, asked)
    if chosen == "local":
        return LocalEngine(), from_lake(None, lake) if lake else from_server(None, *server)
    with output.waiting("starting Spark", quiet=session.as_json):
        spark = spark_session("jobq report", master=given["master"], memory=given["memory"])
    return SparkEngine(spark), from_lake(spark, lake) if lake else from_server(spark, *server)


def _beside_earlier(
    session: Session,
    lake: Lake | None,
    made_by: tuple[SqlEngine, EventSource],
    results: list[ReportResult],
    asked: ReportQuery,
) -> list[ReportResult]:
    """Return the results, compared with those of the earlier range if it was requested and has events."""
    from jobq.pipeline.report.compare import KEYS, compared
    from jobq.pipeline.report.run import answers, check_range

    reports = [result.report for result in results if result.report.name in KEYS]
    if asked.earlier is None or not reports:
        return results
    try:
        expired = check_range(lake, asked.earlier) if lake else ""
        answered, _ = answers(*made_by, reports, asked.earlier)
    except PipelineError:  # it has no events
        return results
    if expired:
        session.note(f"the earlier range: {expired}")
    earlier = {result.report.name: result for result in answered}
    return [
        compared(result, asked, earlier[result.report.name])
        if result.report.name in earlier
        else result
        for result in results
    ]


def _said(
    form: str,
    results: Sequence[ReportResult],
    asked: ReportQuery,
    seen: EventsSeen,
    width: int | None,
) -> str:
    from jobq.pipeline.report import formats
    from jobq.pipeline.report.compare import remarks
    from jobq.pipeline.report.html import page

    if form == "html":
        return page(results, asked, seen)
    if form == "json":
        return formats.document(results, asked) + "\n"
    if form == "csv":
        return formats.spreadsheet(results[0])
    tables = (_lines(result, asked, len(results) > 1, width) for result in results)
    remark = remarks(asked, results)
    return "\n\n".join([*map("\n".join, tables), *([remark] if remark else [])]) + "\n"


def _lines(
    result: ReportResult, asked: ReportQuery, titled: bool, width: int | None
) -> Sequence[str]:
    from jobq.pipeline.report.compare import change
    from jobq.pipeline.report.formats import cells, is_number

    columns = list(result.report.columns)
    rows = list(map(list, cells(result, asked)))
    figures = [i for i, column in enumerate(columns) if is_number(column)]
    lines = [f"{result.report.title}: {result.report.question}"] if titled else []
    notes = [output.escaped(note) for note in result.notes]
    if not result.rows:
        return [*lines, result.report.empty, *notes]
    headings = [column.heading for column in columns]
    if result.earlier:
        # Only the chart's data; the page and JSON have all figures of the earlier range.
        column = result.report.column(result.report.chart.y)
        place = columns.index(column) + 1
        headings.insert(place, f"{column.heading} before")
        for cell, row, pair in zip(rows, result.rows, result.earlier.pairs, strict=True):
            cell.insert(place, change(row[column.name], pair, column, asked))
        figures = [i + (i >= place) for i in figures]
    lines += output.table(headings, rows, figures, width=width)
    lines += notes
    return (
        [*lines, f"the first {asked.limit:,} rows; --limit 0 shows all"] if result.more else lines
    )


def _write(said: str, target: str, session: Session) -> None:
    if target == "-":
        sys.stdout.write(said)
        return
    path, made = Path(target), ""
    try:
        # Replace the file atomically, so that readers never see half a page.
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            made = file.name
            file.write(said)
        os.chmod(made, 0o644)
        os.replace(made, path)
    except OSError as error:
        if made:
            os.unlink(made)
        raise ConfigError(f"--output {target} can't be written: {error.strerror}") from error
    session.note(f"written to {path.resolve()}")
