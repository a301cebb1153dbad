"""Reading and the rollups on a real session, and portions on its executors."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.cli import main
from jobq.errors import LakeError
from jobq.events import attempt_record
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import Lake, inspection, read, rollup, upkeep
from jobq.pipeline.lake.files import LiveFile, live_files
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.reading import _parquet
from jobq.pipeline.lake.rollup import HOURLY, JOB_RUNS_SQL, LIVES
from jobq.pipeline.lake.tables import TABLES
from jobq.pipeline.report.engines import SparkEngine
from jobq.web.history import Span
from jobq.web.lake import EVERYTHING, HistoryFilter, LakeHistory
from tests import tools
from tests.pipeline.lake.conftest import DAY, mids, rows
from tests.pipeline.report.rows import event, source

testing = tools.library("pyspark.testing")
BEGIN = datetime.fromtimestamp(DAY / 1000, UTC)
HOUR = 3_600_000


@pytest.fixture
def tell(valkey_client):
    """tell("done", "m1", at, …): one event in queue low, its entry written when it happened."""
    from jobq.queue import directory

    directory.register_queues(valkey_client, ["low"])
    counter = iter(range(10_000))

    def event(kind, mid, at, job="", enqueued_at=0, run_us=0, attempt=1, entry_at=None):
        value = f"{kind}\x1f{mid}\x1f{at}"
        if job:
            value += "\x1f" + attempt_record(
                job, attempt, enqueued_at, run_us, run_us // 2, 100, "h:1", nbytes=10
            )
        entry = f"{entry_at or at}-{next(counter)}"
        valkey_client.command("XADD", offsets.events_key("jobq", "low"), entry, "1", value)

    return event


def test_table_that_was_never_written_has_its_columns_and_no_rows(spark, lake):
    found = read(spark, lake)
    assert found.count() == 0
    assert found.columns[0] == "queue"
    assert found.columns[-1] == "dt"


def test_expire_drops_nothing_when_the_rollups_cannot_count_the_events(
    kept_spark, lake, ingest, write, capsys
):
    write("low", 3, at=int(time.time() - 3 * 86_400) * 1_000)
    ingest.events()
    [file] = Path(lake.below("events").uri).glob("*/*.parquet")
    content = file.read_bytes()
    words = ["lake", "expire", "--lake", lake.store.uri, "--older-than", "1d", "--yes"]
    file.unlink()
    assert main(words) == 1
    told = capsys.readouterr().err
    assert f"1 file missing from the lake, such as {file}" in told
    assert "nothing was dropped" in told
    with pytest.raises(LakeError, match="missing from the lake"):
        read(kept_spark, lake)
    file.write_bytes(b"?" * len(content))
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "3 events of 1 day " in told
    assert "nothing was dropped" in told
    file.write_bytes(content)
    assert mids(lake).total() == 3
    assert main(words) == 0
    assert mids(lake).total() == 0
    assert sum(row["done"] for row in rows(lake, "rollup_hourly")) == 3


def test_events_read_by_spark_equal_those_read_without(spark, lake, ingest, write, tell):
    write("low", 50)
    tell("cancelled", "gone", DAY + 100)
    tell(
        "done",
        "late",
        DAY + 200,
        "app.x",
        enqueued_at=DAY + 500,
        run_us=1_000,
        entry_at=DAY + 2_000,
    )
    ingest.events()
    engine = Engine("spark", session=lambda: spark)
    [done] = upkeep.compact(lake, engine=engine)
    assert (done.rows, done.engine) == (52, "spark")
    assert {one.level for one in inspection.check(lake, engine)} == {"ok"}
    plain = [{key: row[key] for key in row} for row in rows(lake)]
    found = read(spark, lake)
    expected = spark.createDataFrame(
        [[row[name] for name in found.columns[:-1]] for row in plain], found.drop("dt").schema
    )
    testing.assertDataFrameEqual(found.drop("dt"), expected)


def test_reading_takes_only_what_lies_in_the_span(spark, lake, ingest, write):
    write("low", 10)
    write("low", 10, first=11, at=DAY + 86_400_000)
    ingest.events()
    since = BEGIN + timedelta(milliseconds=6)
    assert read(spark, lake, since=since).count() == 15
    assert read(spark, lake, since="2026-11-21", until="2026-11-22").count() == 10
    assert read(spark, lake, until=since).count() == 5
    assert read(spark, lake, since=BEGIN.date() + timedelta(days=2)).count() == 0


def test_executors_read_what_a_backlog_holds(spark, lake, valkey_client, write):
    write("low", 90)
    write("high", 30, first=91)

    class Kept(Engine):
        def close(self) -> None:
            """The session is the tests'."""

    work = Ingest(
        lake,
        valkey_client,
        Kept("spark", session=lambda: spark),
        IngestOptions(partition_entries=20),
    )
    assert (work.events().rows, work.events().rows) == (120, 0)
    assert set(mids(lake).values()) == {1}


