"""What children are doing: each writes its threads' stacks to a file of its own, and the supervisor reads them.

Written by faulthandler, which needs no GIL: also a child whose job holds it answers. All children would write to one
terminal at the same time, line by line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress

WITHIN_S = 0.5
LOOK_EVERY_S = 0.01


class Stacks:
    """The file of one place in the pool."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())
        self._closing = weakref.finalize(self, os.close, self._file)

    def register(self) -> None:
        """In the child: write there upon TTIN."""
        faulthandler.register(signal.SIGTTIN, file=self._file, all_threads=True, chain=False)

    def close(self) -> None:
        """Nobody writes there any more."""
        self._closing()

    def clear(self) -> None:
        """Forget what was written. The child writes where the supervisor leaves off: they share the position."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def size(self) -> int:
        """How much was written."""
        return os.fstat(self._file).st_size

    def text(self) -> str:
        """What was written."""
        return os.pread(self._file, self.size(), 0).decode("utf-8", "replace").rstrip()


def seen_together(by_pid: Mapping[int, Stacks]) -> dict[int, str]:
    """The stacks of these children. One that is stopped, or slow, has none or a part of them."""
    for pid, stacks in by_pid.items():
        stacks.clear()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTTIN)
    deadline, before = time.monotonic() + WITHIN_S, [0]
    while time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        sizes = [stacks.size() for stacks in by_pid.values()]
        if all(sizes) and sizes == before:
            break
        before = sizes
    return {pid: stacks.text() or "(it doesn't answer)" for pid, stacks in by_pid.items()}
