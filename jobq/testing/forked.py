"""A real worker process, forked from the test's process so that the worker knows the jobs defined in the test."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from typing import Any

from jobq.client.connection import connect
from jobq.config import ServerSettings, WorkerSettings, duration_s
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.jobs.registry import Registry
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue
from jobq.testing.waiting import waiting
from jobq.worker.run import run_worker
from jobq.worker.signals import die_with

#: How long a worker may take to stop after a request.
LEAVE_S = 60.0
POLL_S = 0.005


class ForkedWorker:
    """A running worker. `stop` ends it."""

    def __init__(
        self, server: ServerSettings, registry: Registry, settings: WorkerSettings
    ) -> None:
        self._client = connect(settings=server)
        parent = os.getpid()
        with warnings.catch_warnings():
            # The test's other threads don't hold a lock that the worker needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _be_worker(parent, server, registry, settings)
        self._code: int | None = None

    def wait(self, timeout: Duration = 30) -> None:
        """Wait until no message is ready or running. Delayed messages and retries may remain.

        Raises AssertionError after the timeout, or if the worker has ended.
        """
        deadline = time.monotonic() + duration_s(timeout)
        while busy := [name for name in queue_names(self._client) if self._is_busy(name)]:
            if not self.is_alive:
                raise AssertionError(f"the worker has ended with exit code {self._code}")
            if time.monotonic() > deadline:
                left = [repr(call) for name in busy for call in waiting(self._client, name)][:5]
                raise AssertionError(
                    f"queues {', '.join(busy)} aren't done after {duration_s(timeout):g} s: {'; '.join(left)}"
                )
            time.sleep(POLL_S)

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is None

    def stop(self) -> None:
        """Stop the worker after its running jobs have ended, and wait until it has exited. After a minute, kill the
        worker.
        """
        deadline = time.monotonic() + LEAVE_S
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
        while self.is_alive:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self._client.close()

    def _is_busy(self, name: str) -> bool:
        counts = Queue(name, self._client).admin.counts()
        return not counts.paused and bool(counts.ready or counts.locked or counts.requeued)


def _be_worker(
    parent: int, server: ServerSettings, registry: Registry, settings: WorkerSettings
) -> None:
    code = 70
    try:
        die_with(parent)
        code = run_worker(settings, connect(settings=server), registry)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def worker_settings(processes: int, queues: tuple[str, ...], **settings: Any) -> WorkerSettings:
    """Return the settings of a test's worker; raise ConfigError for an unknown setting."""
    try:
        return WorkerSettings(
            processes=processes, queues=tuple((name, 1) for name in queues), **settings
        )
    except TypeError as error:
        raise ConfigError(f"a worker has no such setting: {error}") from None
