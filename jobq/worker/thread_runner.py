"""Runs sync jobs in threads of one child, while its main thread fetches messages and reports outcomes.

Python raises an exception in another thread only between two steps of Python code. So if the thread waits in C code,
such as for a socket or in `time.sleep`, the exception is raised once that call returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from queue import SimpleQueue
from time import monotonic

from jobq.client.clock import boot_ns
from jobq.errors import JobAborted, JobTimeout
from jobq.jobs.context import Call
from jobq.queue.types import Ending
from jobq.worker import logger

#: If the watching thread waits at most this long, it isn't woken for a new run without a shorter timeout.
LOOK_WITHIN_S = 1.0
NEVER = float("inf")
Interruption = type[JobAborted] | type[JobTimeout]

#: Text of JobAborted, by the reason for stopping the job.
STOPPED = {
    "lost": "its lock was lost, its lease ended, or it was cancelled",
    "hurry": "the worker must exit now",
}
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int
_NOTHING = ctypes.py_object()


class ThreadRun:
    """A run of one call, or of a batch's calls, in a thread. Until the run ends, other threads may interrupt it."""

    def __init__(
        self, index: int, slot: int, call: Call, calls: Mapping[int, Call] | None = None
    ) -> None:
        self.index, self.slot, self.call = index, slot, call
        #: All calls of a batch by slot, including the first call; None for a single call.
        self.calls = calls
        #: Whether its messages were started.
        self.began = False
        #: Slots of ended calls of a batch. Other messages may use them now.
        self.ended: set[int] = set()
        #: The ending of a batch's first call, whose slot stands for the run until it is over.
        self.first: Ending | None = None
        #: Why the run is stopped.
        self.why = ""
        #: The ending of a single call, or the run's exception; both are None if it was stopped before it began.
        self.ending: Ending | None = None
        self.error: BaseException | None = None
        self._context = copy_context()
        # Guards the following attributes: threads check them, then interrupt the run or withdraw an interruption.
        # The run's own thread may acquire it again: see `_unlock`.
        self._lock = threading.RLock()
        self._thread = 0
        self._limit_s = 0.0
        self._until: int | None = None
        # Whether JobTimeout is no longer raised, anything was raised, the run has begun, and the run is over.
        self._timed_out = self._raised = self._begun = self._over = False

    # Called in other threads.

    def stop(self, why: str) -> None:
        with self._lock:
            if not self.why:
                self.why = why
                self._interrupt(JobAborted, STOPPED[why])

    def time_out(self) -> float | None:
        """Raise JobTimeout in the job if its timeout has passed. Return the seconds until the next check, or None."""
        with self._lock:
            if self.call.job.settings.timeout is None or self._over or self.why or self._timed_out:
                return None
            if self._until is None:  # within middleware, which has no limit
                return self.call.job.settings.timeout
            left_s = (self._until - boot_ns()) / 1e9
            if left_s > 0:
                return left_s
            self._timed_out = True
            self._interrupt(JobTimeout, f"ran past its timeout of {self._limit_s:g} s")
            return None

    def _interrupt(self, kind: Interruption, text: str) -> None:
        if self._thread:
            self._raised = True
            _raise_in(self._thread, _saying(kind, text))

    # Called in its own thread.

    def run_job(self, run_call: RunCall) -> None:
        """Run the job unless it was already stopped.

        Afterwards, other threads can no longer raise exceptions in this run.
        """
        while not self._over:
            try:
                if not self._begun:
                    self._begun = True
                    if self._may_begin():
                        self.ending = self._context.run(run_call, self)
                self._end()
            except BaseException as error:
                self.error = error

    def _may_begin(self) -> bool:
        with self._lock:
            self._thread = 0 if self.why else threading.get_ident()
        return bool(self._thread)

    def _end(self) -> None:
        try:
            self._lock.acquire()
            if self._raised:
                _raise_in(threading.get_ident(), _NOTHING)
            self._thread, self._over = 0, True
        finally:
            self._unlock()

    def _unlock(self) -> None:
        """Release the lock once for each time that this thread has acquired it.

        Since Python 3.14, an exception may interrupt a `with` statement after it acquired the lock but before its body.
        Then the statement doesn't release the lock.
        """
        try:
            while True:
                self._lock.release()
        except RuntimeError:  # not acquired
            pass

    def is_stopped(self) -> bool:
        return bool(self.why)

    def limited(self, seconds: float) -> ThreadRun:
        """Return a context in which JobTimeout is raised after this many seconds."""
        self._limit_s = seconds
        return self

    def __enter__(self) -> None:
        self._until = boot_ns() + round(self._limit_s * 1e9)

    def __exit__(self, *_: object) -> None:
        try:
            self._lock.acquire()
            if self._raised and not self.why:  # set, and perhaps not raised yet
                _raise_in(self._thread, _NOTHING)
            self._timed_out = True
        finally:
            self._unlock()


