"""Limits and descriptions of a queue's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jobq.client.scripts import Argument
from jobq.durations import DAY_MS, Duration, Rate, rate_of
from jobq.errors import ConfigError
from jobq.queue.types import text_of

MAX_WEIGHT = 1_000
MAX_COUNT = 1_000_000_000
#: Maximum duration of a hold, in seconds.
MAX_HOLD_S = 365 * DAY_MS / 1000


class Unchanged:
    """The type of UNCHANGED, which leaves a setting as it is."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
#: With None, a single key has the limit for all keys, and all else is unlimited.
Number = int | None | Unchanged


class Rule(NamedTuple):
    """Limits of one key. If a limit is None, the limit for all keys applies.

    Attributes:
        max: Maximum number of running messages.
        rate: Maximum rate of starts.
        weight: The key's share of turns.
        waiting: Maximum number of waiting messages.
    """

    max: int | None = None
    rate: Rate | None = None
    weight: int | None = None
    waiting: int | None = None


class QueueRules(NamedTuple):
    """Limits of a queue and of all its keys. If a limit is None, there is no limit.

    Attributes:
        max: Maximum number of running messages of the queue. The other limits apply to each key.
    """

    max: int | None = None
    key_max: int | None = None
    key_rate: Rate | None = None
    key_weight: int | None = None
    key_waiting: int | None = None


class KeyRow(NamedTuple):
    """One key of a queue. Times are in epoch ms; 0 means no time.

    Attributes:
        max: Maximum number of running messages; None if unlimited.
        held_until: When the key's hold ends.
        starts_at: When the key's rate allows the next start.
        oldest: Mid of the key's first waiting message.
        most_waiting: Maximum number of waiting messages; None if unlimited.
    """

    key: str
    waiting: int
    running: int
    weight: int
    max: int | None
    held_until: int
    starts_at: int
    oldest: str
    most_waiting: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether the key has its maximum number of waiting messages."""
        return self.most_waiting is not None and self.waiting >= self.most_waiting


class KeyPage(NamedTuple):
    """A page of a queue's keys, and the cursor of the next page; None if there is no next page."""

    rows: list[KeyRow]
    next_offset: int | None


class KeyFacts(NamedTuple):
    """Why a message runs or waits. Times are in epoch ms by the server's clock; 0 means no time.

    `waiting`, `running`, `max`, `held_until`, `starts_at` and `rate` are facts about the message's key.

    Attributes:
        place: The message's position among its key's waiting messages, starting at 1; 0 if it has no position.
        holders: At most ten running messages of the key, each with the end of its lease.
        keys_before: Number of keys whose turn comes first.
    """

    status: str
    key: str
    ordered: bool
    place: int
    waiting: int
    running: int
    max: int | None
    held_until: int
    starts_at: int
    rate: Rate | None
    paused: bool
    queue_running: int
    queue_max: int | None
    keys_before: int
    now: int
    holders: list[tuple[str, int]]


def number_given(name: str, value: Number, most: int = MAX_COUNT) -> Argument:
    """Return a setting as an argument of the script `set_limits`."""
    if isinstance(value, Unchanged):
        return "-"
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(
            f"{name}={value!r:.200} is invalid; use a whole number from 1 to {most:,}"
        )
    return value


def rate_given(name: str, value: str | Rate | Unchanged | None) -> tuple[Argument, Argument]:
    """Return a rate as two arguments of the script `set_limits`: the number of starts, and the span in ms."""
    if isinstance(value, Unchanged):
        return "-", "-"
    if value is None:
        return "", ""
    try:
        rate = value if isinstance(value, Rate) else rate_of(value)
    except ValueError as error:
        raise ConfigError(f"{name}={error}") from None
    return rate.most, rate.span_ms


def number_kept(text: bytes) -> int | None:
    """Parse a setting in the reply of the script `set_limits`."""
    return int(text) if text else None


def rate_kept(most: bytes | int, span_ms: bytes | int) -> Rate | None:
    """Parse a rate in the reply of a script; return None if there is no rate."""
    return Rate(int(most), int(span_ms)) if most and span_ms else None


def hold_ms(wait: Duration, seconds: float) -> int:
    """Return the duration of a hold in ms; raise ConfigError if it is out of range."""
    if not 0 <= seconds <= MAX_HOLD_S:
        raise ConfigError(f"{wait!r:.200} is out of range; hold a key for 0 seconds to 365 days")
    return round(seconds * 1000)


def key_rows(items: Sequence[Any]) -> list[KeyRow]:
    """Parse the keys in a reply of the script `lines`."""
    rows = zip(*(iter(items),) * 9, strict=True)
    return [
        KeyRow(
            text_of(key), waiting, running, weight, most or None, held, starts, text_of(oldest), most_waiting or None,
        )
        for key, waiting, running, weight, most, held, starts, oldest, most_waiting in rows
    ]  # fmt: skip


def facts_of(reply: Sequence[Any]) -> KeyFacts:
    """Parse the reply of the script `why`."""
    word, key, ordered, place, waiting, running, most, held, starts = reply[:9]
    starts_most, span_ms, paused, queue_running, queue_max, keys_before, now = reply[9:16]
    holders = zip(*(iter(reply[16:]),) * 2, strict=True)
    return KeyFacts(
        text_of(word), text_of(key), bool(ordered), place, waiting, running, most or None, held, starts,
        rate_kept(starts_most, span_ms), bool(paused), queue_running, queue_max or None, keys_before, now,
        [(text_of(mid), lock_expires_at) for mid, lock_expires_at in holders],
    )  # fmt: skip
