"""`jobq control`: output when a worker answers, rejects a command, or doesn't answer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from jobq.queue import orders, presence
from jobq.queue.orders import ChildStack, OrderAnswer

DEADLINE_S = 120


@pytest.fixture
def worker(client: Any) -> Any:
    """worker(answer): the worker w, which answers so to its next order."""
    facts = {
        "seen_at": client.clock_ms(),
        "lease_ms": 600_000,
        "queues": ["low"],
        "pid": 7,
        "started_at": 5,
    }
    presence.put_worker(client, "w", facts)
    threads: list[threading.Thread] = []

    def answers(answer: OrderAnswer) -> None:
        def obey() -> None:
            until = time.monotonic() + DEADLINE_S
            while time.monotonic() < until:
                for order in orders.waiting_for(client, "w", 7, 5):
                    orders.put_answer(client, order.order_id, answer._replace(verb=order.verb))
                    return
                time.sleep(0.005)

        threads.append(threading.Thread(target=obey))
        threads[-1].start()

    yield answers
    for thread in threads:
        thread.join()


def test_answers_are_shown(cli: Any, worker: Any) -> None:
    worker(OrderAnswer("w", "", "done", "it stopped fetching messages"))
    ended = cli("control", "quiet", "w", "--wait", "2m")
    assert (ended.code, ended.out) == (0, "w: it stopped fetching messages\n")
    worker(OrderAnswer("w", "", "refused", "the worker is already stopping"))
    ended = cli("control", "resume", "w", "--wait", "2m")
    assert (ended.code, ended.out) == (1, "w: refused: the worker is already stopping\n")
    stack = ChildStack(9, (("low", "a\x1b"),), "Thread 0x1\n  File in gated")
    worker(OrderAnswer("w", "", "done", "stacks of 1 child", 1, (stack,)))
    lines = cli("control", "dump", "w", "--child", "9", "--wait", "2m").out.splitlines()
    assert lines == [
        "w: stacks of 1 child", "child 9: a\\x1b (queue low)", "Thread 0x1", "  File in gated",
    ]  # fmt: skip
    worker(OrderAnswer("w", "", "done", "stacks of 1 child", 1, (stack,)))
    [record] = cli("control", "dump", "w", "--json", "--wait", "2m").records
    assert (record["worker"], record["verb"], record["outcome"]) == ("w", "dump", "done")
    assert record["children"][0]["running"] == [{"queue": "low", "mid": "a\x1b"}]


def test_without_an_answer_it_is_a_no(cli: Any, worker: Any) -> None:
    ended = cli("control", "quiet", "w", "--wait", "1ms")
    assert ended.code == 1 and "no answer within 0.001 s" in ended.out
    ended = cli("control", "quiet", "w", "--wait", "0")
    assert (ended.code, ended.out) == (0, "w: sent\n")


def test_wrong_orders_are_refused_before_any_is_sent(cli: Any, worker: Any, redis: Any) -> None:
    assert "no worker 'x'" in cli("control", "drain", "w", "x").err
    assert "--child works only with dump" in cli("control", "drain", "w", "--child", "4").err
    assert "dance" in cli("control", "dance", "w").err
    assert not redis.exists("jobq:orders:w")
