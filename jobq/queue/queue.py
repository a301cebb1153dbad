"""A queue of messages: one method per script.

Use it if you want messages, not jobs. Delivery is at least once: after an enqueue has returned, workers receive the
message until an attempt with a valid token ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, get_args

from msgspec import structs

from jobq.client.connection import Client, default_client
from jobq.client.names import checked_name, is_partition
from jobq.client.numbered_calls import (
    BYTES_PER_CALL,
    BoundScripts,
    Caller,
    Callers,
    CallState,
    FixedValues,
    NumberedCall,
    PlainFirst,
    ScriptCall,
    Tries,
    moment,
    new_id,
)
from jobq.client.pipelining import OverlappingCalls, commands, run_all
from jobq.client.scripts import Argument
from jobq.config import HARD_MAX_CONTENT, duration_s
from jobq.durations import DAY_MS, Duration, Rate, counted
from jobq.errors import CodecError, ConfigError, KeyFullError, ScriptError, UnavailableError
from jobq.habits import refuse_attribute
from jobq.queue import keys
from jobq.queue.admin import Admin
from jobq.queue.directory import register_queue
from jobq.queue.durability import Confirmation, SharedConfirmation
from jobq.queue.members import CLAIM_MS, OutboxEntry, read_entries
from jobq.queue.mids import (
    MadeMids,
    checked_mid,
    members_mid,
    new_mid,
    no_members_mid,
    users_mid,
)
from jobq.queue.outage import attach_buffer
from jobq.queue.partitions import Epoch, read_map
from jobq.queue.remembered import with_result_keys
from jobq.queue.routing import MOVED, PartitionRouter, SealedError, Step
from jobq.queue.rules import (
    MAX_WEIGHT,
    UNCHANGED,
    KeyFacts,
    Number,
    QueueRules,
    Rule,
    Unchanged,
    facts_of,
    hold_ms,
    number_given,
    number_kept,
    rate_given,
    rate_kept,
)
from jobq.queue.shared_settings import check_shares, set_limits
from jobq.queue.types import (
    CRASH_LIMIT,
    LEASE_S,
    PER_CALL,
    Action,
    AddedMessages,
    Dequeued,
    Ending,
    Enqueued,
    EnqueuedMany,
    Finished,
    Lease,
    Message,
    Status,
    check_start,
    checked_at,
    checked_content,
    checked_duration,
    checked_key,
    remember_ms,
    text_of,
)

ACTIONS: dict[bytes, Action] = {
    b"added": "added", b"updated": "updated", b"requeued": "requeued", b"exists": "exists",
    MOVED.encode(): cast("Action", MOVED),
}  # fmt: skip
#: Arguments of dequeue and finish that their scripts for plain calls also take.
_OF_PLAIN = ("now", "lease_ms", "limit")
#: Outcomes whose detail is a reason, not a backoff.
_WITH_REASON = frozenset(("dead", "crashed"))
#: How a reply of a script for plain calls begins.
PLAIN = b"plain"
REPLIES = {b"ok": "ok", b"dead": "dead", b"stale": "stale"}
LEASE_MS = round(LEASE_S * 1000)
#: Maximum number of endings, and of messages to fetch, in one call.
MAX_COUNT = 1_000
#: Statuses of a mid without a live message.
_OVER = ("nil", "dead")
#: Maximum length of a mid in the scripts.
MAX_MID_BYTES = 512

#: A content; a mid and a content; or a mid, a content and a key. A mid or a key may be None.
Content = bytes | tuple[str | None, bytes] | tuple[str | None, bytes, str | None]
Values = dict[str, Argument]
#: A round trip: its options, its rows, and the mids of its messages.
Batch = tuple[Values, Sequence[Argument], Sequence[str]]
#: How enqueue treats a message whose mid is taken. In the script: the flags can_update and can_requeue.
OnConflict = Literal["skip", "replace", "requeue"]
#: When a taken mid is free again. In the script: `again` and dedupe_ms.
Until = Literal["done", "start"] | Duration
#: Values of `again` for messages of flows. NEXT is for messages enqueued in the order of their numbers.
MEMBER, NEXT = "member", "next"
#: Errors raised by reading a reply of an unexpected shape.
_UNREADABLE = (KeyError, TypeError, AttributeError, ValueError)
ADDED, CLOSED, SEALED, _MOVED = [b"added", b""], b"closed", b"sealed", MOVED.encode()
#: Arguments of the script for plain enqueues, and of the general script for the same call.
NONE = FixedValues({})
NO_OPTIONS = FixedValues({
    "now": "", "delay_ms": "", "at": "", "can_update": 0, "can_requeue": 0, "again": "",
    "lock_ms": "", "dedupe_ms": "", "at_most_ms": "", "drop_results": "", "keyed": "",
})  # fmt: skip


class EnqueueOptions(TypedDict, total=False):
    """The options of an enqueue; see Queue.enqueue_many."""

    delay: Duration | None
    at: datetime | float | None
    on_conflict: OnConflict | None
    until: Until | None
    throttle: Duration | None
    debounce_max: Duration | None
    lease: Duration | None
    drop_results: bool
    key: str | None
    ordered: bool
    now: int | None


class Queue:
    """The queue `name`, on `client` or the default client. Threads may share it.

    For tests, most methods accept `now`, in epoch ms, which replaces the server's clock.
    """

    def __init__(self, name: str, client: Client | None = None) -> None:
        self.name = checked_name("queue", name)
        self.client = default_client() if client is None else client
        self.prefix = keys.prefix(self.client.namespace, name)
        self.wake_key = keys.key(self.prefix, "wake")
        self.scripts = queue_scripts(self.client, "queue", name)
        self.callers = Callers()
        self.enqueues, self.dequeues, self.finishes = PlainFirst(), PlainFirst(), PlainFirst()
        #: Whether to ignore the queue's partitions. Set this before the first use of `admin`.
        self.is_alone = False
        #: Routes to its partitions, once the queue is known to have some.
        self.routes: PartitionRouter | None = None
        #: Time (time.monotonic) at which this process adds the queue to the list of queues again.
        self.listed_until = 0.0
        attach_buffer(self.client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @cached_property
    def admin(self) -> Admin:
        """The administrative operations, such as counting messages, pausing the queue, and reviving dead messages."""
        return Admin(self, partial(Queue, client=self.client))

    def result_key(self, mid: str) -> str:
        """Return the key of the result of `mid`. Its value is a list with one item."""
        return keys.result(self.prefix, mid)

    def result_keys(self, mids: Sequence[str]) -> list[str]:
        """Return the keys of the results of these mids; see `result_key`."""
        return [keys.result(self.prefix, mid) for mid in mids]

    def enqueue(
        self,
        content: bytes,
        *,
        mid: str | None = None,
        caller: Caller | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """Enqueue one message; for the options, see enqueue_many."""
        client = self.client
        level = durability or client.durability
        batch = prepared(content, mid, options)
        if client.outage is None or caller is not None:
            return self.send(level, *batch, caller)[0]
        accepted: Enqueued = client.outage.enqueue(self, level, *batch)[0]
        return accepted

    def enqueue_many(
        self,
        contents: Iterable[Content],
        *,
        caller: Caller | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Sequence[Enqueued]:
        """Enqueue messages, up to 250 per round trip. The server accepts or rejects a round trip in full.

        `contents` is read while messages are sent. After an error, the messages of earlier round trips stay enqueued,
        and the messages of the next round trip may be enqueued.

        Args:
            delay, at, lease, ordered: See `jobq.job`.
            on_conflict: How to handle a taken mid. "skip" (default) rejects the message, "replace" replaces the waiting
                content, and "requeue" runs the message after the current run.
            until: Keep the mid taken until the message is done ("done"), until it starts ("start"), or for this long
                after it is done. None: until upkeep removes the done message.
            throttle: Reject the mid for this long, even if the message is done earlier.
            debounce_max: Limit on how long later enqueues can postpone the message, counted from the first enqueue.
            drop_results: Delete the results of earlier messages with these mids.
            key: Limits and order apply to messages with the same key. A tuple in `contents` can override it by a third
                item.
            durability: memory, disk or replicas=n, instead of the client's durability.

        Raises:
            ConfigError, CodecError: A mid, an option or a size is invalid.
            KeyFullError: A key has its maximum number of waiting messages.
            ServerFullError: The server rejects writes (memory or disk full, replicas missing).
            NotDurableError: The messages of a round trip were accepted but are less durable than requested.
            UnavailableError: The server can't be reached. The error's `mids` name the messages that may have been
                accepted.
            BufferFullError: The client's outage buffer is full.
        """
        done, batches = EnqueuedMany(), batches_of(contents, options)
        some = list(islice(batches, 2))
        level = durability or self.client.durability
        alone = caller is not None or level != "memory" or self.client.outage is not None
        alone = alone or self.routes is not None
        if len(some) == 2 and not alone:
            self._overlap(chain(some, batches), done)
            return done
        for batch in chain(some, batches):
            if isinstance(batch, Exception):
                raise batch
            done.add(self._enqueue(batch, caller, durability))
        return done

    def enqueue_in_one_call(
        self,
        contents: Sequence[Content],
        caller: Caller,
        **options: Unpack[EnqueueOptions],
    ) -> Sequence[Enqueued]:
        """Enqueue up to 250 messages in one call of `caller`, whatever their total size; see enqueue_many.

        Repeating the call with the same number of `caller` doesn't enqueue the messages again.
        """
        if len(contents) > PER_CALL:
            raise ConfigError(
                f"{len(contents):,} messages are too many for one call; pass at most {PER_CALL}"
            )
        batch = batch_of(contents, enqueue_values(**options), options.get("key"))
        return self._enqueue(batch, caller, None)

    def enqueue_members(
        self,
        contents: Iterable[Content],
        *,
        in_order: bool = False,
        caller: Caller | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Sequence[Enqueued]:
        """Enqueue messages of flows, whose mids begin with '~'.

        A mid with a dead message is rejected with the action 'exists' and the status 'dead'. All options of
        enqueue_many work except on_conflict, throttle, debounce_max and drop_results, and `until` can't be 'done' or
        'start'. The call bypasses an outage buffer, so returned messages are on the server.

        Args:
            in_order: The messages are members of one step in the order of their numbers, and earlier members were
                accepted. Members accepted within the last hour are rejected with the action 'exists' and the status
                'accepted'.
        """
        batches, done = members_batches(contents, options, in_order), EnqueuedMany()
        level = durability or self.client.durability
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            done.add(self.send(level, *batch, caller))
        return done

    def announce(
        self, kind: str, flow: str, detail: str | bytes = "", *, durability: str | None = None
    ) -> str:
        """Send 'begin', 'signal', 'cancel', 'retry' or 'look' to a flow through the queue's outbox.

        Return the id of the outbox entry. Sending the same announcement again is harmless.

        Args:
            durability: See `enqueue`. After a NotDurableError, repeat the call.
        """
        if monotonic() >= self.listed_until:
            self.register()
        script, confirmation = self.scripts["announce"], SharedConfirmation(self.client, durability)
        state = script.state({"kind": kind, "subject": flow, "detail": detail})
        by = confirmation.by(f"{self.prefix}call:{new_id()}~")
        reply = self.client.perform(script.keys[0], state, by)
        confirmation.check(f"{kind!r} was sent to flow {flow}")
        return text_of(reply[1])

    def flow_outbox(self, limit: int = 64, drainer: str = "", after: str = "") -> list[OutboxEntry]:
        """Return the oldest entries of the queue's outbox for flows. flow_outbox_drop deletes delivered entries.

        Args:
            drainer: Id of the calling process. A call reserves the entries for one second, so other processes don't
                receive them.
            after: Return only entries after the entry with this id.
        """
        values: Values = {
            "drainer": drainer,
            "claim_ms": CLAIM_MS,
            "limit": limit,
            "after": after,
        }
        return read_entries(self.scripts["flow_read"].run(values))

    def flow_outbox_drop(self, entry_ids: Sequence[str], drainer: str = "") -> int:
        """Delete up to 1,000 delivered entries; return the number of remaining entries."""
        if not entry_ids:
            return self.admin.flow_backlog().entries
        return int(self.scripts["flow_drop"].run({"drainer": drainer}, entry_ids)[1])

    def dequeue(
        self,
        limit: int = 1,
        *,
        lease: Duration = LEASE_S,
        crash_limit: int = CRASH_LIMIT,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> Dequeued:
        """Fetch up to `limit` messages, each leased for `lease`. A message with earlier crashes is fetched alone."""
        own = caller or self.callers.take()
        state = self._dequeue(own, _wanted(limit, lease, crash_limit, now))
        reply = self.client.perform(self.wake_key, state)
        if reply[0] == CLOSED:
            raise self.scripts["dequeue"].closed_error(own)
        handed = _handed(reply, 1, own, limit)
        if caller is None:
            self.callers.give_back(own)
        return handed

    def dequeue_call(
        self, limit: int, *, lease: Duration, crash_limit: int, caller: Caller
    ) -> NumberedCall[Dequeued]:
        """Return a `dequeue` call to send later or together with other calls."""
        state = self._dequeue(caller, _wanted(limit, lease, crash_limit, None))

        def read(reply: Any) -> Dequeued:
            return _handed(self.scripts["dequeue"].served(caller, reply), 1, caller, limit)

        return NumberedCall(self.client, self.wake_key, state, read)

    def _dequeue(self, caller: Caller, values: Values) -> CallState:
        plainly, scripts = self.dequeues, self.scripts
        if plainly.skip:
            plainly.skip -= 1
            return scripts["dequeue"].numbered(caller, values, fenced=True)
        plain = {name: values[name] for name in _OF_PLAIN}
        state = scripts["dequeue_plain"].numbered(caller, plain, fenced=True)
        plainly.sent += 1
        state.general = lambda tries: plainly.answered_general(
            scripts["dequeue"].under(caller, values, (), tries, True)
        )
        return state

    def finish(
        self,
        endings: Sequence[Ending],
        *,
        dequeue: int = 0,
        lease: Duration = LEASE_S,
        crash_limit: int = CRASH_LIMIT,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> Finished:
        """Finish up to 1,000 attempts. With `dequeue`, also fetch messages in the same round trip.

        The reply 'stale' means that the attempt has lost its lease, so the ending has no effect. 'unknown' means that
        the call was repeated after a long outage, and an earlier try may have finished the attempt.
        """
        own = caller or self.callers.take()
        renewals = own.renewals
        state = self._finish(own, endings, dequeue, lease, crash_limit, now)
        reply = self.client.perform(self.wake_key, state)
        if reply and reply[0] == CLOSED:
            raise self.scripts["finish"].closed_error(own)
        finished = _finished(reply, len(endings), own, dequeue, own.renewals != renewals)
        if caller is None:
            self.callers.give_back(own)
        return finished

    def finish_call(
        self,
        endings: Sequence[Ending],
        *,
        dequeue: int,
        lease: Duration,
        crash_limit: int,
        caller: Caller,
    ) -> NumberedCall[Finished]:
        """Return a `finish` call to send later or together with other calls.

        If the call is repeated later, its events still show when the runs ended.
        """
        script, renewals = self.scripts["finish"], caller.renewals
        state = self._finish(caller, endings, dequeue, lease, crash_limit, None)

        def read(reply: Any) -> Finished:
            if reply and reply[0] == CLOSED:
                raise script.closed_error(caller)
            return _finished(reply, len(endings), caller, dequeue, caller.renewals != renewals)

        def older(tries: Tries | None, passed_ms: int) -> CallState:
            values: Values = {
                "now": "", "crash_limit": crash_limit, "limit": dequeue, "count": len(endings),
                "lease_ms": _lease_ms(lease),
            }  # fmt: skip
            rows, result_keys = self._rows(
                [structs.replace(ending, age_ms=ending.age_ms + passed_ms) for ending in endings]
            )
            return script.under(caller, values, rows, tries, True, result_keys)

        return NumberedCall(self.client, self.wake_key, state, read, older)

    def _finish(
        self,
        caller: Caller,
        endings: Sequence[Ending],
        dequeue: int,
        lease: Duration,
        crash_limit: int,
        now: int | None,
    ) -> CallState:
        if not (0 <= dequeue <= MAX_COUNT and len(endings) <= MAX_COUNT):
            raise _out_of_range(dequeue if len(endings) <= MAX_COUNT else len(endings), 0)
        values: Values = {
            "now": "" if now is None else now, "crash_limit": crash_limit, "limit": dequeue, "count": len(endings),
            "lease_ms": LEASE_MS if lease == LEASE_S else _lease_ms(lease),
        }  # fmt: skip
        plainly, scripts = self.finishes, self.scripts
        rows = None if plainly.skip else _plain_rows(endings)
        if rows is None:
            plainly.skip = max(0, plainly.skip - 1)
            rows, result_keys = self._rows(endings)
            return scripts["finish"].numbered(caller, values, rows, result_keys, fenced=True)
        plain = {name: values[name] for name in _OF_PLAIN}
        state = scripts["finish_plain"].numbered(caller, plain, rows, fenced=True)
        plainly.sent += 1
        state.general = lambda tries: plainly.answered_general(
            scripts["finish"].under(caller, values, self._rows(endings)[0], tries, True)
        )
        return state

    def _rows(self, endings: Sequence[Ending]) -> tuple[list[Argument], list[str]]:
        """Return the endings as arguments of the script `finish`, and the keys of their results."""
        rows: list[Argument] = []
        result_keys: list[str] = []
        results: list[Argument] = []
        for index, ending in enumerate(endings, 1):
            outcome, backoff = ending.outcome, ending.backoff
            if outcome in _WITH_REASON:
                detail: Argument = ending.reason
            else:
                detail = "" if backoff is None else round(backoff * 1000)
                if ending.traceback and outcome == "retry":
                    detail = f"{detail}\x1f{ending.traceback}"
            rows += (ending.mid, ending.token, outcome, detail, ending.age_ms, ending.record)
            if ending.result is not None:
                result_keys.append(keys.result(self.prefix, ending.mid))
                results += (index, _ttl_ms(ending.result_ttl), ending.result)
        return rows + results, result_keys

    def extend(
        self,
        leases: Sequence[tuple[str, str]],
        lease: Duration = LEASE_S,
        *,
        now: int | None = None,
    ) -> list[bool]:
        """Renew leases, each given as a mid and a token; return for each lease whether the attempt still has it."""
        if not leases:
            return []
        if len(leases) > MAX_COUNT:
            raise _out_of_range(len(leases), 0)
        values: Values = {"now": moment(now), "lease_ms": _lease_ms(lease)}
        reply = self.scripts["extend"].run(values, [part for lease in leases for part in lease])
        return [item == b"ok" for item in reply]

    def release(
        self,
        leases: Sequence[tuple[str, str]],
        *,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[bool]:
        """Return unstarted messages to the front of the queue. This doesn't count as an attempt.

        Return for each message whether the attempt still had the lease.
        """
        if not leases:
            return []
        if len(leases) > MAX_COUNT:
            raise _out_of_range(len(leases), 0)
        own = caller or self.callers.take()
        rest = [part for lease in leases for part in lease]
        reply = self.scripts["release"].call(own, {"now": moment(now)}, rest, fenced=True)
        if caller is None:
            self.callers.give_back(own)
        return [item == b"ok" for item in reply]

    def end_session(self, caller_id: str) -> list[Lease]:
        """Reject all later calls of a dead caller.

        Return the messages that the caller's last call fetched and that are still leased to the caller.
        """
        reply = self.scripts["close"].run_for(caller_id, {"caller": caller_id})
        texts = [item.decode() for item in reply]
        held = [Lease(mid, token) for mid, token in zip(texts[::2], texts[1::2], strict=True)]
        return held[:MAX_COUNT]  # only a forged record hands out more

    def progress(self, mid: str, token: str, text: str) -> bool:
        """Record the progress of a running attempt; return False if the attempt has lost its lease."""
        reply = self.scripts["progress"].run({"mid": mid, "token": token, "text": text})
        return bool(reply[0] == b"ok")

    def checkpoint(self, mid: str, token: str, value: str = "") -> str | None:
        """Store `value` for the next attempt; without a value, only read the stored value.

        Return the stored value, or '' if there is none; None if this attempt has lost its lease.
        """
        reply = self.scripts["checkpoint"].run({"mid": mid, "token": token, "value": value})
        return text_of(reply[1]) if reply[0] == b"ok" else None

    def store_log(self, mid: str, attempt: int, text: bytes, keep_s: float) -> None:
        """Store the log of an attempt. `text` replaces the stored log."""
        where = keys.attempt_log(self.prefix, mid, attempt)
        self.client.command("SET", where, text, "PX", max(1, round(keep_s * 1000)))

    def status(self, mid: str, *, now: int | None = None) -> Status:
        """Return the status of `mid`, from the partition that has it."""
        values: Values = {"mid": checked_mid(mid), "now": moment(now)}
        known = _status(self.scripts["status"].run(values))
        if known.word not in _OVER:
            return known
        for place in self.partitions():  # a dead message may have a live successor elsewhere
            status = place.status(mid, now=now)
            if status.word not in _OVER:
                return status
            known = status if known.word == "nil" else known
        return known

    def status_call(self, mid: str, *, now: int | None = None) -> ScriptCall[Status]:
        """Return a `status` call to send together with other calls."""
        script = self.scripts["status"]
        args = script.script.order({"mid": checked_mid(mid), "now": moment(now)})
        return ScriptCall(script.script, script.keys, args, _status)

    def check_lease(self, lease: Lease, missing: str) -> None:
        """Raise UnavailableError unless the current server has this lease.

        A server that has the lease also has all earlier data, so data missing there doesn't exist. But a promoted
        replica may lack data that another server still has.

        Args:
            missing: The data that was not found, for the error's text.
        """
        token = self.client.command("HGET", keys.key(self.prefix, "tokens"), lease.mid)
        if token != lease.token.encode():
            raise UnavailableError(
                f"the current server doesn't have the lease of {lease.mid}, so other data may also be missing: "
                f"{missing}"
            )

    def content(self, mid: str) -> bytes | None:
        """Return the content of a live message from the partition that has it, or None if `mid` has no live message."""
        reply: bytes | None = self.client.command("HGET", keys.key(self.prefix, "messages"), mid)
        if reply is not None:
            return reply
        others = (partition.content(mid) for partition in self.partitions())
        return next((content for content in others if content is not None), None)

    def cancel(
        self,
        *mids: str,
        remember: Duration | None = None,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[str]:
        """Cancel messages; return for each mid 'cancelled', or the status of a message that can't be cancelled.

        A running job isn't stopped immediately: its outcome is rejected, and its worker is notified at the next renewal
        of the lease.

        Args:
            remember: How long to remember the cancellation, unless the message's content sets a longer time.
        """
        for_ms = remember_ms(None if remember is None else duration_s(remember))
        values: Values = {"now": moment(now), "remember_ms": for_ms or ""}
        script = self.scripts["cancel"]

        def cancel(own: Caller, rest: Sequence[str], extra_keys: Sequence[str]) -> list[bytes]:
            words: list[bytes] = script.call(own, values, rest, extra_keys=extra_keys)
            return words

        words: list[str] = []
        for first in range(0, len(mids), PER_CALL):
            rest = [checked_mid(mid) for mid in mids[first : first + PER_CALL]]
            own = caller or self.callers.take()
            if for_ms:
                told = cancel(own, rest, self.result_keys(rest))
            else:
                told = with_result_keys(self.prefix, rest, rest, partial(cancel, own))
            words += map(text_of, told)
            if caller is None:
                self.callers.give_back(own)
        return words if "nil" not in words else self._cancelled_elsewhere(mids, words, remember)

    def _cancelled_elsewhere(
        self, mids: Sequence[str], words: list[str], remember: Duration | None
    ) -> list[str]:
        """For messages with the outcome 'nil', try to cancel them in the partitions. Return the updated `words`."""
        for queue in self.partitions():
            missing = [at for at, word in enumerate(words) if word == "nil"]
            told = queue.cancel(*[mids[at] for at in missing], remember=remember) if missing else []
            for at, word in zip(missing, told, strict=False):
                words[at] = word
        return words

    def rules(
        self,
        *,
        max: Number = UNCHANGED,
        key_max: Number = UNCHANGED,
        key_rate: str | Rate | Unchanged | None = UNCHANGED,
        key_weight: Number = UNCHANGED,
        key_waiting: Number = UNCHANGED,
    ) -> QueueRules:
        """Set the limits of the queue and its keys, effective from the next dequeue; return all limits.

        To remove a limit, pass None. Omitted limits stay unchanged. Each partition of a partitioned queue has its share
        of `max`. The other limits apply in each partition, because each key is in a single partition. While the number
        of partitions changes, a key without `ordered` may be in two partitions.

        Args:
            max: Maximum number of running messages.
            key_max: Maximum number of running messages per key.
            key_rate: Maximum rate of starts per key, such as '100/m'.
            key_weight: Each key's share of turns.
            key_waiting: Maximum number of waiting messages per key.
        """
        most, *rule = self._rule("", number_given("max", max), {
            "max": number_given("key_max", key_max), "rate": rate_given("key_rate", key_rate),
            "weight": number_given("key_weight", key_weight, MAX_WEIGHT),
            "waiting": number_given("key_waiting", key_waiting),
        })  # fmt: skip
        return QueueRules(number_kept(most), *_rule_kept(rule))

    def rule(
        self,
        key: str,
        *,
        max: Number = UNCHANGED,
        rate: str | Rate | Unchanged | None = UNCHANGED,
        weight: Number = UNCHANGED,
        waiting: Number = UNCHANGED,
    ) -> Rule:
        """Set the limits of one key, and return them; for the settings, see `rules`.

        If a limit is None, the limit for all keys applies to this key again. Omitted limits stay unchanged.
        """
        _, *rule = self._rule(checked_key(key), "-", {
            "max": number_given("max", max), "rate": rate_given("rate", rate),
            "weight": number_given("weight", weight, MAX_WEIGHT), "waiting": number_given("waiting", waiting),
        })  # fmt: skip
        return _rule_kept(rule)

    def _rule(self, key: str, in_queue: Argument, given: dict[str, Any]) -> list[bytes]:
        starts, span_ms = given["rate"]
        values = {
            "now": "", "key": key, "in_queue": in_queue, "most": given["max"], "starts": starts, "span_ms": span_ms,
            "weight": given["weight"], "waiting": given["waiting"],
        }  # fmt: skip
        changes = {in_queue, given["max"], starts, given["weight"], given["waiting"]} != {"-"}
        epochs = self._epochs() if changes else []
        if epochs:
            check_shares(self.name, in_queue, epochs[-1])
        reply: list[bytes] = self.scripts["set_limits"].run(values)
        for epoch in epochs:
            set_limits(self.name, epoch, values, partial(queue_scripts, self.client, "queue"))
        return reply

    def hold(self, key: str, wait: Duration, *, now: int | None = None) -> int:
        """Hold a key for the duration `wait`: its messages don't start. Running messages continue; 0 ends the hold.

        Return the end of the hold in epoch ms by the server's clock, or 0 if the key isn't held.
        """
        values: Values = {
            "now": moment(now), "key": checked_key(key), "wait_ms": hold_ms(wait, duration_s(wait)),
        }  # fmt: skip
        places = [epoch.name_for(self.name, key) for epoch in self._epochs()]
        until = int(self.scripts["hold"].run(values)[0])
        for name in places:
            until = max(
                until, int(queue_scripts(self.client, "queue", name)["hold"].run(values)[0])
            )
        return until

    def why(self, mid: str, *, now: int | None = None) -> KeyFacts:
        """Return the facts that explain why a message runs or waits; the queue's partitions are also searched."""
        values: Values = {"mid": checked_mid(mid), "now": moment(now)}
        known = facts_of(self.scripts["why"].run(values))
        if known.status != "nil":
            return known
        others = (partition.why(mid, now=now) for partition in self.partitions())
        return next((facts for facts in others if facts.status != "nil"), known)

    def why_call(self, mid: str, *, now: int | None = None) -> ScriptCall[KeyFacts]:
        """Return a `why` call to send together with other calls."""
        script = self.scripts["why"]
        args = script.script.order({"mid": checked_mid(mid), "now": moment(now)})
        return ScriptCall(script.script, script.keys, args, facts_of)

    def partitions(self) -> list[Queue]:
        """Return the queue's partitions, including older partitions with messages; none for most queues."""
        if self.is_alone or is_partition(self.name):
            return []
        known = read_map(self.client, self.name)
        return [Queue(name, self.client) for name in known.names() if name != self.name]

    def alone(self) -> list[Queue]:
        """Return the queue and its partitions. Each returned object acts only on itself."""
        return alone(self.client, [self.name])

    def place_of(self, mid: str) -> Queue | None:
        """Return the partition that has this message, its dead message or its result; None if no partition does."""
        places = self.partitions()
        known = run_all(self.client, [place.status_call(mid) for place in places])
        for is_wanted in (lambda word: word not in ("nil", "dead"), lambda word: word == "dead"):
            for place, status in zip(places, known, strict=True):
                if is_wanted(status.word):
                    return place
        for place in places:
            if self.client.command("EXISTS", place.result_key(mid)):
                return place
        return None

    def holder(self, mid: str) -> Queue:
        """Return the partition that has this live message; if no partition has it, return the queue itself."""
        places = self.alone()
        known = run_all(self.client, [place.status_call(mid) for place in places])
        return next(
            (
                place
                for place, status in zip(places, known, strict=True)
                if status.word not in _OVER
            ),
            self,
        )

    def _epochs(self) -> list[Epoch]:
        """Return the epochs of the queue's partitions."""
        if self.is_alone or is_partition(self.name):
            return []
        return [epoch for epoch in read_map(self.client, self.name).epochs if epoch.number]

    def on(self, client: Client) -> Queue:
        """Return this queue bound to another client."""
        return Queue(self.name, client)

    if not TYPE_CHECKING:  # a type checker would accept every misspelt name
        __getattr__ = refuse_attribute

    def _enqueue(
        self, batch: Batch, caller: Caller | None, durability: str | None
    ) -> Sequence[Enqueued]:
        buffer = self.client.outage
        level = durability or self.client.durability
        if buffer is not None and caller is None:
            accepted: Sequence[Enqueued] = buffer.enqueue(self, level, *batch)
            return accepted
        return self.send(level, *batch, caller)

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
        """Make one enqueue call, bypassing the outage buffer.

        Args:
            tries: Earlier tries of this call.
            step: Set by the router in a call to one partition. If it is empty, the router chooses the partitions.
        """
        if self.routes is not None and not step:
            return self.routes.send(level, values, rows, mids, caller, tries)
        # Its workers list an earlier partition while messages may wait there.
        if monotonic() >= self.listed_until and step != "old":
            self.register()
        own = caller or self.callers.take()
        state = self.enqueue_call(own, values, rows, mids, tries, step=step)
        confirmation = exchange = None
        if level != "memory":
            confirmation = Confirmation(level, self.client, f"{self.prefix}call:{own.id}")
            exchange = confirmation.exchange
        try:
            reply = self.client.perform(self.wake_key, state, exchange)
        except UnavailableError as error:
            error.mids = tuple(mids) if state.arrived else ()
            raise
        done: Sequence[Enqueued]
        if reply == ADDED:
            done = [Enqueued(mids[0], "added")]
        elif not step and (reply[0] == SEALED or _MOVED in reply[::2]):
            # 'moved' means that another Queue object, which has a router, made a call under the same number.
            _take_back(caller, tries if reply[0] == SEALED else None)
            done, confirmation = self.routed().send(level, values, rows, mids, caller, tries), None
        else:
            done = self.accepted(own, reply, mids)
        if confirmation is not None:
            confirmation.check([each.mid for each in done if each.action != MOVED])
        if caller is None:
            # Not reached after an error: that call may still arrive, so its caller stays out of use.
            self.callers.give_back(own)
        return done

    def enqueue_call(
        self,
        caller: Caller,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
        tries: Tries | None = None,
        *,
        step: Step = "",
    ) -> CallState:
        """Return the call of `caller` that enqueues these messages."""
        plainly, scripts = self.enqueues, self.scripts
        if step == "old":
            extra = (*self.extra_keys(values, mids), keys.key(self.prefix, "moved_keys"))
            return scripts["enqueue"].numbered(caller, values, rows, extra, tries)
        if values is not NO_OPTIONS or len(mids) > 1 or plainly.skip:
            plainly.skip = max(0, plainly.skip - 1)
            changes = values["again"] or values["drop_results"]
            dropped = self.extra_keys(values, mids) if changes else ()
            return scripts["enqueue"].numbered(caller, values, rows, dropped, tries)
        state = scripts["enqueue_plain"].numbered(caller, NONE, rows, (), tries)
        plainly.sent += 1
        state.general = lambda tries: plainly.answered_general(
            scripts["enqueue"].under(caller, values, rows, tries, False)
        )
        return state

    def count_refused(self, number: int) -> None:
        """Add `number` to the count of messages lost because the server rejected them after an outage."""
        meta = keys.key(self.prefix, "meta")
        now_ms = self.client.clock_ms(self.wake_key)
        counted = [("HINCRBY", meta, "refused", number), ("HSET", meta, "refused_at", now_ms)]
        commands(self.client, self.wake_key, counted)

    def _overlap(self, batches: Iterable[Batch | Exception], done: EnqueuedMany) -> None:
        """Make enqueue calls, at most two simultaneously, and add their results to `done`. Each call has its own
        caller.
        """
        script, calls = self.scripts["enqueue"], OverlappingCalls(self.client, self.wake_key)
        under_way: deque[tuple[Caller, CallState, Batch]] = deque()

        def take() -> None:
            own, _, batch = under_way[0]
            reply = calls.reply()
            under_way.popleft()
            if reply[0] == SEALED:
                done.add(self.routed().send("memory", *batch))
            else:
                done.add(self.accepted(own, reply, batch[2]))
            self.callers.give_back(own)

        unread: Exception | None = None
        try:
            for batch in batches:
                if isinstance(batch, Exception):
                    unread = batch
                    break
                if monotonic() >= self.listed_until:
                    self.register()
                values, rows, mids = batch
                own = self.callers.take()
                dropped = self.extra_keys(values, mids)
                state = script.numbered(own, values, rows, dropped)
                calls.send(state)
                under_way.append((own, state, batch))
                if len(under_way) > 1:
                    take()
            while under_way:
                take()
        except UnavailableError as error:
            # If partitions answered only part of a call, the error already has mids.
            error.mids += tuple(
                [mid for _, state, batch in under_way if state.arrived for mid in batch[2]]
            )
            raise
        finally:
            calls.close()
        if unread is not None:
            raise unread

    def routed(self) -> PartitionRouter:
        """Read the queue's partition map, and return a router to the partitions.

        This object sends all later messages through the router.
        """
        if self.routes is None:
            self.routes = PartitionRouter(
                self.name, self.client, partial(Queue, client=self.client)
            )
        else:
            self.routes.refresh()
        return self.routes

    def register(self) -> None:
        """Add the queue to the list of queues, at most once a minute.

        Call this before an enqueue. Otherwise, an error here could leave accepted messages in an unlisted queue.
        """
        self.listed_until = register_queue(self.client, self.name)

    def extra_keys(self, values: Values, mids: Sequence[str]) -> Sequence[str]:
        """Return the keys that an enqueue call passes after the script's named keys."""
        if is_of_flows(values["again"]):
            last_dead, step = keys.key(self.prefix, "last_dead"), mids[0][1:].rpartition(".")[0]
            if values["again"] == MEMBER:
                return (last_dead,)
            return last_dead, keys.accepted(self.prefix, step)
        return self.result_keys(mids) if values["drop_results"] else ()

    def accepted(self, caller: Caller, reply: Any, mids: Sequence[str]) -> Sequence[Enqueued]:
        """Return the results in the reply to an enqueue call.

        Raises LeaseLostError if the script rejected the caller, and KeyFullError if a key's limit was reached.
        """
        if reply[0] == b"closed":
            raise self.scripts["enqueue"].closed_error(caller)
        if reply[0] == b"full":
            raise line_full(reply)
        if reply[0] == SEALED:
            raise SealedError(
                f"queue {self.name!r} is sealed; newer partitions accept messages instead",
                unknown=self.name if reply[1] == b"" else "",
            )
        if len(reply) == 2 * len(mids) and reply[::2].count(b"added") == len(mids):
            return AddedMessages(mids)
        try:
            return [
                Enqueued(mid, ACTIONS[action], reason.decode())
                for mid, action, reason in zip(mids, reply[::2], reply[1::2], strict=True)
            ]
        except _UNREADABLE as error:
            raise _unreadable(error) from error


