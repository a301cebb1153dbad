"""Read the events of reports from a lake or from the server's streams, for Spark or for this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from jobq.pipeline import register
from jobq.pipeline.engine import SPARK_ROWS, gc_off
from jobq.pipeline.lake.commit import BatchRecord, OffsetsUntoldError, record_of
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import event_rows, read, time_span
from jobq.pipeline.lake.tables import EVENTS
from jobq.pipeline.options import EngineName
from jobq.pipeline.reading import ranges, streams
from jobq.pipeline.reading.request import requested
from jobq.pipeline.report.expired import RollupSource
from jobq.pipeline.report.query import ReportQuery

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

#: The columns that reports read.
READ_COLUMNS = (
    "queue", "base_queue", "kind", "mid", "job", "attempt", "enqueued_at", "started_at", "finished_at", "run_us",
    "cpu_us", "rss_kib", "error", "fingerprint", "key", "flow", "step",
)  # fmt: skip
_COLUMNS = (*READ_COLUMNS, "wait_ms")


class EventSource(NamedTuple):
    """The events that reports read.

    Attributes:
        between: Returns the events between two times. A time of None means no limit. For DuckDB, the result is an Arrow
            table.
        dear: Whether reading is slow, so that the events should be cached.
        rollups: The lake's rollups, or None if no events have expired.
    """

    between: Callable[[datetime | None, datetime | None], DataFrame | pa.Table]
    dear: bool = False
    rollups: RollupSource | None = None


def from_lake(spark: SparkSession | None, lake: Lake) -> EventSource:
    """Return the events of a lake, and its rollups if events have expired.

    Args:
        spark: Session that reads the events. Without a session, this process reads them.
    """
    rollups, state = None, ingest_state(lake.table(EVENTS.name))
    if state.before:
        before = datetime.fromisoformat(state.before).replace(tzinfo=UTC)

        def table(name: str, since: datetime | None, until: datetime) -> DataFrame:
            assert spark is not None
            return read(spark, lake, name, since, until)

        rollups = RollupSource(before, state.expired, table)
    if spark is None:
        return EventSource(
            lambda since, until: event_rows(lake, _COLUMNS, time_span(since, until)),
            rollups=rollups,
        )
    return EventSource(
        lambda since, until: read(spark, lake, "events", since, until),
        dear=not lake.store.is_local, rollups=rollups,
    )  # fmt: skip


def from_server(spark: SparkSession | None, url: str | None, namespace: str) -> EventSource:
    """Return the events that the server's streams still have: by default about the last 100,000 of each queue.

    Args:
        spark: Session that reads the events. Without a session, this process reads them.
    """
    if spark is None:
        return EventSource(lambda since, until: _streamed(live_options(url, namespace, since)))
    register(spark)

    def read(since: datetime | None, until: datetime | None) -> DataFrame:
        options = live_options(url, namespace, since)
        return spark.read.format("jobq").options(**options).load()

    return EventSource(read, dear=True)


def live_options(url: str | None, namespace: str, since: datetime | None = None) -> dict[str, str]:
    """Return the data source's options for a report on the server's events."""
    # Streams are trimmed while a report reads them. One bad record must not hide the others: how many are skipped
    # is logged.
    options = {
        "view": "events",
        "namespace": namespace,
        "failOnDataLoss": "false",
        "mode": "DROPMALFORMED",
    }
    if since:
        # The option compares the time of the entry, which is after the event's time.
        options["since"] = since.isoformat()
    return options | ({"url": url} if url else {})


def _streamed(options: dict[str, str]) -> pa.Table:
    request = requested(options | {"columns": ",".join(_COLUMNS)})
    with gc_off(), request.connected() as client:
        parts = streams.planned_parts(request, client)
        batches = [
            batch
            for part in parts
            for piece in part
            for batch in streams.event_batches(request, piece, client)
        ]
    return pa.Table.from_batches(batches, request.schema())


def engine_for(
    name: EngineName, lake: Lake | None, server: tuple[str | None, str], query: ReportQuery
) -> EngineName:
    """Return the engine for a query and its comparison range: `local` or `spark`.

    `auto` chooses Spark if there are many events, if events have expired, or if DuckDB isn't installed.

    Args:
        server: URL and namespace of the server, used if `lake` is None.
    """
    if name != "auto":
        return name
    if find_spec("duckdb") is None:
        return "spark"
    queries = (query, query.earlier) if query.earlier else (query,)
    rows = 0
    for period in queries:
        nrows = _rows_of_lake(lake, period) if lake else _rows_of_server(server, period.since)
        if nrows is None:
            return "spark"
        rows += nrows
    return "spark" if rows >= SPARK_ROWS else "local"


def _rows_of_server(server: tuple[str | None, str], since: datetime) -> int:
    request = requested(live_options(*server, since))
    with request.connected() as client:
        return sum(piece.rows for piece in ranges.planned(client, request)[0])


def _rows_of_lake(lake: Lake, query: ReportQuery) -> int | None:
    """Return the approximate number of events to read; None if some events have expired, so that rollups are needed."""
    delta = lake.table(EVENTS.name)
    before, span = ingest_state(delta).before, time_span(query.since, query.until)
    if before > span.first_day:
        return None
    return sum(file.rows for file in live_files(delta, span.first_day, span.last_day))


def ingest_state(delta: DeltaTable | None) -> BatchRecord:
    """Return the record of the latest ingested batch of events, or an empty record if there is none."""
    try:
        return record_of(delta, EVENTS.app)
    except OffsetsUntoldError:
        return BatchRecord()
