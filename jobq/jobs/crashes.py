"""A worker's reports about dead children and crashed jobs, and the listeners that receive these reports.

A crashed job can't report itself, because its process has died. But the supervisor knows the child's running jobs. It
reports them to the monitor process, whose listeners may write the attempt's span or send an error report.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Why a child died: it exited with a code, got a signal from outside, ran out of memory, or was killed by the
#: supervisor after a hard timeout or the end of its leases.
CAUSES = ("exit", "signal", "memory", "hard_timeout", "lease")


class ChildDeath(msgspec.Struct, frozen=True, tag="death"):
    """The unexpected end of a child.

    Attributes:
        cause: One of CAUSES.
        how: The cause as a sentence.
        at: Epoch ms.
    """

    worker: str
    pid: int
    cause: str
    how: str
    at: int
    rss_kib: int = 0
    cpu_s: float = 0.0


class CrashReport(msgspec.Struct, frozen=True, tag="crash"):
    """An attempt whose child died. Times are epoch ms; 0 if unknown.

    Attributes:
        job: '' if unknown.
        dead: Whether the message is dead now, because it crashed too often.
        headers: The headers of the call, with its trace.
        death: How the child ended.
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
    """Runs in a worker's monitor process. Subclasses may override any method.

    In the monitor process, only listeners start threads. The process ignores signals, and ends with the worker.
    """

    def open(self) -> None:
        """Called in the supervisor before each fork of the monitor. If it raises an error, the monitor isn't forked."""

    def close(self) -> None:
        """Called in the supervisor after the fork, to close the resources that `open` opened."""

    def start(self, pool: Any) -> None:
        """Called once in the monitor process; `pool` is a jobq.worker.monitor.PoolView."""

    def died(self, death: ChildDeath) -> None:
        """Called for each dead child."""

    def crashed(self, report: CrashReport) -> None:
        """Called for each attempt whose child died."""

    def stop(self) -> None:
        """Called before the monitor process ends, to send remaining data. All listeners together have two seconds."""
