"""Several queues and one child: turns, weights, strict order."""

from __future__ import annotations

import pytest

from jobq.queue.queue import Queue
from tests.lifecycle.conftest import until

#: One message at a time: a child with an event loop takes as many as have ended.
LOOPLESS = {"LIFECYCLE_LOOP": "no"}


@pytest.fixture
def filled(client, send):
    """sixty messages each in high and low, there before the worker."""
    for name in ("high", "low"):
        for number in range(60):
            send("quick", f"{name}{number}", to=Queue(name, client))
    return client


def order(ledger):
    """h and l, as the jobs ended."""
    until(lambda: len(ledger.lines("end")) == 120)
    return "".join(line["name"][0] for line in ledger.lines("end"))


@pytest.mark.parametrize(("queues", "first"), [("high,low", 20), ("high:3,low:1", 30)])
def test_queues_take_turns_by_their_weights(filled, start, ledger, queues, first):
    start("--processes", "1", "--prefetch", "1", "--burst", queues=queues, env=LOOPLESS)
    assert order(ledger)[:40].count("h") == first


def test_strict_drains_the_first_before_the_second(filled, start, ledger):
    start("--processes", "1", "--strict", "--burst", queues="high,low")
    assert order(ledger) == "h" * 60 + "l" * 60
