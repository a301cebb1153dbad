"""The contents of the list of orders: read by the worker that is meant, once, while it is fresh; else ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.queue import orders, presence
from jobq.queue.orders import ChildStack, OrderAnswer
from jobq.queue.presence import WorkerEntry
from tests.hostile import HOSTILE

PID, STARTED = 4711, 1_700_000_000_000


def entry(client: Any, **more: Any) -> WorkerEntry:
    facts = {
        "host": "web-7", "seen_at": client.clock_ms(), "lease_ms": 15_000, "queues": ["low"], "version": "1.2",
        "pid": PID, "started_at": STARTED, **more,
    }  # fmt: skip
    presence.put_worker(client, "w", facts)
    return presence.some_workers(client, ["w", "none"])["w"]


def read(client: Any, pid: int = PID, started: int = STARTED) -> list[str]:
    return [one.verb for one in orders.waiting_for(client, "w", pid, started)]


def test_order_is_for_one_run_of_a_worker_and_read_once(client: Any, redis: Any) -> None:
    orders.send(client, entry(client), "quiet", by="anna")
    assert read(client, PID + 1) == read(client, started=STARTED + 1) == []
    assert 0 < redis.pttl("jobq:orders:w") <= orders.KEPT_MS
    assert read(client) == ["quiet"] and read(client) == []
    assert not redis.exists("jobq:orders:w")


def test_old_order_is_dropped(client: Any, redis: Any) -> None:
    orders.send(client, entry(client), "drain")
    old = json.loads(redis.lpop("jobq:orders:w")) | {"at": client.clock_ms() - orders.KEPT_MS}
    redis.rpush("jobq:orders:w", json.dumps(old))
    assert read(client) == [] and not redis.exists("jobq:orders:w")


def test_number_of_waiting_orders_is_bounded(client: Any) -> None:
    for _ in range(orders.MAX_WAITING):
        orders.send(client, entry(client), "dump")
    with pytest.raises(ConfigError, match="already has 16 waiting commands"):
        orders.send(client, entry(client), "dump")
    assert len(read(client)) == orders.MAX_WAITING


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"seen_at": 1}, "is lost: it was last seen"),
        ({"started_at": 0}, "is starting"),
        ({"queues": "low"}, "is damaged"),
    ],
)
def test_order_to_a_worker_that_would_not_read_it_is_refused(
    client: Any, redis: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        orders.send(client, entry(client, **more), "quiet")
    assert not redis.exists("jobq:orders:w")


def test_hostile_orders_and_answers_are_nothing(client: Any, redis: Any) -> None:
    order_id = orders.send(client, entry(client), "quiet")
    good = json.loads(redis.lpop("jobq:orders:w"))
    forged = [
        {**good, field: wrong} for field in good for wrong in ([], {}, None, -1, "\ud800", 1e300)
    ]
    for raw in (*HOSTILE, *(json.dumps(one).encode() for one in forged)):
        redis.rpush("jobq:orders:w", raw)
        # An order for this run with an unknown verb is answered: the worker doesn't support it.
        assert all(verb.isprintable() for verb in read(client))
        redis.delete("jobq:orders:w")
        redis.set(f"jobq:order:{order_id}", raw)
        found = orders.answer(client, order_id)
        assert found is None or isinstance(found, OrderAnswer)
    assert orders.answer(client, "../" + order_id) is None
    assert orders.answer(client, "f" * 32) is None


def test_answer_is_cut_to_64_kib(client: Any, redis: Any) -> None:
    stacks = tuple(ChildStack(pid, (("low", "m"),), "x" * 50_000) for pid in (1, 2))
    orders.put_answer(client, "a" * 32, OrderAnswer("w", "dump", "done", "stacks", 5, stacks))
    assert redis.strlen(f"jobq:order:{'a' * 32}") < orders.MAX_ANSWER_BYTES + 1_000
    found = orders.answer(client, "a" * 32)
    assert found and [one.pid for one in found.children] == [1, 2] and found.at == 5
    assert "(17,232 characters left out)" in found.children[0].stack
