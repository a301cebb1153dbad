"""Ways in which a message takes along the child that runs it."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import resource
import signal
import sys
from pathlib import Path

#: More than a child may still take, and what it then asks for.
SPARE, ASKED = 64 << 20, 1 << 30


def kill() -> None:
    """As the kernel does when memory is out."""
    os.kill(os.getpid(), signal.SIGKILL)


def segv() -> None:
    """As a fault in C does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def null() -> None:
    """Reads where nothing is."""
    ctypes.string_at(0)


def leave() -> None:
    """Ends the process without a word."""
    os._exit(1)


def hog() -> None:
    """Takes more memory than it may have, as a library in C that doesn't look at what malloc returns."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, resource.RLIM_INFINITY))
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    ctypes.memset(libc.malloc(ASKED) or 0, 1, ASKED)


def spin() -> None:
    """Never ends, in C, where no exception gets in: its hard timeout ends it."""
    collections.deque(itertools.count(), maxlen=0)


KINDS = {one.__name__: one for one in (kill, segv, null, leave, hog, spin)}
if sys.platform != "linux":
    del KINDS["hog"]
#: Of the one that never ends. The others end by themselves, however late this machine lets them begin.
HARD_TIMEOUT_S, AMPLE_S = 0.5, 60.0
