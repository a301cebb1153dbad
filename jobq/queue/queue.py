"""A queue of messages: one method per script.

For people who want messages, not jobs. Delivery is at least once: a message whose enqueue returned is
handed out until an attempt that still holds its token finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from jobq.client import clock
from jobq.client.ahead import Ahead
from jobq.client.numbered_calls import Caller, Tries
from jobq.config import duration_s
from jobq.errors import CodecError, ConfigError, ScriptError, UnavailableError
from jobq.queue.admin import Admin
from jobq.queue.binding import (
    BYTES_PER_CALL,
    PER_CALL,
    Argument,
    Binding,
    checked_mid,
    moment,
    new_mid,
    renewal,
    served,
    word,
)
from jobq.queue.directory import register_queue
from jobq.queue.types import (
    MAX_CONTENT,
    Action,
    Dequeued,
    Ending,
    Enqueued,
    Finished,
    Lease,
    Message,
    Status,
    text_of,
)

if TYPE_CHECKING:
    from jobq.queue.durability import Confirmation

ACTIONS = frozenset(("added", "updated", "requeued", "exists"))
REPLIES = frozenset(("ok", "dead", "stale"))
LEASE_MS = 15_000
DAY_MS = 86_400_000
_LATEST_S = 253_402_300_799
CRASH_LIMIT = 3
#: Endings and hand-outs of one call.
MOST = 1_000
#: What the scripts take for a mid at most.
MOST_MID_BYTES = 512

Content = bytes | tuple[str | None, bytes]
Read = TypeVar("Read")
_NO_OPTIONS: tuple[Argument, ...] = ("", "", "", 0, 0, "", "")


class EnqueueOptions(TypedDict, total=False):
    """How messages are accepted; see Queue.enqueue_many."""

    delay: float | timedelta | None
    at: datetime | float | None
    can_update: bool
    can_requeue: bool
    dedupe: float | timedelta | None
    lock_ms: int | None
    now: int | None


class Queue(Binding):
    """The queue `name`, on `client` or the default one. Threads may share it.

    Every method takes `now`, epoch ms, in place of the server's clock: for tests.
    """

    _listed_until = 0

    @cached_property
    def admin(self) -> Admin:
        """What people and dashboards ask: counts, pages, pause, collect, revive, clear, checks."""
        return Admin(self)

    def enqueue(
        self,
        content: bytes,
        *,
        mid: str | None = None,
        caller: Caller | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """Accept one message; for the options see enqueue_many."""
        prepared = self._options(**options) if options else _NO_OPTIONS
        return self._enqueue([(mid, content)], prepared, caller, durability)[0]

    def enqueue_many(
        self,
        contents: Iterable[Content],
        *,
        caller: Caller | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Enqueued]:
        """Accept messages, up to 250 in a round trip, each round trip whole or not at all.

        delay (seconds or timedelta) or at (datetime with a zone, or epoch seconds): not before then.
        can_update: newer content replaces what waits under the same mid. can_requeue: newer content runs
        after the current run. dedupe: refuse the mid for so long after it is done; otherwise only until
        it is collected. lock_ms: least length of this message's locks. durability: memory, disk or replicas=n
        instead of the client's. Raises ConfigError or CodecError for a bad mid, option or size, ServerFullError when
        the server takes no writes (memory or disk full, replicas missing), NotDurableError for the messages of
        a round trip that were accepted but not as durably as asked, UnavailableError when the outcome of a call
        is unknown (its `mids` are the messages), BufferFullError when the client has an outage buffer and that is full.
        """
        prepared = self._options(**options) if options else _NO_OPTIONS
        done: list[Enqueued] = []
        for batch in _batches(contents):
            done += self._enqueue(batch, prepared, caller, durability)
        return done

    def enqueue_at_once(
        self,
        contents: Sequence[tuple[str, bytes]],
        caller: Caller,
        **options: Unpack[EnqueueOptions],
    ) -> list[Enqueued]:
        """enqueue_many of up to 250 as the one next call of `caller`, however long they are.

        Whoever repeats that call, under the same number, repeats all of it.
        """
        if len(contents) > PER_CALL:
            raise ConfigError(
                f"{len(contents):,} messages are too many for a call; give {PER_CALL}"
            )
        return self._enqueue([*contents], self._options(**options), caller, None)

    def dequeue(
        self,
        limit: int = 1,
        *,
        lease_ms: int = LEASE_MS,
        crash_limit: int = CRASH_LIMIT,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> Dequeued:
        """Up to `limit` messages, each locked for lease_ms. One that crashed before comes alone."""
        args = (moment(now), _checked_lease(lease_ms), crash_limit, _checked_limit(limit))
        with self._own(caller) as own:
            return _handed(self._call("dequeue", own, args), 1, own, limit)

    def dequeue_ahead(
        self, limit: int, *, lease_ms: int, crash_limit: int, caller: Caller
    ) -> Ahead:
        """A dequeue to be sent behind a blocking pop; until it is read the caller makes no other call."""
        args = ("", _checked_lease(lease_ms), crash_limit, _checked_limit(limit))
        script, keys, numbered = self._next_call("dequeue", caller, args)
        tries, renew = Tries(), renewal("dequeue", caller, args)
        # Behind the wait it may arrive without anybody here knowing.
        tries.sent()

        def read(reply: Any) -> Dequeued:
            return _handed(served(self.name, caller, reply), 1, caller, limit)

        return Ahead(
            self.client.words(script, keys, numbered),
            read,
            lambda: read(self.client.run(script, keys, numbered, tries=tries, renew=renew)),
        )

    def finish(
        self,
        endings: Sequence[Ending],
        *,
        dequeue: int = 0,
        lease_ms: int = LEASE_MS,
        crash_limit: int = CRASH_LIMIT,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> Finished:
        """End up to 1,000 attempts and, if asked, dequeue in the same round trip.

        An ending whose token was superseded is answered 'stale' and changes nothing; 'unknown' where an outage lasted
        so long that a lost call of these endings may have been accepted.
        """
        _checked_limit(dequeue, 0)
        _checked_limit(len(endings), 0)
        lease_ms = _checked_lease(lease_ms)
        args: list[Argument] = [moment(now), lease_ms, crash_limit, dequeue, len(endings)]
        result_keys: list[str] = []
        results: list[Argument] = []
        for index, ending in enumerate(endings, 1):
            args += _ending_arguments(ending)
            if ending.result is not None:
                result_keys.append(self.result_key(ending.mid))
                results += (index, ending.result_ttl_ms, ending.result)
        with self._own(caller) as own:
            renewals = own.renewals
            reply = self._call("finish", own, [*args, *results], result_keys)
            replies = _read(lambda: [word(item, REPLIES) for item in reply[: len(endings)]])
            if own.renewals != renewals:
                # It may be the lost call that ended them.
                replies = ["unknown" if reply == "stale" else reply for reply in replies]
            handed = _handed(reply, len(endings), own, dequeue) if dequeue else None
            return Finished(replies, handed)

    def extend(
        self, holds: Sequence[tuple[str, str]], lease_ms: int = LEASE_MS, *, now: int | None = None
    ) -> list[bool]:
        """Renew locks; False where somebody else has the message now, or it was cancelled."""
        if not _checked_limit(len(holds), 0):
            return []
        parts = [part for hold in holds for part in hold]
        reply = self._run("extend", moment(now), _checked_lease(lease_ms), *parts)
        return [item == b"ok" for item in reply]

    def release(
        self,
        holds: Sequence[tuple[str, str]],
        *,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[bool]:
        """Give back messages that weren't started, to the front of ready; costs no attempt."""
        if not _checked_limit(len(holds), 0):
            return []
        args = [moment(now), *(part for hold in holds for part in hold)]
        with self._own(caller) as own:
            return [item == b"ok" for item in self._call("release", own, args)]

    def close_caller(self, caller_id: str) -> list[Lease]:
        """Refuse all later calls of a caller that is gone; what its last call handed out and it still holds."""
        script, names, _ = self._bound.get("close") or self._bind("close")
        reply = self.client.run(script, [*names, f"{self.prefix}call:{caller_id}"], [caller_id])
        texts = [item.decode() for item in reply]
        held = [Lease(mid, token) for mid, token in zip(texts[::2], texts[1::2], strict=True)]
        return held[:MOST]  # more hands out nobody but who forged the record

    def progress(self, mid: str, token: str, text: str) -> bool:
        """Note how far a running attempt is; False when it no longer holds the message."""
        return bool(self._run("progress", mid, token, text)[0] == b"ok")

    def status(self, mid: str, *, now: int | None = None) -> Status:
        """Where `mid` is in its life."""
        reply = self._run("status", checked_mid(mid), moment(now))
        word, attempts, ncrashes, not_before, lock_at, generation, dead_id, progress, unknowns = (
            reply
        )
        return Status(
            word.decode(), attempts, ncrashes, not_before, lock_at,
            text_of(generation), text_of(dead_id), text_of(progress), unknowns,
        )  # fmt: skip

    def cancel(self, *mids: str, caller: Caller | None = None, now: int | None = None) -> list[str]:
        """Per mid 'cancelled', or the status that leaves nothing to cancel.

        A running job isn't stopped here: its outcome is refused, and its child hears of it at the next
        renewal of its lease.
        """
        return self._by_parts("cancel", [checked_mid(mid) for mid in mids], caller, now)

    def _options(
        self,
        *,
        delay: float | timedelta | None = None,
        at: datetime | float | None = None,
        can_update: bool = False,
        can_requeue: bool = False,
        dedupe: float | timedelta | None = None,
        lock_ms: int | None = None,
        now: int | None = None,
    ) -> list[Argument]:
        if delay is not None and at is not None:
            raise ConfigError(f"delay={delay!r} and at={at!r} say two things; give one")
        if lock_ms is not None:
            lock_ms = _checked_ms("lock_ms", lock_ms)
        return [
            moment(now), _milliseconds("delay", delay), _epoch_ms(at), int(can_update), int(can_requeue),
            "" if lock_ms is None else lock_ms, _milliseconds("dedupe", dedupe),
        ]  # fmt: skip

    def _enqueue(
        self,
        batch: list[tuple[str | None, bytes]],
        options: Sequence[Argument],
        caller: Caller | None,
        durability: str | None,
    ) -> list[Enqueued]:
        args: list[Argument] = list(options)
        mids = [new_mid() if mid is None else checked_mid(mid) for mid, _ in batch]
        for mid, (_, content) in zip(mids, batch, strict=True):
            if len(content) > MAX_CONTENT:
                raise CodecError(
                    f"content of {len(content)} bytes for {mid!r} is over {MAX_CONTENT}; "
                    "store it elsewhere and enqueue a reference"
                )
            args += (mid, content)
        level = durability or self.client.durability
        buffer = self.client.outage
        if buffer is None or caller is not None:
            return self._send(level, args, mids, caller)
        return buffer.enqueue(self.name, level, args, mids)

    def _send(
        self,
        level: str,
        args: list[Argument],
        mids: Sequence[str],
        caller: Caller | None,
        tries: Tries | None = None,
    ) -> list[Enqueued]:
        if clock.boot_ns() >= self._listed_until:
            # Before: an error here must not hide that the messages were accepted.
            self._listed_until = register_queue(self.client, self.name)
        own, tries = caller or self._callers.take(), tries or Tries()
        try:
            if level == "memory":
                reply = self._call("enqueue", own, args, tries=tries)
            else:
                confirmation = self._confirmation(level, own)
                reply = self._call("enqueue", own, args, (), confirmation.exchange, tries)
                confirmation.check(mids)
        except UnavailableError as error:
            error.mids = tuple(mids) if tries.arrived else ()
            raise
        if caller is None:
            # Not reached after an error: that call may still arrive, so its caller stays out of use.
            self._callers.give_back(own)
        return [
            Enqueued(mid, "added") if action == b"added" else _enqueued(mid, action, reason)
            for mid, action, reason in zip(mids, reply[::2], reply[1::2], strict=True)
        ]

    def _confirmation(self, level: str, caller: Caller) -> Confirmation:
        from jobq.queue.durability import Confirmation

        return Confirmation(level, self.client, f"{self.prefix}call:{caller.id}")


