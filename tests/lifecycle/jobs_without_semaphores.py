"""The jobs of jobs_at_work, in a worker that can make no semaphore in /dev/shm, because it is read-only."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import jobq.worker.shared_lock as shared_lock
from tests.lifecycle.jobs_at_work import *  # noqa: F403


def _refuse() -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


shared_lock.get_context = lambda _: SimpleNamespace(Lock=_refuse)