def test_rollup_has_counts_sums_and_quantiles_by_hour_queue_and_job(spark, lake, ingest, tell):
    for n in range(1, 101):
        tell("done", f"m{n}", DAY + n, "app.a", enqueued_at=DAY - 500, run_us=n * 1_000)
    tell("retry", "m101", DAY + HOUR, "app.a", run_us=7_000)
    tell("cancelled", "m102", DAY + HOUR)
    tell("expired", "m103", DAY + HOUR)
    tell("evicted", "m104", DAY + HOUR)
    ingest.events()
    rollup.refresh(lake, spark)
    found = read(spark, lake, "rollup_hourly").selectExpr(
        "unix_millis(hour) AS hour", "job", "nevents", "done", "retry", "cancelled", "expired", "evicted",
        "runs", "run_us",
        "cpu_us", "bytes", "rss_kib", "kll_sketch_get_quantile_bigint(run_us_sketch, 0.5d) AS p50",
        "kll_sketch_get_quantile_bigint(wait_ms_sketch, 1.0d) AS longest",
    )  # fmt: skip
    rows_ = {(row["hour"] - DAY, row["job"]): tuple(row)[2:] for row in found.collect()}
    assert rows_ == {
        (0, "app.a"): (100, 100, 0, 0, 0, 0, 100, 5_050_000, 2_525_000, 1_000, 100, 50_000, 500),
        (HOUR, "app.a"): (1, 0, 1, 0, 0, 0, 1, 7_000, 3_500, 10, 100, 7_000, None),
        (HOUR, None): (3, 0, 0, 1, 1, 1, 0, 0, 0, 0, None, None, None),
    }


def test_refresh_takes_a_task_per_million_events_when_the_session_has_fewer(spark):
    setting = spark.conf.get(rollup.SHUFFLE_TASKS)
    files = [LiveFile(f"{n}.parquet", 0, 24_000_001, "2026-07-17") for n in range(2)]
    with rollup.shuffled(spark, files) as number:
        assert number == 49 and spark.conf.get(rollup.SHUFFLE_TASKS) == "49"
    with rollup.shuffled(spark, files[:0]) as number:
        assert number == int(setting) and spark.conf.get(rollup.SHUFFLE_TASKS) == setting
    assert spark.conf.get(rollup.SHUFFLE_TASKS) == setting


