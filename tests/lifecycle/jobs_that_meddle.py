"""Jobs that meddle with the vital parts of their child: its event loop's tasks, its signals."""

from __future__ import annotations

import asyncio
import decimal
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

from jobq import JobAborted, current, job
from tests.lifecycle.jobs_at_work import HERE, agated, ajob, note, quick

#: Set by jobs for themselves.
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
decimal.getcontext().prec = 11

__all__ = ["agated", "quick"]


async def _rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def _in_thread() -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(task.cancel,))
    thread.start()
    thread.join()


def _itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def _all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


CANCELLING: dict[str, Any] = {"itself": _itself, "in-thread": _in_thread, "all": _all}


@ajob(name="cancels", queue="low", retries=0)
async def cancels(ledger: str, name: str, how: str) -> None:
    """Cancels, and awaits."""
    note(ledger, name, "start")
    CANCELLING[how]()
    await _rest()
    note(ledger, name, "end")


@ajob(name="cancels_and_returns", queue="low", retries=0)
async def cancels_and_returns(ledger: str, name: str, how: str) -> None:
    """Cancels, and awaits nothing more."""
    CANCELLING[how]()
    note(ledger, name, "end")


@ajob(name="cancels_and_goes_on", queue="low", retries=0)
async def cancels_and_goes_on(ledger: str, name: str, how: str) -> None:
    """Ignore the signal."""
    for _ in range(3):
        CANCELLING[how]()
        try:
            await _rest()
        except asyncio.CancelledError:
            note(ledger, name, "ignored")
    note(ledger, name, "end")


@ajob(name="stops_loop", queue="low", retries=0)
async def stops_loop(ledger: str, name: str) -> None:
    """Stops the event loop it runs on."""
    note(ledger, name, "start")
    asyncio.get_running_loop().stop()
    await _rest()
    note(ledger, name, "end")


@ajob(name="exits_in_task", queue="low", retries=0)
async def exits_in_task(ledger: str, name: str) -> None:
    """Leaves in a task of its own, which no event loop survives."""
    note(ledger, name, "start")

    async def leave() -> None:
        sys.exit(3)

    await asyncio.create_task(leave())


@ajob(name="fails_and_exits", queue="low", retries=0)
async def fails_and_exits(ledger: str, name: str) -> None:
    """Fail, and exit in a callback before the failure is reported."""
    note(ledger, name, "start")
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    raise ValueError("failed first")


@ajob(name="gathers", **HERE)
async def gathers(ledger: str, name: str) -> None:
    """A neighbour with tasks of its own."""
    note(ledger, name, "start", attempt=current().attempt)
    await asyncio.gather(*(asyncio.sleep(0.2) for _ in range(3)))
    note(ledger, name, "end")


@job(name="aborts", queue="low", retries=0)
def aborts(ledger: str, name: str) -> None:
    """Raises what its worker raises."""
    raise JobAborted("by itself")


@ajob(name="aaborts", queue="low", retries=0)
async def aaborts(ledger: str, name: str) -> None:
    """This job on the event loop."""
    raise JobAborted("by itself")


def _own(*_: object) -> None:
    pass


MEDDLING: dict[str, Any] = {
    "default": lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL),
    "ignore": lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
    "own": lambda: signal.signal(signal.SIGALRM, _own),
    "stop": lambda: signal.alarm(0),
    "block": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,)),
    "others": lambda: [
        signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGUSR2)
    ],
    "wakeup": lambda: signal.set_wakeup_fd(-1),
    "children": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "block-all": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "profiler": lambda: [
        signal.signal(signal.SIGPROF, _own),
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01),
    ],
}


@job(name="meddles", **HERE)
def meddles(ledger: str, name: str, how: str) -> None:
    """Leaves signals otherwise than it found them."""
    MEDDLING[how]()
    note(ledger, name, "end")


# However late a busy machine lets the supervisor remind the job of its timeout, the child isn't killed before that.
@job(name="meddles_and_hangs", queue="low", retries=0, timeout=0.1, hard_timeout=60)
def meddles_and_hangs(ledger: str, name: str, how: str) -> None:
    """Is deaf to its timer."""
    note(ledger, name, "start")
    MEDDLING[how]()
    while True:
        time.sleep(0.01)


@job(name="blocks_and_hangs", queue="low", retries=0, timeout=0.1, hard_timeout=0.5)
def blocks_and_hangs(ledger: str, name: str, how: str) -> None:
    """Hears no signal but KILL."""
    meddles_and_hangs.function(ledger, name, how)


@job(name="lasts", **HERE)
def lasts(ledger: str, name: str) -> None:
    """Longer than the alarm that the job before it left; it starts a program."""
    time.sleep(0.15)
    ran = subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(3)"], check=False)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    note(ledger, name, "end", code=ran.returncode, blocked=len(blocked))


@job(name="limited", queue="low", retries=0, timeout=0.1)
def limited(ledger: str, name: str) -> None:
    """Past its soft timeout."""
    note(ledger, name, "start")
    time.sleep(60)


def _note_context(ledger: str, name: str) -> None:
    note(ledger, name, "saw", tenant=tenant.get(), prec=decimal.getcontext().prec)
    tenant.set(name)
    decimal.getcontext().prec = 5


@job(name="sets_context", queue="low")
def sets_context(ledger: str, name: str) -> None:
    _note_context(ledger, name)


@ajob(name="asets_context", queue="low")
async def asets_context(ledger: str, name: str) -> None:
    _note_context(ledger, name)
    await asyncio.sleep(0)
