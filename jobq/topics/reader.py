"""`Reader` and `AsyncReader` poll messages for a group and commit them. Uncommitted messages are delivered again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

from jobq.client.aio import LateReplyError
from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise
from jobq.client.numbered_calls import Caller, Values, moment
from jobq.client.steps import Steps
from jobq.config import duration_s
from jobq.durations import DAY_MS
from jobq.errors import ConfigError, JobqError, LeaseLostError, OutOfRangeError
from jobq.topics.calls import TopicCalls
from jobq.topics.group import TopicGroup
from jobq.topics.messages import Position, TopicBatch, TopicMessage, decoded, extent, valid_places
from jobq.topics.waiting import LogWaiter

Commit = Literal["manual", "auto", "read"]
MAX_COUNT = 1_000
#: How often waiting readers poll, because a pause, a seek and the re-creation of a group don't wake them.
LOOK_EVERY_S = 1.0
MAX_WAIT_S = 3600.0
log = logging.getLogger("jobq.topic")


class Reader(BlockingFacade):
    """Reads messages for a group. Threads must not share a reader.

    Attributes:
        commit: 'manual': call `commit` yourself. 'auto': each poll commits the previous batch. 'read': messages are
            committed as they are read, so a crash loses them.
        lease: How long polled messages belong to this reader. Afterwards, another reader can poll them, and then
            `commit` raises LeaseLostError.
        start, out_of_range: Options for creating the group if it doesn't exist, as for TopicGroup.subscribe.
    """

    def __init__(
        self,
        binding: TopicCalls,
        group: str,
        *,
        commit: Commit = "manual",
        start: Position = "earliest",
        lease: float | timedelta = 30,
        out_of_range: str = "earliest",
    ) -> None:
        if commit not in ("manual", "auto", "read"):
            raise ConfigError(f"commit={commit!r} is unknown; use manual, auto or read")
        self.group = TopicGroup(binding, group)
        self.commit_mode = commit
        #: Number of batches that couldn't be committed automatically, because they belong to another reader now.
        self.nlost = 0
        self._binding, self.client = binding, binding.client
        self._start, self._out_of_range = start, out_of_range
        self._lease_ms = checked_lease(lease) if commit != "read" else 0
        self._caller, self._pid = Caller(), os.getpid()
        self._held: TopicBatch | None = None
        #: Whether the last poll returned no message.
        self._came_empty = False
        #: With commit='read': settled messages that no poll has returned yet.
        self._unseen: list[TopicMessage] = []
        #: In a `for` loop: the current message, and the previous message.
        self._open: TopicMessage | None = None
        self._done: TopicMessage | None = None
        self._renewed = 0.0
        self._wait = LogWaiter(binding.client, binding.log_key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._binding.name!r}, {self.group.name!r}, {self.commit_mode!r})"

    @stepwise
    def poll(
        self, count: int = 100, block: float | timedelta = 0, *, now: int | None = None
    ) -> Steps[TopicBatch]:
        """Return the next messages, up to `count` and about 4 MiB. Return an empty batch if there are none.

        Messages whose lease has ended come before new messages. Raises OutOfRangeError if the next message was dropped
        and the group's `out_of_range` is 'error'.

        Args:
            block: How long to wait for the first message.
        """
        if not 1 <= count <= MAX_COUNT:
            raise ConfigError(
                f"count={count!r} is out of range; it must be between 1 and {MAX_COUNT:,}"
            )
        deadline = time.monotonic() + duration_s(block)
        if self._unseen:
            seen, self._unseen = self._unseen[:count], self._unseen[count:]
            return TopicBatch(seen, seen[0].index, seen[-1].index, deliveries=1)
        while True:
            batch, wait_ms, last = yield from self._ask(count, now)
            left = deadline - time.monotonic()
            if batch.messages or left <= 0 or self.interrupted:
                return batch
            pause = LOOK_EVERY_S if wait_ms < 0 else min(LOOK_EVERY_S, (wait_ms + 1) / 1000)
            yield from self._wait.steps(last, min(left, pause))
            if self.interrupted:
                return TopicBatch([])

    @stepwise
    def commit(self, done: TopicBatch | TopicMessage | None = None) -> Steps[int]:
        """Commit a batch, by default the last polled batch. Return the index up to which all the group's messages are
        committed.

        After an empty poll, the method only returns the index. If you pass a message of the last polled batch, the
        batch is committed up to that message, and the reader keeps the lease of the other messages. Raises
        LeaseLostError if another reader has received the messages, or if the group was moved.
        """
        self._check_process()
        batch, through = self._held, None
        if isinstance(done, TopicMessage):
            through = done.index
        elif done is not None:
            batch = done
        if (batch is None and self._came_empty) or (batch is not None and not batch.messages):
            return int((yield from TopicGroup.lag.steps(self.group)).settled)
        if batch is None or not batch.token:
            raise ConfigError(
                "no polled batch to commit; commit each batch once, after a poll with commit='manual'"
            )
        if through is not None and not batch.first <= through <= batch.last:
            raise ConfigError(
                f"message {through} isn't in the last polled batch ({batch.first} to {batch.last}); commit the "
                f"batch that contains it"
            )
        values = {"token": batch.token, "through": "" if through is None else through}
        reply = yield from self._binding.call_steps(
            "commit", self._caller, values, group=self.group.name
        )
        whole = through is None or through >= batch.last or reply[0] == b"stale"
        if whole and self._holds(batch):
            self._held = None
        if reply[0] == b"stale":
            raise self._lost(batch)
        return int(reply[1])

    @stepwise
    def extend(
        self,
        lease: float | timedelta | None = None,
        batch: TopicBatch | None = None,
        *,
        now: int | None = None,
    ) -> Steps[None]:
        """Renew the lease of a batch, by default the last polled batch. Raises LeaseLostError like `commit`."""
        lease_ms = self._lease_ms if lease is None else checked_lease(lease)
        yield from self._extend(batch, lease_ms, now)

    @stepwise
    def release(self, batch: TopicBatch | None = None) -> Steps[None]:
        """Give back the uncommitted messages of a batch, so that any reader of the group can fetch them immediately."""
        yield from self._extend(batch, 0, None)
        if batch is None or self._holds(batch):
            self._held = None

    @stepwise
    def take_back(self, batch: TopicBatch) -> Steps[None]:
        """Undo a poll whose caller didn't receive the messages. With commit='read', the next poll returns them."""
        if batch.token:
            yield from Reader.release.steps(self, batch)
        else:
            self._unseen = [*batch.messages, *self._unseen]

    def __iter__(self) -> Iterator[TopicMessage]:
        """Yield messages one by one, and wait for new messages. Calling `interrupt` ends the loop.

        The lease is renewed between messages. With commit='auto', a batch is committed when you request the message
        after the batch. If an exception or a break ends the loop, closing the reader releases the unhandled messages.
        """
        while True:
            batch = self.poll(block=MAX_WAIT_S)
            for message in batch.messages:
                if not self.begin(batch, message):
                    break
                yield message
            self.finish()
            if self.interrupted:
                return

    def interrupt(self) -> None:
        """Stop a waiting poll. A loop stops after the current batch. Any thread or signal handler may call this."""
        self._wait.end()

    @property
    def interrupted(self) -> bool:
        """Return whether the reader was interrupted."""
        return self._wait.ended

    def resume(self) -> None:
        """Undo `interrupt`, so that the reader can wait again."""
        self._wait.resume()

    @stepwise
    def begin(self, batch: TopicBatch, message: TopicMessage) -> Steps[bool]:
        """Prepare to yield a message. Return False if another reader has taken over the batch."""
        now = time.monotonic()
        if self._open is None:
            self._renewed = now
        elif batch.token and now - self._renewed > self._lease_ms / 3000:
            self._renewed = now
            try:
                yield from self._extend(batch, self._lease_ms, None)
            except LeaseLostError:
                self._held, self.nlost = None, self.nlost + 1
                return False
        self._done, self._open = self._open, message
        return True

    def finish(self) -> None:
        """Record that the last yielded message was handled."""
        self._done, self._open = self._open, None

    @stepwise
    def close(self) -> Steps[None]:
        """Close the reader, but keep the group. With commit='auto', commit handled messages. All other messages are
        given back.

        Outside a `for` loop, all messages polled with commit='auto' count as handled.
        """
        held = self._held
        if held is not None:
            try:
                if self.commit_mode == "auto" and self._open is None:
                    yield from Reader.commit.steps(self, held)
                else:
                    if self.commit_mode == "auto" and self._done and held.first <= self._done.index:
                        yield from Reader.commit.steps(self, self._done)
                    yield from Reader.release.steps(self, held)
            except LeaseLostError:
                self._held, self.nlost = None, self.nlost + 1
        if self._unseen:
            log.warning("topic %s, group %s: the reader was closed before it returned messages %s to %s, which are "
                        "already committed; seek back, or read them",
                        self._binding.name, self.group.name, self._unseen[0].index,
                        self._unseen[-1].index)  # fmt: skip
        self._wait.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError(
                f"{self!r} was created before this process was forked; create a reader in each process"
            )

    def _holds(self, batch: TopicBatch) -> bool:
        return self._held is not None and self._held.token == batch.token

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.end_of_block(kind)
        self.close()

    def end_of_block(self, kind: type[BaseException] | None) -> None:
        """Prepare for `close` at the end of a `with` block. `kind` is the class of the block's exception, or None."""
        if kind is not None and self._open is None:
            # The batch may not be done, so an automatic commit might lose messages.
            self.commit_mode = "manual"

    def _ask(self, count: int, now: int | None) -> Steps[tuple[TopicBatch, int, int]]:
        self._check_process()
        settling = self._held.token if self._held and self.commit_mode == "auto" else ""
        token = f"{self._caller.id}.{self._caller.number + 1}"
        values: Values = {
            "now": moment(now), "token": token, "count": count, "lease_ms": self._lease_ms, "commit": settling,
        }  # fmt: skip
        poll = self._binding.call_steps(
            "poll", self._caller, values, group=self.group.name, whole=True
        )
        try:
            reply = yield from poll
        except LateReplyError as late:
            if late.reply[0] not in (b"missing", b"closed"):
                with suppress(JobqError):
                    batch, _, _ = self._asked(late.reply, token, settling)
                    yield from Reader.take_back.steps(self, batch)
            raise
        if reply[0] == b"missing":
            yield from TopicGroup.subscribe.steps(
                self.group, self._start, out_of_range=self._out_of_range, now=now
            )
            return (yield from self._ask(count, now))
        return self._asked(reply, token, settling)

    def _asked(self, reply: Any, token: str, settling: str) -> tuple[TopicBatch, int, int]:
        """Parse a reply to a poll. Return the batch, the ms until more messages may be available, and the topic's last
        index.
        """
        word, committed, first, last, deliveries, lease_at, skipped, wait_ms, newest, entries = (
            reply
        )
        if committed == b"stale":
            self.nlost += 1
            log.warning("topic %s, group %s: a batch's lease ended before its commit; it will be delivered again",
                        self._binding.name, self.group.name)  # fmt: skip
        if settling:
            self._held = None
        if word == b"out-of-range":
            raise self._out(wait_ms, first, last)
        held = token if entries and self._lease_ms else ""
        messages = list(map(decoded, entries))
        self._came_empty = not messages
        batch = TopicBatch(messages, first, last, held, deliveries, lease_at, skipped)
        if held:
            self._held = batch
        return batch, wait_ms, newest

    def _extend(self, batch: TopicBatch | None, lease_ms: int, now: int | None) -> Steps[None]:
        batch = batch or self._held
        if batch is None or not batch.token:
            raise ConfigError("no polled batch; poll with commit='manual' or 'auto' first")
        values: Values = {"now": moment(now), "token": batch.token, "lease_ms": lease_ms}
        reply = yield from self._binding.run_steps(
            "extend", values, group=self.group.name, whole=True
        )
        if reply[0] == b"stale":
            raise self._lost(batch)

    def _lost(self, batch: TopicBatch) -> LeaseLostError:
        return LeaseLostError(
            f"topic {self._binding.name!r}, group {self.group.name!r}: {batch.first} to {batch.last} are no longer "
            f"leased: the lease ended and another reader got them, or the group was moved"
        )

    def _out(self, position: Any, first: int, last: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"group {self.group.name!r} is at {position}, but topic {self._binding.name!r} {extent(first, last)}; "
            f"seek to {valid_places(first, last)}",
            position, first, last,
        )  # fmt: skip


