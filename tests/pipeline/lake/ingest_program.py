"""An ingest without end, to be killed: URL LAKE local|spark|cluster. A line per batch tells that it is at work.

`cluster` is Spark's own cluster on this machine, of many small executors. There, tasks die and have twins as well.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark import TaskContext

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import session
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import PAUSE_S, Lake, locked

SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2", "spark.speculation.minTaskRuntime": "100ms",
    "spark.task.maxFailures": "10", "spark.executor.memory": "480m",
}  # fmt: skip


def risky(function: Callable[[Any], Any], unit: Any) -> Any:
    """Run a unit; some attempts die after it has written its files, others dawdle until they have a twin."""
    result = function(unit)
    context = TaskContext.get()
    dice = random.random()
    if context is not None and context.attemptNumber() < 3:
        if dice < 0.05:
            os.kill(os.getpid(), signal.SIGKILL)
        if dice > 0.97:
            time.sleep(2)
    return result


class RiskyEngine(Engine):
    """Tasks die and have twins."""

    def run_units(
        self, function: Callable[[Any], Any], units: Sequence[Any], rows: int
    ) -> Iterator[Any]:
        return super().run_units(partial(risky, function), units, rows)


url, path, when = sys.argv[1:4]
engine = Engine(when, session=lambda: session(master="local[2]", memory="512m", fast=True))  # type: ignore[arg-type]
if when == "cluster":
    cluster = partial(session, master="local-cluster[6,2,480]", memory="512m", conf=SPECULATION)
    engine = RiskyEngine("spark", session=cluster)
if when != "local":
    engine.spark()
size = 20 if when == "cluster" else 100
options = IngestOptions(
    max_rows=size * 200 if when == "cluster" else 400, partition_entries=size, trim=True
)
lake = Lake.create(path)
ingest = Ingest(lake, Client(ServerSettings(url=url)), engine, options)
while True:
    with locked(lake, wait_s=600):
        rows = ingest.events().rows
    print(rows, flush=True)
    time.sleep(PAUSE_S)
