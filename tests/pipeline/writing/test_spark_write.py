"""`df.write.format("jobq")` and `df.writeStream.format("jobq")`, as users call them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from jobq.jobs.codec import decode
from jobq.pipeline import with_ids
from jobq.queue.queue import Queue
from tests.lifecycle.conftest import Worker, until
from tests.pipeline.writing.killed_tasks import NROWS

ROOT = Path(__file__).resolve().parents[3]


def save(frame, url, **options):
    frame.write.format("jobq").mode("append").options(url=url, job="app.send", **options).save()


def calls(queue):
    return [decode(entry.content) for entry in queue.admin.content(limit=1_000).entries]


def test_rows_become_calls(spark, valkey, valkey_queue):
    frame = spark.sql(
        "select id, id * 0.5 as half, timestamp '2026-11-21 10:00:00' as at, array(id, 1) as list "
        "from range(0, 100, 1, 2)"
    )
    save(frame, valkey.url, queue="low", idColumn="id", argsColumn="list")
    save(frame, valkey.url, queue="low", idColumn="id", argsColumn="list")
    found = sorted(calls(valkey_queue), key=lambda call: call.args)
    assert [call.args for call in found] == [[n, 1] for n in range(100)]
    assert found[3].kwargs == {"half": "1.5", "at": "2026-11-21T10:00:00+00:00"}


def test_ids_are_made_by_partition_and_equal_rows_are_messages_of_their_own(
    spark, valkey, valkey_queue
):
    frame = spark.range(0, 100, 1, 2).selectExpr("'same' as name")
    save(frame, valkey.url, queue="low")
    save(frame, valkey.url, queue="low")
    assert valkey_queue.admin.counts().ready == 100


def test_with_ids_gives_the_same_ids_however_rows_are_partitioned(spark):
    frame = spark.range(0, 60, 1, 2).selectExpr("id % 20 as n", "cast(null as string) as name")
    once = {row.id for row in with_ids(frame).collect()}
    assert once == {row.id for row in with_ids(frame.repartition(3)).collect()}
    assert len(once) == 60
    assert not once & {row.id for row in with_ids(frame, load_id="other").collect()}


def test_error_of_the_data_source_is_one_sentence(spark, valkey):
    frame = spark.range(2)
    asked = {"url": valkey.url, "job": "app.send", "quue": "x"}
    for wrong in (
        lambda: spark.read.format("jobq").options(url=valkey.url, quue="x").load(),
        lambda: frame.write.format("jobq").mode("append").options(**asked).save(),
        lambda: spark.read.format("jobq").options(url=valkey.url, queues="nowhere").load().count(),
        lambda: save(frame.selectExpr("'' AS id"), valkey.url, idColumn="id"),
    ):
        with pytest.raises(PySparkException) as raised:
            wrong()
        text = str(raised.value).partition("JVM stacktrace")[0]
        assert "jobq.errors." in text and "Traceback" not in text, text


#: Rows that differ in one place, and there only to the full precision of the type.
NEARLY_EQUAL = [
    "timestamp_micros(id)", "timestamp_micros(id - 62135596800000000)", "timestamp_micros(id + 253402300799000000)",
    "timestamp_ntz '2026-11-21 10:00:00' + make_dt_interval(0, 0, 0, id / 1000000)",
    "array(timestamp_micros(id))", "named_struct('a b', array(timestamp_micros(id)))",
    "map('k', timestamp_micros(id))", "map(timestamp_micros(id), 'v')",
    "CAST(id AS DECIMAL(38, 0)) * CAST(0.000000000000000001 AS DECIMAL(20, 18))",
    "if(id = 0, NULL, named_struct('a', if(id = 1, NULL, id)))",
    "if(id = 0, map('a', 1), map('b', id))",
]  # fmt: skip


def test_with_ids_depends_on_all_of_the_rows_values_and_on_nothing_else(spark):
    kinds = len(NEARLY_EQUAL)
    names = [f"`a.{kind}`" for kind in range(kinds)]
    rows = spark.range(6 * kinds, numPartitions=1).selectExpr("id DIV 6 AS kind", "id % 6 AS n")
    for kind, (name, text) in enumerate(zip(names, NEARLY_EQUAL, strict=True)):
        rows = rows.selectExpr("*", f"if(kind = {kind}, n, 0) AS id")
        rows = rows.selectExpr("* EXCEPT (id)", f"{text} AS {name}")
    made = with_ids(rows.select(*names))
    ids = {row.id for row in made.select("id").collect()}
    # The first row of each kind is the same row.
    assert len({*ids}) == 6 * kinds
    settings = {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        assert {row.id for row in made.select("id").collect()} == ids
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_with_ids_takes_maps_for_equal_whatever_the_order_of_their_entries(spark):
    frame = spark.sql("SELECT map('a', 1, 'b', 2) AS m UNION ALL SELECT map('b', 2, 'a', 1)")
    first, second = (with_ids(frame.where(f"map_keys(m)[0] = '{key}'")).collect() for key in "ab")
    assert [row.id for row in first] == [row.id for row in second]


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"queue": "low"}, "append", "option 'job' is missing"),
        ({"job": "j"}, "overwrite", "use mode('append')"),
        ({"job": "j", "iColumn": "id"}, "append", "did you mean 'idColumn'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_task(
    spark, valkey, valkey_redis, options, mode, said
):
    frame = spark.range(1).selectExpr("raise_error('a task ran')")
    with pytest.raises(Exception, match="ConfigError") as caught:
        frame.write.format("jobq").mode(mode).options(url=valkey.url, **options).save()
    assert said in str(caught.value)
    assert "a task ran" not in str(caught.value)


def test_batch_of_a_stream_that_is_repeated_adds_nothing(spark, valkey, valkey_queue, tmp_path):
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"name": f"row{n % 30}"}) for n in range(60)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    asked = {"url": valkey.url, "job": "app.send", "queue": "low"}

    def run():
        frame = spark.readStream.schema("name string").json(str(tmp_path / "in"))
        place = str(tmp_path / "checkpoint")
        query = (
            frame.writeStream.format("jobq").options(**asked).option("checkpointLocation", place)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return [
            progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]
        ]

    assert run() == [0]
    assert valkey_queue.admin.counts().ready == 60
    # As a driver leaves it that dies when the rows are written and before the batch is noted as done.
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    assert run() == [0]
    assert valkey_queue.admin.counts().ready == 60
    (tmp_path / "in" / "b.json").write_text("\n".join(lines))
    assert run() == [1]
    assert valkey_queue.admin.counts().ready == 120


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_row_runs_once_while_tasks_are_killed_and_workers_drain(
    valkey, valkey_client, tmp_path
):
    ledger = tmp_path / "ledger"
    ledger.touch()
    command = [sys.executable, "-m", "tests.pipeline.writing.killed_tasks", valkey.url, str(ledger)]
    log = tmp_path / "worker.log"
    run = [
        sys.executable,
        "-m",
        "jobq",
        "worker",
        "--url",
        valkey.url,
        "--queues",
        "low",
        "--processes",
        "2",
    ]
    run += ["--import", "tests.lifecycle.jobs_at_work"]
    with log.open("wb") as file:
        worker = Worker(subprocess.Popen(run, cwd=ROOT, stdout=file, stderr=file), log)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    low = Queue("low", valkey_client)
    until(lambda: not low.admin.counts().ready and not low.admin.counts().locked, worker.log)
    assert worker.stop() == 0

    assert "4000 of 4000 rows were skipped" in done.stderr
    runs = Counter(json.loads(line)["name"] for line in ledger.read_text().splitlines())
    assert runs == {f"row{n}": 1 for n in range(NROWS)}
    part = Queue("part", valkey_client)
    assert "failed:" in done.stdout
    assert 0 < part.admin.counts().ready < NROWS
    assert part.admin.fsck() == low.admin.fsck() == []
