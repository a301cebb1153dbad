"""Exit codes of `jobq worker`, in addition to the codes shared by all commands."""

from __future__ import annotations

OK = 0
BOOT = 10
CHILD_BOOT = 11
FORCED = 12

MEANINGS = {
    BOOT: "worker: the modules with jobs can't be loaded, define no job, or leave a thread running",
    CHILD_BOOT: "worker: a child can't start",
    FORCED: "worker: stopped before all running jobs had ended; they will run again",
}

# For children only: a job didn't stop after its lease ended; the child must be replaced (see recycle); the child
# failed.
FENCED = 13
RECYCLED = 14
FAILED = 70

#: With --reload: a source file has changed, and the command restarts.
RELOAD = 71