def _take_back(caller: Caller | None, tries: Tries | None) -> None:
    """Let the caller use its last number again, because a sealed queue rejected the call without recording it."""
    if caller is not None:
        caller.number -= 1
    if tries is not None:
        tries.answered_with_error()


def _status(reply: list[Any]) -> Status:
    word, attempts, ncrashes, not_before, lock_expires_at, *more = reply
    generation, dead_id, progress, unknowns, checkpoint, failed_attempt, traceback = more
    return Status(
        word.decode(), attempts, ncrashes, not_before, lock_expires_at,
        text_of(generation), text_of(dead_id), text_of(progress), unknowns, text_of(checkpoint),
        failed_attempt, text_of(traceback),
    )  # fmt: skip


def _rule_kept(reply: Sequence[bytes]) -> Rule:
    most, starts, span_ms, weight, waiting = reply
    return Rule(
        number_kept(most), rate_kept(starts, span_ms), number_kept(weight), number_kept(waiting)
    )


def queue_scripts(client: Client, area: str, name: str) -> BoundScripts:
    """Return the scripts of lua/<area>, bound to the keys of the queue `name`."""
    prefix = keys.prefix(client.namespace, name)
    return BoundScripts(client, area, prefix, partial(keys.key, prefix), f"queue {name!r}")


