"""Which queues are skipped, and for how long."""

from __future__ import annotations

import logging

import pytest

from jobq.worker import queue_health as module
from jobq.worker.queue_health import AWAY, BROKEN, OutageLog, QueueHealth

SECOND = 1_000_000_000


@pytest.fixture
def clock(monkeypatch):
    """clock.now, in ns, moves only by hand."""

    class Clock:
        now = 1_000 * SECOND

    monkeypatch.setattr(module, "boot_ns", lambda: Clock.now)

    return Clock


def test_one_of_all_asks_again_when_the_pause_is_over(clock):
    health = QueueHealth(3)
    health.failed([1], AWAY, "gone", clock.now)
    assert [health.may_ask(index) for index in range(3)] == [True, False, True]
    clock.now += SECOND
    assert health.may_ask(1)
    assert not health.may_ask(1)


def test_pauses_double_up_to_five_seconds(clock):
    health = QueueHealth(1)
    waits = []
    for _ in range(12):
        health.failed([0], BROKEN, "no", clock.now)
        waits.append(health.wait_ms(0))
        clock.now += waits[-1] * 1_000_000
    assert waits[:3] == [50, 100, 200]
    assert waits[-1] == 5_000


def test_pause_is_long_beside_a_try_that_took_long(clock):
    health = QueueHealth(1)
    asked_at = clock.now
    clock.now += SECOND
    health.failed([0], AWAY, "silent", asked_at)
    assert health.wait_ms(0) == 20_000


@pytest.mark.parametrize(("state", "longest_ms"), [(AWAY, 30_000), (BROKEN, 5_000)])
def test_pause_is_no_longer_when_the_try_waited_for_a_server_for_an_hour(clock, state, longest_ms):
    health = QueueHealth(1)
    asked_at = clock.now
    clock.now += 3_600 * SECOND
    health.failed([0], state, "refused once the server was back", asked_at)
    assert health.wait_ms(0) == longest_ms


def test_nothing_is_left_of_trouble_that_is_over(clock):
    health = QueueHealth(2)
    health.failed([0, 1], AWAY, "gone", clock.now)
    health.server_answered([0, 1])
    assert health.troubles() == {}
    assert not health.any_trouble
    health.failed([0], AWAY, "gone", clock.now)
    assert health.wait_ms(0) == 50


def test_answer_of_the_server_mends_no_broken_queue(clock):
    health = QueueHealth(2)
    health.failed([0], BROKEN, "wrong type", clock.now)
    health.server_answered([0, 1])
    assert health.troubles()[0].why == "wrong type"


def test_log_has_one_line_for_an_outage_and_one_for_its_end(clock, caplog):
    caplog.set_level(logging.INFO, logger="jobq")
    health, outages = QueueHealth(9), OutageLog([f"q{index}" for index in range(9)])

    def look():
        caplog.clear()
        outages.update(health.troubles())
        return [record.getMessage() for record in caplog.records]

    health.failed([1], AWAY, "no answer", clock.now)
    assert look() == []
    clock.now += 12 * SECOND
    assert look() == [
        "queue q1: no answer from the server for 12 s; 8 other queues continue: no answer",
    ]
    health.failed([1], AWAY, "no answer", clock.now)
    assert look() == []
    clock.now += 48 * SECOND
    health.answered(1)
    assert look() == ["queue q1: the server answers again after 60 s"]
    assert look() == []
