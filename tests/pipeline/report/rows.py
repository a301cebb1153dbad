"""Events by hand: a row of the view `events` from its relevant values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobq.client.names import base_of
from jobq.pipeline.report.engines import SparkEngine, SqlEngine
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import named
from jobq.pipeline.report.run import answer, events_view
from jobq.pipeline.report.sources import EventSource
from jobq.pipeline.schema import EVENT_COLUMNS, events_schema, struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ASKED = ReportQuery(since=NOON, until=NOON + timedelta(hours=1))


def at(seconds: float) -> datetime:
    """Return the time this long after noon."""
    return NOON + timedelta(seconds=seconds)


def event(kind: str = "done", **given: Any) -> tuple[Any, ...]:
    """One event: `end`, `wait`, `run` in seconds; started and enqueued follow from them."""
    end, run, wait = given.pop("end", 60.0), given.pop("run", 1.0), given.pop("wait", 2.0)
    started = None if run is None else at(end - run)
    row: dict[str, Any] = {
        "queue": "low", "kind": kind, "mid": "m", "job": "app.send", "attempt": 1,
        "enqueued_at": (started and wait is not None and started - timedelta(seconds=wait)) or None,
        "started_at": started, "finished_at": at(end),
        "wait_ms": None if wait is None or run is None else round(wait * 1000),
        "run_us": None if run is None else round(run * 1e6), "entry_at": at(end), "entry_seq": 0, "version": 1,
    }  # fmt: skip
    unknown = set(given) - {column.name for column in EVENT_COLUMNS}
    assert not unknown, unknown
    row |= given
    row.setdefault("base_queue", base_of(row["queue"]))
    return tuple(row.get(column.name) for column in EVENT_COLUMNS)


def recovered(**given: Any) -> tuple[Any, ...]:
    """An attempt whose host went away: neither job nor times."""
    return event("recovered", **{"run": None, "job": None, "error": "lock expired", **given})


def arrow(events: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Them as an Arrow table."""
    columns = list(zip(*events, strict=True)) or [()] * len(EVENT_COLUMNS)
    schema = events_schema()
    arrays = [pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def source(engine: SqlEngine, events: Iterable[tuple[Any, ...]]) -> DataFrame | pa.Table:
    """Return them as the lake gives them to the engine."""
    # Spark reads an Arrow table without a Python worker.
    made = arrow(events)
    if isinstance(engine, SparkEngine):
        return engine.spark.createDataFrame(made, struct(EVENT_COLUMNS))
    return made


@contextmanager
def viewed(
    engine: SqlEngine, events: Sequence[tuple[Any, ...]], asked: ReportQuery = ASKED
) -> Iterator[None]:
    """The view `events` over them."""
    made = source(engine, events)
    with events_view(engine, EventSource(lambda since, until: made), asked):
        yield


def answered(
    engine: SqlEngine, name: str, events: Sequence[tuple[Any, ...]], asked: ReportQuery = ASKED
) -> list[dict[str, Any]]:
    """The rows of a report's statement."""
    (report,) = named(name)
    with viewed(engine, events, asked):
        return answer(engine, report, asked)
