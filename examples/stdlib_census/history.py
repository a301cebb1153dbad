"""Run the demo's `jobq lake` and `jobq report` commands in one Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, NamedTuple, Self

from jobq.pipeline import gateway, session
from jobq.pipeline.engine import Engine
from jobq.pipeline.java import find_java
from jobq.pipeline.lake import Lake, inspection, read
from jobq.pipeline.lake.audit import LakeAudit, LakeAudited
from jobq.pipeline.lake.commit import losses
from jobq.pipeline.lake.ingest import Ingest, IngestRound, one_round
from jobq.pipeline.report.engines import SparkEngine
from jobq.pipeline.report.html import page
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import named
from jobq.pipeline.report.run import answers
from jobq.pipeline.report.sources import from_lake

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from jobq import Queue
    from jobq.client.connection import Client


class Reported(NamedTuple):
    """The numbers of answers and events in a report."""

    answers: int
    events: int


class History:
    """A lake and a Spark session, which reads the server's address and namespace from the environment."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        # Run the executors on this machine, even if other sessions use a cluster.
        self.spark: SparkSession = session("jobq demo", master="local[*]", fast=True)
        self.lake = Lake.create(str(folder))
        self.began = self._now()

    @property
    def versions(self) -> str:
        """Return the versions of Spark and Java."""
        java = find_java()
        return f"Spark {self.spark.version} on Java {java.version} of {java.origin}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an interrupted call to Java, the next call would get its answer.
        if kind is None:
            self.spark.stop()
        gateway.end_jvm()

    def ingest(self) -> IngestRound:
        """Copy new events into the lake, as `jobq lake ingest --once` does."""
        engine = Engine(session=lambda: self.spark)
        return one_round(Ingest(self.lake, self._client, engine), lambda _: None, lambda: False)

    def stats(self) -> list[inspection.TableStats]:
        """Return the figures of `jobq lake stats`."""
        return inspection.stats(self.lake)

    def check(self) -> list[inspection.LakeFinding]:
        """Return the findings of `jobq lake check`."""
        return list(inspection.check(self.lake))

    def audit(self) -> dict[str, LakeAudited]:
        """Return the figures of `jobq lake audit`, by queue."""
        audited = LakeAudit(self.spark, read(self.spark, self.lake))
        audits = audited.audit(None, None, losses=losses(self.lake))
        return {audit.queue: audit for audit in audits}

    def report(self, target: Path) -> Reported:
        """Write the page of `jobq report all --html` about this run."""
        asked = ReportQuery(since=self.began, until=self._now() + timedelta(seconds=1))
        engine = SparkEngine(self.spark)
        results, seen = answers(engine, from_lake(self.spark, self.lake), named("all"), asked)
        # Replace the file by name, because in a shared folder the old file may be another user's link.
        with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(page(results, asked, seen))
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)
        return Reported(len(results), seen.events)

    def frame(self, rows: Sequence[str], folder: Path) -> DataFrame:
        """Return numbered lines of text as a DataFrame, with the folder for job records."""
        import pandas as pd

        texts: pd.DataFrame = pd.DataFrame({"line": range(len(rows)), "text": rows})
        return self.spark.createDataFrame(texts.assign(folder=str(folder)))

    def _now(self) -> datetime:
        """Return the time by the server's clock, which events use."""
        seconds = int(self._client.command("TIME")[0])
        return datetime.fromtimestamp(seconds, UTC)


def enqueued(frame: DataFrame, queue: str) -> None:
    """Enqueue a job for each row."""
    (
        frame.write.format("jobq")
        .mode("append")
        .option("job", "line_jobs.measure")
        .option("queue", queue)
        .option("idColumn", "line")
        .option("kwargsColumns", "line,text,folder")
        .option("dedupeFor", "1h")
        .save()
    )


def characters(frame: DataFrame) -> int:
    """Return the number of characters of all texts, counted by Spark."""
    [row] = frame.selectExpr("coalesce(sum(char_length(text)), 0) AS n").collect()
    return int(row["n"])


def written(queues: Iterable[Queue]) -> int:
    """Return the number of events in the queues' streams."""
    return sum(int(queue.client.command("XLEN", f"{queue.prefix}events")) for queue in queues)