def alone(client: Client, names: Iterable[str]) -> list[Queue]:
    """Return the named queues and their partitions, without duplicates. Each returned object acts only on itself."""
    made: dict[str, Queue] = {}
    for name in names:
        queue = Queue(name, client)
        for place in (queue, *queue.partitions()):
            place.is_alone = True
            made.setdefault(place.name, place)
    return list(made.values())


def enqueue_values(**options: Unpack[EnqueueOptions]) -> Values:
    """Return the options of an enqueue as the arguments of its script."""
    unknown = options.keys() - EnqueueOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"enqueue() has no option {min(unknown)!r}")
    delay, at, lease = options.get("delay"), checked_at(options.get("at")), options.get("lease")
    check_start(delay, at)
    on_conflict = options.get("on_conflict") or "skip"
    if on_conflict not in get_args(OnConflict):
        known = ", ".join(get_args(OnConflict))
        raise ConfigError(f"on_conflict={on_conflict!r} is not supported here; use one of {known}")
    again, dedupe_ms = _until(options.get("until"), options.get("throttle"))
    return {
        "now": moment(options.get("now")),
        "delay_ms": _milliseconds("delay", delay),
        "at": "" if at is None else round(at * 1000),
        "can_update": int(on_conflict == "replace"),
        "can_requeue": int(on_conflict == "requeue"),
        "again": again,
        "keyed": _keyed(options),
        "lock_ms": "" if lease is None else _lease_ms(lease),
        "dedupe_ms": dedupe_ms,
        "at_most_ms": _debounce_max_ms(options),
        "drop_results": 1 if options.get("drop_results") else "",
    }


