"""Exit codes of `jobq worker`, in addition to those of every command."""

from __future__ import annotations

OK = 0
BOOT = 10
CHILD_BOOT = 11
FORCED = 12

MEANINGS = {
    BOOT: "worker: the modules with jobs can't be loaded, define no job, or leave a thread running",
    CHILD_BOOT: "worker: a child can't start",
    FORCED: "worker: stopped before running jobs had ended; they run again",
}

# Of a child only: its leases ended and its job didn't stop; it is replaced (see recycle); it failed.
FENCED = 13
RECYCLED = 14
FAILED = 70

#: With --reload: a source file has changed, and the command restarts.
RELOAD = 71
