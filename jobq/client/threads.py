"""jobq's own threads for blocking calls of event loops.

asyncio's default pool isn't used, because it belongs to the program. It has few threads, and other code on the loop
needs them, for example to look up host names.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MAX_THREADS = 64


class Threads:
    """Runs calls in up to `limit` threads. A thread ends when no call is waiting, so an idle process has none."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self.forked()

    def forked(self) -> None:
        """Forget all threads and calls in a forked child, because they belong to the parent process."""
        self._lock, self._nrunning = threading.Lock(), 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run the call as soon as a thread is free; return a future of its result."""
        future: Future[T] = Future()
        waiting = future, call
        with self._lock:
            self._waiting.append(waiting)
            if self._nrunning >= self._limit:
                return future
            self._nrunning += 1
        try:
            threading.Thread(target=self._work, name="jobq-call").start()
        except RuntimeError:
            # The process may be at its limit of threads. If other threads run, the next free thread takes this call.
            with self._lock:
                self._nrunning -= 1
                if not self._nrunning and waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._nrunning -= 1
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call


threads = Threads()
os.register_at_fork(after_in_child=threads.forked)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call in one of jobq's threads and return the result, as asyncio.to_thread does."""
    call: Callable[[], Any] = partial(copy_context().run, function, *args, **kwargs)
    result: T = await asyncio.wrap_future(threads.submit(call))
    return result
