"""Define a table of all events and a view of current failures, for `spark-pipelines`."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


# A full refresh would delete events that Redis no longer has, so it is disabled.
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def events() -> DataFrame:
    """Read new events of all queues; the option `queues` selects queues."""
    return spark.readStream.format("jobq").load()


@dp.materialized_view
def failures() -> DataFrame:
    """Return each failure's count, first time and latest time."""
    failed = spark.read.table("events").where("kind IN ('retry', 'dead', 'crashed', 'recovered')")
    return failed.groupBy("job", "error", "fingerprint").agg(
        F.count("*").alias("attempts"),
        F.min("finished_at").alias("first_seen"),
        F.max("finished_at").alias("last_seen"),
    )
