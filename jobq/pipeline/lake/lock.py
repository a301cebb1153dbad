"""One ingest or upkeep per lake at a time: an advisory lock on a file in the lake's folder.

It ends with its process, however that ends. A bucket has none: there, two at a time cost work done twice,
and Delta refuses the second commit of a batch.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobq.errors import LakeError
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import told

FILE = "_jobq.lock"


class Busy(LakeError):
    """Another process works on the lake."""


@contextmanager
def held(
    lake: Lake, *, wait_s: float = 0.0, enough: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lake's lock; Busy when another process has it for longer than `wait_s`, or until `enough`."""
    if not lake.store.is_local:
        yield
        return
    with told(lake.store):
        handle = os.open(os.path.join(lake.store.uri, FILE), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, lake, time.monotonic() + wait_s, enough)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _take(handle: int, lake: Lake, deadline: float, enough: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline or enough():
                holder = os.pread(handle, 32, 0).decode().strip() or "unknown"
                raise Busy(
                    f"another process (pid {holder}) works on the lake at {lake.store.uri}; "
                    "wait for it, or give --wait"
                ) from error
            time.sleep(0.05)
