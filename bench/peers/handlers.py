"""Handlers of all peers; counted outside Redis, so that peers needn't report their progress."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any

SLOTS = 512
SPIN_NS = 1_000_000
STUCK_S = 600
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.02"))


class _Slot(threading.local):
    """This thread's own eight bytes of the shared file: nobody else writes there."""

    def __init__(self) -> None:
        self.count = 0
        with open(os.environ["BENCH_PROGRESS"], "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            everyone = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
            everyone[0] += 1
            self.index = everyone[0]
            self.everyone = everyone
            # Said, since the mapping keeps the file open, and the lock with it.
            fcntl.flock(file, fcntl.LOCK_UN)


_slots: list[_Slot] = []
_ledgers: list[int] = []


def _done() -> None:
    # Claimed by the first job of a process, after whatever forks there were.
    slot = _slots[0] if _slots else _claimed()
    slot.count += 1
    slot.everyone[slot.index] = slot.count


def _claimed() -> _Slot:
    _slots.append(_Slot())
    return _slots[0]


def _ledger() -> int:
    if not _ledgers:
        _ledgers.append(os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND))
    return _ledgers[0]


def noop(number: int = 0, text: str = "") -> None:
    """Do nothing, so that only the peer's costs remain."""
    _done()


def spin() -> None:
    """One millisecond of this thread's CPU, however busy the machine is."""
    until = time.thread_time_ns() + SPIN_NS
    while time.thread_time_ns() < until:
        pass
    _done()


def wait(number: int = 0, text: str = "") -> None:
    """Wait for nothing, as a job does for a network."""
    time.sleep(WAIT_S)
    _done()


async def nap(number: int = 0, text: str = "") -> None:
    """Wait as `wait` does, in a coroutine."""
    await asyncio.sleep(WAIT_S)
    _done()


def picked_up(sent_ns: int) -> None:
    """Write how long this message waited, by the clock that all processes of a machine share."""
    os.write(_ledger(), b"%d\n" % (time.monotonic_ns() - sent_ns))


def stuck() -> None:
    """Write the start and process of this attempt; the first attempt is still running when it is killed."""
    first = os.stat(os.environ["BENCH_LEDGER"]).st_size == 0
    os.write(_ledger(), b"%d %d\n" % (time.monotonic_ns(), os.getpid()))
    if first:
        time.sleep(STUCK_S)


HANDLERS: dict[str, Callable[..., Any]] = {
    "noop": noop,
    "spin": spin,
    "wait": wait,
    "picked_up": picked_up,
    "stuck": stuck,
}
#: For peers whose jobs may be coroutines.
WITH_NAP: dict[str, Callable[..., Any]] = {**HANDLERS, "nap": nap}


def done_by_all(everyone: memoryview) -> int:
    """How many jobs ended, over all processes and threads."""
    return sum(everyone[1:])