def _until(until: Until | None, throttle: Duration | None) -> tuple[str, Argument]:
    """Convert the two options to the script's arguments `again` and `dedupe_ms`."""
    if throttle is not None:
        if until is not None:
            raise ConfigError(
                f"until={until!r} and throttle={throttle!r} contradict each other; use only one"
            )
        return "done", f"@{_milliseconds('throttle', throttle)!s}"
    if until is None or until in ("done", "start"):
        return str(until or ""), ""
    return "done", _milliseconds("until", until)


def _debounce_max_ms(options: EnqueueOptions) -> Argument:
    debounce_max, until = options.get("debounce_max"), options.get("until")
    if debounce_max is not None:
        refuses_later = until not in (None, "done", "start") or options.get("throttle") is not None
        if options.get("delay") is None or refuses_later:
            raise ConfigError(
                f"debounce_max={debounce_max!r} needs delay=…, and can't be combined with throttle= or until=<duration>"
            )
    return _milliseconds("debounce_max", debounce_max)


def is_of_flows(again: Argument) -> bool:
    """Return whether the script argument `again` marks the messages as messages of flows."""
    return again in (MEMBER, NEXT)


def members_batches(
    contents: Iterable[Content], options: EnqueueOptions, in_order: bool = False
) -> Iterator[Batch | Exception]:
    """Yield batches of messages of flows, one batch per enqueue call; see batches_of."""
    values, until = enqueue_values(**options), options.get("until")
    alone = until not in ("done", "start") and options.get("throttle") is None
    if values["can_update"] or values["can_requeue"] or values["drop_results"] or not alone:
        raise ConfigError(
            "messages of flows can't have on_conflict=, throttle=, drop_results=, until='done' or until='start'; leave "
            "them out"
        )
    again = NEXT if in_order else MEMBER
    return _batches(contents, {**values, "again": again}, options.get("key"))


