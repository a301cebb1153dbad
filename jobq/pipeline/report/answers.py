"""Reports from where the history is: a lake, or the streams of a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jobq.pipeline.lake.place import Lake
from jobq.pipeline.report.asked import Asked
from jobq.pipeline.report.registry import Report
from jobq.pipeline.report.run import Result, run
from jobq.pipeline.report.views import Read, Seen, registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def answers(
    spark: SparkSession,
    read: Read,
    reports: Sequence[Report],
    asked: Asked,
    began: Callable[[Report], object] = lambda _: None,
) -> tuple[list[Result], Seen]:
    """Each report's answer, and what the range holds. `began` hears of each one."""
    results = []
    with registered(spark, read, asked) as seen:
        for report in reports:
            began(report)
            results.append(run(spark, report, asked))
    return results, seen


def from_lake(spark: SparkSession, lake: Lake) -> Read:
    """The lake's events."""
    from jobq.pipeline.lake.reading import read

    return Read(
        lambda since, until: read(spark, lake, "events", since, until), dear=not lake.store.is_local
    )


def from_server(spark: SparkSession, url: str | None, namespace: str) -> Read:
    """The events that the streams still have: about the last 100,000 of each queue."""
    from jobq.pipeline import register

    register(spark)

    def read(since: datetime | None, until: datetime | None) -> DataFrame:
        reader = spark.read.format("jobq").option("view", "events").option("namespace", namespace)
        # Streams are trimmed while a report reads them.
        reader = reader.option("failOnDataLoss", "false")
        # One bad record must not hide the others; executors log how many they leave out.
        reader = reader.option("mode", "DROPMALFORMED")
        # It goes by the time of writing, which comes after that of happening.
        reader = reader.option("since", since.isoformat()) if since else reader
        return (reader.option("url", url) if url else reader).load()

    return Read(read, dear=True)


def marks(lake: Lake) -> dict[str, datetime]:
    """The lake's marks by name, each where it was last set; read without Spark."""
    table = lake.table("marks")
    rows = table.to_pyarrow_table(columns=["name", "at"]).to_pylist() if table else []
    ordered = sorted(rows, key=lambda row: row["at"])
    return {row["name"]: row["at"].astimezone(UTC) for row in ordered}
