"""The warning of jobs that wait for results while no slot is free."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.errors import ResultTimeoutError
from jobq.jobs import receipt_calls
from jobq.jobs.context import Call, Context, running
from jobq.jobs.registry import Registry, job
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.queue.types import Message
from jobq.worker.full_pool import FullPool

pytestmark = pytest.mark.one_server


@pytest.fixture
def inner(client: Client) -> Any:
    return job(name="inner", queue="low", client=client, result_ttl=60, registry=Registry())(
        lambda: None
    )


def announce(client: Client, name: str, running_jobs: int) -> None:
    now = client.clock_ms()
    facts = {
        "queues": ["low"], "slots": 2, "running": running_jobs, "lease_ms": 15_000, "started_at": now,
        "seen_at": now,
    }  # fmt: skip
    presence.put_worker(client, name, facts)


def test_job_that_waits_for_a_result_while_all_slots_are_taken_is_warned_of_once(
    client: Client, queue: Queue, inner: Any, monkeypatch: Any, caplog: Any
):
    monkeypatch.setattr(receipt_calls, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(
        receipt_calls.result_waits, "on_wait", FullPool(client).on_wait, raising=False
    )
    receipt = inner.enqueue()

    def wait() -> list[str]:
        caplog.clear()
        with pytest.raises(ResultTimeoutError):
            receipt.result(timeout=1)
        return [record.getMessage() for record in caplog.records]

    announce(client, "a", 2)
    assert wait() == []  # not in a job
    outer = Call(inner, Message("m", b"", 1, 0, 1, "g", "t", 0), "low", [], {}, {}, 0)
    entered = running.set(Context(outer))
    try:
        announce(client, "b", 1)
        assert wait() == []  # a slot is free
        announce(client, "b", 2)
        [text] = wait()
        assert "is waiting for the result of inner" in text and "all 4 slots" in text
        assert "use a flow (jobq.Flow)" in text
        assert wait() == []
    finally:
        running.reset(entered)