def test_job_runs_have_a_row_per_message_with_its_attempts(spark, lake, ingest, tell):
    before = DAY - 86_400_000
    tell("retry", "a", DAY + 1_000, "app.a", enqueued_at=before, run_us=100_000)
    tell("recovered", "a", DAY + 2_000)
    tell("done", "a", DAY + 5_000, "app.a", enqueued_at=before, run_us=200_000, attempt=3)
    tell("dead", "b", DAY + 6_000, "app.b", enqueued_at=DAY, run_us=1_000)
    tell("cancelled", "c", DAY + 7_000)
    # The same mid again: another message.
    tell("done", "a", DAY + 9_000, "app.a", enqueued_at=DAY + 8_000, run_us=1_000)
    ingest.events()
    rollup.refresh(lake, spark)
    names = (
        "mid",
        "job",
        "outcome",
        "attempts",
        "retries",
        "ncrashes",
        "done",
        "wait_ms",
        "run_us",
        "nevents",
    )
    found = read(spark, lake, "job_runs").orderBy("mid", "first_at").collect()
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", "app.a", "done", 3, 1, 1, 1, 86_400_900, 300_000, 3),
        ("a", "app.a", "done", 1, 0, 0, 1, 999, 1_000, 1),
        ("b", "app.b", "dead", 1, 0, 0, 0, 5_999, 1_000, 1),
        ("c", None, "cancelled", 0, 0, 0, 0, None, 0, 1),
    ]  # fmt: skip
    assert [row["dt"].isoformat() for row in found] == ["2026-11-20", *["2026-11-21"] * 3]


@pytest.mark.parametrize("statement", [HOURLY, JOB_RUNS_SQL], ids=["hourly", "job_runs"])
def test_rollups_are_made_when_the_sum_of_hostile_run_times_is_beyond_a_number(spark, statement):
    made = source(
        SparkEngine(spark), [event(run_us=2**62, cpu_us=2**62, mid="m", wait=1.0) for _ in range(3)]
    )
    events = made.selectExpr("*", "to_date(finished_at) AS dt")
    (row,) = spark.sql(statement, events=events, lives=spark.sql(LIVES, events=events)).collect()
    assert (row["run_us"], row["cpu_us"], row["nevents"]) == (2**63 - 1, 2**63 - 1, 3)


def test_lake_without_a_server_stays_readable(spark, lake, ingest, write, valkey_redis):
    write("low", 3)
    ingest.events()
    valkey_redis.flushall()
    assert read(spark, Lake.open(lake.store.uri)).count() == 3


def test_spark_runs_the_statements_of_the_dashboards_history(spark, lake, ingest, write):
    tools.library("duckdb")
    write("low", 30)
    write("high", 20, first=40)
    failed = attempt_record("app.mail", 1, DAY, 20_000, 9_000, 80_000, "host:1", error="KeyError")
    key = "jobq:{low}:events"
    for number in range(5):
        value = f"retry\x1fr{number}\x1f{DAY + 900 + number}\x1f{failed}"
        ingest.client.command("XADD", key, f"{DAY + 900 + number}-0", "1", value)
    ingest.events()
    upkeep.mark(lake, "v2", datetime.fromtimestamp(DAY / 1000 + 1, UTC))
    rollup.refresh(lake, spark)

    class BySpark(LakeHistory):
        def _ask(
            self, sql: str, table: str, chosen: HistoryFilter = EVERYTHING
        ) -> list[dict[str, Any]]:
            files = live_files(lake.table(table), *chosen.days)
            _parquet(spark, lake, TABLES[table], files).createOrReplaceTempView("stored")
            known = {**self._args, **chosen.args}
            args = {name: known[name] for name in re.findall(r":(\w+)", sql)}
            return SparkEngine(spark).rows(sql, args)

    span = Span(DAY - 3 * 86_400_000, DAY + 86_400_000)
    local, other = (made(lake.store.uri, most_s=300) for made in (LakeHistory, BySpark))
    looks = (
        lambda one: one.jobs(span), lambda one: one.job(span, "app.mail"), lambda one: one.outcomes(span),
        lambda one: one.errors(span, ["low"]), lambda one: one.error(span, "KeyError"), lambda one: one.marks(span),
        lambda one: one.first_seen(["KeyError"]), lambda one: one.failures_between(span, "KeyError", [DAY + 902]),
        lambda one: one.runs(span, cursor=f"{DAY + 903}\x1flow\x1fretry\x1fr3", limit=60),
        lambda one: one.message("", "m45"),
    )  # fmt: skip
    for look in looks:
        assert look(local) == look(other) != []
    local.close()
    spark.catalog.dropTempView("stored")
