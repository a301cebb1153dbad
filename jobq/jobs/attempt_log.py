"""Stores the last 64 KiB of an attempt's log, for jobs that declare `keep_logs`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from jobq.errors import masked_text, shortened

#: Maximum size of a kept log in bytes. The oldest lines are dropped.
MAX_BYTES = 65_536
#: Minimum time between two stores of a running attempt's log.
STORE_EVERY_S = 1.0
#: Called with queue, mid, attempt, text, and how long to keep the text.
StoreLog = Callable[[str, str, int, bytes, float], None]

_FORMAT = logging.Formatter(
    "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
)
_FORMAT.converter = time.gmtime
_ROOT = logging.getLogger()


class AttemptLog:
    """The log of one attempt.

    Args:
        store: Called with the log's whole text. Errors of `store` don't affect the job or its log.
    """

    def __init__(self, store: Callable[[bytes], None]) -> None:
        self._store = store
        self._lines: deque[bytes] = deque()
        self._size = self._ndropped = 0
        self._stored_at = float("-inf")
        self._lock = threading.RLock()
        self._is_stored = True
        self._inside = False

    def add(self, line: bytes) -> None:
        """Add a line, and store the log unless it was stored less than STORE_EVERY_S ago."""
        with self._lock:
            if self._inside:
                return  # the client logs while it stores this log
            self._lines.append(line[-MAX_BYTES:])
            self._size += len(self._lines[-1])
            self._is_stored = False
            while self._size > MAX_BYTES:
                self._size -= len(self._lines.popleft())
                self._ndropped += 1
            if time.monotonic() - self._stored_at >= STORE_EVERY_S:
                self.store()

    def store(self) -> None:
        """Store the log if it has new lines."""
        with self._lock:
            if self._is_stored or self._inside:
                return
            self._inside, self._stored_at = True, time.monotonic()
            try:
                with suppress(Exception):
                    self._store(self.text())
                    self._is_stored = True
            finally:
                self._inside = False

    def text(self) -> bytes:
        """Return the lines. If earlier lines were dropped, the first line says how many."""
        dropped = b"(%d earlier lines were dropped)\n" % self._ndropped if self._ndropped else b""
        return dropped + b"".join(self._lines)


#: The log of the current attempt. Its threads see it only if they have the attempt's context.
_kept: ContextVar[AttemptLog | None] = ContextVar("jobq_attempt_log", default=None)


class _Handler(logging.Handler):
    """Adds each record to the log of the attempt that made it."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle one record without the handler's lock. Each log has its own lock, so logs don't block each other."""
        # From Python 3.12 on a filter may return another record.
        allowed: object = self.filter(record)
        if allowed:
            self.emit(allowed if isinstance(allowed, logging.LogRecord) else record)
        return bool(allowed)

    def emit(self, record: logging.LogRecord) -> None:
        """Add one record. Records of processes forked by the job are ignored."""
        log = _kept.get()
        if log is None or os.getpid() != self._pid:
            return
        try:
            text = masked_text(shortened(_FORMAT.format(record)))
            log.add(text.encode("utf-8", "replace") + b"\n")
        except Exception:
            self.handleError(record)


class AttemptLogs:
    """Stores the logs of attempts in one process. The logging handler is installed only while attempts run."""

    def __init__(self, store: StoreLog) -> None:
        self._store = store
        self._handler = _Handler()
        self._lock = threading.Lock()
        self._nrunning = 0

    @contextmanager
    def of(
        self, queue: str, mid: str, attempt: int, keep_s: float, seal: Callable[[bytes], bytes]
    ) -> Iterator[None]:
        """Store the log records that an attempt makes within the block.

        Args:
            seal: Transforms the text before it is stored.
        """
        log = AttemptLog(lambda text: self._store(queue, mid, attempt, seal(text), keep_s))
        self._count(1)
        entered = _kept.set(log)
        try:
            yield
        finally:
            _kept.reset(entered)
            self._count(-1)
            log.store()

    def _count(self, change: int) -> None:
        with self._lock:
            self._nrunning += change
            if change > 0 and self._nrunning == 1:
                _ROOT.addHandler(self._handler)
            elif not self._nrunning:
                _ROOT.removeHandler(self._handler)
