"""Jobs that fork in every way, and leave the forked process in every way."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pty
import sys
import threading
import time
from multiprocessing import get_context
from typing import Any

from jobq import JobAborted, Retry, current, job
from jobq.jobs.registry import default_registry
from tests.lifecycle.jobs_at_work import HERE, agated, ajob, note, quick

__all__ = ["agated", "quick"]


def by_os() -> int:
    """Fork in the way of most programs."""
    return os.fork()


def by_library() -> int:
    """Fork like a C library, without Python's hooks.

    With the GIL held: a process that is forked while another thread has the GIL waits for it forever. It does, too, if
    another thread has just asked for the GIL: it hands it to a thread that it doesn't have. With a long switch interval
    no thread asks, and those that already wait are served during the short sleep.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        time.sleep(2 * interval)
        return ctypes.PyDLL(None).fork()
    finally:
        sys.setswitchinterval(interval)


def by_pty() -> int:
    """With a terminal of its own."""
    return pty.fork()[0]


def _raise(error: BaseException) -> None:
    raise error


class Broken(ValueError):
    def __str__(self) -> str:
        raise RuntimeError


LEAVING: dict[str, Any] = {
    "return": lambda: None,
    "exit": lambda: sys.exit(7),
    "exit-text": lambda: sys.exit("for a reason"),
    "exit-huge": lambda: sys.exit(10**30),
    "_exit": lambda: os._exit(7),
    "raise": lambda: _raise(ValueError("in the fork")),
    "broken": lambda: _raise(Broken()),
    "retry": lambda: _raise(Retry(after=0)),
    "abort": lambda: _raise(JobAborted()),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "progress": lambda: current().progress(1),
}
CODES = {"exit": 7, "exit-text": 1, "exit-huge": 0, "_exit": 7, "return": 0, "progress": 0}
FORKING = {"os": by_os, "library": by_library, "pty": by_pty}


def _wait(ledger: str, name: str, pid: int) -> None:
    note(ledger, name, "end", code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@job(name="forks_and", retries=0, **HERE)
def forks_and(ledger: str, name: str, how: str, leaves: str) -> None:
    """Forks; the parent waits for the process and ends."""
    pid = FORKING[how]()
    if pid:
        _wait(ledger, name, pid)
    else:
        LEAVING[leaves]()


@job(name="forks_limited_and", retries=0, timeout=100, **HERE)
def forks_limited_and(ledger: str, name: str, how: str, leaves: str) -> None:
    """Fork within a timeout, and so within middleware."""
    forks_and.function(ledger, name, how, leaves)


@ajob(name="aforks_and", retries=0, **HERE)
async def aforks_and(ledger: str, name: str, how: str, leaves: str) -> None:
    """Fork on the event loop, at the second step."""
    await asyncio.sleep(0)
    forks_and.function(ledger, name, how, leaves)


@ajob(name="aforks_and_awaits", retries=0, **HERE)
async def aforks_and_awaits(ledger: str, name: str, how: str) -> None:
    """The forked process continues the event loop."""
    pid = FORKING[how]()
    if pid:
        _wait(ledger, name, pid)
    while not pid:
        await asyncio.sleep(0)


@ajob(name="task_forks", retries=0, **HERE)
async def task_forks(ledger: str, name: str, how: str) -> None:
    """A task of the job forks, and continues the event loop in both."""

    async def forks() -> int:
        pid = FORKING[how]()
        for _ in range(20):
            await asyncio.sleep(0)
        return pid

    _wait(ledger, name, await asyncio.create_task(forks()))


@ajob(name="steps", **HERE)
async def steps(ledger: str, name: str, count: int) -> None:
    """A neighbour on the event loop that would notice a second loop."""
    for number in range(count):
        note(ledger, name, "step", number=number)
        await asyncio.sleep(0.001)
    note(ledger, name, "end")


@job(name="forks_process", **HERE)
def forks_process(ledger: str, name: str) -> None:
    """Fork like multiprocessing; one of the processes raises."""
    context = get_context("fork")
    made = [context.Process(target=LEAVING[how]) for how in ("return", "exit", "raise")]
    for process in made:
        process.start()
    for process in made:
        process.join()
    note(ledger, name, "end", codes=[process.exitcode for process in made])


@job(name="forks_in_thread", **HERE)
def forks_in_thread(ledger: str, name: str) -> None:
    """In a thread; only that thread continues in the forked process."""
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(os.fork()))
    thread.start()
    thread.join()
    _wait(ledger, name, pids[0])


def _forking_policy(failures: int, error: BaseException) -> float:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return 0.01


@job(name="policy_forks", queue="low", retries=1, retry=_forking_policy)
def policy_forks(ledger: str, name: str) -> None:
    """A job whose retry policy forks, and returns twice."""
    note(ledger, name, "start")
    if current().attempt == 1:
        raise ValueError
    note(ledger, name, "end")


class Forks:
    """Middleware that returns twice from one job."""

    def run(self, context: Any, next: Any) -> Any:
        if context.job != "forked_around":
            return next()
        pid = os.fork()
        if not pid:
            return None
        os.waitpid(pid, 0)
        return next()

    async def arun(self, context: Any, next: Any) -> Any:
        return await next()


@job(name="forked_around", **HERE)
def forked_around(ledger: str, name: str) -> None:
    """A job whose middleware forks."""
    note(ledger, name, "end")


if os.environ.get("FORKING_MIDDLEWARE") == "yes":
    default_registry.middleware.add(Forks())

# The module itself returns twice to whoever imports it.
if os.environ.get("FORKING_IMPORT") == "yes" and (imported := os.fork()):
    os.waitpid(imported, 0)
