"""The command line. A command parses its arguments, calls one function and prints the result.

`main`, the entry point of `jobq` and `python -m jobq`, imports click when called.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line. Return its exit code; see `jobq.cli.exits`."""
    words = sys.argv[1:] if args is None else args
    if os.getpid() == 1:
        _end_at_term()
    if "worker" in words[:1] and threading.current_thread() is threading.main_thread():
        # Until a worker handles TTIN, the signal would stop the process, as for a background read from a terminal.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    from jobq.cli.app import run

    return run(args)


def _end_at_term() -> None:
    """Let TERM and HUP end this process until a command installs its own handlers.

    The first process of a container has the id 1. The kernel doesn't deliver a signal to process 1 if the process has
    no handler for it, so a TERM during slow imports would be lost.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os._exit(128 + number))
