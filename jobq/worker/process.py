"""From fork to loop to exit: what a child does before and after its work."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from jobq.client.connection import Client
from jobq.config import WorkerSettings
from jobq.jobs.forks import Home, flush
from jobq.jobs.registry import Registry
from jobq.worker import exit_codes, logger
from jobq.worker import shared_state as slots
from jobq.worker.async_child import AsyncChild
from jobq.worker.child import SyncChild
from jobq.worker.holding import Child, Surroundings
from jobq.worker.queue_health import QueueHealth
from jobq.worker.shared_state import SharedSlots
from jobq.worker.signals import Signals, die_with


class StackFile:
    """The file of one place in the pool."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())
        self._closing = weakref.finalize(self, os.close, self._file)

    def register(self) -> None:
        """In the child: write there upon TTIN."""
        faulthandler.register(signal.SIGTTIN, file=self._file, all_threads=True, chain=False)

    def close(self) -> None:
        """Nobody writes there any more."""
        self._closing()

    def clear(self) -> None:
        """Forget what was written. The child writes where the supervisor leaves off: they share the position."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def size(self) -> int:
        """How much was written."""
        return os.fstat(self._file).st_size

    def text(self) -> str:
        """What was written."""
        return os.pread(self._file, self.size(), 0).decode("utf-8", "replace").rstrip()


class Hooks(NamedTuple):
    """Called in each child, after its birth and before its exit."""

    start: Callable[[], object] = lambda: None
    exit: Callable[[], object] = lambda: None


class PoolPlan(NamedTuple):
    """What all children of a worker have in common."""

    settings: WorkerSettings
    client: Client
    registry: Registry
    hooks: Hooks
    alive_read: int
    alive_write: int
    standing: QueueHealth


def live(plan: PoolPlan, memory: SharedSlots, parent: int, stacks: StackFile) -> NoReturn:
    """The whole life of a child, called right after the fork with all signals blocked."""
    code = exit_codes.FAILED
    try:
        stacks.register()
        code = _life(plan, memory, parent)
    except BaseException:
        logger.exception("this child fails")
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _life(plan: PoolPlan, memory: SharedSlots, parent: int) -> int:
    os.close(plan.alive_write)
    die_with(parent)
    reseed()
    home = Home()
    told: list[Callable[[], None]] = []
    forked: list[Callable[[], None]] = []
    woken, signals = _listen(memory, told, forked, home)
    try:
        plan.hooks.start()
        home.only()
        child = _made(plan, memory, parent, woken, signals)
    except Exception as error:
        home.only(error)
        logger.exception("a child can't start")
        return exit_codes.CHILD_BOOT
    told.append(child.told)
    forked.append(child.forked)
    child.timers.install()
    memory.words[slots.STATE] = slots.WORKING
    try:
        child.loop()
    except BaseException as error:
        home.only(error)
        raise
    finally:
        memory.words[slots.STATE] = slots.LEAVING
        _say_goodbye(plan.hooks)
    if child.recycling.reason:
        logger.info("child %d is replaced %s", os.getpid(), child.recycling.reason)
        return child.exit_code or exit_codes.RECYCLED
    return child.exit_code


def _say_goodbye(hooks: Hooks) -> None:
    try:
        hooks.exit()
    except Exception:
        logger.exception("the exit hook fails")


def _made(plan: PoolPlan, memory: SharedSlots, parent: int, woken: int, signals: Signals) -> Child:
    around = Surroundings(
        plan.settings,
        plan.client,
        plan.registry,
        memory,
        parent,
        plan.alive_read,
        woken,
        plan.standing,
        signals,
    )
    concurrent = any(job.is_async for job in plan.registry)
    return AsyncChild(around) if concurrent else SyncChild(around)


def reseed() -> None:
    """Random numbers of this process's own."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _listen(
    memory: SharedSlots,
    told: list[Callable[[], None]],
    forked: list[Callable[[], None]],
    home: Home,
) -> tuple[int, Signals]:
    """Handle signals; the end of a pipe that becomes readable after each. `forked`: called in what jobs fork.

    What the supervisor handles for the whole pool is ignored here by a handler, not by SIG_IGN, which
    programs started by jobs would inherit.
    """
    woken, filled = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(filled, False)
    signals = Signals(filled)

    def hear(number: int, _: object) -> None:
        if os.getpid() != home.pid:  # forked by a library, which Python doesn't know of
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGTERM:
            memory.words[slots.CONTROL] |= slots.DRAIN
        for each in told:
            each()

    signal.signal(signal.SIGALRM, _ignore)  # until the timers have it
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signals.handle(number, _ignore)
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signals.handle(number, hear)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _let_jobs_fork(forked)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return woken, signals


def _ignore(number: int, _: object) -> None:
    pass


def _let_jobs_fork(forked: list[Callable[[], None]]) -> None:
    """In a process that a job forks TERM ends it. What a terminal sends to all stays the supervisor's.

    A signal that came between the fork and its default handling would be Python's to handle here: lost, or
    taken for this child's own. So it is held back until then.
    """
    ours = (signal.SIGALRM, signal.SIGUSR2, signal.SIGTERM)
    masks = threading.local()

    def hold_back() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def become_ordinary() -> None:
        signal.set_wakeup_fd(-1)
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        let_go()
        for each in forked:
            each()

    os.register_at_fork(before=hold_back, after_in_parent=let_go, after_in_child=become_ordinary)
