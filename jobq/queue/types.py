"""Arguments and results of a queue's methods. Times are epoch ms by the server's clock."""

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
#: A message is dead-lettered after this many crashes.
CRASH_LIMIT = 3


#: Maximum length of a key, in characters.
MAX_KEY_LENGTH = 128
MAX_DURATION_S = 3_153_600_000.0
#: Maximum number of partitions of a queue.
MAX_PARTITIONS = 256
#: The fence of a message is the epoch of its partition times this number, plus the number of dequeued messages. So a
#: key or a mid gets higher fences in a later epoch.
FENCES_PER_EPOCH = 2**40
_YEAR_10000_S = 253_402_300_800.0


def checked_duration(
    name: str, value: Duration | None, least: float = 0.0, most: float = MAX_DURATION_S
) -> float | None:
    """Return the value of the option `name` in seconds; raise ConfigError if it is invalid."""
    if value is None:
        return None
    try:
        seconds = duration_s(value)
    except (ConfigError, TypeError, ValueError):
        raise ConfigError(
            f"{name}={value!r} is not a duration; pass seconds, a timedelta or '5m'"
        ) from None
    if not least <= seconds <= most:
        longest = "100 years" if most == MAX_DURATION_S else f"{most:g} seconds"
        raise ConfigError(
            f"{name}={value!r} is out of range; it must be between {least:g} seconds and {longest}"
        )
    return seconds


def checked_at(value: datetime | float | None) -> float | None:
    """Return a start time as epoch seconds, 0 for times before 1970; raise ConfigError if it is invalid."""
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
    """Raise ConfigError if both `delay` and `at` are given."""
    if delay is not None and at is not None:
        raise ConfigError(f"delay={delay!r} and at={at!r} contradict each other; use only one")


def checked_key(key: str) -> str:
    """Return `key`; raise ConfigError if it is empty or too long, or not printable."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH or not key.isprintable():
        raise ConfigError(
            f"key={key!r:.200} can't be used; use 1-{MAX_KEY_LENGTH} printable characters"
        )
    return key


def checked_content(mid: str, content: bytes) -> None:
    """Raise CodecError if the content is too long."""
    if len(content) > HARD_MAX_CONTENT:
        raise CodecError(
            f"the content of {mid!r} has {len(content):,} bytes; at most {HARD_MAX_CONTENT:,} are allowed. Store it "
            "elsewhere and enqueue a reference"
        )


def text_of(value: bytes) -> str:
    """Return bytes as text for people. Bytes that are not UTF-8 become escapes."""
    return value.decode("utf-8", "backslashreplace")


class Enqueued(NamedTuple):
    """Result of one enqueue.

    Attributes:
        action: The effect of the enqueue. 'buffered' means that the message is in the client's outage buffer, in this
            process's memory, and not on the server yet.
        existing_status: If the action is 'exists', the status of the existing message with this mid.
    """

    mid: str
    action: Action
    existing_status: str = ""

    @property
    def partition(self) -> str:
        """Name of the partition that accepted the message; '' if its queue has no partitions."""
        return ""


class Rescheduled(NamedTuple):
    """Result of rescheduling a message.

    Attributes:
        word: 'moved', 'same' (the message could already run), 'nil' (there is no such message) or 'changed' (it is
            running or done, or another message has its mid).
        former_ms: The previous start time in epoch ms; None if the message could run immediately.
    """

    mid: str
    word: str
    former_ms: int | None


class AddedMessages(Sequence[Enqueued]):
    """The results of a round trip that added all its messages."""

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
    """Results of a bulk enqueue, in order."""

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
    """A dequeued message.

    Attributes:
        fence: A number that grows with each attempt in the queue.
        generation: Distinguishes this message from earlier messages with the same mid.
        unknowns: How many times in a row the message was received by a worker without the message's job.
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
        # Tools that report errors print the values in stack frames, but only the job may see the content.
        return f"<Message {self.mid!r}, attempt {self.attempt}, {len(self.content)} bytes>"


class Dequeued(NamedTuple):
    """The reply to a dequeue. If it has no messages, wait on the wake key for `poll_after_ms`.

    Attributes:
        poll_after_ms: Time to wait. If it is 0, the next dequeue may be sent immediately.
        next_due_ms: Time until the earliest delayed message is due. It is 0 if there is no such message, or if the
            server has already reported the time to another caller.
        outbox: Whether the queue's outbox has entries for flows.
    """

    messages: list[Message]
    poll_after_ms: int
    paused: bool
    next_due_ms: int = 0
    outbox: bool = False


#: Columns in the record of an ending: job, attempt, ms since the enqueue (0 = unknown), run time and CPU time in us. It
#: is a plain tuple because it is made for each job whose runs are counted.
RunFigures = tuple[str, int, int, int, int]


