"""Values that go in and out of a queue. All frozen; times are epoch ms by the server's clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Literal, NamedTuple, overload

import msgspec

from jobq.config import HARD_MAX_CONTENT, duration_s
from jobq.durations import Duration
from jobq.errors import CodecError, ConfigError

#: `written` means that a call is in an outbox, not yet on the server.
Action = Literal["added", "updated", "requeued", "exists", "buffered", "written"]
OutcomeWord = Literal[
    "done", "retry", "dead", "crashed", "snooze", "release", "unknown", "hold", "expired"
]
Place = Literal["ready", "due", "circle", "lines"]

#: Messages per call. The server can't serve other clients during a call; 1,000 messages take two milliseconds.
PER_CALL = 250
LEASE_S = 15.0
DAY_S = 86_400.0
#: Crashes that make a message dead.
CRASH_LIMIT = 3


#: Of a key, in characters.
MAX_KEY_LENGTH = 128
MAX_DURATION_S = 3_153_600_000.0
_YEAR_10000_S = 253_402_300_800.0


def checked_duration(
    name: str, value: Duration | None, least: float = 0.0, most: float = MAX_DURATION_S
) -> float | None:
    """Return the option `name` in seconds; raise ConfigError if it can't be one."""
    if value is None:
        return None
    try:
        seconds = duration_s(value)
    except (ConfigError, TypeError, ValueError):
        raise ConfigError(
            f"{name}={value!r} is not a duration; pass seconds, a timedelta or '5m'"
        ) from None
    if not least <= seconds <= most:
        longest = "100 years" if most == MAX_DURATION_S else f"{most:g}"
        raise ConfigError(
            f"{name}={value!r} is out of range; it must be between {least:g} seconds and {longest}"
        )
    return seconds


def checked_at(value: datetime | float | None) -> float | None:
    """Return a start time as epoch seconds, 0 for one before 1970; raise ConfigError for any other value."""
    at = value
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ConfigError(f"at={value!r} has no time zone; use datetime.now(timezone.utc) + …")
        at = at.timestamp()
    if at is None:
        return None
    if isinstance(at, int | float) and not isinstance(at, bool) and at < _YEAR_10000_S:
        return max(0.0, float(at))
    raise ConfigError(
        f"at={value!r} is not a time before the year 10000; pass a datetime with a time zone, or epoch seconds"
    )


def check_start(delay: object, at: object) -> None:
    """Raise ConfigError if both are given."""
    if delay is not None and at is not None:
        raise ConfigError(f"delay={delay!r} and at={at!r} contradict each other; use only one")


def checked_key(key: str) -> str:
    """Return `key`; raise ConfigError if it is empty, too long or not printable."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH or not key.isprintable():
        raise ConfigError(
            f"key={key!r:.200} can't be used; use 1-{MAX_KEY_LENGTH} printable characters"
        )
    return key


def checked_content(mid: str, content: bytes) -> None:
    """Raise CodecError for a content that is too long."""
    if len(content) > HARD_MAX_CONTENT:
        raise CodecError(
            f"content of {len(content)} bytes for {mid!r} is over {HARD_MAX_CONTENT}; "
            "store it elsewhere and enqueue a reference"
        )


def text_of(value: bytes) -> str:
    """Bytes as text for people; bytes that are not UTF-8 show as escapes."""
    return value.decode("utf-8", "backslashreplace")


class Enqueued(NamedTuple):
    """Result of one enqueue.

    Attributes:
        existing_status: The status of a mid that exists already.
        buffered: The client's outage buffer keeps the message in this process's memory; it is not on the server yet.
    """

    mid: str
    action: Action
    existing_status: str = ""


class Rescheduled(NamedTuple):
    """Result of rescheduling a message.

    Attributes:
        word: 'moved', 'same' (it could already run), 'nil', or 'changed' (it runs, is done, or is another message).
        former_ms: Its former earliest start in epoch ms; None when it could run immediately.
    """

    mid: str
    word: str
    former_ms: int | None


class AddedMessages(Sequence[Enqueued]):
    """One round trip's messages, all of them new."""

    __slots__ = ("_mids",)

    def __init__(self, mids: Sequence[str]) -> None:
        self._mids = mids

    def __len__(self) -> int:
        return len(self._mids)

    def __iter__(self) -> Iterator[Enqueued]:
        return (Enqueued(mid, "added") for mid in self._mids)

    @overload
    def __getitem__(self, index: int) -> Enqueued: ...
    @overload
    def __getitem__(self, index: slice) -> list[Enqueued]: ...
    def __getitem__(self, index: int | slice) -> Enqueued | list[Enqueued]:
        return (
            list(self)[index] if isinstance(index, slice) else Enqueued(self._mids[index], "added")
        )


