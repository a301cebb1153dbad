"""Values that topics accept and return. All values are frozen. Times are epoch ms by the server's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from jobq.errors import CodecError, ConfigError
from jobq.records import JsonRecord

#: Maximum bytes of a message's content, key and headers, each.
MAX_LENGTH = 1024 * 1024
Position = str | int | datetime


class Record(NamedTuple):
    """A message to append. With `content=None`, compaction deletes the earlier messages of the key."""

    content: bytes | None
    key: str | None = None
    headers: Mapping[str, str] | None = None


class TopicMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a topic. Its index never changes. `at` is the time of its append."""

    index: int
    at: int
    content: bytes | None
    key: str | None = None
    headers: dict[str, str] = {}


class TopicBatch(NamedTuple):
    """The result of a poll: messages with the indexes `first` to `last`.

    Attributes:
        token: Identifies the lease of these messages.
        deliveries: Number of deliveries of these messages, including this delivery.
        lease_at: When the lease ends.
        skipped: Number of messages that retention removed before a poll could return them.
    """

    messages: list[TopicMessage]
    first: int = 0
    last: int = 0
    token: str = ""
    deliveries: int = 0
    lease_at: int = 0
    skipped: int = 0


class Appended(NamedTuple):
    """The first and last index of one append, and its time."""

    first: int
    last: int
    at: int


class Lag(NamedTuple):
    """A group's lag.

    Attributes:
        messages: Number of messages after the index `settled`. If compaction removed messages, this is an upper bound.
        age_ms: Age of the oldest message after `settled`.
        held: Number of batches that readers have leased.
        expired: Number of batches whose lease has ended.
        skipped: Number of messages that retention dropped before the group read them.
    """

    settled: int
    handed_out: int
    last: int
    first: int
    messages: int
    age_ms: int
    held: int
    expired: int
    paused: bool
    out_of_range: str
    skipped: int


class Retention(JsonRecord):
    """Retention limits of a topic; 0 for no limit."""

    max_age_ms: int = 0
    max_count: int = 0
    max_bytes: int = 0
    compact: bool = False
    tombstone_ms: int = 0


class Description(NamedTuple):
    """Facts about a topic.

    `nbytes` is the size of the topic's messages, keys and headers without compaction, rounded to 64 KiB.
    """

    first: int
    last: int
    messages: int
    nbytes: int
    oldest_at: int
    newest_at: int
    compacted_to: int
    compacting: bool
    limits: Retention
    groups: list[str]


def encoded(record: Record | bytes) -> list[str | bytes]:
    """Convert a message to the format of append.lua: a letter for each field, then a value for each field."""
    if isinstance(record, bytes):
        record = Record(record)
    _check(record)
    shape, values = "", []
    if record.content is not None:
        shape, values = "m", [record.content]
    elif record.key is None:
        raise ConfigError("content=None deletes a key, but there is no key; pass key=… or content")
    if record.key is not None:
        shape, values = shape + "k", [*values, record.key.encode()]
    if record.headers:
        shape, values = shape + "h", [*values, _encoded_headers(record.headers)]
    for value in values:
        if len(value) > MAX_LENGTH:
            raise CodecError(
                f"a part of a message has {len(value):,} bytes, over the limit of {MAX_LENGTH:,}; store it elsewhere "
                "and append a reference"
            )
    return [shape, *values]


def _check(record: object) -> None:
    if not isinstance(record, Record):
        raise ConfigError(f"{record!r:.60} is not a message; pass bytes or a Record")
    if not isinstance(record.content, bytes | None) or not isinstance(record.key, str | None):
        raise ConfigError(
            f"{record!r:.100}: content must be bytes or None, and key must be text or None"
        )


def decoded(entry: Sequence[Any]) -> TopicMessage:
    """Convert an entry of an XRANGE reply to a message."""
    ident, fields = entry
    index, _, at = ident.partition(b"-")
    if len(fields) == 2 and fields[0] == b"m":
        return TopicMessage(int(index), int(at), fields[1])
    by_name = dict(zip(fields[::2], fields[1::2], strict=True))
    key, headers = by_name.get(b"k"), by_name.get(b"h")
    return TopicMessage(
        int(index), int(at), by_name.get(b"m"), None if key is None else key.decode("utf-8", "replace"),
        _decoded_headers(headers) if headers else {},
    )  # fmt: skip


def _encoded_headers(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise CodecError(f"header {name!r} is {value!r}; header names and values must be text")
    return msgspec.json.encode(dict(headers))


def _decoded_headers(headers: bytes) -> dict[str, str]:
    try:
        pairs = msgspec.json.decode(headers)
        if isinstance(pairs, dict):
            return {str(name): str(value) for name, value in pairs.items()}
    except (msgspec.DecodeError, RecursionError):
        pass
    # Headers that another program wrote differently must not stop a reader.
    return {"": headers.decode("utf-8", "replace")}


def position_of(position: Position) -> dict[str, str | int]:
    """Convert a position to arguments of scripts: 'earliest', 'latest', an index, or a datetime with a zone."""
    if isinstance(position, datetime):
        return {"start": "time", "value": moment_of(position)}
    if isinstance(position, int) and not isinstance(position, bool):
        return {"start": "index", "value": position}
    if position in ("earliest", "latest"):
        return {"start": str(position), "value": ""}
    raise ConfigError(
        f"{position!r} is not a position in a topic; use 'earliest', 'latest', an index or a datetime"
    )


def extent(first: int, last: int) -> str:
    """Describe, for an error message, which messages a topic has: `has 3 to 9`, or `is empty`."""
    return f"has {first} to {last}" if first <= last else "is empty"


def valid_places(first: int, last: int) -> str:
    """Describe a group's valid positions for an error message. The topic has the messages `first` to `last`."""
    within = "an index in this range, " if first <= last else ""
    return f"{within}'earliest' or 'latest'"


def moment_of(at: datetime | float) -> int:
    """Convert a datetime with a zone, or epoch seconds, to epoch ms."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ConfigError(f"{at!r} has no time zone; use datetime.now(timezone.utc) - …")
        at = at.timestamp()
    return round(at * 1000)
