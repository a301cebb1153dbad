"""A topic: an append-only log. A message's index never changes; the server stores how far each group has read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from jobq.client.bound_scripts import PER_CALL
from jobq.client.connection import Client
from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise, wrapping
from jobq.client.names import is_name
from jobq.client.numbered_calls import BYTES_PER_CALL, Values, moment
from jobq.client.scripts import Argument
from jobq.client.steps import Ask, Steps
from jobq.config import duration_s
from jobq.durations import DAY_MS
from jobq.errors import ConfigError, NotDurableError, ScriptError
from jobq.queue.durability import Confirmation
from jobq.topics import keys
from jobq.topics.calls import TopicCalls
from jobq.topics.group import AsyncTopicGroup, TopicGroup
from jobq.topics.messages import (
    MAX_LENGTH,
    Appended,
    Description,
    Position,
    Record,
    Retention,
    TopicMessage,
    decoded,
    encoded,
    moment_of,
)
from jobq.topics.ranges import RangeReader, messages_of, opened, read
from jobq.topics.reader import AsyncReader, Commit, Reader

#: Messages per step of a compaction.
STEP = 500


class Topic(BlockingFacade):
    """The topic `name`, on `client` or the default client. Threads may share it.

    Times are by the server's clock. For tests, some methods accept `now`, in epoch ms, instead of the server's time.
    """

    def __init__(self, name: str, client: Client | None = None) -> None:
        self.name = name
        self._binding = TopicCalls(name, client)
        self.client = self._binding.client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @stepwise
    def append(
        self,
        content: bytes | None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        durability: str | None = None,
        now: int | None = None,
    ) -> Steps[int]:
        """Append one message, and return its index. With content=None, the next compaction deletes the key's earlier
        messages.
        """
        record = Record(content, key, headers)
        done = yield from self._append(encoded(record), durability, now)
        return done.first

    @stepwise
    def append_many(
        self,
        records: Iterable[bytes | Record],
        *,
        durability: str | None = None,
        now: int | None = None,
    ) -> Steps[list[int]]:
        """Append messages, and return their indexes. Each round trip appends up to 1,000 messages, either all of them
        or none.

        The indexes of one round trip are consecutive.

        Args:
            durability: `memory`, `disk` or `replicas=n`, by default the client's durability.

        Raises:
            ConfigError, CodecError: A message is invalid. The round trip with this message isn't sent.
            ServerFullError: The server's memory is full.
            NotDurableError: The appended messages aren't as durable as requested.
            UnavailableError: The outcome is unknown.
        """
        indexes: list[int] = []
        for args in _batches(records):
            done = yield from self._append(args, durability, now)
            indexes += range(done.first, done.last + 1)
        return indexes

    def reader(
        self,
        group: str,
        *,
        commit: Commit = "manual",
        start: Position = "earliest",
        lease: float | timedelta = 30,
        out_of_range: str = "earliest",
    ) -> Reader:
        """Return a reader for `group`, which may have any number of readers. See `Reader` for the options."""
        return Reader(
            self._binding, group, commit=commit, start=start, lease=lease, out_of_range=out_of_range
        )

    def group(self, name: str) -> TopicGroup:
        """Return the group with this name, for inspection and control. The group needn't exist."""
        return TopicGroup(self._binding, name)

    def read(
        self,
        start: Position = "earliest",
        end: Position | None = None,
        *,
        out_of_range: str = "error",
    ) -> Iterator[TopicMessage]:
        """Yield the messages from `start` to `end`, including both. Groups keep their positions.

        Raises OutOfRangeError if retention drops messages of this range before they are read. With
        out_of_range='earliest', the iteration continues with the first existing message instead.

        Args:
            end: Last message; None for the current last message. A datetime excludes messages appended then or later.
        """
        return read(self._binding, start, end, out_of_range)

    @stepwise
    def get(self, index: int) -> Steps[TopicMessage | None]:
        """Return the message with this index, or None if it was dropped or doesn't exist yet."""
        reading = RangeReader(self._binding, index, index, strict=False)
        messages = yield from messages_of(reading, 1)
        return messages[0] if messages else None

    @stepwise
    def find(self, at: datetime | float) -> Steps[int]:
        """Return the index of the first message appended at this time or later. If there is none, return the last index
        + 1.
        """
        reply = yield from self._binding.run_steps("find", {"time": moment_of(at)})
        return int(reply[0])

    @stepwise
    def groups(self) -> Steps[list[str]]:
        """Return the names of the groups, sorted."""
        return (yield from Topic.describe.steps(self)).groups  # type: ignore[no-any-return]

    @stepwise
    def strange_groups(self) -> Steps[list[bytes]]:
        """Return the invalid names in the topic's list of groups, sorted."""
        listed = yield from self._binding.command_steps("SMEMBERS", self._binding.key("groups"))
        return sorted(name for name in listed if not is_name("group", name))

    @stepwise
    def forget_group(self, name: bytes) -> Steps[bool]:
        """Remove an invalid name from the list of groups. Return whether it was in the list."""
        key = self._binding.key("groups")
        return bool((yield from self._binding.command_steps("SREM", key, name)))

    @stepwise
    def describe(self, *, now: int | None = None) -> Steps[Description]:
        """Return the topic's size and limits."""
        reply = yield from self._binding.run_steps("describe", {"now": moment(now)})
        first, last, messages, nbytes, oldest_at, newest_at, base_to, phase, age, count, size = (
            reply[:11]
        )
        names = sorted(name.decode() for name in reply[14] if is_name("group", name))
        return Description(
            first, last, messages, nbytes, oldest_at, newest_at, base_to, phase > 0,
            Retention(age, count, size, bool(reply[11]), reply[12]), names,
        )  # fmt: skip

    @stepwise
    def set_limits(
        self,
        *,
        max_age: float | timedelta | None = None,
        max_count: int | None = None,
        max_bytes: int | None = None,
        compact: bool | None = None,
        tombstones: float | timedelta | None = None,
    ) -> Steps[Retention]:
        """Change the retention limits, and return all of them. 0 removes a limit. None leaves it unchanged.

        Every append applies the limits to a few messages; `trim` applies the limits to all messages.

        Args:
            compact: Keep only the latest message of each key, and all messages without a key. It can be combined with
                max_age, but not with max_count or max_bytes.
            tombstones: How long compactions keep a message that deletes a key. Default: one day.
        """
        if tombstones is None and compact:
            now = yield from Topic.limits.steps(self)
            tombstones = None if now.tombstone_ms else DAY_MS / 1000
        values = {
            "max_age": _whole("max_age", max_age, 1000),
            "max_count": _whole("max_count", max_count),
            "max_bytes": _whole("max_bytes", max_bytes),
            "compact": "" if compact is None else int(compact),
            "tombstone_ms": _whole("tombstones", tombstones, 1000),
        }
        if (yield from self._binding.run_steps("limits", values))[0] == b"both":
            raise ConfigError(
                f"topic {self.name!r}: compaction keeps the latest message of each key, so only max_age works with it; "
                f"set max_count and max_bytes to 0, or pass compact=False"
            )
        return (yield from Topic.limits.steps(self))  # type: ignore[no-any-return]

    @stepwise
    def limits(self) -> Steps[Retention]:
        """Return the limits."""
        return (yield from Topic.describe.steps(self)).limits  # type: ignore[no-any-return]

    @stepwise
    def trim(self, before: int | None = None, *, now: int | None = None) -> Steps[int]:
        """Drop messages that exceed the limits, or all messages before an index. Return the index of the first
        remaining message.
        """
        while True:
            values = {"now": moment(now), "before": "" if before is None else before}
            first, more = yield from self._binding.run_steps("trim", values)
            if not more:
                return int(first)

    @stepwise
    def compact(self, *, now: int | None = None) -> Steps[int]:
        """Compact the topic up to its current last message, and return the message's index. The topic can be in use."""
        values = {"now": moment(now), "limit": STEP}
        under_way, reached = yield from self._compact({**values, "begin": 1})
        while under_way:
            under_way, reached = yield from self._compact({**values, "begin": 0})
        return int(reached)

    @stepwise
    def delete(self) -> Steps[None]:
        """Delete the topic and its groups, even if a key has a wrong type. A later append starts at index 1 again."""
        prefix = self._binding.prefix
        try:
            listed = yield from self._binding.command_steps("SMEMBERS", self._binding.key("groups"))
        except ScriptError:
            listed = []  # the user may not read the list of names
        for name in listed:
            if is_name("group", name):
                of_group = keys.of_group(prefix, name.decode())
                yield from self._binding.command_steps("UNLINK", *of_group)
        yield from self._binding.command_steps("UNLINK", *keys.of_topic(prefix))
        listed = keys.topic_names(self.client.namespace)
        yield from self._binding.command_steps("SREM", listed, self.name)
        self._binding.forget()

    def _compact(self, values: Values) -> Steps[Any]:
        return self._binding.run_steps("compact", values)

    def _append(self, args: list[Any], durability: str | None, now: int | None) -> Steps[Appended]:
        binding = self._binding
        yield from binding.register_steps()
        level = durability or self.client.durability
        if level == "memory":
            reply = yield from binding.once_steps("append", {"now": moment(now)}, args)
            return (yield from self._appended(reply))
        caller = binding.callers.take()
        confirmation = Confirmation(level, self.client, f"{binding.prefix}call:{caller.id}")
        append, by = binding.scripts()["append"], confirmation.exchange
        # A confirmation occupies its connection, so it uses a separate connection and a thread.
        reply = yield Ask(lambda: append.call(caller, {"now": moment(now)}, args, by=by))
        binding.callers.give_back(caller)
        done = yield from self._appended(reply)
        if confirmation.missing:
            raise NotDurableError(
                f"messages {done.first} to {done.last} were appended to topic {self.name!r}, but are not durable with "
                f"durability={level!r}: {confirmation.missing}; appending again would add them twice"
            )
        return done

    def _appended(self, reply: list[Any]) -> Steps[Appended]:
        done = Appended._make(reply[1:])
        if done.first == 1:
            # The topic is new, or another process deleted it after this process registered it.
            self._binding.forget()
            yield from self._binding.register_steps()
        return done