def _enqueued(mid: str, action: bytes, reason: bytes) -> Enqueued:
    return Enqueued(mid, cast(Action, word(action, ACTIONS)), reason.decode())


def _batches(contents: Iterable[Content]) -> Iterator[list[tuple[str | None, bytes]]]:
    batch: list[tuple[str | None, bytes]] = []
    size = 0
    for item in contents:
        pair = (None, item) if isinstance(item, bytes) else item
        batch.append(pair)
        size += len(pair[1])
        if len(batch) == PER_CALL or size >= BYTES_PER_CALL:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _ending_arguments(ending: Ending) -> tuple[Argument, ...]:
    if ending.outcome in ("dead", "crashed"):
        detail: Argument = ending.reason
    else:
        detail = "" if ending.backoff_ms is None else ending.backoff_ms
    return (ending.mid, ending.token, ending.outcome, detail, ending.age_ms, ending.record)


def _handed(reply: list[Any], start: int, caller: Caller, limit: int) -> Dequeued:
    caller.arrived()
    if len(reply) > start + 3 + 7 * limit:
        raise ScriptError("a script handed out more than was asked for; somebody forged its record")
    return _read(lambda: _dequeued(reply, start, caller))


def _read(read: Callable[[], Read]) -> Read:
    """What `read` makes of a reply. A script repeats what stands in its caller's record, where anything may stand."""
    try:
        return read()
    except (TypeError, AttributeError, ValueError) as error:
        raise ScriptError(f"a reply can't be read; somebody forged its record: {error}") from error