#: Runs the call to its ending, in its thread. A batch has an ending for each call, so it returns None.
RunCall = Callable[[ThreadRun], Ending | None]


class JobThreads:
    """Runs sync jobs of one child in threads. A new thread starts when a job arrives and no thread is idle.

    One more thread checks timeouts, because the main thread may be waiting for the server.

    Args:
        on_over: Called in the main thread with each finished run.
        look: Called by the thread that checks timeouts. Returns the seconds until the next call.
        following: Called in a job's thread after each run. Passes the next run to `note` and returns it, or returns
            None.
        clean: Called in a job's thread after each run, with the job's name. Undoes the job's changes to the thread.
    """

    def __init__(
        self,
        run_call: RunCall,
        on_over: Callable[[ThreadRun], object],
        look: Callable[[], float],
        following: Callable[[], ThreadRun | None],
        clean: Callable[[str], object] = lambda job: None,
    ) -> None:
        self._run_call, self._on_over, self._look = run_call, on_over, look
        self._following, self._clean = following, clean
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[ThreadRun] = SimpleQueue()
        self._ended: deque[ThreadRun] = deque()
        # Whether the loop knows that something ended.
        self._notified = False
        self._nthreads = 0
        #: Running calls, by slot.
        self.runs: dict[int, ThreadRun] = {}
        self._current = threading.local()
        # When times are checked next, and the event that makes it earlier.
        self._look_at, self._sooner = NEVER, threading.Event()

    def start(self, run: ThreadRun) -> None:
        """Start a run in a thread. The caller must first pass the run to `note`."""
        if self.nbusy > self._nthreads:
            self._add_thread()
        self._inbox.put(run)

    @property
    def nbusy(self) -> int:
        return len(self.runs) - len(self._ended)

    def note(self, run: ThreadRun) -> None:
        """Record a run that starts now, so that its timeout is checked."""
        self.runs[run.slot] = run
        if (
            monotonic() + min(LOOK_WITHIN_S, run.call.job.settings.timeout or LOOK_WITHIN_S)
            < self._look_at
        ):
            self._sooner.set()

    def limited(self, seconds: float) -> ThreadRun:
        """Return a context in which JobTimeout is raised in this thread's job after this many seconds."""
        run: ThreadRun = self._current.run
        return run.limited(seconds)

    def _add_thread(self) -> None:
        try:
            if not self._nthreads:
                _started(self._watch, "jobq-watch")
            _started(self._work, f"jobq-{self._nthreads + 1}")
        except RuntimeError as error:
            if not self._nthreads:
                raise
            logger.warning("can't start more than %d threads for jobs: %s", self._nthreads, error)
            return
        self._nthreads += 1

    def _work(self) -> None:
        following: ThreadRun | None = None
        while True:
            run = self._current.run = following or self._inbox.get()
            try:
                run.run_job(self._run_call)
            except BaseException as error:  # raised as the run caught an error of its own
                run.error = error
            self._clean(run.call.job.name)
            # Before the loop knows that this run is over, because it would start another run instead.
            following = self._following()
            self._ended.append(run)
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop is closed: this process ends

    def _collect(self) -> None:
        # Before the check: a run that ends after this notifies again.
        self._notified = False
        while self._ended:
            run = self._ended.popleft()
            del self.runs[run.slot]
            self._on_over(run)

    def _watch(self) -> None:
        while True:
            # Before the check: a run that starts after this makes the next check earlier.
            self._look_at = NEVER
            runs = list(self.runs.values())
            wait_s = self._look() if runs else None
            for run in runs:
                left_s = run.time_out()
                if left_s is not None and wait_s is not None:
                    wait_s = min(wait_s, left_s)
            if wait_s is not None:
                self._look_at = monotonic() + wait_s
            self._sooner.wait(wait_s)
            self._sooner.clear()


def _started(target: Callable[[], None], name: str) -> None:
    # The process ends without waiting for its threads.
    threading.Thread(target=target, name=name, daemon=True).start()


def _saying(kind: Interruption, text: str) -> type:
    """Return an exception class with a fixed text. Raising an exception in another thread requires a class."""

    def made(error: BaseException) -> None:
        error.args = (text,)

    def reduced(_: BaseException) -> tuple[type[BaseException], tuple[str]]:
        return kind, (text,)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {"__init__": made, "__reduce__": reduced, **names})
