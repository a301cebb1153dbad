"""`python -m tests.run NAME OPTION…`: run pytest for a make target, then print the wall time and CPU of the whole run.

The CPU includes all descendants. An orphan becomes a child of this process, which is a subreaper. It kills any
that still runs some seconds after the end of pytest, such as a server that has overwritten its environment with its
title, so that tests.leftovers can't find the mark.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from jobq.worker.signals import die_with

#: Time that processes have to end after pytest.
LEFT_S = 5
PR_SET_CHILD_SUBREAPER = 36


def minutes(seconds: float) -> str:
    """Format a duration."""
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def kill_leftovers(*_: object) -> None:
    """Kill all descendants, and call this function again for later ones."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            print(f"killed a leftover process: {process.pid} {process.name()}", flush=True)
            process.kill()
    signal.alarm(LEFT_S)


def main() -> None:
    """Run pytest, print the figures, and exit with its code."""
    name, *options = sys.argv[1:]
    began, own = time.monotonic(), os.getpid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options], preexec_fn=lambda: die_with(own)
    )
    # pytest receives Ctrl-C itself, and ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = None
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == process.pid:
            code = process.returncode = os.waitstatus_to_exitcode(status)
            signal.signal(signal.SIGALRM, kill_leftovers)
            signal.alarm(LEFT_S)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{name}: {minutes(time.monotonic() - began)}, {minutes(usage.ru_utime + usage.ru_stime)} of CPU",
        flush=True,
    )
    sys.exit(code if code is None or code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