def given_mid(mid: str, values: Values) -> str:
    """Return `mid`, or raise ConfigError if these options don't allow it.

    Mids of unique jobs begin with '=', and need `until` or `throttle`. Mids of flows begin with '~'.
    """
    again = values["again"]
    if not again:
        return users_mid(mid)
    return members_mid(mid) if is_of_flows(again) else no_members_mid(mid)


def _keyed(options: EnqueueOptions) -> str:
    key = options.get("key")
    if key is not None:
        checked_key(key)
    return "ordered" if options.get("ordered") else "" if key is None else "key"


def line_full(reply: Sequence[bytes]) -> KeyFullError:
    """Return the error for a key that has its maximum number of waiting messages."""
    key, most = text_of(reply[1]), int(reply[2])
    return KeyFullError(
        f"key {key} has {counted(most, 'waiting message')}, the maximum; nothing was accepted: enqueue later, or "
        "raise the limit",
        key, most,
    )  # fmt: skip


def prepared(content: bytes, mid: str | None, options: EnqueueOptions) -> Batch:
    """Return one message as a batch for an enqueue call."""
    try:
        size = len(content)
    except TypeError:
        raise CodecError(
            f"message content must be bytes, not {content!r:.80}; to enqueue a function call, put @job on the function "
            "and call function.enqueue(…)"
        ) from None
    if mid is None and not options and size <= HARD_MAX_CONTENT:
        mid = new_mid()
        return NO_OPTIONS, (mid, content), (mid,)  # the same as below, with fewer function calls
    values = enqueue_values(**options) if options else NO_OPTIONS
    return batch_of(((mid, content),), values, options.get("key"))


