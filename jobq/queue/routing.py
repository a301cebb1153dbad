"""Send the messages of a partitioned queue to the partitions that accept them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Literal, Protocol

from jobq.client.connection import Client
from jobq.client.names import base_of, is_partition
from jobq.client.numbered_calls import Caller, Tries
from jobq.client.scripts import Argument
from jobq.errors import JobqError, NotDurableError, ScriptError, UnavailableError
from jobq.queue.partitions import (
    Epoch,
    PartitionMap,
    grouped,
    place_text,
    read_map,
    start_fence,
)
from jobq.queue.types import Enqueued

#: While older partitions drain, the map is read again after READ_EVERY_S. After a failed read, the pause is at least
#: PAUSE_PER_TRY times as long as the read, because messages on other nodes don't need the map.
READ_EVERY_S, PAUSE_PER_TRY = 5.0, 20
MOVED = "moved"
Values = dict[str, Argument]
#: Kinds of partitions for an enqueue: of an older epoch, which may have live messages, or of the newest epoch.
Step = Literal["", "old", "newest"]


class SealedError(JobqError):
    """A queue rejected the call, because the queue is sealed or is a partition without data.

    Attributes:
        unknown: Name of the partition that lost its data or was never created; '' for a sealed queue.
    """

    def __init__(self, text: str, *, unknown: str = "") -> None:
        super().__init__(text)
        self.unknown = unknown


class PartlyAcceptedError(UnavailableError):
    """Partitions accepted some messages of a call, but another partition rejected the messages in `mids`.

    Attributes:
        refusal: Why the messages were rejected.
        accepted: The results of the accepted messages.
    """

    def __init__(
        self, message: str, mids: Sequence[str], refusal: JobqError, accepted: Sequence[Enqueued]
    ) -> None:
        super().__init__(message, mids)
        self.refusal, self.accepted = refusal, accepted


def refusal_in(error: JobqError) -> JobqError:
    """For a PartlyAcceptedError, return the error of the rejecting partition; otherwise, return `error`."""
    return error.refusal if isinstance(error, PartlyAcceptedError) else error


class EnqueuedIn(Enqueued):
    """Result of an enqueue into a partition."""

    _partition: str

    @classmethod
    def of(cls, done: Enqueued, partition: str) -> EnqueuedIn:
        """Return `done` with the name of its partition."""
        made = cls(*done)
        made._partition = partition
        return made

    @property
    def partition(self) -> str:
        """Name of the partition that accepted the message."""
        return self._partition


class Destination(Protocol):
    """A queue or partition that accepts messages."""

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
    """Sends messages to the partitions of one queue. Threads may share it."""

    def __init__(self, name: str, client: Client, queue_of: Callable[[str], Destination]) -> None:
        self._name, self._client, self._queue_of = name, client, queue_of
        self._map = PartitionMap(name)
        #: When to read the map again (time.monotonic).
        self._read_at = 0.0
        #: All epochs that were ever read, by number.
        self._seen = {epoch.number: epoch for epoch in self._map.epochs}
        #: Queues by name. The queue itself is among them, for epoch 0.
        self._places: dict[str, Destination] = {}
        self.refresh()

    @property
    def map(self) -> PartitionMap:
        """The partition map. It is reread periodically while older partitions aren't drained."""
        epochs, began = self._map.epochs, monotonic()
        if any(not epoch.drained for epoch in epochs[:-1]) and began >= self._read_at:
            try:
                return self.refresh()
            except JobqError:
                now = monotonic()
                self._read_at = now + max(READ_EVERY_S, PAUSE_PER_TRY * (now - began))
        return self._map

    def refresh(self, *, replaces: bool = False) -> PartitionMap:
        """Read the map now, and return it.

        Args:
            replaces: Whether to forget all earlier maps, because the server's data was replaced.
        """
        known = read_map(self._client, self._name)
        # Another thread may have read a later map.
        if replaces or known.newest.number >= self._map.newest.number:
            self._map = known
        if replaces:
            self._seen = {}
        self._seen |= {epoch.number: epoch for epoch in known.epochs}
        self._read_at = monotonic() + READ_EVERY_S
        return known

    def place(self, name: str) -> Destination:
        """Return the queue of this name."""
        return self._places.get(name) or self._places.setdefault(name, self._queue_of(name))

    def send(
        self,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
        caller: Caller | None = None,
        tries: Tries | None = None,
    ) -> list[Enqueued]:
        """Enqueue messages in their partitions, with one call for each partition; see `Queue.send`.

        If one partition rejects its messages, the messages for other partitions are still sent.

        Args:
            caller: All calls use the caller's next number, so the same messages can be sent again under that number.
        """
        call = _RoutedCall(level, values, rows, mids, caller, tries)
        asked, number = -1, caller.number if caller else 0
        try:
            while call.pending:
                epoch, is_newest = self._after(asked, caller is not None)
                try:
                    for name, indexes in grouped(call.pending, epoch, self._name, call.texts):
                        if caller:
                            caller.number = number
                        call.send(self.place(name), name, indexes, "newest" if is_newest else "old")
                    asked = epoch.number
                except SealedError as error:
                    newest = self.refresh().newest.number
                    if error.unknown or newest < epoch.number:
                        self._learn_again(call, error.unknown)
                        asked = -1
                    elif newest == epoch.number:
                        raise self._sealed() from error
        except JobqError as error:
            call.fail(error)  # earlier partitions may have accepted messages
        return call.result()

    def _learn_again(self, call: _RoutedCall, name: str) -> None:
        """Read the map after partitions were deleted, or data was lost or restored.

        Args:
            name: The partition without a fence counter. If the map has this partition, the partition lost its data.
        """
        known = self.refresh(replaces=True)
        if is_partition(self._name):  # a call to one partition
            known = read_map(self._client, base_of(self._name))
        epoch = known.epoch_of(name)
        if name and (epoch is not None or is_partition(self._name)):
            start_fence(self._client, name, epoch.number if epoch else 0)
        if call.is_numbered and call.was_answered:
            raise UnavailableError(
                f"the partitions of queue {self._name!r} changed during the call; repeat it"
            )

    def _after(self, asked: int, is_repeatable: bool) -> tuple[Epoch, bool]:
        """Return the next epoch that should get the call, and whether it is the newest epoch.

        A call that may be a repetition also goes to drained epochs, which may have accepted it in an earlier try.
        """
        for known in (self.map, self.refresh):
            newest = (known() if callable(known) else known).newest
            epochs = self._map.epochs
            if is_repeatable:
                epochs = tuple(self._seen[number] for number in sorted(self._seen))
            for epoch in epochs:
                if epoch.number > asked and (
                    is_repeatable or epoch.number == newest.number or not epoch.drained
                ):
                    return epoch, epoch.number == newest.number
        raise self._sealed()

    def _sealed(self) -> ScriptError:
        name, size = self._name, self._map.newest.size
        remedy = f"run jobq check fsck {name} --repair"
        if is_partition(name):
            remedy = f"enqueue in queue {base_of(name)!r}"
        elif size:
            remedy = f"run jobq partitions {name} {size}, or repeat jobq queue delete {name}"
        return ScriptError(
            f"queue {name!r} is sealed, but its map has no later partitions; {remedy}"
        )


