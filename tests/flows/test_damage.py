"""Bytes that nobody's flow has, in the keys of one flow: the others of its queue go on, and lists show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.flows import sending
from jobq.flows.listing import failed_members, flow_page, known_flow, put_on_list
from jobq.flows.run import FlowRun
from jobq.flows.types import FlowChange
from jobq.queue.queue import Queue
from tests.flows.flowing import Flowing, names, step

BAD, GOOD = "a:1", "z:1"
DEEP = b'{"a":' * 5_000


@pytest.fixture
def flowing(client: Client) -> Flowing:
    return Flowing(client)


def stored(
    kind: bytes = b"step", queue: bytes = b"low", source: bytes = b"", options: bytes = b"{}"
) -> bytes:
    return b"\x1f".join((kind, queue, source, b"", options))


@pytest.mark.parametrize(
    ("row", "todo"),
    [
        (stored(queue=b"{}"), b"send,5,1"),
        (stored(queue=b"low high"), b"cancel,5,1"),
        (stored(b"flow", b"", b"\xff"), b"flow,5,0"),
        (stored(options=DEEP), b"send,5,0"),
        (stored(options=b'{"at": 1e999}'), b"send,5,0"),
        (stored(options=b'{"delay": NaN}'), b"send,5,0"),
        (stored(b"map", source=b"items", options=b"null"), b"map,5,0"),
        (stored(b"wait"), b"map,5,0"),
    ],
)
def test_a_damaged_step_keeps_no_other_flow_waiting(
    flowing: Flowing, client: Client, redis: Any, row: bytes, todo: bytes
):
    store = flowing.start(BAD, step("a"), step("b", "a"))
    flowing.drain()
    redis.hset(store.prefix + "steps", "b", row)
    redis.hset(store.prefix + "todo", "b", todo)
    flowing.say("look", BAD)
    flowing.start(GOOD, step("end"))
    put_on_list(client, BAD)
    assert "end" in names(flowing.work())
    assert flowing.facts(GOOD).state == "done"
    assert [row.flow for row in flow_page(client).rows] == [BAD]
    assert known_flow(client, BAD).steps[0].name == "a"
    FlowRun("a", "1", client=client).cancel()
    flowing.work()


def test_a_number_of_5000_digits_names_no_member(flowing: Flowing, client: Client, redis: Any):
    store = flowing.start(BAD, step("a"))
    flowing.drain()
    store.apply("qlow", [FlowChange("dead", "a")])
    redis.hset(store.prefix + "failed", "a:" + "9" * 5_000, "dead")
    assert [one.mid for one in failed_members(client, known_flow(client, BAD), 9)] == [
        f"~{BAD}.r1.a.0"
    ]


def test_steps_that_must_wait_wake_no_worker_again_and_again(flowing: Flowing, redis: Any):
    high = flowing.queues["high"]
    high.rules(key_waiting=1)
    high.enqueue(b"first", key="k")
    options = json.dumps({"key": "k"}).encode()
    flowing.start(BAD, step("late", queue="high", options=options))
    flowing.drain()
    flowing.drain()
    before = redis.xrange("jobq:{low}:flow-outbox"), redis.llen("jobq:{low}:wake")
    assert [flowing.drain() for _ in range(3)] == [0, 0, 0]
    assert len(before[0]) == 1
    assert (redis.xrange("jobq:{low}:flow-outbox"), redis.llen("jobq:{low}:wake")) == before
    high.rules(key_waiting=None)
    assert "late" in names(flowing.work())
    assert flowing.left() == []


def test_cancel_of_a_map_with_a_damaged_size_goes_on_in_bounded_calls(
    flowing: Flowing, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    store = flowing.start(BAD, step("rows", kind="map", source="stream"))
    flowing.start(GOOD, step("end"))
    flowing.drain()
    store.reserve("rows", 0, 250)
    counts = redis.hget(store.prefix + "meta", "n:rows").decode().split(",")
    # 3,000 members have bits; others are said to have bits that no flow has.
    redis.hset(store.prefix + "meta", "n:rows", ",".join(["9999999", *counts[1:]]))
    redis.hset(store.prefix + "meta", "x:rows", "0:3000,33554000:9000000,99999999999:5000000")
    cancelled: list[int] = []
    cancel = Queue.cancel

    def counted(self: Queue, *mids: str, **more: Any) -> Any:
        cancelled.append(len(mids))
        return cancel(self, *mids, **more)

    monkeypatch.setattr(Queue, "cancel", counted)
    monkeypatch.setattr(sending, "PAGES_PER_CALL", 3)
    FlowRun("a", "1", client=flowing.client).cancel()
    calls = 1
    assert len(cancelled) == 3
    # Claims last a second.
    redis.delete("jobq:{low}:flow-claim")
    while flowing.drainer.drain("low"):
        calls += 1
        assert len(cancelled) <= 3 * calls
    # 3,000, and those up to the last bit that there can be.
    assert sum(cancelled) == 3_000 + 33_554_432 - 33_554_000
    assert not redis.hlen(store.prefix + "todo")
    assert flowing.facts(BAD).state == "cancelled"
    assert names(flowing.work()) == ["end"]


def test_a_list_of_steps_that_no_flow_has_room_for(flowing: Flowing, client: Client, redis: Any):
    store = flowing.start(BAD, step("a"), step("b", "a"))
    flowing.start(GOOD, step("end"))
    flowing.drain()
    redis.hset(store.prefix + "steps", "*", ",".join(["a", "b"] * 100_000))
    redis.hset(store.prefix + "steps", ">a", ",".join(f"x{number}" for number in range(200_000)))
    assert [one.name for one in known_flow(client, BAD).steps] == ["a", "b"]
    for word in ("retry", "cancel"):
        flowing.say(word, BAD)
        flowing.drain()
    assert flowing.facts(BAD).state == "cancelled"
    assert names(flowing.work()) == ["end"]
