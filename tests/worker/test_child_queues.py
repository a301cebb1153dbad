"""The queues of one child: reports whose replies are lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import jobq
from jobq.chaos.proxy import DOWN, HOST, Proxy
from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.config import ServerSettings, WorkerSettings
from jobq.jobs.context import Call
from jobq.jobs.registry import Registry
from jobq.queue.types import Ending
from jobq.worker.child_queues import ChildQueues
from jobq.worker.queue_health import QueueHealth
from jobq.worker.shared_state import COUNT, SharedSlots

pytestmark = pytest.mark.one_server


@pytest.fixture
def proxy(server, redis) -> Iterator[Proxy]:
    proxy = Proxy(server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def slots():
    return SharedSlots()


@pytest.fixture
def queues(proxy, slots) -> ChildQueues:
    """The only queue of a child, by way of the proxy."""
    settings = WorkerSettings(queues=(("low", 1),), lease_s=1.5)
    client = Client(ServerSettings(url=f"redis://{HOST}:{proxy.port}"))
    return ChildQueues(settings, client, QueueHealth(1), slots, lambda: None)


def ended(queues: ChildQueues, slots: SharedSlots, count: int = 1) -> None:
    """So many messages were taken, and their runs are over."""
    messages = queues.dequeue(0, count)[0].messages
    held = slots.publish(0, messages, boot_ns() + 10**10)
    for slot, message in zip(held, messages, strict=True):
        slots.start(slot)
        queues.ended(0, slot, Ending(mid=message.mid, token=message.token))


def accepted_all(caplog: Any) -> bool:
    """Whether the server refused no ending."""
    return not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_report_during_a_job_is_the_same_call_when_its_reply_was_lost(
    queues, slots, proxy, queue, caplog
):
    queue.enqueue_many([b"v"] * 3)
    ended(queues, slots)
    queues.report_during_job()
    ended(queues, slots)
    proxy.hold([DOWN])
    queues.report_during_job()
    assert queue.admin.counts().done == 2
    assert queues.has_endings, "nobody knows that it arrived"
    assert slots.nfree == COUNT - 1
    proxy.release()

    ended(queues, slots)
    queues.report(0)

    counts = queue.admin.counts()
    assert counts.messages == counts.done
    assert not queues.has_endings
    assert slots.nfree == COUNT
    assert accepted_all(caplog)


def test_nothing_is_sent_before_a_report_during_a_job_whose_reply_was_lost(
    queues, slots, proxy, queue
):
    queue.enqueue(b"v")
    ended(queues, slots)
    proxy.hold([DOWN])
    queues.report_during_job()
    queues.report_during_job()
    proxy.release()
    assert not queues.send(0, 1, 10**9)
    queues.report(0)
    assert queues.send(0, 1, 10**9)


@pytest.mark.parametrize("lost", [False, True])
def test_endings_that_come_while_a_report_is_on_its_way_are_told_after_it(
    queues, slots, proxy, queue, caplog, lost
):
    queue.enqueue_many([b"v"] * 3)
    ended(queues, slots)
    if lost:
        proxy.lose_reply(1)
    assert queues.send(0, 1, 10**10)
    later = queue.dequeue().messages[0]
    [slot] = slots.publish(0, [later], boot_ns() + 10**10)
    slots.start(slot)
    queues.ended(0, slot, Ending(mid=later.mid, token=later.token))
    assert queues.nended() == {0: 1}

    index, handed, _ = queues.collect()
    assert (index, len(handed.messages)) == (0, 1)
    assert queue.status(handed.messages[0].mid).attempts == 1
    assert queues.nended() == {0: 1}
    queues.report(0)

    assert queue.admin.counts().done == 2
    assert not queues.has_endings
    assert accepted_all(caplog)
    assert slots.nfree == COUNT
    assert proxy.lost == lost


def test_what_the_supervisor_claims_of_a_lost_call_is_its_own_and_the_endings_count(
    queues, slots, proxy, queue, caplog
):
    queue.enqueue_many([b"v"] * 2)
    ended(queues, slots)
    first = slots.caller
    proxy.lose_reply(1)
    assert queues.send(0, 1, 0)
    assert slots.claim_fetch()

    index, handed, _ = queues.collect()

    assert (index, handed) == (0, None)
    assert slots.caller != first
    counts = queue.admin.counts()
    assert counts.messages - counts.done == counts.locked == 1
    assert slots.nfree == COUNT
    assert accepted_all(caplog)


def test_cancelled_call_is_lost_when_waiting_calls_are_renewed(queues, slots, queue, proxy):
    for mid in ("a", "b"):
        queue.enqueue(b"v", mid=mid)
    messages = queues.dequeue(0, 2)[0].messages
    held = slots.publish(0, messages, boot_ns() + 10**10)
    job = jobq.job(name="j", registry=Registry(), batch=3)(lambda calls: None)
    calls = [Call(job, message, "low", [], {}, {}, 0) for message in messages]
    queue.cancel("a")
    queues.renew(0, list(zip(held, calls, strict=True)))
    assert [slots.is_lost(slot) for slot in held] == [True, False]
    queue.cancel("b")
    proxy.close()  # without an answer, a call counts as held
    queues.renew(0, list(zip(held, calls, strict=True)))
    assert [slots.is_lost(slot) for slot in held] == [True, False]
