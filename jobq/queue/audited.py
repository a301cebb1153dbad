"""What an audit comes to, be it of a live queue or of the history that a lake keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

#: What `status` says of a message that the queue still holds and will run.
LIVE = frozenset(
    ("queued", "queued-with-backoff", "locked", "locked-with-requeue", "done-with-requeue")
)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One queue's answer. accepted = finished + superseded + live + lost.

    finished: done, dead, cancelled or cleared. duplicates: ran, or may have run, once more since a worker
    died or a lease was lost. superseded: newer content came in its place. earlier: endings of messages
    accepted before the range. unreadable: records of events of which a column can't be read; what kind and mid
    they tell counts. clock_jumps: how often the server's clock was set back, so that times come twice.
    """

    queue: str
    since_ms: int
    until_ms: int
    accepted: int = 0
    finished: int = 0
    duplicates: int = 0
    lost: int = 0
    live: int = 0
    superseded: int = 0
    earlier: int = 0
    unreadable: int = 0
    clock_jumps: int = 0
    lost_mids: list[str] = field(default_factory=list)
