"""Decides when to replace a child: after a number of jobs, at an age, or above a memory limit."""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

from jobq.cgroup import own_folders
from jobq.config import WorkerSettings

LOOK_EVERY_S = 0.2
AGE_SPREAD = 0.1


class Recycling:
    """Checks, between batches, whether a child must be replaced."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._max_jobs = settings.max_jobs
        self._max_memory = (settings.max_memory_mb or 0) * 1024 * 1024
        now = time.monotonic()
        # Randomized, so that a pool doesn't replace all its children together.
        age_s = settings.max_age_s and settings.max_age_s * random.uniform(1 - AGE_SPREAD, 1)
        self._until = now + age_s if age_s else None
        self._looked_at = now
        self.reason = ""

    def left(self, most: int, taken: int) -> int:
        """Return how many of `most` messages this child may still run after it has run `taken` messages."""
        return most if self._max_jobs is None else min(most, max(0, self._max_jobs - taken))

    def due(self, finished: int) -> bool:
        """Return whether the child must exit after `finished` jobs. If so, set `reason`."""
        now = time.monotonic()
        if self._max_jobs is not None and finished >= self._max_jobs:
            self.reason = f"after {finished} jobs"
        elif self._until is not None and now >= self._until:
            self.reason = "by its age"
        elif self._max_memory and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            used = resident_bytes()
            if used > self._max_memory:
                self.reason = f"at {used >> 20} MB of memory"
        return bool(self.reason)


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process in bytes; without `pid`, of this process.

    On systems without /proc, return this process's peak memory, or 0 for any other process.
    """
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0 if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class MemoryKills:
    """Detects that the kernel killed a process of this cgroup for lack of memory. It requires Linux with cgroup v2."""

    def __init__(self, events: Path | None = None) -> None:
        self._events = events or _own_events()
        self._known = self._count()

    def _count(self) -> int | None:
        """Return how many processes of this cgroup the kernel has killed so far; None if the number can't be read."""
        try:
            lines = self._events.read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError):
            return None

    def more(self) -> bool:
        """Return whether the kernel has killed another process of this cgroup since the last call."""
        before, now = self._known, self._count()
        if now is None:
            return False
        self._known = now
        return before is not None and now > before


def _own_events() -> Path:
    """Return the file in which the kernel counts the processes it killed in this cgroup; the file might be missing."""
    return next(own_folders(), Path("/sys/fs/cgroup")) / "memory.events"