class AsyncReader(AsyncFacade[Reader]):
    """A Reader with awaitable methods, for `async for`. Only one coroutine at a time may use it.

    If a poll is cancelled, the reader releases the fetched messages. With commit='read', these messages are already
    committed, so the reader keeps them for its next poll.
    """

    poll = awaited(Reader.poll)
    commit = awaited(Reader.commit)
    extend = awaited(Reader.extend)
    release = awaited(Reader.release)
    begin = awaited(Reader.begin)
    close = awaited(Reader.close)

    def interrupt(self) -> None:
        """Interrupt the reader; see Reader.interrupt. Signal handlers can call this method, because it doesn't wait."""
        self.blocking.interrupt()

    def resume(self) -> None:
        """Allow waits again; see Reader.resume."""
        self.blocking.resume()

    async def __aiter__(self) -> AsyncIterator[TopicMessage]:
        """Yield messages like `Reader.__iter__`."""
        while True:
            batch = await self.poll(block=MAX_WAIT_S)
            for message in batch.messages:
                if not await self.begin(batch, message):
                    break
                yield message
            self.blocking.finish()
            if self.blocking.interrupted:
                return

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.blocking.end_of_block(kind)
        await self.close()


def checked_lease(lease: float | timedelta) -> int:
    """Return the lease in milliseconds. Raise ConfigError if it is out of range."""
    lease_ms = round(duration_s(lease) * 1000)
    if not 1 <= lease_ms <= DAY_MS:
        raise ConfigError(f"lease={lease!r} is out of range; it must be between 1 ms and a day")
    return lease_ms
