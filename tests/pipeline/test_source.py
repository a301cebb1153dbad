"""`format("jobq")` inside Spark: found by itself, the same rows as without it, errors that can be read."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import PySparkException
from pyspark.testing import assertDataFrameEqual

from jobq.pipeline.source import register
from jobq.topics.topic import Topic

from .reading.conftest import BEGIN, events  # noqa: F401


@pytest.fixture
def read(spark, valkey_client):
    """read(view=…): a DataFrame."""

    def make(**options):
        return spark.read.format("jobq").options(**{"url": valkey_client.url, **options}).load()

    return make


def test_data_source_is_found_and_its_rows_stay_the_same(read, events):  # noqa: F811
    events("low", 300)
    events("high", 20)
    df = read(partitions=2)
    assert df.rdd.getNumPartitions() == 2
    assert df.count() == 320
    events("low", 5, start=300)
    # Spark 4.3 also applies a filter handed to a source to its other reads.
    assert df.where("queue = 'high'").count() == 20
    assert df.count() == len(df.collect()) == 320
    first = df.where("queue = 'low'").orderBy("mid").limit(1).select("mid", "attempt", "entry_at")
    expected = df.sparkSession.sql(
        f"select 'm0' mid, 1 attempt, timestamp_millis({BEGIN}) entry_at"
    )
    assertDataFrameEqual(first, expected)


def test_views_join_in_sql(spark, read, valkey_queue, valkey_client):
    valkey_queue.enqueue_many([("a", b"v"), ("b", b"v")])
    valkey_queue.admin.pause()
    Topic("orders", valkey_client).append(b"v", key="k", headers={"x": "y"})
    read(view="messages").createOrReplaceTempView("messages")
    spark.sql(
        f"create or replace temporary view queues using jobq "
        f"options (url '{valkey_client.url}', view 'queues')"
    )
    found = spark.sql(
        "select mid, status, paused from messages join queues using (queue) order by mid"
    )
    assert [tuple(row) for row in found.collect()] == [
        ("a", "queued", True), ("b", "queued", True),
    ]  # fmt: skip
    [row] = read(view="topic").collect()
    assert (row["index"], row["content"], row["headers"]) == (1, bytearray(b"v"), {"x": "y"})


def test_error_is_one_sentence_and_tells_no_password(read):
    with pytest.raises(PySparkException) as told:
        read(veiw="events")
    first, *_ = str(told.value).splitlines()
    assert "jobq.errors.ConfigError: option 'veiw' is unknown; did you mean 'view'?" in first
    away = read(url="redis://user:sesame@127.0.0.1:1/0")
    assert "sesame" not in _explained(away)


def _explained(df):
    return df._jdf.queryExecution().toString()


def test_stream_goes_on_where_it_stopped(spark, valkey_client, events, tmp_path):  # noqa: F811
    register(spark)
    stream = spark.readStream.format("jobq").options(url=valkey_client.url, maxRowsPerTrigger=40)

    def run():
        query = (
            stream.load().select("queue", "mid").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start(str(tmp_path / "out"))
        )  # fmt: skip
        query.awaitTermination()
        # On a busy machine, Spark also reports empty polls.
        found = [progress["numInputRows"] for progress in query.recentProgress]
        return [rows for rows in found if rows]

    events("low", 100)
    assert run() == [40, 40, 20]
    events("high", 10)
    assert sum(run()) == 10
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert (rows.count(), rows.distinct().count()) == (110, 110)


@pytest.mark.real_process
def test_source_is_looked_up_without_jobq_being_loaded():
    """A fault in one such module breaks the look-up of all."""
    ask = (
        "import sys, pyspark_jobq; print(any(name.split('.')[0] == 'jobq' for name in sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert told.stdout == "False\n"
