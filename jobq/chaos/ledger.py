"""What happened, one JSON line each, in files outside the server that is under test.

Every line has `word` and `at`, seconds of the clock that all processes of a machine share; further:

========  =====================================================================
enqueue   mid: about to be enqueued
enqueued  mid, outcome (ok, fail = surely not accepted, info = unknown), action,
          again: whether an earlier try may have been accepted
handed    messages: [mid, token, fence] of what one call handed out; pid
start     mid, attempt, fence, pid, left: seconds of lease that the run knows of, loop: whether
          its child has an event loop
end       the same: the run has had its effect
aborted   the same: it was told to stop
finish    call, endings: [mid, token, outcome] about to be reported; pid
finished  call, replies: one per ending; absent when no reply came
stroke    number, pause: seconds before it
fault     name, pids (none = everybody), until, cuts: whether it explains a second run, spares: but
          not of what had ended there
late      most: seconds by which this machine was late to wake somebody who had asked for it
poison    mid, limit: after so many runs it must be dead
orphan    pid: a child that outlived its supervisor, or the fork of a job that went on working
========  =====================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]


class Ledger(NamedTuple):
    """A folder with a file per process."""

    folder: str

    def write(self, word: str, *, at: float | None = None, **fields: Any) -> None:
        """Append one line, whole."""
        line = {"word": word, "at": time.monotonic() if at is None else at, **fields}
        path = os.path.join(self.folder, f"{os.getpid()}.jsonl")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def lines(self) -> Iterator[Line]:
        """All there are, by file. A torn one, of a process that was killed, is left out."""
        for file in sorted(Path(self.folder).glob("*.jsonl")):
            for text in file.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(text)
                except ValueError:
                    continue
