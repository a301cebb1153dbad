"""Send the messages of a partitioned queue to the partitions that accept them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Literal, Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller, Tries
from jobq.client.scripts import Argument
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.queue.partitions import Epoch, PartitionMap, grouped, place_text, read_map
from jobq.queue.types import Enqueued

#: While partitions of older epochs are being drained, the map is read again after this time.
READ_EVERY_S = 5.0
MOVED = "moved"
Values = dict[str, Argument]
#: An enqueue into a partition: of an older epoch, where messages may live, or of the newest epoch.
Step = Literal["", "old", "newest"]


class SealedError(JobqError):
    """The queue is sealed, and the call didn't expect that."""


class EnqueuedIn(Enqueued):
    """Result of an enqueue into a partition."""

    _partition: str

    @classmethod
    def of(cls, done: Enqueued, partition: str) -> EnqueuedIn:
        """Return the result with the name of its partition."""
        made = cls(*done)
        made._partition = partition
        return made

    @property
    def partition(self) -> str:
        """Name of the partition that accepted the message."""
        return self._partition


class Place(Protocol):
    """A queue to which messages are sent."""

    def send(
        self,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
        caller: Caller | None,
        tries: Tries | None = None,
        *,
        step: Step = "",
    ) -> Sequence[Enqueued]:
        """Make one enqueue call."""
        ...


class PartitionRouter:
    """The partitions of one queue, on its client. Threads may share it."""

    def __init__(self, name: str, client: Client, queue_of: Callable[[str], Place]) -> None:
        self._name, self._client, self._queue_of = name, client, queue_of
        self._map = PartitionMap(name)
        self._read_at = 0.0
        #: Queues by name. The queue itself is among them, for epoch 0.
        self._places: dict[str, Place] = {}
        self.refresh()

    @property
    def map(self) -> PartitionMap:
        """The map; read again now and then while older partitions are drained."""
        epochs = self._map.epochs
        draining = any(not epoch.drained for epoch in epochs[:-1])
        if draining and monotonic() >= self._read_at + READ_EVERY_S:
            self.refresh()
        return self._map

    def refresh(self) -> PartitionMap:
        """Read the map now, and return it."""
        self._map, self._read_at = read_map(self._client, self._name), monotonic()
        return self._map

    def place(self, name: str) -> Place:
        """Return the queue of this name."""
        return self._places.get(name) or self._places.setdefault(name, self._queue_of(name))

    def send(
        self, level: str, values: Values, rows: Sequence[Argument], mids: Sequence[str]
    ) -> list[Enqueued]:
        """Enqueue messages where they belong, in one call for each partition; see `Queue.send`."""
        self._check(values)
        width = 3 if values["keyed"] else 2
        own_keys = [str(key) for key in rows[2::3]] if width == 3 else [""] * len(mids)
        texts = [place_text(mid, key) for mid, key in zip(mids, own_keys, strict=True)]
        done: dict[int, Enqueued] = {}
        asked, pending = -1, list(range(len(mids)))
        while pending:
            epoch, is_newest = self._after(asked)
            try:
                for name, indexes in grouped(pending, epoch, self._name, texts):
                    part = [
                        arg
                        for index in indexes
                        for arg in rows[width * index : width * index + width]
                    ]
                    some = mids if len(indexes) == len(mids) else [mids[index] for index in indexes]
                    step: Step = "newest" if is_newest else "old"
                    replies = self.place(name).send(level, values, part, some, None, step=step)
                    done |= {
                        index: EnqueuedIn.of(reply, name)
                        for index, reply in zip(indexes, replies, strict=True)
                        if reply.action != MOVED
                    }
                asked = epoch.number
            except SealedError as error:
                if self.refresh().newest.number <= epoch.number:
                    raise ScriptError(
                        f"queue {self._name!r} is sealed, but its map has no later partitions; "
                        "run jobq partitions again"
                    ) from error
            pending = [index for index in pending if index not in done]
        return [done[index] for index in range(len(mids))]

    def _after(self, asked: int) -> tuple[Epoch, bool]:
        """Return the epoch to ask next, and whether it is the newest."""
        for known in (self.map, self.refresh):
            epochs = (known() if callable(known) else known).epochs
            for epoch in epochs:
                if epoch.number > asked and (epoch is epochs[-1] or not epoch.drained):
                    return epoch, epoch is epochs[-1]
        raise ScriptError(
            f"partitions of {self._name!r} are sealed, and its map has no later partitions"
        )

    def _check(self, values: Values) -> None:
        name = self._name
        if values["again"] in ("member", "next"):
            raise ConfigError(
                f"queue {name!r} is partitioned, so it doesn't support flows yet; use another queue for the step"
            )
