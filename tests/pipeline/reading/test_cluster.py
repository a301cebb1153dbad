"""Reading from a real Cluster: each queue's keys are on the node of its slot."""

from __future__ import annotations

from contextlib import closing

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from redis.crc import key_slot

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection
from jobq.pipeline.lake.commit import state_of
from jobq.pipeline.lake.ingest import Ingest, IngestOptions, one_round
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, sourced
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics.topic import Topic
from pyspark_jobq import JobqDataSource
from tests.client.deployments import HOST, Node, Spread
from tests.conftest import binary

NAMES = ("low", "high", "mail")


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    program = binary()
    assert program is not None
    deployment = Spread(program, tmp_path_factory.mktemp("cluster"))
    yield deployment
    deployment.close()


@pytest.fixture
def client(spread):
    client = connect(settings=ServerSettings(url=spread.url, patience_s=30))
    yield client
    client.close()


@pytest.fixture
def source(client):
    def make(**options):
        given = CaseInsensitiveDict()
        for name, value in {"url": client.url, **options}.items():
            given[name] = value
        return JobqDataSource(given)

    return make


@pytest.fixture(autouse=True)
def work(client):
    """A done, a dead and a waiting message in queues of three nodes, and a topic."""
    slots = {key_slot(f"jobq:{{{name}}}:events".encode()) // 5461 for name in NAMES}
    assert len(slots) > 1
    for name in NAMES:
        queue = Queue(name, client)
        queue.admin.clear()
        queue.enqueue_many([b"v"] * 3)
        first, second = queue.dequeue(2).messages
        queue.finish(
            [
                Ending(mid=first.mid, token=first.token),
                Ending(mid=second.mid, token=second.token, outcome="dead", reason="no"),
            ]
        )
    topic = Topic("orders", client)
    topic.append(b"v")


def rows(reader, parts):
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("view", ["events", "messages", "queues", "dead", "topic"])
def test_every_view_is_read_from_all_nodes(source, view):
    one = source(view=view)
    reader = one.reader(one.schema())
    found = rows(reader, reader.partitions())
    names = {row["topic" if view == "topic" else "queue"] for row in found}
    assert names == ({"orders"} if view == "topic" else set(NAMES))


def test_lake_takes_what_all_nodes_have_and_trims_each(client, tmp_path):
    streams = {name: offsets.events_key("jobq", name) for name in NAMES}
    written = {name: offsets.events_tail(client, key).length for name, key in streams.items()}
    dead = sum(Queue(name, client).admin.counts().dead for name in NAMES)
    lake = Lake.create(str(tmp_path / "lake"))
    work = Ingest(lake, client, Engine("local"), IngestOptions(trim=True))
    found = one_round(work, lambda batch: None, lambda: False)
    assert (found.events, found.dead, dict(found.lost)) == (sum(written.values()), dead, {})
    assert dead > 0 < found.topics
    assert one_round(work, lambda batch: None, lambda: False).is_empty
    left = {name: offsets.events_tail(client, key).length for name, key in streams.items()}
    assert left == dict.fromkeys(NAMES, 0)
    assert [one.backlog for one in inspection.backlog(lake, client)] == [0, 0, 0]


def test_stream_goes_on_over_all_nodes_and_trims_each(source, client):
    one = source(trimOnCommit="true", maxRowsPerTrigger="7")
    reader = one.streamReader(one.schema())
    start, found = reader.initialOffset(), 0
    for _ in range(20):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found += len(rows(reader, reader.partitions(start, end)))
        if end == start:
            break
        reader.commit(end)
        start = end
    added = {name: offsets.events_tail(client, offsets.events_key("jobq", name)) for name in NAMES}
    assert {name: tail.length for name, tail in added.items()} == dict.fromkeys(NAMES, 0)
    assert found > 6
    reader.stop()


def test_two_servers_and_a_cluster_share_a_lake(client, valkey_client, tmp_path):
    # The last topic: its events stay in the streams.
    program = binary()
    assert program is not None
    node = Node(program, tmp_path)
    lake = Lake.create(str(tmp_path / "lake"))
    try:
        with closing(connect(settings=ServerSettings(url=f"redis://{HOST}:{node.port}"))) as second:
            servers = {"us": client, "eu": valkey_client, "": second}
            for _ in range(2):
                for source, one in servers.items():
                    queue = Queue("low", one)
                    queue.admin.events_level("all")
                    queue.enqueue_many([b"v"] * 100)
                    work = Ingest(lake, one, Engine("local"), IngestOptions(source=source))
                    found = one_round(work, lambda batch: None, lambda: False)
                    assert found.events >= 100 and (found.lost, found.remade) == ({}, ())
                    assert one_round(work, lambda batch: None, lambda: False).is_empty
            for source, one in servers.items():
                behind = inspection.backlog(lake, one, source=source)
                assert "low" in {each.queue for each in behind if not each.backlog}
                added = offsets.events_tail(one, offsets.events_key("jobq", "low")).n
                assert state_of(lake, EVENTS).places[sourced(source, "low")].n == added
    finally:
        node.kill()
    assert {one.level for one in inspection.check(lake)} == {"ok"}
