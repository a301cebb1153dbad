"""A child process, from its fork to its exit: signals, hooks, main loop and exit code."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from jobq.jobs.forks import Home, flush
from jobq.worker import exit_codes, logger
from jobq.worker.async_runner import AsyncRunner
from jobq.worker.child import Child, ChildContext, Hooks, PoolPlan, Runner
from jobq.worker.programs import lead_group
from jobq.worker.shared_state import Control, Phase, SharedSlots
from jobq.worker.signals import Signals, die_with
from jobq.worker.start_errors import tell
from jobq.worker.sync_runner import SyncRunner


class StackFile:
    """The file to which a child writes its threads' stacks after SIGTTIN, and which the supervisor reads.

    faulthandler writes the file without the GIL, so a job that holds the GIL doesn't prevent that. Each child has its
    own file, because several children would mix their lines on a terminal.
    """

    def __init__(self) -> None:
        # In memory where that is possible: the temporary folder may be read-only.
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("jobq-stacks")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._closing = weakref.finalize(self, os.close, self._file)

    def register(self) -> None:
        """Make this child write its stacks to this file after SIGTTIN."""
        faulthandler.unregister(signal.SIGTTIN)
        faulthandler.register(signal.SIGTTIN, file=self._file, all_threads=True, chain=False)

    def close(self) -> None:
        """Close the file."""
        self._closing()

    def clear(self) -> None:
        """Empty the file.

        The supervisor and the child share the file position, so the child's next write also starts at 0.
        """
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def text(self) -> str:
        return os.pread(self._file, self.size(), 0).decode("utf-8", "replace").rstrip()


class Listeners:
    """Functions that a child's signal handlers call. The child sets them once it has created its objects."""

    def __init__(self) -> None:
        self.on_notice: Callable[[], None] = lambda: None
        #: Called in a process that a job forks.
        self.in_fork: Callable[[], None] = lambda: None


def child_main(plan: PoolPlan, slots: SharedSlots, parent: int, stacks: StackFile) -> NoReturn:
    """Run a child until it exits. The supervisor calls this right after the fork, with all signals blocked."""
    code = exit_codes.FAILED
    try:
        code = _run(plan, slots, parent, stacks)
    except BaseException:
        logger.exception("this child failed")
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _run(plan: PoolPlan, slots: SharedSlots, parent: int, stacks: StackFile) -> int:
    os.close(plan.alive_write)
    die_with(parent)
    lead_group()
    reseed()
    home, listeners = Home(), Listeners()
    signalled, signals = _handle_signals(slots, listeners, home)
    signals.handle_outside(signal.SIGTTIN, stacks.register)
    try:
        plan.hooks.start()
        for start in plan.registry.starts:
            start()
        home.only()
        child = Child(ChildContext(plan, slots, parent, signalled, signals))
    except Exception as error:
        home.only(error)
        tell(f"a child can't start:\n{traceback.format_exc()}")
        return exit_codes.CHILD_BOOT
    at_once = plan.settings.threads > 1 or any(job.is_async for job in plan.registry)
    runner: Runner = AsyncRunner(child) if at_once else SyncRunner(child)
    listeners.on_notice, listeners.in_fork = child.on_notice, runner.in_fork
    child.timers.install()
    signals.remember()
    signals.watch()
    slots.phase = Phase.WORKING
    try:
        child.run(runner)
    except BaseException as error:
        home.only(error)
        raise
    finally:
        slots.phase = Phase.LEAVING
        _call_exit_hook(plan.hooks)
    if child.recycling.reason:
        logger.info("replacing child %d %s", os.getpid(), child.recycling.reason)
        return child.exit_code or exit_codes.RECYCLED
    return child.exit_code


def _call_exit_hook(hooks: Hooks) -> None:
    try:
        hooks.exit()
    except Exception:
        logger.exception("the exit hook failed")


def reseed() -> None:
    """Seed this process's random numbers, so that they differ from its parent's."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _handle_signals(slots: SharedSlots, listeners: Listeners, home: Home) -> tuple[int, Signals]:
    """Install signal handlers. Return the readable end of a pipe into which every signal writes a byte.

    The child ignores signals that the supervisor handles for the whole pool. It ignores them with a handler, because
    programs started by jobs would inherit SIG_IGN.
    """
    signalled, filled = os.pipe()
    os.set_blocking(signalled, False)
    os.set_blocking(filled, False)
    signals = Signals(filled)

    def handle(number: int, _: object) -> None:
        if os.getpid() != home.pid:  # forked by a library, unknown to Python
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGTERM:
            slots.ask(Control.DRAIN)
        listeners.on_notice()

    signal.signal(signal.SIGALRM, _ignore)  # until `Timers` installs its handler
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signals.handle(number, _ignore)
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signals.handle(number, handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _let_jobs_fork(listeners)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return signalled, signals


def _ignore(number: int, _: object) -> None:
    pass


def _let_jobs_fork(listeners: Listeners) -> None:
    """Make SIGTERM end processes that jobs have forked.

    Such processes still ignore signals that a terminal sends to all processes.

    During a fork, signals are blocked until the new process has changed its signal handlers. Otherwise, a signal would
    run this child's handler in the new process, and be lost or mistaken for a signal to this child.
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
        listeners.in_fork()

    os.register_at_fork(before=hold_back, after_in_parent=let_go, after_in_child=become_ordinary)
