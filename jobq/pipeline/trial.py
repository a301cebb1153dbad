"""The doctor's last looks: a session, Arrow, and Redis as Spark's own processes reach it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jobq import extras
from jobq.errors import JobqError
from jobq.queue.diagnosis import Finding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.client.connection import Client

ROWS = 100_000
#: The line of a Python traceback that names the error.
CAUSE = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Unavailable|Missing)\b: ")
REMEDIES = {
    "arrow": f"{extras.install('spark')} puts PyArrow and pandas in order",
    "round trip": "the server must be reachable from every host that runs executors, by the same URL",
    "source": "the same version of jobq must be installed for every Python that Spark starts",
}


def findings(client: Client | None, *, memory: str | None, master: str | None) -> Iterator[Finding]:
    """Starts a session, tries it, and stops it."""
    from jobq.pipeline.sessions import session

    began = time.monotonic()
    try:
        spark = session("jobq-doctor", master=master, memory=memory, fast=True)
    except JobqError as error:
        yield Finding("session", "fail", str(error))
        return
    try:
        spark.range(10).selectExpr("sum(id)").collect()
        told = f"{spark.version} on {spark.sparkContext.master}"
        yield Finding("session", "ok", f"Spark {told}, {time.monotonic() - began:.1f} s to answer")
        yield _tried("arrow", lambda: arrow(spark))
        if client is not None:
            yield _tried("round trip", lambda: round_trip(spark, client))
            yield _tried("source", lambda: source(spark, client))
    finally:
        spark.stop()


def arrow(spark: SparkSession) -> str:
    """Rows out of the JVM by Arrow."""
    table = spark.range(ROWS).toArrow()
    if table.num_rows != ROWS:
        raise ValueError(f"{table.num_rows:,} of {ROWS:,} rows came back")
    return f"{ROWS:,} rows to Python"


def round_trip(spark: SparkSession, client: Client) -> str:
    """Each of Spark's Python processes calls the server and tells its answer to the driver."""
    settings = replace(client.settings, url=client.url)

    def call(parts: Iterable[int]) -> Iterator[str]:
        from jobq.client.connection import connect

        reached = connect(settings=settings)
        try:
            for part in parts:
                yield reached.command("ECHO", str(part)).decode()
        finally:
            reached.close()

    answers = spark.sparkContext.parallelize(range(4), 2).mapPartitions(call).collect()
    if sorted(answers) != ["0", "1", "2", "3"]:
        raise ValueError(f"wrong answers: {answers}")
    return "executors reach the server"


def source(spark: SparkSession, client: Client) -> str:
    """The format `jobq`, found by Spark itself."""
    reader = spark.read.format("jobq").option("view", "queues").option("url", client.url)
    count = reader.option("namespace", client.namespace).load().count()
    return f"format('jobq') is known, {count:,} queues read"


def _tried(check: str, attempt: Callable[[], str]) -> Finding:
    """What it says, or what is wrong: Spark puts the cause last, below its own frames."""
    try:
        return Finding(check, "ok", attempt())
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if CAUSE.match(line)]
        return Finding(
            check, "fail", (causes or lines or [type(error).__name__])[-1], REMEDIES[check]
        )
