"""Every event of every queue, read once, and from it what fails. spark-pipelines runs this file."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


# A full refresh would empty the table and refill it only with events still in Redis, so it is disabled.
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def events() -> DataFrame:
    """New events are appended; the option `queues` would choose some."""
    return spark.readStream.format("jobq").load()


@dp.materialized_view
def failures() -> DataFrame:
    """Return current failures and their start; recomputed in each run."""
    failed = spark.read.table("events").where("kind IN ('retry', 'dead', 'crashed', 'recovered')")
    return failed.groupBy("job", "error", "fingerprint").agg(
        F.count("*").alias("attempts"),
        F.min("finished_at").alias("first_seen"),
        F.max("finished_at").alias("last_seen"),
    )