def batch_of(contents: Sequence[Content], values: Values, key: str | None = None) -> Batch:
    """Return these contents as a batch for an enqueue call; `key` applies to contents without a key."""
    bare = [item for item in contents if isinstance(item, bytes)]
    own_keys: list[str] = []
    if len(bare) < len(contents):
        items = [(None, item) if isinstance(item, bytes) else item for item in contents]
        mids: Sequence[str] = [
            new_mid() if item[0] is None else given_mid(item[0], values) for item in items
        ]
        bare = [item[1] for item in items]
        if any(len(item) > 2 for item in items):
            own = [item[2] if len(item) > 2 else key for item in items]
            own_keys = ["" if text is None else checked_key(text) for text in own]
    else:
        mids = MadeMids(len(bare))
    if max(map(len, bare)) > HARD_MAX_CONTENT:
        for mid, content in zip(mids, bare, strict=True):
            checked_content(mid, content)
    if key is not None and not own_keys:
        own_keys = [key] * len(bare)
    if own_keys and not values["keyed"]:
        values = {**values, "keyed": "key"}
    elif values["keyed"] and not own_keys:
        raise ConfigError("ordered=True needs a key for each message; pass key=")
    width = 3 if own_keys else 2
    rows: list[Argument] = [b""] * (width * len(bare))
    rows[::width], rows[1::width] = mids, bare
    if own_keys:
        rows[2::width] = own_keys
    return values, rows, mids


