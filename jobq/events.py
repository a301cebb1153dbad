"""The event stream: the names in it, and the format of its records.

Scripts append an entry for each recorded state change. An entry has one field. The field's name is the schema version,
and its value has the columns of COLUMNS, joined by 0x1f, without empty columns at the end. The stream's key names the
queue, and the entry's id has the time of writing. docs/reference/events.md describes how versions evolve.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from jobq.errors import BadRecordError
from jobq.formats import EVENTS

#: The name of an entry's only field.
SCHEMA = str(EVENTS)
SEPARATOR = "\x1f"
LEVELS = ("off", "attempts", "all")
#: About how many events a queue's stream keeps, and the allowed range of that number.
MAXLEN = 100_000
MAXLENS = (100, 10**9)

#: Kinds of events. The script that makes a change writes its event.
KINDS = (
    "enqueued", "done", "retry", "dead", "crashed", "snoozed",
    "recovered", "cancelled", "revived", "cleared", "superseded", "clock_jump",
    "tick", "expired", "evicted",
)  # fmt: skip
#: The kinds that end an attempt.
ATTEMPTS = ("done", "retry", "dead", "crashed", "snoozed", "recovered")
#: The error, without a fingerprint, of an attempt whose process died.
CRASH = "crash"
#: The error of an attempt whose lease expired. Its event names the job, unless the content is encrypted.
LOCK_EXPIRED = "lock expired"


class Event(msgspec.Struct, frozen=True):
    """An entry of the event stream.

    Times are epoch ms by the server's clock, but `enqueued_at` is by the producer's clock.
    """

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
    bytes: int = 0
    trace_id: str = ""
    key: str = ""
    place: str = ""

    @property
    def started_at(self) -> int:
        """Return when the attempt started, in epoch ms."""
        return self.finished_at - self.run_us // 1000

    @property
    def is_crash(self) -> bool:
        """Return whether the attempt ended because its process died, even if the message is now dead."""
        died = self.kind == "dead" and self.error == CRASH and not self.fingerprint
        return died or self.kind == "crashed"

    @property
    def wait_ms(self) -> int:
        """Return the milliseconds between the enqueue and the start. Return 0 if the producer's clock is ahead."""
        return max(0, self.started_at - self.enqueued_at) if self.enqueued_at else 0


COLUMNS = tuple(Event.__struct_fields__)
_MOMENT, _INT, _LONG = 253_402_300_799_999, 2**31 - 1, 10**15
#: Numeric columns, which contain only digits, and the greatest number that a reader must accept.
LIMITS = {
    "finished_at": _MOMENT, "enqueued_at": _MOMENT, "run_us": _LONG, "cpu_us": _LONG,
    "attempt": _INT, "rss_kib": _INT, "bytes": _INT,
}  # fmt: skip
#: An enqueued_at below this number counts the ms before finished_at, to save eight bytes.
ABSOLUTE = 10**12
_NEEDED = ("kind", "finished_at")
_VERSION, _EMPTY = SCHEMA.encode(), [""] * len(COLUMNS)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_SENTRY_TRACE = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}(?:-[01])?")
_BREAKS = re.compile(r"[\x1f\r\n\0]")


def ago_ms(enqueued_at: int) -> int:
    """Return the ms since `enqueued_at` by this process's clock, at least 1. Return 0 if `enqueued_at` is unknown."""
    ago = time.time_ns() // 1_000_000 - enqueued_at
    return max(1, ago) if ago < ABSOLUTE else 0


def in_utc(at_ms: int) -> str:
    """Format a time as `2026-11-21T08:00:00.000Z`, which --since accepts. Times after the year 9999 are in ms."""
    if not 0 <= at_ms <= _MOMENT:
        return f"{at_ms} ms"
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def attempt_record(  # noqa: PLR0913 - a parameter per column
    job: str, attempt: int, enqueued: int, run_us: int, cpu_us: int, rss_kib: int,
    worker: str, error: str = "", fingerprint: str = "", nbytes: int = 0, trace_id: str = "", place: str = "",
) -> str:  # fmt: skip
    """Return the columns of an event that a child process knows. The script adds the kind, mid, finished_at and key.

    Args:
        enqueued: Milliseconds between the enqueue and the end of the attempt, or the enqueue's epoch time; 0 if
            unknown.
    """
    if error:
        error = _BREAKS.sub(" ", error)[:500]
    return (
        f"{job}\x1f{attempt}\x1f{enqueued or ''}\x1f{run_us}\x1f{cpu_us}\x1f{rss_kib}"
        f"\x1f{worker}\x1f{error}\x1f{fingerprint}\x1f{nbytes or ''}\x1f{trace_id}\x1f\x1f{place}"
    ).rstrip(SEPARATOR)