class AsyncTopic(AsyncFacade[Topic]):
    """A Topic with awaitable methods.

    Cancelling a coroutine that waits for messages gives back messages that were already fetched.
    """

    def __init__(self, name: str, client: Client | None = None) -> None:
        super().__init__(Topic(name, client))

    reader = wrapping(Topic.reader, AsyncReader)
    group = wrapping(Topic.group, AsyncTopicGroup)
    append = awaited(Topic.append)
    append_many = awaited(Topic.append_many)
    get = awaited(Topic.get)
    find = awaited(Topic.find)
    groups = awaited(Topic.groups)
    describe = awaited(Topic.describe)
    set_limits = awaited(Topic.set_limits)
    limits = awaited(Topic.limits)
    trim = awaited(Topic.trim)
    compact = awaited(Topic.compact)
    delete = awaited(Topic.delete)

    async def read(
        self,
        start: Position = "earliest",
        end: Position | None = None,
        *,
        out_of_range: str = "error",
    ) -> AsyncIterator[TopicMessage]:
        """Yield messages; see Topic.read."""
        reading = await self.perform(opened(self.blocking._binding, start, end, out_of_range))
        while page := await self.perform(reading.next()):
            for entry in page:
                yield decoded(entry)


def _batches(records: Iterable[bytes | Record]) -> Iterator[list[str | bytes]]:
    args: list[str | bytes] = []
    count = size = 0
    for record in records:
        if isinstance(record, bytes) and len(record) <= MAX_LENGTH:
            # Most messages are plain bytes, so this branch must be fast.
            args += ("m", record)
            size += len(record)
        else:
            fields = encoded(record)
            args += fields
            size += sum(map(len, fields))
        count += 1
        if count == PER_CALL or size >= BYTES_PER_CALL:
            yield args
            args, count, size = [], 0, 0
    if args:
        yield args


def _whole(name: str, value: float | timedelta | None, scale: int = 1) -> Argument:
    if value is None:
        return ""
    number = round(duration_s(value) * scale)
    if not 0 <= number < 2**53:
        raise ConfigError(f"{name}={value!r} is out of range; it must be at least 0")
    return number
