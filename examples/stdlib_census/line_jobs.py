"""The job of the pipeline's demo: `jobq worker --import line_jobs --queues lines`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from jobq import job


class Measured(NamedTuple):
    """Records of jobs.

    Attributes:
        again: Runs of a line beyond the first.
    """

    lines: int
    again: int
    characters: int


@job(queue="lines")
def measure(line: int, text: str, folder: str) -> None:
    """Write down how long a line of source is, in a file per process."""
    name = Path(folder, f"{os.getpid()}.measured")
    descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, b"%d %d\n" % (line, len(text)))
    finally:
        os.close(descriptor)


def measured(folder: Path) -> Measured:
    """Return the records of all jobs."""
    runs: Counter[int] = Counter()
    characters = 0
    for file in folder.glob("*.measured"):
        for row in file.read_text().splitlines():
            line, length = map(int, row.split())
            runs[line] += 1
            characters += length
    return Measured(len(runs), runs.total() - len(runs), characters)
