"""Signal handling of a worker's processes. Handlers are restored after each job, and a process ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from jobq.worker import exit_codes, logger

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: loading a library after it may deadlock.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)

Handler = Callable[[int, FrameType | None], object]


def _fast(name: str) -> Any:
    """Return the C version of a function in `signal`. The Python version takes 30 times as long."""
    return getattr(sys.modules.get("_signal", signal), name)


# Called after each job.
_getsignal, _sigmask = _fast("getsignal"), _fast("pthread_sigmask")
#: All signals except the realtime signals, unused here, and the two that can't be handled.
_NUMBERS = tuple(
    number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)
)
#: Timers other than the timer of `timers.py`.
_OTHER_TIMERS = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Signals:
    """The signal handlers of one process. Each signal also writes a byte into a pipe."""

    def __init__(self, filled: int = -1) -> None:
        self._filled = filled
        self._own: list[tuple[int, Handler]] = []
        # Handlers of signals that Python doesn't know about.
        self._restored_by: dict[int, Callable[[], object]] = {}
        self._warned = self._is_watched = False
        #: Whether a job may have changed signal handlers, or blocked signals.
        self.touched = True
        self.remember()
        if filled >= 0:
            signal.set_wakeup_fd(filled, warn_on_full_buffer=False)

    def handle(self, number: int, handler: Handler) -> None:
        """Set a signal handler. If a job replaces it, jobq restores it."""
        self._own = [own for own in self._own if own[0] != number] + [(number, handler)]
        signal.signal(number, handler)

    def handle_outside(self, number: int, register: Callable[[], object]) -> None:
        """Set a C signal handler by calling `register`. Repeat the call after any job that replaces the handler."""
        self._restored_by[number] = register
        register()

    def keep_own(self) -> None:
        """Restore signal handlers that a job has replaced."""
        for number, handler in self._own:
            if _getsignal(number) is not handler:
                self._set(number, handler)
                self._warn("a job", f"how {_name(number)} is handled")
        if self._filled >= 0:
            signal.set_wakeup_fd(self._filled, warn_on_full_buffer=False)

    def remember(self) -> None:
        """Save the current signal handlers and timers. They are restored before each job."""
        self._before = list(map(_getsignal, _NUMBERS))
        self._timers = list(map(signal.getitimer, _OTHER_TIMERS))

    def watch(self) -> None:
        """Start to record in `touched` whether a job may have changed signal handling.

        This replaces functions of the C module `_signal`, which Python's `signal` module looks up by name. Changes made
        in other ways are detected after a batch. A check after every job would cost a microsecond.
        """
        c_module = sys.modules.get("_signal")
        for name in ("signal", "pthread_sigmask"):
            if hasattr(c_module, name):
                setattr(c_module, name, self._noting(getattr(c_module, name)))
        self.touched = False
        signal.signal(signal.SIGCHLD, signal.getsignal(signal.SIGCHLD))
        self._is_watched, self.touched = self.touched, not self.touched

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noted(*given: Any) -> Any:
            self.touched = True
            return function(*given)

        return noted

    def after_job(self, job: str = "a job") -> None:
        """Undo a job's changes to signal handlers and blocked signals. Call this in the main thread."""
        if list(map(_getsignal, _NUMBERS)) != self._before:
            self._undo(job)
        # The usual handlers are set again, so blocked signals may arrive now.
        if _sigmask(signal.SIG_SETMASK, ()):
            self._warn(job, "which signals are blocked")
        self.touched = not self._is_watched

    def after_job_in_thread(self, job: str) -> None:
        if _sigmask(signal.SIG_SETMASK, ()):
            self._warn(job, "which signals are blocked")

    def after_batch(self) -> None:
        """After a batch of jobs, restore signal handling and timers, even if `watch` hasn't detected a change.

        Call this in the main thread.
        """
        self.after_job()
        self.stop_timers()

    def stop_timers(self, job: str = "a job") -> None:
        """Stop CPU timers (`setitimer`) that a job left running, because their signals would end the process later."""
        for timer, before in zip(_OTHER_TIMERS, self._timers, strict=True):
            left_s, every_s = signal.getitimer(timer)
            if every_s != before[1] or bool(left_s) != bool(before[0]):
                signal.setitimer(timer, *before)
                self._warn(job, "timers")

    def _undo(self, job: str) -> None:
        self.stop_timers(job)
        for number, handler in zip(_NUMBERS, self._before, strict=True):
            if _getsignal(number) is handler:
                continue
            if handler == signal.SIG_DFL and number != signal.SIGCHLD:
                # Drops a pending blocked signal, which would end the process once unblocked.
                signal.signal(number, signal.SIG_IGN)
            self._set(number, handler)
            self._warn(job, f"how {_name(number)} is handled")

    def _set(self, number: int, handler: Any) -> None:
        if handler is not None:  # None: set by a C library, and Python can't set it again
            signal.signal(number, handler)
        if number in self._restored_by:
            self._restored_by[number]()

    def _warn(self, job: str, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s changed %s; jobq restores it for the next job", job, what)


def _name(number: int) -> str:
    return signal.Signals(number).name


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; exit immediately if the parent has already ended."""
    if _prctl is not None and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(exit_codes.FENCED)
