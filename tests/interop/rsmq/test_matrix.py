"""Every client of RSMQ with every other over one server: what one does, the other sees."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from jobq.protocols.rsmq import Rsmq
from tests.interop.rsmq.conftest import Peer, Refused

CLIENTS = ("node", "py", "jobq")
PAIRS = list(itertools.product(CLIENTS, CLIENTS))
SETTINGS = {"vt": 40, "delay": 0, "maxsize": 2048}


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, peer: Any) -> tuple[Peer, Peer]:
    """Who acts, who looks."""
    one, other = request.param
    return peer(one), peer(other)


@pytest.fixture
def made(pair: tuple[Peer, Peer]) -> tuple[Peer, Peer]:
    """A pair with a queue `q` that the second made."""
    pair[1]("createQueue", qname="q", **SETTINGS)
    return pair


def test_create(pair, redis):
    one, other = pair
    one("createQueue", qname="q", **SETTINGS)
    assert other("listQueues") == ["q"]
    seen = other("getQueueAttributes", qname="q")
    assert {name: seen[name] for name in SETTINGS} == SETTINGS
    assert (seen["msgs"], seen["totalsent"]) == (0, 0)
    with pytest.raises(Refused, match="queueExists"):
        other("createQueue", qname="q", **SETTINGS)
    other("deleteQueue", qname="q")
    assert redis.keys() == []
    with pytest.raises(Refused, match="queueNotFound"):
        one("sendMessage", qname="q", message="x")


def test_send(made):
    one, other = made
    ids = [one("sendMessage", qname="q", message=text) for text in ("grüezi ✓", "second")]
    assert all(len(id_) == 32 for id_ in ids)
    first = other("receiveMessage", qname="q")
    assert (first["id"], first["message"], first["rc"]) == (ids[0], "grüezi ✓", 1)
    second = other("popMessage", qname="q")
    assert (second["id"], second["message"]) == (ids[1], "second")


def test_receive(made):
    one, other = made
    sent = other("sendMessage", qname="q", message="x")
    mine = one("receiveMessage", qname="q", vt=60)
    assert (mine["id"], mine["rc"]) == (sent, 1)
    assert other("receiveMessage", qname="q") == {}
    assert other("changeMessageVisibility", qname="q", id=sent, vt=0) == 1
    again = other("receiveMessage", qname="q")
    first_received = {"py": "ts"}
    assert again["rc"] == 2
    assert again[first_received.get(other.name, "fr")] == mine[first_received.get(one.name, "fr")]


def test_pop(made):
    one, other = made
    sent = other("sendMessage", qname="q", message="x")
    assert one("popMessage", qname="q")["id"] == sent
    assert other("popMessage", qname="q") == {}
    seen = other("getQueueAttributes", qname="q")
    assert (seen["msgs"], seen["totalsent"], seen["totalrecv"]) == (0, 1, 1)


def test_delete(made, redis):
    one, other = made
    sent = other("sendMessage", qname="q", message="x")
    other("receiveMessage", qname="q")
    assert one("deleteMessage", qname="q", id=sent) == 1
    assert other("deleteMessage", qname="q", id=sent) == 0
    assert other("getQueueAttributes", qname="q")["msgs"] == 0
    assert not redis.exists("rsmq:q")
    assert not [name for name in redis.hkeys("rsmq:q:Q") if sent.encode() in name]


def test_visibility(made, redis):
    one, other = made
    sent = other("sendMessage", qname="q", message="x", delay=500)
    assert one("changeMessageVisibility", qname="q", id=sent, vt=0) == 1
    received = other("receiveMessage", qname="q")
    assert (received["id"], received["rc"]) == (sent, 1)
    before = int(redis.time()[0])
    assert one("changeMessageVisibility", qname="q", id=sent, vt=100) == 1
    assert 0 <= redis.zscore("rsmq:q", sent) / 1000 - 100 - before < 600
    assert one("changeMessageVisibility", qname="q", id="0" * 32, vt=1) == 0


def test_attributes(made):
    one, other = made
    one("setQueueAttributes", qname="q", vt=5, delay=7)
    seen = other("getQueueAttributes", qname="q")
    assert (seen["vt"], seen["delay"], seen["maxsize"]) == (5, 7, 2048)
    assert seen["modified"] >= seen["created"] > 1_600_000_000
    sent = other("sendMessage", qname="q", message="x")
    assert one("receiveMessage", qname="q") == {}
    seen = one("getQueueAttributes", qname="q")
    assert (seen["msgs"], seen["hiddenmsgs"], seen["totalsent"]) == (1, 1, 1)
    assert len(sent) == 32


def test_realtime(pair, client, redis, monkeypatch):
    """PyRSMQ never publishes: who waits for it must look, and finds the message all the same."""
    one, other = pair
    one("createQueue", qname="q", **SETTINGS)
    publishes = one.name != "py"
    if other.name == "jobq":
        if publishes:  # then nothing but the publish can end the wait in time
            monkeypatch.setattr("jobq.protocols.rsmq.steps.FIRST_S", 100)
            monkeypatch.setattr("jobq.protocols.rsmq.steps.MAX_S", 100)
        found: list[Any] = []
        poll = threading.Thread(
            target=lambda: found.append(Rsmq(client).receive_message("q", wait=100))
        )
        poll.start()
        while not redis.pubsub_numsub("rsmq:rt:q")[0][1]:
            time.sleep(0.005)
        one("sendMessage", qname="q", message="x")
        poll.join(90)
        assert found[0].message == "x"
        return
    other("listen", qname="q")
    one("sendMessage", qname="q", message="x")
    one("sendMessage", qname="q", message="y", delay=60)
    heard = other("heard", count=2, wait=60_000 if publishes else 100)
    other("unlisten")
    assert heard == (["1", "2"] if publishes else [])
    assert other("receiveMessage", qname="q")["message"] == "x"
