"""What tests of the intake share: a fed_worker that a test holds, lists to fill, a worker's part of the work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from jobq.protocols.ruby.intake import QueueIntake
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.settings import IntakeSettings
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

PLACE = RubyQueueName("sidekiq", "", "default")


class HeldWatch:
    """A worker as the test says it is."""

    name, burst, processes = "tested", True, 1

    def __init__(self) -> None:
        self.woken, self._filled = os.pipe()
        self.supervisor = os.getpid()
        self.jobs: list[tuple[int, str, str, int]] = []
        self.is_quiet = self.is_stopping = False
        #: What the intake asked it to serve.
        self.asked: list[dict[str, int]] = []

    def stopping(self) -> bool:
        """As told."""
        return self.is_stopping

    def quiet(self) -> bool:
        """As told."""
        return self.is_quiet

    def running(self) -> list[tuple[int, str, str, int]]:
        """As told."""
        return self.jobs

    def serve(self, queues: Mapping[str, int]) -> None:
        """Note it."""
        self.asked.append(dict(queues))

    def drain(self) -> None:
        """Nothing is ever in it."""

    def close(self) -> None:
        """Both ends."""
        os.close(self.woken)
        os.close(self._filled)


@pytest.fixture
def fed_worker() -> Iterator[HeldWatch]:
    """One to hold."""
    held = HeldWatch()
    yield held
    held.close()


@pytest.fixture
def default(client: Any) -> Queue:
    """The jobq queue that Sidekiq's `default` goes to."""
    return Queue("default", client)


@pytest.fixture
def pushed(redis: Any) -> Callable[..., bytes]:
    """pushed("jid", args, retry=2): a job as Sidekiq pushes it; its bytes."""

    def push(jid: str, args: list[Any] | None = None, **fields: Any) -> bytes:
        noted = {
            "class": "HardWorker",
            "args": args or [],
            "jid": jid,
            "queue": "default",
            "retry": True,
        }
        job = json.dumps({**noted, "created_at": 1.5e9, **fields}).encode()
        redis.lpush("queue:default", job)
        return job

    return push


@pytest.fixture
def line(client: Any, default: Queue) -> Callable[..., QueueIntake]:
    """line(lease_s=…): an intake's part for Sidekiq's `default`."""

    def make(ruby_queue: RubyQueueName = PLACE, **changes: Any) -> QueueIntake:
        settings = IntakeSettings(ruby_queues=(ruby_queue,), **changes)
        return QueueIntake(client, ruby_queue, Queue(ruby_queue.queue, client), settings)

    return make


@pytest.fixture
def run_all() -> Callable[[Queue], list[str]]:
    """run_all(queue): do what a worker would with everything that is ready; the mids in their order."""

    def run(queue: Queue) -> list[str]:
        mids = []
        while messages := queue.dequeue(100).messages:
            mids += [message.mid for message in messages]
            queue.finish([Ending(mid=one.mid, token=one.token) for one in messages])
        return mids

    return run
