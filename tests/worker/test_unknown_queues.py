"""A queue of --queues that is probably misspelled is named once, with the nearest one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jobq.config import WorkerSettings
from jobq.jobs.registry import Registry
from jobq.queue import directory
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.worker.heartbeat import warn_of_unknown

pytestmark = pytest.mark.one_server


@pytest.fixture
def warned(client: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """warned("low", "mials"): the warnings of a worker of these queues, whose one job is in queue mails."""
    registry = Registry()
    registry.queues.add("mails")

    def run(*names: str) -> list[str]:
        settings = WorkerSettings(queues=tuple((name, 1) for name in names))
        with caplog.at_level(logging.WARNING, "jobq"):
            warn_of_unknown(client, registry, settings)
        return caplog.messages

    return run


def test_worker_names_the_nearest_queue_when_one_is_unknown(warned: Any):
    [line] = warned("mials", "mails")
    assert line.startswith("--queues names mials (did you mean mails?), but no job here uses it")


def test_worker_warns_once_when_several_are_unknown(warned: Any):
    [line] = warned("mials", "xyz")
    assert "mials (did you mean mails?), xyz, but no job here uses them" in line


def test_worker_warns_again_when_its_earlier_start_listed_the_queue(warned: Any, client: Any):
    for name in ("mials", "mails"):
        directory.register_queues(client, [name])
        Queue(name, client).dequeue(5)
    assert len(warned("mials")) == 1
    [_, line] = warned("mials")
    assert line.startswith("--queues names mials (did you mean mails?)")


def test_worker_warns_of_nothing_when_the_queue_is_used_up(warned: Any, client: Any):
    queue = Queue("low", client)
    queue.enqueue(b"{}")
    [message] = queue.dequeue(1).messages
    queue.finish([Ending(mid=message.mid, token=message.token)])
    assert warned("low") == []


def test_worker_warns_of_nothing_when_queues_are_declared_or_used(warned: Any, client: Any):
    Queue("low", client).enqueue(b"{}")
    assert warned("mails", "low") == []
