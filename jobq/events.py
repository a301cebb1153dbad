"""The event stream: names and the one record shape.

Scripts append an entry per state change worth history. An entry is one field: its name is the schema
version, its value the columns of COLUMNS joined by 0x1f. The queue is in the key, the time of writing
in the entry's id. Log, dashboard, metrics and the Spark pipeline read this and nothing else.
"""

from __future__ import annotations

import msgspec

SCHEMA = "1"
SEPARATOR = "\x1f"
LEVELS = ("off", "attempts", "all")

#: What happened. The script that makes the change writes the event.
KINDS = (
    "enqueued", "done", "retry", "dead", "crashed", "snoozed",
    "recovered", "cancelled", "revived", "cleared", "superseded", "clock_jump",
)  # fmt: skip


class Event(msgspec.Struct, frozen=True):
    """One entry. Times are epoch ms by the server's clock, except `enqueued_at`: the producer's."""

    kind: str
    mid: str
    finished_at: int
    job: str = ""
    attempt: int = 0
    enqueued_at: int = 0
    run_us: int = 0
    cpu_us: int = 0
    rss_kib: int = 0
    worker: str = ""
    error: str = ""
    fingerprint: str = ""

    @property
    def started_at(self) -> int:
        """When the attempt started, epoch ms."""
        return self.finished_at - self.run_us // 1000

    @property
    def wait_ms(self) -> int:
        """From enqueue to start, never below 0 (the producer's clock may be ahead)."""
        return max(0, self.started_at - self.enqueued_at) if self.enqueued_at else 0


COLUMNS = tuple(Event.__struct_fields__)
_NUMBERS = frozenset(("finished_at", "attempt", "enqueued_at", "run_us", "cpu_us", "rss_kib"))


def attempt_record(
    job: str, attempt: int, enqueued_at: int, run_us: int, cpu_us: int, rss_kib: int,
    worker: str, error: str = "", fingerprint: str = "",
) -> str:  # fmt: skip
    """The columns that a child knows; the script puts kind, mid and finished_at before them."""
    if error:
        error = error.replace(SEPARATOR, " ")[:500]
    return (
        f"{job}\x1f{attempt}\x1f{enqueued_at}\x1f{run_us}\x1f{cpu_us}\x1f{rss_kib}"
        f"\x1f{worker}\x1f{error}\x1f{fingerprint}"
    )


def decode(value: bytes) -> Event:
    """Read one entry's value; missing columns take their defaults."""
    fields = value.decode("utf-8", "replace").split(SEPARATOR)
    known = dict(zip(COLUMNS, fields, strict=False))
    return Event(**{k: int(v or 0) if k in _NUMBERS else v for k, v in known.items()})  # type: ignore[arg-type]
