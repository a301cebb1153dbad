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


def test_plain_list_takes_turns_so_that_none_starves(filled, start, ledger):
    start("--processes", "1", "--prefetch", "1", "--burst", queues="high,low", env=LOOPLESS)
    assert order(ledger)[:40].count("h") == 20


def test_weights_are_shares(filled, start, ledger):
    start("--processes", "1", "--prefetch", "1", "--burst", queues="high:3,low:1", env=LOOPLESS)
    assert order(ledger)[:40].count("h") == 30


def test_strict_drains_the_first_before_the_second(filled, start, ledger):
    start("--processes", "1", "--strict", "--burst", queues="high,low")
    assert order(ledger) == "h" * 60 + "l" * 60


def test_queue_is_served_while_another_is_never_empty(client, send, start, ledger):
    start("--processes", "1", queues="high,low")
    high = Queue("high", client)
    for number in range(300):
        send("quick", f"h{number}", to=high)
        if number == 100:
            send("quick", "late", to=Queue("low", client))
    until(lambda: ledger.lines("end", "late"))
