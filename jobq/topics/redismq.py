"""The layout of redismq, for topics that redismq's Java and Python programs also use.

=============================  ====================================================================
<topic>:nextIndex              index of the last message, in spite of the key's name; the first is 1
<topic>:messages:<index>       the message
<topic>:<group>:nextIndex      the last index delivered to the group; 0 if the key doesn't exist
<topic>:call:<caller>          number and reply of a caller's last call; only jobq uses this key,
                               which expires after 10 min
=============================  ====================================================================

As in redismq, a group's position moves as messages are read, so messages are delivered at most once. Keys have no
prefix, and messages have no times, keys or headers. A script must declare its keys, but the next index isn't known
before the call. So a call declares the keys of a range of indexes, and is repeated if other clients have used up this
range.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from jobq.client.bound_scripts import PER_CALL
from jobq.client.connection import Client, default_client
from jobq.client.numbered_calls import BYTES_PER_CALL, BoundScript, BoundScripts, Callers, Values
from jobq.config import duration_s
from jobq.errors import ConfigError, OutOfRangeError, ScriptError
from jobq.topics.messages import Lag, TopicBatch, TopicMessage, extent, valid_places

#: Number of indexes in the first page, maximum number per page, and approximate bytes per page.
FIRST_PAGE, PER_PAGE, PAGE_BYTES = 16, 200, 262_144
MAX_INDEX_LENGTH = 15
#: How many indexes other clients may use between reading the counter and the call.
SPARE = 64
#: Maximum number of holes per call, and the number after a call without holes. Each hole adds a key to the call.
STRETCH, NEAR = 1_000, 16
FIRST_PAUSE_S, MAX_PAUSE_S = 0.005, 0.25


class RedismqTopic:
    """The topic `name` in redismq's layout.

    Attributes:
        ttl: How long to keep a message. By default, messages never expire, as in redismq.
    """

    def __init__(
        self, name: str, client: Client | None = None, *, ttl: float | timedelta | None = None
    ) -> None:
        self.client = client = default_client() if client is None else client
        self.name = checked_name("topic", name)
        if client.is_cluster and not 0 < name.find("{") + 1 < name.find("}"):
            raise ConfigError(
                f"topic {name!r}: on a Cluster the keys of redismq's layout are in different slots; "
                f"name it '{{{name}}}', or use the layout of jobq"
            )
        self._ttl: str | int = "" if ttl is None else _milliseconds(ttl)
        self.callers = Callers()
        self._scripts = self.scripts("")
        self._known = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def append(self, content: bytes) -> int:
        """Append one message, and return its index."""
        return self.append_many([content])[0]

    def append_many(self, contents: Iterable[bytes]) -> list[int]:
        """Append messages, and return their indexes. Each round trip appends up to 1,000 messages, either all of them
        or none.
        """
        indexes: list[int] = []
        for some in _batches(contents):
            first, last = self._append(some)
            indexes += range(first, last + 1)
        return indexes

    def reader(self, group: str, *, out_of_range: str = "earliest") -> RedismqReader:
        """Return a reader for `group`; a group may have any number of readers."""
        return RedismqReader(self, group, out_of_range)

    def read(self, start: int = 1, end: int | None = None) -> Iterator[TopicMessage]:
        """Yield existing messages from `start` to `end`. Groups keep their positions.

        Args:
            end: Last index; None for the current last message.
        """
        upto = self.last() if end is None else end
        first, count = max(1, start), FIRST_PAGE
        while first <= upto:
            indexes = range(first, min(upto + 1, first + count))
            reply = self.client.command("MGET", *map(self.message_key, indexes))
            for index, content in zip(indexes, reply, strict=True):
                if content is not None:
                    yield TopicMessage(index, 0, content)
            first += count
            size = sum(len(content or b"") for content in reply) // len(reply)
            count = max(1, min(PER_PAGE, 2 * count, PAGE_BYTES // (size + 1)))

    def last(self) -> int:
        """Return the index of the last message, or 0 if no message was ever appended."""
        return self.index_at(self.counter_key)

    def index_at(self, key: str) -> int:
        """Return the index stored at this key, or 0 if the key doesn't exist. Raises ScriptError if the value is not an
        index.
        """
        reply = self.client.command("GET", key)
        if reply and not (reply.isdigit() and len(reply) <= MAX_INDEX_LENGTH):
            raise ScriptError(
                f"{key} holds {reply[:40]!r}, which is not an index; set the key to an index, "
                "delete the topic, or unsubscribe the group"
            )
        return int(reply or 0)

    def delete(self) -> None:
        """Delete the messages and the counter. Groups keep their positions until you unsubscribe them.

        If the counter is damaged, the messages aren't deleted, because their number is unknown.
        """
        try:
            last = self.last()
        except ScriptError:
            last = 0
        for first in range(1, last + 1, PER_CALL):
            self.client.command("UNLINK", *map(self.message_key, range(first, first + PER_CALL)))
        self.client.command("UNLINK", self.counter_key)
        self._known = 0

    @property
    def counter_key(self) -> str:
        """Return the key of the index of the last message."""
        return f"{self.name}:nextIndex"

    def message_key(self, index: int) -> str:
        """Return the key of a message."""
        return f"{self.name}:messages:{index}"

    def scripts(self, position_key: str) -> BoundScripts:
        """Return the topic's scripts, with the key of a group's position."""
        keys = {"next_index": self.counter_key, "position": position_key}
        what = f"topic {self.name!r}"
        return BoundScripts(self.client, "topic", f"{self.name}:", keys.__getitem__, what)

    def call(
        self, script: BoundScript, nkeys: int, values: Values, rest: Sequence[bytes] = ()
    ) -> Any:
        """Run a script as a numbered call. Declare the keys of `nkeys` messages after the index `values["base"]`."""
        caller = self.callers.take()
        base = int(values["base"])
        keys = list(map(self.message_key, range(base + 1, base + nkeys + 1)))
        reply = script.call(caller, values, rest, extra_keys=keys)
        self.callers.give_back(caller)
        return reply

    def _append(self, contents: list[bytes]) -> tuple[int, int]:
        while True:
            word, first, *more = self.call(
                self._scripts["redismq_append"],
                len(contents) + SPARE,
                {"base": self._known, "ttl_ms": self._ttl},
                contents,
            )
            self._known = more[0] if word == b"ok" else first
            if word == b"ok":
                return first, more[0]


class RedismqReader:
    """Reads messages for a group, at most once. Each read moves the group's position, so a crash loses unhandled
    messages.
    """

    def __init__(self, topic: RedismqTopic, group: str, out_of_range: str = "earliest") -> None:
        if out_of_range not in ("earliest", "latest", "error"):
            raise ConfigError(
                f"out_of_range={out_of_range!r} is unknown; use earliest, latest or error"
            )
        self.topic, self.group = topic, checked_name("group", group)
        self._out_of_range = out_of_range
        self._scripts = topic.scripts(self.position_key)
        self._position = 0
        self._reach = STRETCH

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic.name!r}, {self.group!r})"

    def poll(self, count: int = 100, block: float | timedelta = 0) -> TopicBatch:
        """Return the next messages, up to `count`.

        Args:
            block: How long to wait for the first message, by polling.
        """
        if not 1 <= count <= PER_CALL:
            raise ConfigError(
                f"count={count!r} is out of range; it must be between 1 and {PER_CALL:,}"
            )
        deadline, pause = time.monotonic() + duration_s(block), FIRST_PAUSE_S
        skipped = 0
        while True:
            batch, more = self._ask(count)
            skipped += batch.skipped
            if batch.messages:
                return batch._replace(skipped=skipped)
            left = deadline - time.monotonic()
            if left <= 0 and not more:
                return batch._replace(skipped=skipped)
            if not more:
                time.sleep(min(left, pause))
                pause = min(MAX_PAUSE_S, 2 * pause)

    def seek(self, place: int | str) -> int:
        """Move the group to 'earliest', 'latest' or an index. Return the index of its next message."""
        last = self.topic.last()
        if place == "earliest":
            self.unsubscribe()
            return 1
        following = last + 1 if place == "latest" else place
        if not isinstance(following, int) or isinstance(place, bool):
            raise ConfigError(f"{place!r} is not a position; use 'earliest', 'latest' or an index")
        if not 1 <= following <= last + 1:
            raise self._out(following, last)
        self.topic.client.command("SET", self.position_key, following - 1)
        return following

    def unsubscribe(self) -> None:
        """Delete the group's position. The group's next read begins with the first existing message."""
        self.topic.client.command("DEL", self.position_key)

    def lag(self) -> Lag:
        """Return the group's lag, which also counts deleted messages."""
        position = self.topic.index_at(self.position_key)
        last = self.topic.last()
        behind = max(0, last - position)
        return Lag(position, position, last, 1, behind, 0, 0, 0, False, self._out_of_range, 0)

    @property
    def position_key(self) -> str:
        """Return the key of the last index that was delivered to the group."""
        return f"{self.topic.name}:{self.group}:nextIndex"

    def _ask(self, count: int) -> tuple[TopicBatch, bool]:
        """Make one call. Return its messages, and whether to repeat the call immediately."""
        while True:
            word, position, last, *rest = self.topic.call(
                self._scripts["redismq_poll"],
                max(count, self._reach),
                {"base": self._position, "count": count, "out_of_range": self._out_of_range},
            )
            if word == b"out-of-range":
                raise self._out(position, last)
            first, self._position = self._position, position
            if word == b"ok":
                break
        skipped, *flat = rest
        self._reach = STRETCH if skipped else NEAR
        messages = [TopicMessage(i, 0, m) for i, m in zip(flat[::2], flat[1::2], strict=True)]
        batch = TopicBatch(messages, first + 1, position) if messages else TopicBatch([])
        return batch._replace(skipped=skipped), position < last

    def _out(self, position: int, last: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"{position} is outside topic {self.topic.name!r}, which {extent(1, last)}; "
            f"seek to {valid_places(1, last)}",
            position, 1, last,
        )  # fmt: skip


def _batches(contents: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for content in contents:
        if not isinstance(content, bytes):
            raise ConfigError(f"{content!r:.60} is not a message; pass bytes")
        some.append(content)
        size += len(content)
        if len(some) == PER_CALL or size >= BYTES_PER_CALL:
            yield some
            some, size = [], 0
    if some:
        yield some


def checked_name(kind: str, name: str) -> str:
    """Return `name`. Raise ConfigError if keys with this name in them could also belong to another topic or group."""
    if not name or ":" in name or not name.isprintable() or any(map(str.isspace, name)):
        raise ConfigError(
            f"{kind} {name!r} can't be used in redismq's layout; use printable characters without : or blanks"
        )
    if kind == "group" and name == "messages":
        raise ConfigError(
            "group 'messages' can't be used, because keys of the topic's messages have that prefix; use another name"
        )
    return name


def _milliseconds(ttl: float | timedelta) -> int:
    milliseconds = round(duration_s(ttl) * 1000)
    if milliseconds < 1:
        raise ConfigError(f"ttl={ttl!r} is out of range; it must be at least 1 ms, or None")
    return milliseconds
