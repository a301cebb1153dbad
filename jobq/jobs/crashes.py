"""What a worker says about children that died and jobs that crashed with them, and who is notified.

A crashed job can't report itself: its process is gone. The supervisor knows what it ran, and passes that on to the
monitor process, which has listeners: one writes the span of the attempt, another one sends an error report.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Why a child died: it left with an exit code, by a signal from outside, for want of memory, or the supervisor killed
#: it because a job ran past its hard timeout or its leases had ended.
CAUSES = ("exit", "signal", "memory", "hard_timeout", "lease")


class ChildDeath(msgspec.Struct, frozen=True, tag="death"):
    """A child that didn't leave by itself. at: epoch ms. cause: one of CAUSES. how: that as a sentence."""

    worker: str
    pid: int
    cause: str
    how: str
    at: int
    rss_kib: int = 0
    cpu_s: float = 0.0


class CrashReport(msgspec.Struct, frozen=True, tag="crash"):
    """An attempt that ended with its child. Times are epoch ms, 0 = unknown.

    job: '' if it isn't known any more. dead: whether the message is dead now, having crashed too often. headers: those
    of the call, with the trace that it belongs to. death: how the child ended.
    """

    job: str
    queue: str
    mid: str
    attempt: int
    dead: bool
    started_at: int
    headers: dict[str, str]
    death: ChildDeath


class MonitorListener:
    """Runs in a worker's monitor process. Every method may be left as it is.

    The monitor process has no threads but those that listeners start, takes no signals, and ends with the worker.
    """

    def open(self) -> None:
        """Called in the supervisor before each fork of the monitor, to open what must fail early."""

    def close(self) -> None:
        """Called in the supervisor after the fork, to close what `open` opened."""

    def start(self, pool: Any) -> None:
        """Called once in the monitor process. pool: a jobq.worker.monitor.PoolView."""

    def died(self, death: ChildDeath) -> None:
        """Called for each child that died."""

    def crashed(self, report: CrashReport) -> None:
        """Called for each attempt that ended with its child."""

    def stop(self) -> None:
        """Called before the monitor process ends, to send what is left. It has two seconds."""