def batches_of(contents: Iterable[Content], options: EnqueueOptions) -> Iterator[Batch | Exception]:
    """Yield batches of these contents, one batch per enqueue call.

    If the contents can't be read, or some are invalid, the last item is the error.
    """
    values = enqueue_values(**options) if options else NO_OPTIONS
    return _batches(contents, values, options.get("key"))


def _batches(
    contents: Iterable[Content], values: Values, key: str | None
) -> Iterator[Batch | Exception]:
    batch: list[Content] = []
    size = 0
    try:
        for item in contents:
            batch.append(item)
            size += len(item if isinstance(item, bytes) else item[1])
            if len(batch) == PER_CALL or size >= BYTES_PER_CALL:
                yield batch_of(batch, values, key)
                batch, size = [], 0
        if batch:
            yield batch_of(batch, values, key)
    except Exception as error:
        yield error


def _wanted(limit: int, lease: Duration, crash_limit: int, now: int | None) -> Values:
    if not 1 <= limit <= MAX_COUNT:
        raise _out_of_range(limit, 1)
    return {
        "now": "" if now is None else now, "crash_limit": crash_limit, "limit": limit,
        "lease_ms": LEASE_MS if lease == LEASE_S else _lease_ms(lease),
    }  # fmt: skip


def _plain_rows(endings: Sequence[Ending]) -> list[Argument] | None:
    """Return the endings as arguments of finish_plain; None if there are none, or if any needs the general script."""
    rows: list[Argument] = []
    for ending in endings:
        if ending.outcome != "done" or ending.backoff is not None or ending.result is not None:
            return None
        rows += (ending.mid, ending.token, ending.age_ms, ending.record)
    return rows or None


