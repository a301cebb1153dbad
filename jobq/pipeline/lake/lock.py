"""One ingest or upkeep per lake at a time: an advisory lock on a file in the lake's folder.

It ends with its process, however that ends. A bucket has none: there, two at a time cost work done twice,
and Delta refuses the second commit of a batch.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobq.errors import LakeError
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import told

FILE = "_jobq.lock"
#: Who waits looks so often, and who lets others go first waits twice as long.
LOOK_S = 0.05
PAUSE_S = 2 * LOOK_S
#: What is a link may name any file of ours, which taking the lock would empty.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class LakeBusyError(LakeError):
    """Another process works on the lake."""


@contextmanager
def held(
    lake: Lake, *, wait_s: float = 0.0, enough: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lake's lock; LakeBusyError when another process has it for longer than `wait_s`, or until `enough`."""
    if not lake.store.is_local:
        yield
        return
    with told(lake.store):
        handle = os.open(os.path.join(lake.store.uri, FILE), _FLAGS, 0o644)
    try:
        _take(handle, lake, time.monotonic() + wait_s, enough)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


class Turns:
    """Hold the lock for one thing after the other, so that others get at the lake in between.

    The first waits `wait_s` for it, then LakeBusyError; the later ones for as long as it takes, or until `enough`.
    """

    def __init__(self, lake: Lake, *, wait_s: float, enough: Callable[[], bool]) -> None:
        self._lake, self._wait_s, self._enough = lake, wait_s, enough

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """One turn, and a pause after it."""
        with held(self._lake, wait_s=self._wait_s, enough=self._enough):
            self._wait_s = math.inf
            yield
        if self._lake.store.is_local:
            time.sleep(PAUSE_S)


def _take(handle: int, lake: Lake, deadline: float, enough: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline or enough():
                holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise LakeBusyError(
                    f"another process (pid {holder}) works on the lake at {lake.store.uri}; "
                    "wait for it, or give --wait"
                ) from error
            time.sleep(LOOK_S)
