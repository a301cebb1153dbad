"""A job without work that now and then reports the memory of its child."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from jobq import job

EVERY = 50


@job(name="weigh", queue="low")
def weigh(file: str, number: int) -> None:
    """A line: which, where, and the child's bytes or 0."""
    size = resident(os.getpid()) if number % EVERY == 0 else 0
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{number} {os.getpid()} {size}\n".encode())
    os.close(descriptor)


def resident(pid: int) -> int:
    """Bytes of memory that a process takes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
