"""A lake stores events of partitions under the partitions' names, and reads them as events of their queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from jobq.client.names import base_of
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase
from jobq.pipeline.lake.audit import LakeAudit
from jobq.pipeline.lake.conditions import Sought, parsed_conditions
from jobq.pipeline.lake.erasure import Erasure, ErasureRequest
from jobq.pipeline.lake.ingest import Ingest, IngestOptions, one_round
from jobq.pipeline.lake.reading import ArchivedRows, TimeSpan, read
from jobq.pipeline.lake.rollup import refresh
from jobq.pipeline.reading.ranges import chosen
from jobq.pipeline.reading.request import requested
from jobq.pipeline.report.engines import LocalEngine, SparkEngine
from jobq.pipeline.report.expired import RollupSource
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import named
from jobq.pipeline.report.run import answer, events_view, report_views
from jobq.pipeline.report.sources import EventSource, from_lake
from jobq.pipeline.schema import DERIVED, bases
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests import tools
from tests.pipeline.lake.conftest import rows

pytestmark = pytest.mark.one_server
LOCAL = Engine("local")
NAMES = [
    "low", "low/3", "low/03", "low/", "/3", "a//3", "a/b/12", "low/3a", "low/3/4", "{eu}low/3", "a-/0", "low/٣", "ü/1",
]  # fmt: skip


@pytest.fixture
def low(valkey_client):
    """A queue with two partitions. In each, one message died and the others are done."""
    queue = Queue("low", valkey_client)
    queue.admin.events_level("all")
    partition(valkey_client, "low", 2)
    queue.enqueue_many([(f"m{number}", b"content") for number in range(40)])
    for place in queue.partitions():
        messages = place.dequeue(40).messages
        assert len(messages) > 2
        place.finish([
            Ending(mid=one.mid, token=one.token, outcome="done" if number else "dead", reason="no")
            for number, one in enumerate(messages)
        ])  # fmt: skip
    return queue


def round_of(lake, client, **options):
    work = Ingest(lake, client, LOCAL, IngestOptions(**options))
    return one_round(work, lambda batch: None, lambda: False)


def query_of(client, *queues: str, **options) -> ReportQuery:
    at, hour = datetime.fromtimestamp(client.clock_ms() / 1000, UTC), timedelta(hours=1)
    return ReportQuery(since=at - hour, until=at + hour, queues=queues, **options)


def told(engine, source, query, name: str = "retries"):
    (report,) = named(name)
    with events_view(engine, source, query) as seen:
        return answer(engine, report, query), seen


def test_every_engine_finds_the_queue_that_python_finds():
    tools.library("duckdb")
    wanted = [base_of(name) for name in NAMES]
    table = pa.table({"queue": NAMES})
    assert wanted[1] == wanted[2] == "low"
    assert bases(table["queue"]).to_pylist() == wanted
    engine = LocalEngine()
    engine.open("names", table)
    found = engine.rows(f"SELECT {DERIVED['base_queue']} AS base FROM names")
    assert [row["base"] for row in found] == wanted


def test_ingest_of_a_queue_reads_its_partitions(lake, valkey_client, low):
    Queue("other", valkey_client).enqueue(b"content", mid="x")
    found = round_of(lake, valkey_client, names=["low"])
    stored = {row["queue"] for row in rows(lake)}
    assert {"low/0", "low/1"} <= stored <= {"low", "low/0", "low/1"}, "entry ids belong to a stream"
    assert {row["base_queue"] for row in rows(lake)} == {"low"}
    assert {row["queue"] for row in rows(lake, "dead")} == {"low/0", "low/1"}
    assert found.dead == 2
    assert round_of(lake, valkey_client, names=["low"]).is_empty


def test_data_source_reads_partitions_of_the_queue(valkey_client, low):
    request = requested({"view": "events", "queues": "low", "url": valkey_client.url})
    assert chosen(valkey_client, request) == ["low", "low/0", "low/1"]


def test_reports_count_partitions_as_their_queue(lake, valkey_client, low):
    tools.library("duckdb")
    round_of(lake, valkey_client, source="eu")
    source = from_lake(None, lake)
    for queues in ((), ("{eu}low",)):
        [row], seen = told(LocalEngine(), source, query_of(valkey_client, *queues, source="eu"))
        assert (row["queue"], row["attempts"], row["dead"]) == ("{eu}low", 40, 2)
        assert seen.queues == ("{eu}low",)
    [row], _ = told(LocalEngine(), source, query_of(valkey_client, "{eu}low/1"))
    assert 1 < row["attempts"] < 39, "one partition"


def test_erasure_of_a_queue_reaches_its_partitions(lake, valkey_client, low):
    round_of(lake, valkey_client)
    dead = {row["queue"]: row["mid"] for row in rows(lake, "dead")}
    server = Ingest(lake, valkey_client, LOCAL)
    work = Erasure(lake, LOCAL, server=server)
    request = ErasureRequest.parsed([dead["low/0"]], queue="low")
    found = work.select(request)
    assert found.rows["events"] >= 2 and found.rows["dead"] == 1
    work.begin(request, found)
    assert work.erase_live(server, found).erased["dead"] == 1
    assert erase.finish(lake, LOCAL)["dead"] == 1
    assert [one.mid for one in low.admin.dead()] == [dead["low/1"]]
    assert dead["low/0"] not in {row["mid"] for row in rows(lake)}
    low.enqueue(b"again", mid=dead["low/0"])
    round_of(lake, valkey_client)
    assert dead["low/0"] not in {row["mid"] for row in rows(lake)}, "an ingest leaves it out"


def test_conditions_on_a_queue_select_its_partitions(lake, valkey_client, low):
    round_of(lake, valkey_client)
    for text, number in (("queue = 'low'", 40), ("queue != 'low'", 0)):
        sought = Sought(None, parsed_conditions(text), None)
        found = erase.selected(lake, LOCAL, (), sought).names
        assert {one.queue for one in found} <= {"low"}
        assert len(found) == number, text


def test_dead_messages_of_partitions_are_archived_rows_of_their_queue(lake, valkey_client, low):
    round_of(lake, valkey_client)
    archive = ArchivedRows(lake, "dead", "queue", "low", ("died_at", "dead_id"), TimeSpan())
    assert {row["queue"] for row in archive.rows()} == {"low/0", "low/1"}
    one = ArchivedRows(lake, "dead", "queue", "low/1", ("died_at", "dead_id"), TimeSpan())
    assert {row["queue"] for row in one.rows()} == {"low/1"}


def test_spark_reads_partitions_as_their_queue(lake, valkey_client, low, spark):
    round_of(lake, valkey_client)
    refresh(lake, spark)
    frame = spark.createDataFrame([(name,) for name in NAMES], "queue STRING")
    found = frame.selectExpr("queue", f"{DERIVED['base_queue']} AS base").collect()
    assert {row.queue: row.base for row in found} == {name: base_of(name) for name in NAMES}
    for table in ("events", "dead", "job_runs", "rollup_hourly"):
        names = read(spark, lake, table).select("queue", "base_queue").distinct().collect()
        assert {("low/0", "low"), ("low/1", "low")} <= {tuple(row) for row in names}, table
        assert {row.base_queue for row in names} == {"low"}, table
        bucket = (
            spark.read.format("jobq_lake").option("path", lake.store.uri).option("table", table)
        )
        assert set(bucket.load().select("queue", "base_queue").distinct().collect()) == set(names)
    query = query_of(valkey_client, "low")
    archive = ArchivedRows(lake, "dead", "queue", "low", ("died_at", "dead_id"), TimeSpan())
    assert {row["queue"] for row in archive.rows(lambda: spark)} == {"low/0", "low/1"}
    [row], seen = told(SparkEngine(spark), from_lake(spark, lake), query)
    assert (row["queue"], row["attempts"], seen.queues) == ("low", 40, ("low",))
    [audited] = LakeAudit(spark, read(spark, lake, "events")).audit(None, None, ["low"])
    assert (audited.accepted, audited.finished, audited.lost, audited.open) == (40, 40, 0, 0)
    assert audited.notes == []
    hours = RollupSource(
        query.until, 0, lambda name, since, until: read(spark, lake, name, since, until)
    )
    rolled = EventSource(
        lambda since, until: read(spark, lake, "events", until, until), rollups=hours
    )
    with report_views(SparkEngine(spark), rolled, query) as (seen, show):
        asked, _ = show(*named("retries"))
        [row] = answer(SparkEngine(spark), *named("retries"), asked)
    assert (row["queue"], row["attempts"]) == ("low", 40)
