"""A driver whose tasks are killed: `python -m tests.pipeline.writing.killed_tasks URL LEDGER`.

Spark tries a task three times. The first attempt at each partition gets SIGKILL when part of its rows is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from jobq.pipeline import session
from jobq.pipeline.writing.writer import JobqWriter, batch_writer

NROWS = 4_000


class KilledWriter(JobqWriter):
    """Attempts below `kills` end by SIGKILL after three Arrow batches."""

    kills = 1

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._deadly(iterator))

    def _deadly(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for index, batch in enumerate(iterator):
            if index == 3 and TaskContext.get().attemptNumber() < self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


class Killed(DataSource):
    """format("killed")"""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def writer(self, schema: Any, overwrite: bool) -> JobqWriter:
        given = dict(self.options)
        kills = int(given.pop("kills"))
        made = batch_writer(given, schema, overwrite)
        made.__class__, made.kills = KilledWriter, kills
        return made


def main(url: str, ledger: str) -> None:
    """Two writes of the same rows, and one whose tasks are killed at every attempt."""
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = session("killed", master="local[2,3]", memory="512m", fast=True, conf=conf)
    spark.dataSource.register(Killed)
    rows = spark.range(NROWS, numPartitions=4).selectExpr(
        f"'{ledger}' ledger", "concat('row', id) name"
    )
    options = {"url": url, "job": "quick", "batch": "50"}

    def write(queue: str, kills: int) -> None:
        asked = {**options, "queue": queue, "kills": str(kills)}
        rows.write.format("killed").mode("append").options(**asked).save()

    write("low", 1)
    write("low", 1)
    try:
        write("part", 3)
    except Exception as error:
        print("failed:", str(error)[:200].replace("\n", " "), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