def _dequeued(reply: list[Any], start: int, caller: Caller) -> Dequeued:
    sleep_ms, paused, fence = reply[start : start + 3]
    messages = []
    stem = f"{caller.id}.{caller.number}."
    rows = iter(reply[start + 3 :])
    for index, row in enumerate(zip(rows, rows, rows, rows, rows, rows, rows, strict=True)):
        mid, content, attempt, ncrashes, generation, lock_at, unknowns = row
        if not mid:
            continue
        if len(mid) > MOST_MID_BYTES:
            raise ScriptError(
                f"a script handed out a mid of {len(mid):,} bytes; somebody forged it"
            )
        token = f"{stem}{index}"
        life = generation.decode("utf-8", "replace") if generation else token
        messages.append(
            Message(
                mid.decode(),
                content,
                attempt,
                ncrashes,
                fence + index,
                life,
                token,
                lock_at,
                unknowns,
            )
        )
    return Dequeued(messages, sleep_ms, bool(paused), 0 if messages else fence)


def _checked_limit(limit: int, least: int = 1) -> int:
    if not least <= limit <= MOST:
        raise ConfigError(f"{limit!r} messages in one call: take {least} to {MOST}")
    return limit


def _checked_lease(lease_ms: int) -> int:
    # A lock that ends as it begins would hand one message out on every call.
    return _checked_ms("lease_ms", lease_ms)


def _checked_ms(name: str, value: int) -> int:
    if not isinstance(value, int) or not 1 <= value <= DAY_MS:
        raise ConfigError(f"{name}={value!r} must be a whole number from 1 to {DAY_MS} (a day)")
    return value


def _milliseconds(name: str, value: float | timedelta | None) -> Argument:
    if value is None:
        return ""
    seconds = duration_s(value)
    if not 0 <= seconds < 3_153_600_000:
        raise ConfigError(f"{name}={value!r} is out of range; take 0 seconds to 100 years")
    return round(seconds * 1000)


def _epoch_ms(at: datetime | float | None) -> Argument:
    if at is None:
        return ""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ConfigError(f"at={at!r} has no time zone; use datetime.now(timezone.utc) + …")
        at = at.timestamp()
    if not isfinite(at) or at > _LATEST_S:
        raise ConfigError(f"at={at!r} is out of range; take a moment before the year 10000")
    # What lies before 1970 is over as well.
    return max(0, round(at * 1000))
