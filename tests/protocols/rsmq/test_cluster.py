"""On a Cluster every key of a namespace is on one node; a namespace without a hash tag is refused first."""

from __future__ import annotations

import asyncio

import pytest

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.protocols.rsmq import AsyncRsmq, Consumed, Rsmq
from tests.client.deployments import Spread
from tests.conftest import binary


@pytest.fixture(scope="module")
def spread(short_folder):
    folder = short_folder / "rsmq-cluster"
    folder.mkdir()
    cluster = Spread(binary(), folder)
    yield cluster
    cluster.close()


@pytest.fixture
def client(spread):
    client = Client(ServerSettings(url=spread.url))
    yield client
    client.close()


@pytest.mark.parametrize("kind", [Rsmq, AsyncRsmq])
@pytest.mark.parametrize("ns", ["rsmq", "{}", "r{", "{}{rsmq}"])
def test_namespace_without_a_hash_tag_is_refused_before_anything_is_written(
    client, spread, kind, ns
):
    with pytest.raises(ConfigError, match="hash tag"):
        kind(client, ns=ns)
    assert all(node.redis.keys() == [] for node in spread.nodes)


def test_queues_of_a_tagged_namespace_work_whole(client, spread):
    rsmq = Rsmq(client, ns="{rsmq}", realtime=True)
    rsmq.create_queue("q")
    rsmq.create_queue("other")
    ids = rsmq.send_messages("q", [str(number) for number in range(1_200)])
    assert rsmq.list_queues() == ["other", "q"]
    first = rsmq.receive_message("q", wait=1)
    assert first.id == ids[0]
    assert rsmq.move_messages("q", "other", [first]) == [True]
    assert rsmq.consume("q", lambda _: None, burst=True, max_receives=3) == Consumed(done=1_199)
    holders = [node for node in spread.nodes if node.redis.keys("*rsmq*")]
    assert len(holders) == 1
    assert asyncio.run(AsyncRsmq(client, ns="{rsmq}").counts("other")) == (1, 0)
    for queue in rsmq.list_queues():
        rsmq.delete_queue(queue)
