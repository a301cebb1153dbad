"""A real Cluster: each queue in one slot, several in one pop where they share a hash tag."""

from __future__ import annotations

import threading

import pytest
from redis.crc import key_slot

from jobq.client.connection import connect
from jobq.client.functions import area_library, check_library, load_library
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import places
from tests.client.deployments import Spread, wait_for
from tests.conftest import binary


@pytest.fixture(scope="module")
def spread(server, tmp_path_factory):
    deployment = Spread(binary(server.kind), tmp_path_factory.mktemp("reliable"))
    yield deployment
    deployment.close()


@pytest.fixture
def cluster(spread):
    for node in spread.nodes:
        node.redis.flushall()
    client = connect(settings=ServerSettings(url=spread.url, patience_s=30))
    yield client
    client.close()


@pytest.mark.parametrize("name", ["q", "mails:low", "{shop}mails", "a{shop}"])
def test_keys_of_a_queue_are_in_one_slot(name):
    assert len({key_slot(key.encode()) for key in places("reliable", name)}) == 1


def test_queues_live_on_their_nodes_and_do_everything_there(spread, cluster):
    rq = ReliableQueue(cluster)
    for number in range(9):
        name = f"queue{number}"
        [id] = rq.push(name, "a")
        assert [one.id for one in rq.pop(1, 0, name)] == [id]
        assert [one.id for one in rq.recover(name, 1, 0)] == [id]
        assert rq.nack(name, id) == [id]
        assert [one.id for one in rq.pop(1, 1000, name, recover_after=0.005)] == [id]
        assert rq.ack(name, id) == [id]
    assert all(node.redis.keys("reliable:*") for node in spread.nodes)


def test_queues_of_one_tag_are_popped_together_and_waited_for_together(spread, cluster):
    rq = ReliableQueue(cluster)
    rq.push("{shop}low", "l")
    rq.push("{shop}high", "h")
    assert [one.content for one in rq.pop(5, 0, "{shop}high", "{shop}low")] == [b"h", b"l"]
    served = []
    thread = threading.Thread(
        target=lambda: served.append(rq.pop(1, -1, "{shop}high", "{shop}low"))
    )
    thread.start()
    wait_for(
        lambda: any(node.redis.info()["blocked_clients"] for node in spread.nodes), "not blocked"
    )
    rq.push("{shop}low", "late")
    thread.join(120)
    assert [(one.key, one.content) for one in served[0]] == [("{shop}low", b"late")]


def test_pop_of_queues_in_different_slots_is_refused_before_anything_is_sent(spread, cluster):
    rq = ReliableQueue(cluster)
    rq.push("high", "h")
    with pytest.raises(
        ConfigError, match=r"'high' and 'low' are in different slots .* \{shop\}high"
    ):
        rq.pop(1, 1000, "high", "low")
    assert rq.length("high") == 1
    assert not any(node.redis.info()["blocked_clients"] for node in spread.nodes)


def test_same_queues_are_popped_together_on_one_server(rq):
    rq.push("low", "l")
    assert [one.content for one in rq.pop(1, 0, "high", "low")] == [b"l"]


def test_library_is_brought_to_every_node(spread, cluster):
    assert load_library(cluster, area_library("reliable")) == 3
    check_library(cluster, area_library("reliable"))
    rq = ReliableQueue(cluster)
    rq.push("q", "a")
    owner = next(node for node in spread.nodes if node.redis.keys("reliable:{q}:*"))
    keys = places("reliable", "q")
    [[key, _, content]] = owner.redis.execute_command("FCALL", "reliable_pop", 8, *keys)
    assert (key, content) == ("q", "a")
