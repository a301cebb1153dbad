"""A lock that the supervisor and one child share. It also works if /dev/shm has no room for a semaphore."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from errno import EAGAIN, EINTR, ENOSYS
from multiprocessing import get_context
from types import TracebackType
from typing import Protocol

from jobq.errors import ConfigError

#: Room for a sem_t: 32 bytes in glibc and less in musl, at the beginning of a page.
_SIZE = 64
_POLL_S = 0.0005
# Looked up before any fork: loading a library after it may deadlock. Calls of `_waiting` release the GIL.
_waiting = ctypes.CDLL(None, use_errno=True)
_brief = ctypes.PyDLL(None, use_errno=True)


class SharedLock(Protocol):
    """A lock in memory that forked processes share. It stays locked if a process dies while holding the lock."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool: ...

    def release(self) -> None:
        """Release the lock."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class SemaphoreInMemory:
    """An unnamed semaphore of the C library. It doesn't need a file system, and costs a microsecond more per use."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)
        self._at = ctypes.byref((ctypes.c_char * _SIZE).from_buffer(self._memory))
        if _brief.sem_init(self._at, 1, 1):
            _fail()

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if self._try():
            return True
        if not block:
            return False
        if timeout is None:
            while _waiting.sem_wait(self._at):
                if ctypes.get_errno() != EINTR:
                    _fail()
            return True
        # The C library's wait with a timeout follows a clock that may be set.
        deadline = time.monotonic() + timeout
        while not (taken := self._try()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return taken

    def release(self) -> None:
        """Release the lock."""
        if _brief.sem_post(self._at):
            _fail()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def _try(self) -> bool:
        while _brief.sem_trywait(self._at):
            number = ctypes.get_errno()
            if number == EAGAIN:
                return False
            if number != EINTR:
                _fail()
        return True


def new_lock() -> SharedLock:
    """Return a lock that later forked processes share. Raises ConfigError if the system has no such locks."""
    try:
        return get_context("fork").Lock()
    except (
        ImportError,
        OSError,
    ) as error:  # /dev/shm is read-only, another user's, full or missing
        try:
            return SemaphoreInMemory()
        except (AttributeError, OSError):
            raise ConfigError(
                f"shared memory can't hold a lock ({error}): /dev/shm must be writable; in a container with a "
                "read-only root, mount a tmpfs there (docker run --tmpfs /dev/shm; Kubernetes: an emptyDir with "
                "medium: Memory)"
            ) from error


def _fail() -> None:
    number = ctypes.get_errno() or ENOSYS
    raise OSError(number, os.strerror(number))
