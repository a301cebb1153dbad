"""Partitions of a hot queue: the map that lists them, and the choice of a message's partition.

A partitioned queue `low` consists of queues such as `low/0` to `low/7`, each in a slot of its own. Each change of their
number begins a new epoch with new queues. Partitions of earlier epochs are sealed: they accept only messages whose mid
or key they already have. So for each message, a client tries one queue per epoch, from the oldest epoch to the newest,
until the reply isn't 'moved'. This keeps each mid and each key in a single queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.names import is_partition
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.queue import keys
from jobq.queue.types import FENCES_PER_EPOCH, MAX_PARTITIONS, PER_CALL, text_of

#: Mids that `MadeMids` makes for one call have this length, and begin with the same characters. So such a call stays
#: in one partition.
_MADE_LENGTH, _STEM_LENGTH = 14, 12
_NUMBER = re.compile(r"[0-9]{1,9}")
#: An epoch as text. Its numbers have few enough digits for the integers of scripts.
_EPOCH = re.compile(r"([0-9]{1,9}),([0-9]{1,9}),([0-9]{1,4})(?:,d([0-9]{1,12}))?")
#: Maximum size of a map, and maximum number of its partitions. A worker serves all partitions that aren't drained.
MAX_MAP_BYTES, MAX_IN_MAP = 16_384, 4_096


class Epoch(NamedTuple):
    """Partitions that were made together; epoch 0 is the queue itself.

    Attributes:
        first: Number of the epoch's first partition. Numbers are never reused.
        drained_at: Unix time when all partitions were found to be sealed and without live messages; 0 before that.
    """

    number: int
    first: int = 0
    size: int = 0
    drained_at: int = 0

    @property
    def drained(self) -> bool:
        """Whether the epoch is empty and doesn't accept messages."""
        return self.drained_at > 0

    def names(self, queue: str) -> list[str]:
        """Return the names of the epoch's queues."""
        if not self.number:
            return [queue]
        return [f"{queue}/{number}" for number in range(self.first, self.first + self.size)]

    def name_for(self, queue: str, text: str) -> str:
        """Return the name of the partition, or queue, for a message with this `place_text`."""
        if not self.number:
            return queue
        digest = blake2b(text.encode(), digest_size=8).digest()
        return f"{queue}/{self.first + int.from_bytes(digest, 'big') % self.size}"

    def __str__(self) -> str:
        return f"{self.number},{self.first},{self.size}{f',d{self.drained_at}' if self.drained else ''}"


class PartitionMap(NamedTuple):
    """A queue's partition map, as stored on the server: its epochs, oldest first."""

    queue: str
    epochs: tuple[Epoch, ...] = (Epoch(0),)

    @property
    def newest(self) -> Epoch:
        """The latest epoch, whose partitions accept new messages."""
        return self.epochs[-1]

    @property
    def is_partitioned(self) -> bool:
        """Whether the queue has partitions."""
        return self.newest.number > 0

    def epoch_of(self, name: str) -> Epoch | None:
        """Return the epoch that has the queue `name`."""
        return next((epoch for epoch in self.epochs if name in epoch.names(self.queue)), None)

    def names(self) -> list[str]:
        """Return the names of all queues in the map, oldest first."""
        return [name for epoch in self.epochs for name in epoch.names(self.queue)]

    def served(self) -> list[str]:
        """Return the names of the queue and partitions where messages may wait."""
        return [
            name for epoch in self.epochs if not epoch.drained for name in epoch.names(self.queue)
        ]

    def after(self, count: int, skipped: int = 0, number: int = 0) -> PartitionMap:
        """Return the map with a new epoch of `count` partitions.

        Args:
            skipped: How many partition numbers to leave unused.
            number: Lower bound for the new epoch's number.
        """
        newest = self.newest
        number = max(newest.number + 1, number)
        following = Epoch(number, newest.first + newest.size + skipped, count)
        return self._replace(epochs=(*self.epochs, following))

    def __str__(self) -> str:
        return ";".join(map(str, self.epochs)) if self.is_partitioned else ""


