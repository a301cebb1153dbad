"""A process that ends with its parent. Imports next to nothing: some processes do no more than hold a worker."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from jobq.worker import exits

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: loading a library after it may deadlock.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def die_with(parent: int) -> None:
    """Have this process die with its parent; at once, if that is gone."""
    if _prctl is not None and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(exits.FENCED)
