"""The lake part of the pipeline's demo: `jobq lake` and `jobq report` in one Spark session."""

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
    """The page's figures."""

    answers: int
    events: int


class History:
    """A lake and a session. The server's address and namespace are taken from the environment."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        # The demo's workers are on this machine, so its executors are, wherever others would be.
        self.spark: SparkSession = session("jobq demo", master="local[*]", fast=True)
        self.lake = Lake.create(str(folder))
        self.began = self._now()

    @property
    def versions(self) -> str:
        """Return the versions in use."""
        java = find_java()
        return f"Spark {self.spark.version} on Java {java.version} of {java.origin}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A caller interrupted in a call to Java gets that call's answer at the next call.
        if kind is None:
            self.spark.stop()
        gateway.end_jvm()

    def ingest(self) -> IngestRound:
        """`jobq lake ingest --once`: what is new."""
        engine = Engine(session=lambda: self.spark)
        return one_round(Ingest(self.lake, self._client, engine), lambda _: None, lambda: False)

    def stats(self) -> list[inspection.TableStats]:
        """`jobq lake stats`."""
        return inspection.stats(self.lake)

    def check(self) -> list[inspection.LakeFinding]:
        """`jobq lake check`."""
        return list(inspection.check(self.lake))

    def audit(self) -> dict[str, LakeAudited]:
        """`jobq lake audit`, by queue."""
        audited = LakeAudit(self.spark, read(self.spark, self.lake))
        audits = audited.audit(None, None, losses=losses(self.lake))
        return {audit.queue: audit for audit in audits}

    def report(self, target: Path) -> Reported:
        """`jobq report all --html`, from the begin of this run to now."""
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
        """Return lines of text, numbered, each with the folder for its job's records."""
        import pandas as pd

        texts: pd.DataFrame = pd.DataFrame({"line": range(len(rows)), "text": rows})
        return self.spark.createDataFrame(texts.assign(folder=str(folder)))

    def _now(self) -> datetime:
        """Return the time by the server's clock, which events use."""
        seconds = int(self._client.command("TIME")[0])
        return datetime.fromtimestamp(seconds, UTC)


def enqueued(frame: DataFrame, queue: str) -> None:
    """A job for each row."""
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
    """Events in the queues' streams, which keep more than this demo makes."""
    return sum(int(queue.client.command("XLEN", f"{queue.prefix}events")) for queue in queues)