def place_text(mid: str, key: str | None) -> str:
    """Return the text that decides the partition of a message.

    Members of a flow's map share a partition if their numbers are in the same chunk of 250, so a single call can send
    the chunk.
    """
    if key:
        return key
    if mid.startswith("~"):
        step, _, number = mid.rpartition(".")
        return f"{step}.{int(number) // PER_CALL}" if step and _NUMBER.fullmatch(number) else mid
    return mid[:_STEM_LENGTH] if len(mid) == _MADE_LENGTH else mid


def map_key(client: Client, queue: str) -> str:
    """Return the key of the queue's map."""
    return keys.key(keys.prefix(client.namespace, queue), "partitions")


def read_map(client: Client, queue: str) -> PartitionMap:
    """Read the map of the queue. A queue without partitions has a map with one epoch."""
    return map_in(queue, client.command("HGET", map_key(client, queue), "map"))


def start_fence(client: Client, name: str, number: int) -> None:
    """Initialize a partition's fence counter. Counters in epoch `number` are higher than in older epochs."""
    meta = keys.key(keys.prefix(client.namespace, name), "meta")
    client.command("HSETNX", meta, "fence", number * FENCES_PER_EPOCH)


def fence_of(client: Client, name: str) -> int:
    """Return a queue's latest fence number; 0 if it has none. Raises ScriptError if the stored value isn't a number."""
    meta = keys.key(keys.prefix(client.namespace, name), "meta")
    stored: bytes | None = client.command("HGET", meta, "fence")
    if stored is None:
        return 0
    if not stored.isdigit():
        raise ScriptError(
            f"the fence of queue {name!r} is {stored[:40]!r}, not a number; the next dequeue of that queue replaces it"
        )
    return int(stored)


def with_partitions(client: Client, names: Iterable[str]) -> list[str]:
    """Return the names of queues and of their partitions. Raises an error if a partition map can't be read."""
    places, unread = with_readable_partitions(client, names)
    for error in unread.values():
        raise error
    return places


def with_readable_partitions(
    client: Client, names: Iterable[str]
) -> tuple[list[str], dict[str, JobqError]]:
    """Return the names of queues and of their partitions, and the errors of queues whose map can't be read."""
    places, unread = dict[str, None](), dict[str, JobqError]()
    for name in names:
        places[name] = None
        try:
            places |= dict.fromkeys([] if is_partition(name) else read_map(client, name).names())
        except JobqError as error:
            if client.is_lost(error):
                raise
            unread[name] = error
    return list(places), unread


def map_in(queue: str, stored: bytes | None) -> PartitionMap:
    """Parse a stored map."""
    if not stored:
        return PartitionMap(queue)
    parts = [_EPOCH.fullmatch(part) for part in text_of(stored[:MAX_MAP_BYTES]).split(";")]
    epochs = [
        Epoch(int(part[1]), int(part[2]), int(part[3]), int(part[4] or 0))
        for part in parts
        if part is not None
    ]
    if len(epochs) < len(parts) or not _follow(epochs) or len(stored) > MAX_MAP_BYTES:
        raise ScriptError(
            f"queue {queue!r} has an unreadable partition map: {text_of(stored[:200])!r:.200}; another program wrote it"
        )
    return PartitionMap(queue, tuple(epochs))


def _follow(epochs: Sequence[Epoch]) -> bool:
    """Return whether epoch numbers and partition numbers only increase, and all sizes are within their limits."""
    last, beyond = -1, 0
    for epoch in epochs:
        fits = epoch.number > last and epoch.first >= beyond and epoch.size <= MAX_PARTITIONS
        if not fits or bool(epoch.number) != bool(epoch.size):
            return False
        last, beyond = epoch.number, epoch.first + epoch.size
    return last > 0 and sum(epoch.size for epoch in epochs) <= MAX_IN_MAP


def checked_number(count: int) -> int:
    """Return the number of partitions; raise ConfigError if it is out of range."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise ConfigError(
            f"partitions={count!r} is out of range; it must be between 1 and {MAX_PARTITIONS}"
        )
    return count


def grouped(
    indexes: Sequence[int], epoch: Epoch, queue: str, texts: Sequence[str]
) -> Iterator[tuple[str, list[int]]]:
    """Group messages by their queue in an epoch. Yield each queue's name, and the indexes of its messages."""
    groups: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    for index in indexes:
        text = texts[index]
        name = names.get(text) or names.setdefault(text, epoch.name_for(queue, text))
        groups.setdefault(name, []).append(index)
    yield from groups.items()
