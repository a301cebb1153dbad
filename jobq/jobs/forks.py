"""Processes that user code forks. Each ends where it would leave that code: what follows is its parent's to do."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from jobq.errors import JobqError


class ForkedProcessError(JobqError, RuntimeError):
    """A process that an async job forked can't await: the event loop is its parent's; end it with os._exit."""


class Home:
    """The process that this was made in."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def only(self, error: BaseException | None = None) -> None:
        """Return in this process; in one that was forked from it end as a program does, with `error` if it has one.

        Pids are compared, since libraries fork without Python knowing.
        """
        if os.getpid() != self.pid:
            leave(error)


def leave(error: BaseException | None = None) -> NoReturn:
    """End this process at once, with nothing but its output written."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = _asked(error.code)
        elif error is not None:
            traceback.print_exception(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def flush() -> None:
    """Write out what was printed; os._exit doesn't."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, or never there


def _asked(code: object) -> int:
    """What sys.exit(code) comes to."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    print(code, file=sys.stderr)
    return 1