class _RoutedCall:
    """One enqueue call, whose messages are sent to their partitions.

    Attributes:
        texts: For each message, the text that decides its partition; see `place_text`.
        pending: Indexes of messages that no partition has accepted or rejected.
        is_numbered: Whether the call has a number, so that it can be repeated safely.
        was_answered: Whether a partition has recorded the number.
    """

    def __init__(
        self,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
        caller: Caller | None,
        tries: Tries | None,
    ) -> None:
        self._level, self._values, self._rows, self._mids = level, values, rows, mids
        self._caller, self._tries = caller, tries
        self._width = 3 if values["keyed"] else 2
        own_keys = [str(key) for key in rows[2::3]] if self._width == 3 else [""] * len(mids)
        self.texts = [place_text(mid, key) for mid, key in zip(mids, own_keys, strict=True)]
        self._done: dict[int, Enqueued] = {}
        self.pending = list(range(len(mids)))
        self.is_numbered, self.was_answered = caller is not None, False
        self._errors: list[JobqError] = []

    def fail(self, error: JobqError) -> None:
        """Record why the pending messages can't be sent anywhere."""
        self._errors.append(error)

    def send(self, place: Destination, name: str, indexes: Sequence[int], step: Step) -> None:
        """Send these messages to one partition. Raises SealedError if the map of partitions is outdated."""
        width, mids = self._width, self._mids
        part = [arg for index in indexes for arg in self._rows[width * index : width * (index + 1)]]
        some = mids if len(indexes) == len(mids) else [mids[index] for index in indexes]
        over = set(indexes)
        try:
            replies = place.send(
                self._level, self._values, part, some, self._caller, self._tries, step=step
            )
        except SealedError:
            self._nothing_accepted()
            raise
        except NotDurableError as error:
            self._errors.append(error)
            accepted = set(error.mids)
            over = {index for index in indexes if mids[index] in accepted}
        except JobqError as error:
            self._errors.append(error)
        else:
            for index, reply in zip(indexes, replies, strict=True):
                if reply.action == MOVED:
                    over.remove(index)
                else:
                    self._done[index] = EnqueuedIn.of(reply, name)
            if not over:
                self._nothing_accepted()
        self.was_answered = True
        self.pending = [index for index in self.pending if index not in over]

    def _nothing_accepted(self) -> None:
        """Record that the last try changed nothing, so that the call may still be sent after a long outage."""
        if self._tries is not None:
            self._tries.answered_with_error()

    def result(self) -> list[Enqueued]:
        """Return the results; raise an error if a partition did not accept its messages."""
        errors, size = self._errors, len(self._mids)
        if not errors:
            return [self._done[index] for index in range(size)]
        left = tuple(mid for index, mid in enumerate(self._mids) if index not in self._done)
        refusals = [error for error in errors if not isinstance(error, NotDurableError)]
        # Prefer an unknown outcome, then a rejection: NotDurableError would mean that all messages were accepted.
        unknown = [error for error in refusals if isinstance(error, UnavailableError)]
        error = [*unknown, *refusals, *errors][0]
        any_accepted = bool(self._done) or any(getattr(failed, "mids", ()) for failed in errors)
        if isinstance(error, UnavailableError):
            # An error without mids means that no message was accepted.
            error.mids = left if any_accepted else ()
        elif isinstance(error, NotDurableError):
            error.mids = left
        elif any_accepted and self._values["again"] not in ("member", "next"):
            raise PartlyAcceptedError(
                f"partitions accepted {len(self._done):,} of {size:,} messages, but one rejected its part: {error}",
                left, error, [self._done[index] for index in sorted(self._done)],
            ) from error  # fmt: skip
        raise error
