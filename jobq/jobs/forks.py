"""Ends forked processes that return from user code to jobq. Only the parent process may continue."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from jobq.errors import JobqError


class ForkedProcessError(JobqError, RuntimeError):
    """A process forked by an async job can't await, because the event loop belongs to its parent.

    End such a process with os._exit.
    """


class Home:
    """Remembers the process that created this object."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def only(self, error: BaseException | None = None) -> None:
        """If the current process is a fork of the original process, end it, with `error` if given.

        This compares process ids, because libraries can fork without calling os.fork.
        """
        if os.getpid() != self.pid:
            leave(error)


def leave(error: BaseException | None = None) -> NoReturn:
    """End this process immediately, without cleanup. Only printed output is flushed."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = _exit_status(error.code)
        elif error is not None:
            traceback.print_exception(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def flush() -> None:
    """Write buffered output of print, because os._exit doesn't."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, or never there


def _exit_status(code: object) -> int:
    """Return the exit status for sys.exit(code)."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    print(code, file=sys.stderr)
    return 1