class Ending(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How an attempt ended.

    Attributes:
        outcome: 'expired' means that it was too late to start the message, so it ends without a run. 'unknown' means
            that this worker doesn't know the job; like 'snooze' and 'release', it doesn't count as an attempt.
        backoff: Delay before the next attempt. For 'done', how long the mid stays taken; None uses the message's
            options.
        reason: Why the message is dead or crashed.
        traceback: Traceback of a failed attempt, if the message will be retried.
        age_ms: How long ago the run ended.
        figures: Figures of a finished run for the queue's statistics, or None.
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
    """The result of `Queue.finish`.

    Attributes:
        replies: 'ok', 'dead' (too many crashes), 'stale' or 'unknown' for each attempt; see `Queue.finish`.
        dequeued: The messages that the same call fetched; None if `dequeue` was 0.
    """

    replies: list[str]
    dequeued: Dequeued | None


class Lease(NamedTuple):
    """The message and the token of a lease."""

    mid: str
    token: str


def remember_ms(seconds: float | None) -> int:
    """Return how long to remember a message's outcome, in ms; 0 if the outcome isn't remembered."""
    return max(1, round(seconds * 1000)) if seconds else 0


class Status(NamedTuple):
    """The status of a message.

    Attributes:
        word: A status from docs/reference/states.md; 'dead' if only a dead message has this mid.
        unknowns: How many times in a row the message was received by a worker without the message's job.
        checkpoint: Value for the next attempt, as JSON or sealed.
        failed_attempt: Number of the latest attempt that failed in the job's code and was retried. It is 0 if no
            traceback is kept.
        traceback: Traceback of the failed attempt; '' if none is kept.
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
    """Numbers of messages by state.

    Attributes:
        ready: Waiting messages without a delay, including messages with keys.
        locked: Running messages, including expired locks until they are recovered.
        quarantined: Entries that were set aside because they can't be mids (`jobq check fsck`).
        paused: Whether any partition in which messages may wait is paused.
        keys: Number of keys that have messages or are held.
        served_partitions: Number of partitions in which messages may wait. Without partitions, it is 1.
        paused_partitions: Number of these partitions that are paused.
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
    served_partitions: int = 1
    paused_partitions: int = 0

    @property
    def all_paused(self) -> bool:
        """Whether a pause stops the whole queue."""
        return self.paused and not 0 < self.paused_partitions < self.served_partitions


class WaitingHead(NamedTuple):
    """The next message of a queue.

    Attributes:
        content: The message's content; b'' if it is longer than 4 KiB.
    """

    mid: str
    attempts: int
    content: bytes

    def __repr__(self) -> str:
        # Only the job may see the content; see Message.
        return f"<WaitingHead {self.mid!r}, {self.attempts} attempts, {len(self.content)} bytes>"


class Sample(NamedTuple):
    """The figures of a queue at one moment.

    Attributes:
        fence: Number of starts so far, including released messages.
        added: Number of events written so far.
        flow_entries: Number of entries not yet delivered to flows.
        flow_since_ms: Time of the oldest of these entries in epoch ms, or 0.
        refused: Number of messages lost from outage buffers because the queue rejected them.
        refused_at: Time of the last such rejection in epoch ms; 0 if there was none.
        unknowns: Number of messages whose job was unknown to the last worker that received them.
        pause_ends: When the pause ends, in epoch ms; 0 if the queue isn't paused, or if only `resume` ends the pause.
        events_off: Whether the queue's event level is 'off'.
        sealed: Whether the queue's partitions accept new messages instead of the queue.
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
    sealed: bool = False

    @property
    def records_attempts(self) -> bool:
        """Whether the queue records how attempts end. Without these records, a rate of 0 means an unknown rate."""
        return bool(self.added) and not self.events_off


class Upkeep(NamedTuple):
    """The remaining work of upkeep.

    Attributes:
        circle: Number of mids in the list `mid-circle`.
        due: Number of mids in the set `due`.
        quarantined: Number of entries that were set aside because they can't be mids.
        due_ms: Time until the earliest mid in `due`; 0 if there is none.
        surplus: 1 if there are still more dead messages than the queue's limits allow, else 0.
        outbox: Number of waiting entries for flows in the queue's outbox.
        sealed: The epoch of newer partitions that replace the queue; '0' if there are none.
    """

    circle: int
    due: int
    quarantined: int
    due_ms: int
    surplus: int = 0
    outbox: int = 0
    sealed: bytes = b"0"


class DeadLimits(NamedTuple):
    """The limits on a queue's dead messages.

    Attributes:
        most: Maximum number of dead messages.
        age_s: Maximum age of a dead message, in seconds.
        evicted: Number of dead messages deleted because of these limits.
    """

    most: int = 10_000
    age_s: float = 180 * DAY_S
    evicted: int = 0


class Entry(NamedTuple):
    """One message in a page of content."""

    mid: str
    status: str
    attempts: int
    ncrashes: int
    not_before: int
    lock_expires_at: int
    content: bytes


class Page(NamedTuple):
    """A page of messages, and the offset of the next page; None if there is no next page."""

    entries: list[Entry]
    next_offset: int | None


class DeadMessage(NamedTuple):
    """One dead message. Pass its `dead_id` to `revive` or `purge`."""

    dead_id: str
    mid: str
    died_at: int
    attempts: int
    ncrashes: int
    reason: str
    content: bytes


class Violation(NamedTuple):
    """A violated invariant.

    Attributes:
        mid: The affected mid or key, as readable text.
        raw: The stored bytes of `mid`.
    """

    rule: str
    mid: str
    raw: bytes = b""


class Ticked(NamedTuple):
    """Result of a tick.

    The outcome is one of:

    - `enqueued`, `missed`, `early` or `paused`.
    - `waits`: the run waits for the previous run.
    - `replaced`: the run replaced the previous run.
    - `skipped`: there is no run, because the previous run isn't over.
    - `full`: there is no run, because its key has the maximum number of waiting messages.
    - `exists`: there is no run, because another tick was enqueued since the caller's last read.
    - `new`: the schedule starts now.
    - `clock`: the schedule continues from now, because the clock was set back.

    Attributes:
        detail: The mid of the run or of the previous run, or a time in epoch ms.
    """

    outcome: str
    detail: str


class TickState(NamedTuple):
    """The last tick of a schedule.

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
    """All schedules of a queue.

    Attributes:
        definitions: Name -> a letter ('c' if declared in code, 'a' if added), then the definition as JSON.
        ticks: Name -> the schedule's last tick.
        log: Latest ticks, newest first.
    """

    now_ms: int
    definitions: dict[str, str]
    ticks: dict[str, TickState]
    log: list[LoggedTick]
