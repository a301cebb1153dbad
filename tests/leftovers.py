"""Kill every process that a test run leaves behind: servers, workers and JVMs.

A test run sets a variable in the environment of everything it starts. Its guard, a separate process, waits until
pytest has ended, even by SIGKILL, and then kills all processes that still have the variable.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

#: Not a name of jobq, Redis or Python: some tests remove these.
MARK = "STARTED_BY_TESTS"


def guarded() -> None:
    """Mark all future processes of this test run, and start its guard."""
    mark = f"{os.getpid()} {psutil.Process().create_time()}"
    reading, writing = os.pipe()
    if os.fork():
        # The writing end stays open until this process ends.
        os.close(reading)
        os.environ[MARK] = mark
        return
    os.close(writing)
    # Signals to the process group, or a closed terminal, must not end the guard.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.read(reading, 1)
    while end(mark):
        pass
    os._exit(0)


def end(mark: str) -> int:
    """Kill every process with the mark; return the number."""
    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                killed += 1
    return killed
