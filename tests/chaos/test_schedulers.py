"""Schedulers under kills, stops and steps of the server's clock: `make chaos` asks for twenty and for 10,000 ticks."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from jobq.chaos.schedule_faults import play, wrong
from jobq.queue.queue import Queue

from .conftest import JOBS, SEED
from .test_clocks import HOUR, Clocked, clocked

__all__ = ["clocked"]
LONG = JOBS > 1_000


@pytest.mark.parametrize(
    "clocked",
    [
        pytest.param("valkey", marks=pytest.mark.needs("libfaketime")),
        pytest.param("redis", marks=pytest.mark.needs("gcc", "redis-server")),
    ],
    indirect=True,
)
def test_each_tick_is_enqueued_once_while_the_clock_of_the_server_steps(clocked: Clocked) -> None:
    # An hour that was ahead once isn't ahead again: ticks start again after a step back.
    ahead = (hour * HOUR for hour in itertools.count(1))
    step = iter(lambda: clocked.set(0 if clocked.seconds else next(ahead)), 1)
    client = clocked.client("clock")

    found = play(
        client, clocked.url, random.Random(SEED), 20 if LONG else 3, 10_000 if LONG else 100,
        lambda: next(step),
    )  # fmt: skip

    assert found == []


def test_what_is_wrong_is_found(queue: Queue, redis: Any) -> None:
    def told(name: str, due: int, outcome: str, at: int, missed: str = "") -> None:
        text = "\x1f".join(["tick", "", str(at), name, missed, str(due), "", "", "", "", outcome])
        redis.xadd(f"{queue.prefix}events", {"1": text})

    start = 1_700_000_000_000
    told("a", start + 1000, "enqueued", start + 1001)
    told("a", start + 1000, "enqueued", start + 1500)
    told("b", start + 3000, "enqueued", start + 2999, "1")

    assert list(wrong(queue, {"b": start})) == [
        f"a at {start + 1000}: enqueued 2 times",
        f"b at {start + 3000}: enqueued early",
        "2 ticks were enqueued, but 0 messages are stored",
        "b: 2 of 3 ticks are accounted for",
    ]