class EnqueuedMany(Sequence[Enqueued]):
    """Results of a bulk enqueue, in order.

    If all messages of a round trip are new and have no mids of their own, it keeps a few bytes for all of them.
    """

    __slots__ = ("_ends", "_parts")

    def __init__(self) -> None:
        self._parts: list[Sequence[Enqueued]] = []
        self._ends = [0]

    def add(self, part: Sequence[Enqueued]) -> None:
        """Add the results of another round trip."""
        self._parts.append(part)
        self._ends.append(self._ends[-1] + len(part))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Enqueued]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Enqueued: ...
    @overload
    def __getitem__(self, index: slice) -> list[Enqueued]: ...
    def __getitem__(self, index: int | slice) -> Enqueued | list[Enqueued]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        part = bisect_right(self._ends, place) - 1
        return self._parts[part][place - self._ends[part]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<EnqueuedMany of {len(self):,}>"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a dequeue. `generation` names this life of the mid; `fence` only ever grows in a queue.

    Attributes:
        unknowns: How many times in a row a worker that doesn't know its job received it.
    """

    mid: str
    content: bytes
    attempt: int
    ncrashes: int
    fence: int
    generation: str
    token: str
    lock_expires_at: int
    unknowns: int = 0

    def __repr__(self) -> str:
        # Tools that report errors print values of stack frames; the content is for the job alone.
        return f"<Message {self.mid!r}, attempt {self.attempt}, {len(self.content)} bytes>"


class Dequeued(NamedTuple):
    """The reply of a dequeue. If it has no messages, wait on the wake key for `poll_after_ms`; 0 = call again.

    Attributes:
        next_due_ms: Time until the earliest delayed message is due; 0 if there is none, or if another caller knows it.
        outbox: Whether the queue's outbox has entries for flows.
    """

    messages: list[Message]
    poll_after_ms: int
    paused: bool
    next_due_ms: int = 0
    outbox: bool = False


#: Columns in the record of an ending: job, attempt, ms since the enqueue (0 = unknown), run time and CPU time in us. A
#: plain tuple: it is made for each job where runs are counted.
RunFigures = tuple[str, int, int, int, int]


class Ending(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How an attempt ended.

    Attributes:
        expired: It was too late to start the message, so it ends without a run.
        unknown: This worker has no such job. Like snooze and release, this doesn't count as an attempt.
        backoff: Delay before the next attempt; for `done`, the dedupe backoff. None means the backoff in its options.
        reason: For dead and crashed.
        traceback: For retry, kept until the message's next failure or its end.
        age_ms: How long ago the run ended.
        figures: For a finished run that is to be counted.
    """

    mid: str
    token: str
    outcome: OutcomeWord = "done"
    backoff: float | None = None
    reason: str = ""
    traceback: str = ""
    age_ms: int = 0
    record: str = ""
    result: bytes | None = None
    result_ttl: float = 0
    figures: RunFigures | None = None


class Finished(NamedTuple):
    """Replies 'ok', 'dead' (too many crashes), 'stale' or 'unknown' per ending, and the messages of the same call."""

    replies: list[str]
    dequeued: Dequeued | None


class Lease(NamedTuple):
    """The right to a message."""

    mid: str
    token: str


def remember_ms(seconds: float | None) -> int:
    """Return how long an end is remembered; 0 for not."""
    return max(1, round(seconds * 1000)) if seconds else 0


class Status(NamedTuple):
    """The state of a mid. `word` is one of Carmine's eight, or 'dead' when only a dead message is known.

    Attributes:
        unknowns: How many times in a row a worker that doesn't know its job received it.
        checkpoint: Value for the next attempt, as JSON or its seal.
        traceback: Traceback of the attempt `failed_attempt`, the latest that failed in code and was retried; '' if none
            is kept.
    """

    word: str
    attempts: int = 0
    ncrashes: int = 0
    not_before: int = 0
    lock_expires_at: int = 0
    generation: str = ""
    dead_id: str = ""
    progress: str = ""
    unknowns: int = 0
    checkpoint: str = ""
    failed_attempt: int = 0
    traceback: str = ""


class Counts(NamedTuple):
    """Numbers of messages by place. `locked` includes expired locks until they are recovered.

    Attributes:
        quarantined: Bytes among the mids that can't be a mid (`jobq check fsck`).
        ready: Including messages in the lines of keys.
        keys: How many keys have messages or are held.
    """

    messages: int
    ready: int
    delayed: int
    deduped: int
    locked: int
    done: int
    requeued: int
    dead: int
    circle: int
    paused: bool
    quarantined: int = 0
    keys: int = 0


class WaitingHead(NamedTuple):
    """The next message of a queue.

    Attributes:
        content: The message's content; b'' if it is longer than 4 KiB.
    """

    mid: str
    attempts: int
    content: bytes

    def __repr__(self) -> str:
        # As of Message: the content is for the job alone.
        return f"<WaitingHead {self.mid!r}, {self.attempts} attempts, {len(self.content)} bytes>"


class Sample(NamedTuple):
    """A sample of a queue.

    Attributes:
        fence: Messages ever handed out, including released ones; only grows.
        added: Events ever written; only grows.
        flow_entries: Entries not yet delivered to flows.
        flow_since_ms: Time of the oldest such entry, epoch ms; 0 = none.
        refused: Messages lost from outage buffers because the queue rejected them.
        refused_at: Time of the last rejection, epoch ms.
        unknowns: Messages whose job was unknown to the last worker that received them.
        pause_ends: When the pause ends, epoch ms; 0 if the queue is not paused, or until `resume`.
        events_off: Whether its event level is off.
    """

    counts: Counts
    fence: int
    added: int
    head: WaitingHead | None
    flow_entries: int = 0
    flow_since_ms: int = 0
    refused: int = 0
    refused_at: int = 0
    unknowns: int = 0
    pause_ends: int = 0
    events_off: bool = False

    @property
    def records_attempts(self) -> bool:
        """Whether the queue records how attempts end; if not, a rate of 0 is unknown."""
        return bool(self.added) and not self.events_off


class Upkeep(NamedTuple):
    """Remaining work of upkeep: mids in the circle and in due, and how many invalid mids are set aside.

    Attributes:
        due_ms: Time until the earliest entry of due; 0 = none.
        surplus: 1 if more dead messages are beyond the queue's limits.
        outbox: Number of waiting entries for flows in the queue's outbox.
    """

    circle: int
    due: int
    quarantined: int
    due_ms: int
    surplus: int = 0
    outbox: int = 0


class DeadLimits(NamedTuple):
    """How many dead messages a queue keeps, for how many seconds, and how many were deleted for either."""

    most: int = 10_000
    age_s: float = 180 * DAY_S
    evicted: int = 0


class Entry(NamedTuple):
    """One message as a page of content shows it."""

    mid: str
    status: str
    attempts: int
    ncrashes: int
    not_before: int
    lock_expires_at: int
    content: bytes


class Page(NamedTuple):
    """A page, and the offset of the next page; None at the end."""

    entries: list[Entry]
    next_offset: int | None


class DeadMessage(NamedTuple):
    """One dead message; revive and purge take its `dead_id`."""

    dead_id: str
    mid: str
    died_at: int
    attempts: int
    ncrashes: int
    reason: str
    content: bytes


class Violation(NamedTuple):
    """One invariant that doesn't hold. `mid` is for people to read, `raw` what it is made of."""

    rule: str
    mid: str
    raw: bytes = b""


class Ticked(NamedTuple):
    """Result of a tick.

    The outcome is one of:

    - `enqueued`, `missed`, `early` or `paused`.
    - `waits`: the run waits for the previous run.
    - `replaced`: the run replaced the previous run.
    - `skipped`: the previous run isn't over.
    - `full`: the line of the run's key is full.
    - `exists`: the caller's last tick is outdated.
    - `new`: the schedule starts now.
    - `clock`: the schedule continues from now.

    Attributes:
        detail: The mid of the run, or a time.
    """

    outcome: str
    detail: str


class TickState(NamedTuple):
    """Position of a schedule's ticks.

    Attributes:
        last_ms: Time of the last tick.
        mid: Mid of the last run.
    """

    last_ms: int
    paused: bool
    mid: str


class LoggedTick(NamedTuple):
    """Logged result of a tick.

    Attributes:
        missed: Number of earlier ticks without a run.
    """

    name: str
    tick_ms: int
    late_ms: int
    outcome: str
    missed: int
    mid: str


class Schedules(NamedTuple):
    """All schedules of a queue: definitions as JSON behind a letter, where their ticks are, and the log."""

    now_ms: int
    definitions: dict[str, str]
    ticks: dict[str, TickState]
    log: list[LoggedTick]
