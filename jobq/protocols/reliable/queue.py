"""`ReliableQueue` and `AsyncReliableQueue` implement the commands of RedisRQ and additional methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobq.client.aio import LateReplyError
from jobq.client.connection import Client
from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise
from jobq.client.numbered_calls import CallState
from jobq.client.steps import Request, Steps
from jobq.config import duration_s
from jobq.errors import ConfigError, JobqError
from jobq.protocols.reliable.calls import Argument, ReliableCalls, at_least
from jobq.protocols.reliable.keys import checked_key
from jobq.protocols.reliable.replies import (
    DeadItem,
    PendingItem,
    Popped,
    Recovered,
    ReliableRecord,
    WaitingItem,
    text_of,
)
from jobq.protocols.reliable.waiting import BlockingPop, recovering

#: Size at which the script ends a page.
PAGE_BYTES = 262_144
MAX_S = 1_000_000_000
_ID = re.compile(r"\d+-\d+", re.ASCII)


class ReliableQueue(BlockingFacade):
    """Queues that keep messages until they are acknowledged; each message is delivered at least once.

    Threads may share a ReliableQueue. For tests, `now`, in epoch ms, replaces the server's clock.

    Args:
        key: In all methods, the name of a queue. Its Redis keys begin with `ns`.
    """

    def __init__(self, client: Client | None = None, ns: str = "reliable") -> None:
        self._calls = ReliableCalls(client, ns)
        self.client, self.ns = self._calls.client, ns

    def __repr__(self) -> str:
        return f"ReliableQueue(ns={self.ns!r})"

    @stepwise
    def push(self, key: str, *items: str | bytes, now: int | None = None) -> Steps[list[str]]:
        """Append all items or none; return their ids. Each id is greater than all earlier ids of the queue."""
        contents = [_content(item) for item in items]
        if not contents:
            raise ConfigError(f"push to {key!r} has no item; pass at least one item")
        names = [checked_key(key)]
        return _texts((yield from self._calls.change_steps("push", names, *contents, now=now)))

    @stepwise
    def pop(
        self,
        count: int = 1,
        block: int = 0,
        *keys: str,
        token: str = "",
        recover_after: float | str | timedelta | None = None,
        now: int | None = None,
    ) -> Steps[list[Popped] | None]:
        """Return up to `count` messages, from the first key and then from the following keys.

        Waiting clients are served in the order in which they began to wait, each with new messages of a single queue.

        Args:
            block: How many ms to wait. 0 doesn't wait; a negative number waits without limit. At the timeout, None is
                returned.
            token: Names the holder for ack, nack and extend.
            recover_after: First return each key's unacknowledged messages whose last delivery was at least this long
                ago. Waiting clients also get such messages.
        """
        names = _names(keys)
        at_least("count", count, 0)
        _checked_block(block)
        words: list[Argument] = ["DELIVERIES", *_token(token)]
        recover_ms = None if recover_after is None else _milliseconds(recover_after)
        if recover_ms is not None:
            words += ["RECOVER", recover_ms]

        def pop(names: Sequence[str], *more: Argument) -> Steps[list[Popped]]:
            counted: tuple[Argument, ...] = () if "COUNT" in more else ("COUNT", count)
            call = self._calls.change_steps(
                "pop", names, *words, *counted, *more, now=now, whole=True
            )
            try:
                rows = yield from call
            except LateReplyError as late:
                popped = [Popped.from_row(row) for row in late.reply]
                for name in dict.fromkeys(message.key for message in popped):
                    ids = [message.id for message in popped if message.key == name]
                    yield from self._give_back(name, ids, token)
                raise
            return [Popped.from_row(row) for row in rows]

        popped = yield from pop(names)
        if popped or block == 0 or count == 0:
            return popped
        return (yield from BlockingPop(self._calls, pop, names, block, recover_ms).steps())

    @stepwise
    def ack(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> Steps[list[str] | None]:
        """Remove delivered messages; return the removed ids, or None if the queue doesn't exist.

        If the result lacks an id, its message was acknowledged before or, with a token, has another holder now.
        """
        return self._of_ids("ack", key, ids, *_token(token), now=now)

    @stepwise
    def nack(
        self, key: str, *ids: str, token: str = "", front: bool = False, now: int | None = None
    ) -> Steps[list[str] | None]:
        """Put delivered messages back at the end of the queue, or at its front. Return ids as `ack` does.

        After `max_deliveries` deliveries (see `configure`), a message is dead-lettered instead.
        """
        where = ("FRONT",) if front else ()
        return self._of_ids("nack", key, ids, *_token(token), *where, now=now)

    @stepwise
    def release(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> Steps[list[str] | None]:
        """Put unhandled messages back at the front of the queue. Their delivery doesn't count."""
        return self._of_ids("nack", key, ids, *_token(token), "FRONT", "RELEASE", now=now)

    @stepwise
    def extend(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> Steps[list[str] | None]:
        """Set the delivery time of messages to now, to delay their recovery. Return ids as `ack` does."""
        return self._of_ids("extend", key, ids, *_token(token), now=now)

    @stepwise
    def recover(
        self,
        key: str,
        count: int,
        elapsed: int,
        *,
        block: int = 0,
        token: str = "",
        now: int | None = None,
    ) -> Steps[list[Recovered] | None]:
        """Return up to `count` messages delivered at least `elapsed` ms ago and not acknowledged.

        This counts as another delivery at the current time, so the next call returns other messages first. Returns None
        if the queue doesn't exist.

        Args:
            block: How many ms to wait for a message; see `pop`.
        """
        names = [checked_key(key)]
        at_least("count", count, 0)
        at_least("elapsed", elapsed, 0)
        _checked_block(block)

        def recover() -> Steps[list[Recovered] | None]:
            words: list[Argument] = [count, elapsed, "DELIVERIES", *_token(token)]
            try:
                rows = yield from self._calls.change_steps(
                    "recover", names, *words, now=now, whole=True
                )
            except LateReplyError as late:
                ids = [Recovered.from_row(row).id for row in late.reply or ()]
                yield from self._give_back(key, ids, token)
                raise
            return None if rows is None else [Recovered.from_row(row) for row in rows]

        messages = yield from recover()
        if messages or block == 0 or count == 0:
            return messages
        return (yield from recovering(self._calls, recover, key, block, elapsed))

    @stepwise
    def inspect(
        self, key: str, start: int, count: int, *, now: int | None = None
    ) -> Steps[list[WaitingItem]]:
        """Return up to `count` waiting messages in order, starting at position `start`. Raises EmptyKeyError.

        A negative start counts from the end. A start before the first message means the first message.
        """
        rows = yield from self._inspect(key, start, count, [], now)
        return [WaitingItem(text_of(id), content) for id, content in rows]

    @stepwise
    def pending(
        self, key: str, start: int, count: int, *, now: int | None = None
    ) -> Steps[list[PendingItem]]:
        """Return up to `count` pending messages, starting at position `start`, like inspect. Raises EmptyKeyError."""
        rows = yield from self._inspect(key, start, count, ["PENDING"], now)
        return [PendingItem(text_of(id), *rest) for id, *rest in rows]

    @stepwise
    def dead(
        self, key: str, start: int = 0, count: int = 100, *, now: int | None = None
    ) -> Steps[list[DeadItem]]:
        """Return messages dead-lettered after too many deliveries, sorted by time of death.

        Raises EmptyKeyError for a missing queue.
        """
        rows = yield from self._inspect(key, start, count, ["DEAD"], now)
        return [DeadItem(text_of(id), *rest) for id, *rest in rows]

    def _inspect(
        self, key: str, start: int, count: int, place: list[str], now: int | None
    ) -> Steps[list[Any]]:
        if isinstance(start, bool) or not isinstance(start, int):
            raise ConfigError(f"start={start!r} is not a whole number")
        at_least("count", count, 1)
        rows: list[Any] = []
        while count > 0:
            words: list[Argument] = [*place, start, count]
            page = yield from self._calls.ask_steps(
                "inspect", [checked_key(key)], *words, *(() if now is None else ("NOW", now))
            )
            rows += page
            count -= len(page)
            if sum(len(row[0]) + len(row[1]) for row in page) < PAGE_BYTES:
                break  # the page is complete
            if start < 0:
                facts = yield from ReliableQueue.info.steps(self, key)
                lengths = {"PENDING": facts.delivered, "DEAD": facts.dead}
                start = max(0, start + lengths.get("".join(place), facts.undelivered))
            start += len(page)
        return rows

    @stepwise
    def revive(self, key: str, *ids: str, now: int | None = None) -> Steps[list[str] | None]:
        """Put dead messages back as if they had never been delivered; return their ids."""
        return self._of_ids("revive", key, ids, now=now)

    @stepwise
    def purge(self, key: str, *ids: str, now: int | None = None) -> Steps[list[str] | None]:
        """Remove dead messages; return the removed ids."""
        return self._of_ids("purge", key, ids, now=now)

    @stepwise
    def info(self, key: str) -> Steps[ReliableRecord]:
        """Return the queue's message counts. Raises EmptyKeyError for a missing queue."""
        rows = yield from self._calls.ask_steps("info", [checked_key(key)], "ALL")
        facts = dict(zip(rows[::2], rows[1::2], strict=True))
        facts |= {b"key": key, b"last_id": text_of(facts[b"last_id"])}
        names = ReliableRecord.__struct_fields__
        return ReliableRecord(**{name: facts[name.encode()] for name in names})

    @stepwise
    def length(self, key: str) -> Steps[int]:
        """Return how many messages wait; 0 if the queue doesn't exist."""
        place = self._calls.places([checked_key(key)])[0]
        reply = yield Request(place, CallState(self.client, ("LLEN", place)))
        return int(reply)

    @stepwise
    def configure(self, key: str, *, max_deliveries: int) -> Steps[None]:
        """Set how often a message is delivered before it is dead-lettered; 0 means no limit."""
        most = at_least("max_deliveries", max_deliveries, 0)
        yield from self._calls.ask_steps("configure", [checked_key(key)], most)

    @stepwise
    def clear(self, key: str) -> Steps[int | None]:
        """Remove all messages; return their number. The queue still exists, and its ids continue after the last id."""
        return self._calls.change_steps("clear", [checked_key(key)])

    @stepwise
    def delete(self, key: str) -> Steps[int | None]:
        """Delete a queue; return the number of its messages, or None if the queue doesn't exist."""
        return self._calls.change_steps("clear", [checked_key(key)], "QUEUE")

    def _of_ids(
        self, verb: str, key: str, ids: Sequence[str], *words: Argument, now: int | None
    ) -> Steps[list[str] | None]:
        names = [checked_key(key)]
        if not ids:
            raise ConfigError(f"{verb} on {key!r} has no id; pass at least one id")
        for id in ids:
            if not isinstance(id, str) or len(id) > 40 or not _ID.fullmatch(id):
                shown = repr(id)[:60]
                raise ConfigError(f"{shown} is not an id; ids look like 1601155608777-1")
        reply = yield from self._calls.change_steps(
            verb, names, *words, *ids, now=now, whole=verb == "nack"
        )
        return None if reply is None else _texts(reply)

    def _give_back(self, key: str, ids: Sequence[str], token: str) -> Steps[None]:
        if not ids:
            return
        try:
            yield from ReliableQueue.release.steps(self, key, *ids, token=token)
        except JobqError:
            pass  # the messages stay pending, as after a crash


class AsyncReliableQueue(AsyncFacade[ReliableQueue]):
    """The methods of ReliableQueue as coroutines. Any number of coroutines may wait on the event loop.

    A cancelled pop or recover gives back the messages that it got, so that they needn't be recovered.
    """

    def __init__(self, client: Client | None = None, ns: str = "reliable") -> None:
        super().__init__(ReliableQueue(client, ns))

    push = awaited(ReliableQueue.push)
    pop = awaited(ReliableQueue.pop)
    ack = awaited(ReliableQueue.ack)
    nack = awaited(ReliableQueue.nack)
    release = awaited(ReliableQueue.release)
    extend = awaited(ReliableQueue.extend)
    recover = awaited(ReliableQueue.recover)
    inspect = awaited(ReliableQueue.inspect)
    pending = awaited(ReliableQueue.pending)
    dead = awaited(ReliableQueue.dead)
    revive = awaited(ReliableQueue.revive)
    purge = awaited(ReliableQueue.purge)
    info = awaited(ReliableQueue.info)
    length = awaited(ReliableQueue.length)
    configure = awaited(ReliableQueue.configure)
    clear = awaited(ReliableQueue.clear)
    delete = awaited(ReliableQueue.delete)


def _names(keys: Sequence[str]) -> list[str]:
    if not keys:
        raise ConfigError("pop() has no keys; pass at least one key after count and block")
    return [checked_key(key) for key in keys]


def _content(item: str | bytes) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"item {item!r} is not valid text; pass its bytes") from None
    if not isinstance(item, bytes):
        raise ConfigError(f"item {item!r} is neither text nor bytes")
    return item


def _token(token: str) -> tuple[str, ...]:
    return ("TOKEN", token) if token else ()


def _checked_block(block: int) -> None:
    if isinstance(block, bool) or not isinstance(block, int):
        raise ConfigError(
            f"block={block!r} is not a whole number of ms; 0 doesn't wait, -1 waits indefinitely"
        )


def _milliseconds(recover_after: float | str | timedelta) -> int:
    seconds = duration_s(recover_after)
    if not 0 <= seconds <= MAX_S:
        raise ConfigError(
            f"recover_after={recover_after!r} is out of range; it must be between 0 and {MAX_S:,} s"
        )
    return round(seconds * 1000)


def _texts(reply: Sequence[bytes]) -> list[str]:
    return [text_of(text) for text in reply]
