"""Shared parts of the tests of jobs: a registry of their own, and messages without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.middleware import everywhere
from jobq.jobs.registry import Registry
from jobq.queue.partitioning import partition
from jobq.queue.types import Ending, Message
from jobq.testing import Kit
from tests.conftest import Server


@pytest.fixture
def registry() -> Registry:
    """A registry without jobs."""
    return Registry()


@pytest.fixture
def kit(registry: Registry, server: Server) -> Iterator[Kit]:
    """The kit on an empty server where queue low has four partitions."""
    with Kit(server.url, registry=registry) as made:
        partition(made.client, "low", 4)
        yield made


@pytest.fixture
def message() -> Callable[..., Message]:
    """message(job, *args, attempt=…, …): a hand-out of a call of that job, or of raw content."""

    def hand_out(
        job: Any,
        *args: Any,
        attempt: int = 1,
        ncrashes: int = 0,
        unknowns: int = 0,
        headers: Any = None,
        **kwargs: Any,
    ) -> Message:
        content = (
            job
            if isinstance(job, bytes)
            else encode(job.name, args, kwargs, 1, headers, job.overrides)
        )
        return Message(
            "mid-1", content, attempt, ncrashes, 7, "first.token", "caller.1.0", 0, unknowns
        )

    return hand_out


@pytest.fixture
def run(registry: Registry, message: Callable[..., Message]) -> Callable[..., Ending]:
    """run(job, *args, …): the ending of one attempt; executor={…} for its hooks."""

    def execute(
        job: Any, *args: Any, executor: dict[str, Any] | None = None, **kwargs: Any
    ) -> Ending:
        runner = Executor(registry, worker="here", hooks=RunHooks(**(executor or {})))
        call = runner.resolve("low", message(job, *args, **kwargs))
        return runner.run(call) if isinstance(call, Call) else call

    return execute


@pytest.fixture(autouse=True)
def no_middleware_left_behind() -> Iterator[None]:
    """Each test starts and ends with the middleware of nobody."""
    before, everywhere.layers = everywhere.layers, ()
    yield
    everywhere.layers = before
