"""When a child delivers the reports of its queues to flows."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jobq.config import WorkerSettings
from jobq.errors import UnavailableError
from jobq.queue.types import Ending
from jobq.worker.child_queues import ChildQueues
from jobq.worker.flow_drains import FlowDrains
from jobq.worker.queue_health import QueueHealth
from jobq.worker.shared_state import SharedSlots


class Drained:
    """Stands for a Drainer: which queues it was to drain; `gate` holds it up, `found` is its answer."""

    def __init__(self, _client: Any = None) -> None:
        self.queues: list[str] = []
        self.found: int | Exception = 3
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def drain(self, queue: str, _most: int) -> int:
        self.queues.append(queue)
        self.entered.set()
        assert self.gate.wait(120)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> Drained:
    one = Drained()
    monkeypatch.setattr("jobq.flows.in_worker.Drainer", lambda client: one)
    return one


def drains(*, aside: bool) -> FlowDrains:
    client: Any = None
    return FlowDrains(client, ["low", "high"], aside=aside)


def test_idle_child_drains_at_once_and_a_busy_one_not_again_and_again(drained: Drained):
    flows = drains(aside=False)
    assert flows.noticed(0, is_busy=True)
    assert not flows.noticed(0, is_busy=True)
    assert flows.noticed(1, is_busy=True)
    assert flows.noticed(0, is_busy=False)
    assert drained.queues == ["low", "high", "low"]


def test_what_another_drainer_has_or_no_server_takes_is_left(
    drained: Drained, caplog: pytest.LogCaptureFixture
):
    flows, drained.found = drains(aside=False), 0
    assert not flows.noticed(0, is_busy=False) and flows.left == {0}
    drained.found = UnavailableError("away")
    for _ in range(2):
        assert not flows.noticed(1, is_busy=False) and flows.left == {0, 1}
    assert caplog.text.count("results in queue high can't be delivered to flows yet: away") == 1
    drained.found = 1
    assert flows.noticed(0, is_busy=False) and flows.left == {1}


def test_beside_an_event_loop_it_drains_in_a_thread_and_again_for_what_came_meanwhile(
    drained: Drained,
):
    flows = drains(aside=True)
    drained.gate.clear()
    assert not flows.noticed(0, is_busy=False)
    assert drained.entered.wait(120)
    for index in (0, 1, 0):
        assert not flows.noticed(index, is_busy=False)
    drained.gate.set()
    flows.settle(120)
    assert drained.queues == ["low", "low", "high"]
    flows.noticed(1, is_busy=False)
    flows.settle(120)
    assert drained.queues[3:] == ["high"]


def test_child_remembers_that_members_ended_where_it_did_not_ask_what_else_there_is(
    queue: Any, client: Any
):
    """A report that asks for no messages isn't answered with what the outbox holds."""
    settings = WorkerSettings(queues=(("low", 1),))
    queues = ChildQueues(settings, client, QueueHealth(1), SharedSlots(), lambda: None)
    queue.enqueue_members([(f"~import:7.r1.rows.{number}", b"v") for number in range(2)])
    queue.enqueue(b"v", mid="plain")
    for limit, left in ((0, {0}), (1, set())):
        [message] = queues.dequeue(0, 1)[0].messages
        queues.ended(0, 0, Ending(mid=message.mid, token=message.token))
        queues.report(0, limit)
        assert queues.ended_members == left
        queues.ended_members.clear()