def trace_id(headers: Mapping[str, str]) -> str:
    """Return the trace id in a call's header `traceparent` or, without it, in `sentry-trace`. Return '' if neither is
    valid.
    """
    match = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if match is None:
        match = _SENTRY_TRACE.fullmatch(headers.get("sentry-trace", ""))
    return match[1] if match and match[1].strip("0") else ""


def columns_of(value: bytes, version: bytes = SCHEMA.encode()) -> dict[str, str | int]:
    """Return the columns that aren't empty, as text or numbers. Raise BadRecordError if the record is invalid."""
    if version != SCHEMA.encode():
        raise BadRecordError(
            f"version {version[:40]!r} of event records is unknown; this jobq reads {SCHEMA}; upgrade jobq"
        )
    try:
        fields = value.decode().split(SEPARATOR)
    except UnicodeDecodeError as error:
        raise BadRecordError(
            f"an event record isn't UTF-8: {error.reason} at byte {error.start}"
        ) from error
    if len(fields) > len(COLUMNS):
        raise BadRecordError(
            f"an event record has {len(fields)} columns, but version {SCHEMA} has {len(COLUMNS)}"
        )
    columns = {name: _checked(name, text) for name, text in zip(COLUMNS, fields) if text}
    for name in _NEEDED:
        if name not in columns:
            raise BadRecordError(f"an event record has no {name}")
    return columns


def decode(value: bytes, version: bytes = SCHEMA.encode()) -> Event:
    """Decode one entry. Missing columns have default values. Raise BadRecordError if the entry is not a record."""
    event = _plain(value) if version == _VERSION else None
    if event is not None:
        return event
    columns = {"mid": ""} | columns_of(value, version)
    enqueued = columns.get("enqueued_at")
    if isinstance(enqueued, int) and enqueued < ABSOLUTE:
        columns["enqueued_at"] = int(columns["finished_at"]) - enqueued
    return Event(**columns)  # type: ignore[arg-type]


def _plain(value: bytes) -> Event | None:
    """Decode an entry quickly. Return None if the entry isn't in a worker's usual format and needs a complete check."""
    try:
        fields = value.decode().split(SEPARATOR)
    except UnicodeDecodeError:
        return None
    missing = len(COLUMNS) - len(fields)
    if missing < 0:
        return None
    fields += _EMPTY[:missing]
    (
        kind,
        mid,
        finished,
        job,
        attempt,
        enqueued,
        run,
        cpu,
        rss,
        worker,
        error,
        group,
        size,
        trace,
        key,
        place,
    ) = fields
    numbers = "".join((finished, attempt, enqueued, run, cpu, rss, size))
    lengths = (
        len(finished) - 5,
        len(enqueued) - 5,
        len(run) - 6,
        len(cpu) - 6,
        len(attempt),
        len(rss),
        len(size),
    )
    if not (kind and finished and numbers.isascii() and numbers.isdigit() and max(lengths) < 10):
        return None
    at, ago = int(finished), int(enqueued or 0)
    if enqueued and ago < ABSOLUTE:
        ago = at - ago
    return Event(
        kind, mid, at, job, int(attempt or 0), ago, int(run or 0), int(cpu or 0), int(rss or 0), worker, error, group,
        int(size or 0), trace, key, place,
    )  # fmt: skip


def named(value: bytes, version: bytes, at_ms: int) -> Event | None:
    """Return an event with only the kind, mid and error of an unreadable record, or None if even these can't be read.

    Args:
        at_ms: The event's time, used instead of the time in the record.
    """
    if version != SCHEMA.encode():
        return None
    try:
        fields = value.decode().split(SEPARATOR)
    except UnicodeDecodeError:
        return None
    columns = dict(zip(COLUMNS, fields))
    if len(fields) > len(COLUMNS) or columns["kind"] not in KINDS:
        return None
    return Event(columns["kind"], columns.get("mid", ""), at_ms, error=columns.get("error", ""))


def _checked(name: str, text: str) -> str | int:
    limit = LIMITS.get(name)
    if limit is None:
        return text
    # Python's int() accepts more than digits, and any number of digits.
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > limit:
        raise BadRecordError(
            f"{name} {text[:40]!r} in an event record must be a number from 0 to {limit:,}"
        )
    return int(text)
