"""Jobs that crash their process, and functions that end a process forked by a job.

A forked process has a copy of the child's state, so it could run more jobs if it returned from its job.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path

from jobq.chaos.workers import signalled

#: Memory the process may still allocate, and memory it requests.
SPARE, ASKED = 64 << 20, 1 << 30


def kill() -> None:
    """Kill the process with SIGKILL, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def segv() -> None:
    """Kill the process with SIGSEGV, like a bug in a C library."""
    signal.raise_signal(signal.SIGSEGV)  # to this thread, whatever others there are


def null() -> None:
    """Read at address 0."""
    ctypes.string_at(0)


def exit_now() -> None:
    """Exit without cleanup."""
    os._exit(1)


def hog() -> None:
    """Request more memory than allowed, and use the null pointer that malloc returns."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, resource.RLIM_INFINITY))
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    ctypes.memset(libc.malloc(ASKED) or 0, 1, ASKED)


def spin() -> None:
    """Loop endlessly in C code, which no exception can interrupt, until the hard timeout kills the process."""
    collections.deque(itertools.count(), maxlen=0)


KINDS = {kind.__name__: kind for kind in (kill, segv, null, exit_now, hog, spin)}
if sys.platform != "linux":
    del KINDS["hog"]
#: Hard timeouts of `spin`, and of the others, which end by themselves even on a slow machine.
HARD_TIMEOUT_S, AMPLE_S = 0.5, 60.0

#: A fork has nothing to do. A fork that runs for LEFT_S has continued its parent's work.
LEFT_S, LOOK_S = 5.0, 0.01


def give_back() -> None:
    """Do nothing, so that the forked process returns from the job."""


def leave() -> None:
    """Exit with sys.exit."""
    sys.exit(0)


def fail() -> None:
    """Raise an exception without printing its traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    raise RuntimeError("intentional failure in a forked process")


def vanish() -> None:
    """End the forked process with os._exit, as any forked process should."""
    os._exit(0)


WAYS = {"return": give_back, "exit": leave, "raise": fail, "_exit": vanish}


def gone(pid: int) -> bool:
    """Return whether a child process has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def outlived(pid: int, began: float) -> bool:
    """Kill a forked process that has run so long that it must have started other jobs. Return whether it was killed."""
    if time.monotonic() - began < LEFT_S:
        return False
    signalled(pid, signal.SIGKILL)
    return True
