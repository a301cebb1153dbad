"""Signal handling of a worker's processes: handlers that jobs can't take over, and the parent-death signal."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from jobq.worker import exit_codes, logger

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: loading a library after it may deadlock.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)

Handler = Callable[[int, FrameType | None], object]


def _fast_getsignal() -> Callable[[int], Any]:
    """Return getsignal without the enum that signal.getsignal makes of each answer, at thirty times the cost."""
    c_module: Any = sys.modules.get("_signal", signal)
    return c_module.getsignal  # type: ignore[no-any-return]


#: Called after each job.
getsignal = _fast_getsignal()


class Signals:
    """The handlers of one process, and the pipe into which each signal writes a byte."""

    def __init__(self, filled: int = -1) -> None:
        self._filled = filled
        self._handlers: list[tuple[int, Handler]] = []
        self._warned = False
        if filled >= 0:
            signal.set_wakeup_fd(filled, warn_on_full_buffer=False)

    def handle(self, number: int, handler: Handler) -> None:
        """Set a handler, now and in each `restore`."""
        self._handlers = [one for one in self._handlers if one[0] != number] + [(number, handler)]
        signal.signal(number, handler)

    def restore(self) -> None:
        """Set the handlers again that a job has replaced. Cheap while there are none."""
        for number, handler in self._handlers:
            if getsignal(number) is not handler:
                self._take_back(number, handler)
        if self._filled >= 0:
            signal.set_wakeup_fd(self._filled, warn_on_full_buffer=False)

    def _take_back(self, number: int, handler: Any) -> None:
        signal.signal(number, handler)
        if not self._warned:
            self._warned = True
            logger.warning(
                "a job changed how %s is handled; jobq handles it again",
                signal.Signals(number).name,
            )


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if the parent has ended already."""
    if _prctl is not None and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(exit_codes.FENCED)
