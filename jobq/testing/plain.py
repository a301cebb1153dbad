"""Functions for tests with unittest, with Django's test cases or with any other framework."""

from __future__ import annotations

import atexit
import os
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, default_registry
from jobq.testing.attempts import AttemptFacts, Attempts, RunResult
from jobq.testing.harness import Kit, Mode
from jobq.testing.servers import PrivateServer


class SharedServer:
    """The private server of this process. It starts at first use, and ends with the process."""

    def __init__(self) -> None:
        self._started: tuple[int, PrivateServer] | None = None

    @property
    def url(self) -> str:
        """The server's URL."""
        if self._started is None or self._started[0] != os.getpid():
            server = PrivateServer()
            atexit.register(server.stop)
            self._started = os.getpid(), server
        return self._started[1].url


shared_server = SharedServer()


@contextmanager
def kit(
    *, mode: Mode = "fake", strict: bool = False, registry: Registry = default_registry
) -> Iterator[Kit]:
    """Open a kit on this process's private server, after emptying the server."""
    with Kit(shared_server.url, mode=mode, strict=strict, registry=registry) as made:
        yield made


def kit_for(
    case: unittest.TestCase,
    *,
    mode: Mode = "fake",
    strict: bool = False,
    registry: Registry = default_registry,
) -> Kit:
    """Return a kit for one test of a TestCase. Call this function in `setUp`. The kit closes after the test."""
    made = Kit(shared_server.url, mode=mode, strict=strict, registry=registry)
    case.addCleanup(made.close)
    return made


def run_job(job: Job[..., Any], *args: Any, **kwargs: Any) -> RunResult:
    """Run a job's first attempt as a worker does, but without a server."""
    return Attempts(default_registry, AttemptFacts()).run(job, *args, **kwargs)


def running(**facts: Unpack[AttemptFacts]) -> Attempts:
    """Return an object that runs attempts with these facts, without a server: `running(attempt=3).run(job, …)`."""
    return Attempts(default_registry, facts)