def _finished(
    reply: list[Any], count: int, caller: Caller, dequeue: int, renewed: bool
) -> Finished:
    """Return the results in the reply to a `finish`.

    Args:
        renewed: Whether the call was repeated under a new number.
    """
    if reply and reply[0] == PLAIN:
        handed = _handed(reply, 0, caller, dequeue) if dequeue else None
        return Finished(["ok"] * count, handed)
    try:
        replies = [REPLIES[item] for item in reply[:count]]
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    if renewed:
        # An earlier try, whose reply was lost, may have ended the attempts.
        replies = ["unknown" if reply == "stale" else reply for reply in replies]
    return Finished(replies, _handed(reply, count, caller, dequeue) if dequeue else None)


def _unreadable(error: Exception) -> ScriptError:
    """Return the error for an unreadable reply, which may come from a forged record of a call."""
    return ScriptError(
        f"a reply can't be read: another version of jobq is in use here, or the record of a call was forged: {error!r}"
    )


def _handed(reply: list[Any], start: int, caller: Caller, limit: int) -> Dequeued:
    """Return the messages in a reply.

    Args:
        start: Index of the first field about messages in a reply of the general script.
    """
    if reply[0] != PLAIN:
        return _generally_handed(reply, start, caller, limit)
    if len(reply) == 3:
        return Dequeued([], reply[1], False, reply[2], False)
    caller.arrived()
    stem, messages = f"{caller.id}.{caller.number}.", []
    try:
        _, poll_after_ms, fence, lock_expires_at, mids, contents = reply
        if type(mids) is bytes:
            mids, contents = (mids,), (contents,)  # a single message
        for index, mid in enumerate(mids):
            token = f"{stem}{index}"
            # The script for plain calls returns only messages without earlier attempts.
            messages.append(
                Message(mid.decode(), contents[index], 1, 0, fence + index, token, token, lock_expires_at, 0)
            )  # fmt: skip
    except _UNREADABLE as error:  # a forged record replayed another script's reply
        raise _unreadable(error) from error
    return Dequeued(messages, poll_after_ms, False, 0, False)


def _generally_handed(reply: list[Any], start: int, caller: Caller, limit: int) -> Dequeued:
    """Return the messages in a reply of the general dequeue script. Fields about messages begin at index `start`."""
    if len(reply) > start + 3:
        caller.arrived()
    if len(reply) > start + 3 + 7 * limit:
        raise ScriptError(
            "a script returned more messages than the call requested; the record of the call was forged"
        )
    stem = f"{caller.id}.{caller.number}."
    messages = []
    try:
        poll_after_ms, paused, fence = reply[start : start + 3]
        rows = iter(reply[start + 3 :])
        for index, row in enumerate(zip(rows, rows, rows, rows, rows, rows, rows, strict=True)):
            mid, content, attempt, ncrashes, generation, lock_expires_at, unknowns = row
            if not mid:
                continue
            if len(mid) > MAX_MID_BYTES:
                raise ScriptError(
                    f"a script returned a mid of {len(mid):,} bytes; the record of the call was forged"
                )
            token = f"{stem}{index}"
            life = generation.decode("utf-8", "replace") if generation else token
            messages.append(
                Message(
                    mid.decode(), content, attempt, ncrashes, fence + index, life, token, lock_expires_at, unknowns
                )
            )  # fmt: skip
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return Dequeued(
        messages, poll_after_ms, bool(paused & 1), 0 if messages else fence, bool(paused & 2)
    )


def _out_of_range(number: int, least: int) -> ConfigError:
    return ConfigError(
        f"{number!r} messages in one call is out of range; it must be between {least} and {MAX_COUNT}"
    )


def _lease_ms(lease: Duration) -> int:
    seconds = lease if isinstance(lease, float | int) else duration_s(lease)
    # With a lease of 0 ms, every call would hand out the same message.
    if not 0.001 <= seconds <= DAY_MS / 1000:
        raise ConfigError(f"lease={lease!r} must be between 1 ms and a day; pass seconds or '5m'")
    return round(seconds * 1000)


def _ttl_ms(seconds: float) -> int:
    """Return a result's lifetime in milliseconds, at least 1, which is the server's minimum; 0 stays 0."""
    return max(1, round(seconds * 1000)) if seconds else 0


def _milliseconds(name: str, value: Duration | None) -> Argument:
    seconds = checked_duration(name, value)
    return "" if seconds is None else round(seconds * 1000)
