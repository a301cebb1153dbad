"""Keep a producer's messages in memory while the server is away, and send them in order when it is back.

The buffer is off unless its maximum size is set. Buffered messages have the action 'buffered'; they are lost if their
process dies. A call with an unknown outcome is repeated with the same mids, caller and number, so its messages aren't
enqueued twice. After five minutes, the call isn't repeated again, because the server may soon forget the number. The
log and the next `flush` then name the call's mids. Unsent calls keep waiting, and later calls wait for them.

A rejection isn't an outage: it concerns one call. If a key has too many waiting messages, the rejected call is
retried for a while. Calls with the same keys wait for it, and all other calls are sent. Any other rejected call is
lost; the log names its mids, and its queue counts them.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Literal, Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import Callers, Tries, is_login_refused
from jobq.client.runtime import runtime
from jobq.client.scripts import Argument
from jobq.config import ServerSettings
from jobq.durations import counted
from jobq.errors import (
    BufferFullError,
    ConfigError,
    JobqError,
    KeyFullError,
    NotDurableError,
    ServerFullError,
    UnavailableError,
)
from jobq.queue.routing import Destination, PartlyAcceptedError
from jobq.queue.types import Enqueued

logger = logging.getLogger("jobq")

MAX_BYTES = 64 * 1024 * 1024
#: How long a call is tried before it waits in the buffer. In that time, lost connections are opened again.
FIRST_TRY_S = 0.2
#: When a producer exits, it waits at least this long for the buffer to empty, so that no message is lost.
FLUSH_S = 10.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.01, 0.25
#: How long a temporarily rejected call is retried.
REFUSED_S = 300.0
#: Maximum number of mids with unknown outcomes to keep for the next flush; the log names all such mids.
MAX_UNKNOWN = 10_000


Values = dict[str, Argument]
#: A line: a queue and a key, '' for no key. Calls in one line keep their order.
Line = tuple[str, str]
#: Outcome of sending a call: it is over; it is set aside; or the server doesn't accept calls now.
Outcome = Literal["over", "aside", "away"]


class Sender(Destination, Protocol):
    """The queue interface that the outage buffer needs."""

    name: str
    callers: Callers

    def on(self, client: Client) -> Sender:
        """Return this queue bound to another client."""
        ...

    def count_refused(self, number: int) -> None:
        """Add `number` to this queue's count of messages lost because the server rejected them."""
        ...


def attach_buffer(client: Client) -> None:
    """Create the client's outage buffer if its settings enable one."""
    if client.settings.outage_buffer and runtime.may_buffer and client.outage is None:
        with runtime.lock:
            if client.outage is None:
                client.outage = OutageBuffer(client.settings)


def switch_off_buffers() -> None:
    """Detach and disable the outage buffers of all clients in this process and its future forks."""
    runtime.may_buffer = False
    for client in list(runtime.clients):
        client.outage = None


class OutageBuffer:
    """Stores calls of one client until its server is back. Threads may share it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._limit = settings.outage_buffer
        self._patience_s = settings.patience_s
        impatient_s = min(settings.patience_s, FIRST_TRY_S)
        self._client = Client(replace(settings, outage_buffer=0, patience_s=impatient_s))
        self.forget()
        runtime.buffers.add(self)

    def forget(self) -> None:
        """Drop all waiting calls in a forked child, because the parent process sends them."""
        self._changed = threading.Condition()
        #: Calls in order. Calls that are `aside` were rejected, or wait for a rejected call.
        self._waiting: dict[_Call, None] = {}
        self._naside = 0
        #: The lines of calls that are aside: later calls in them must wait.
        self._stopped: set[Line] = set()
        self._queues: dict[str, Sender] = {}
        self._sender: threading.Thread | None = None
        self._size = 0
        self._trouble = ""
        self._unknown: deque[str] = deque(maxlen=MAX_UNKNOWN)
        self.nmessages = 0

    def enqueue(
        self,
        queue: Sender,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
    ) -> Sequence[Enqueued]:
        """Send an enqueue call now, or keep it for later. Raises BufferFullError, and the errors of Queue.enqueue."""
        call = _Call(self._impatient(queue), level, values, rows, mids)
        with self._changed:
            if self._waiting and self._is_behind(call):
                self._keep(call)
                return call.buffered()
        try:
            return call.send()
        except UnavailableError as error:
            with self._changed:
                if not self._fits(call):
                    raise  # the call may have arrived, so BufferFullError would be wrong
                self._trouble = str(error)
                self._keep(call)
            return call.buffered()

    def flush(self, within_s: float | None = None) -> None:
        """Wait until the buffer is empty, by default for JOBQ_PATIENCE or 10 s, whichever is longer.

        Raises UnavailableError if the buffer isn't empty by then, or if the outcome of messages has become unknown
        since the last flush. The error's `mids` lists these messages.
        """
        within_s = max(self._patience_s, FLUSH_S) if within_s is None else within_s
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, within_s):
                raise UnavailableError(
                    f"after {within_s:g} s, {counted(self.nmessages, 'enqueued message')} "
                    f"{'is' if self.nmessages == 1 else 'are'} still only in this process's memory: {self._trouble}"
                )
            unknown, self._unknown = self._unknown, deque(maxlen=MAX_UNKNOWN)
        if unknown:
            raise UnavailableError(
                f"it is unknown whether {_named(unknown)} arrived, because the outage lasted too long to send "
                f"messages again; check their status, or enqueue them again if a second run is harmless",
                tuple(unknown),
            )

    def leave(self) -> None:
        """Flush the buffer before the process ends, and log an error if messages are lost."""
        try:
            self.flush()
        except UnavailableError as error:
            if self.nmessages:  # messages with unknown outcomes were already logged
                logger.error("messages are lost with this process: %s", error)
            for call in [call for call in self._waiting if call.refused_at]:
                self._count_refused(call)

    def close(self) -> None:
        """Close the buffer's idle connections."""
        self._client.close()

    def _impatient(self, queue: Sender) -> Sender:
        """Return the queue, bound to the buffer's own client, which has a short timeout."""
        known = self._queues.get(queue.name)
        return known or self._queues.setdefault(queue.name, queue.on(self._client))

    def _is_behind(self, call: _Call) -> bool:
        """Return whether this call must wait for earlier calls."""
        if not self._stopped.isdisjoint(call.lines):
            return True
        return len(self._waiting) > self._naside

    def _fits(self, call: _Call) -> bool:
        nmessages, size = self.nmessages + len(call.mids), self._size + call.size
        return nmessages <= self._limit and size <= MAX_BYTES

    def _keep(self, call: _Call) -> None:
        if not self._fits(call):
            raise BufferFullError(
                f"{call.mids[0]} was not accepted, because it doesn't fit into the outage buffer, which has "
                f"{counted(self.nmessages, 'message')}; at most {self._limit:,} messages and {MAX_BYTES >> 20} MiB can "
                f"wait for the server: {self._trouble}"
            )
        if not self._waiting:
            logger.warning(
                "enqueues are kept in memory, up to %s messages: %s", self._limit, self._trouble
            )
        self._waiting[call] = None
        self._count(call, 1)
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="jobq-outage", daemon=True)
            self._sender.start()

    def _count(self, call: _Call, sign: int) -> None:
        self.nmessages += sign * len(call.mids)
        self._size += sign * call.size

    def _send_all(self) -> None:
        pause, over = MIN_PAUSE_S, 0
        while True:
            with self._changed:
                calls = list(self._waiting)
                if not calls:
                    self._sender, self._stopped = None, set()
                    logger.info("the outage buffer is empty; it had %s", counted(over, "message"))
                    return
            if now_over := self._send_each(calls):
                over, pause = over + now_over, MIN_PAUSE_S
            else:
                time.sleep(pause)
                pause = min(MAX_PAUSE_S, pause * 2)

    def _send_each(self, calls: Sequence[_Call]) -> int:
        """Send as many calls as possible, in order; return the number of messages that left the buffer.

        Calls wait for earlier calls with the same queue and key. If the server can't be reached, all calls wait; on a
        Cluster, only calls to the affected queue wait.
        """
        over, stopped = 0, set[Line]()
        away, unconfirmed = set[str](), False
        for call in calls:
            if call.queue.name in away or (call.accepted and unconfirmed):
                continue
            outcome = self._aside(call) if stopped & call.lines else self._outcome(call)
            if outcome == "away" and not self._client.is_cluster:
                return over
            if outcome == "away":
                away.add(call.queue.name)
            elif outcome == "aside" and call.accepted:
                unconfirmed = True
            elif outcome == "aside":
                stopped |= call.lines
            else:
                over += len(call.mids)
                with self._changed:
                    del self._waiting[call]
                    self._naside -= call.aside
                    self._count(call, -1)
                    self._changed.notify_all()
        with self._changed:
            self._stopped = stopped
        return over

    def _aside(self, call: _Call) -> Outcome:
        """Set this call aside, so that calls to other queues or with other keys can be sent first."""
        with self._changed:
            self._naside += not call.aside
            call.aside = True
            if not call.accepted:
                self._stopped |= call.lines
        return "aside"

    def _outcome(self, call: _Call) -> Outcome:
        try:
            call.send()
        except NotDurableError as error:
            self._trouble = str(error)
            if not call.tries.over:
                return self._aside(call)
            self._give_up(call)
        except PartlyAcceptedError as error:
            call.left = error.mids
            return self._refused(call, error.refusal)
        except JobqError as error:
            if not _is_outage(error):
                return self._refused(call, error)
            self._trouble = str(error)
            if not call.tries.over:
                return "away"
            self._give_up(call)
        except Exception as error:
            return self._refused(call, error)
        return "over"

    def _refused(self, call: _Call, error: Exception) -> Outcome:
        """Handle the rejection of one call. Set the call aside for a retry, or log its messages as lost."""
        now = time.monotonic()
        call.refused_at = call.refused_at or now
        if call.may_pass(error) and now - call.refused_at < REFUSED_S:
            if self._trouble != str(error):
                self._trouble = str(error)
                logger.warning(
                    "%s for queue %s was rejected, and will be retried for %g s: %s",
                    _named(call.mids), call.queue.name, REFUSED_S, error,
                )  # fmt: skip
            return self._aside(call)
        logger.error(
            "lost %s for queue %s, rejected after an outage: %s",
            ", ".join(call.left), call.queue.name, error,
            exc_info=None if isinstance(error, JobqError) else error,
        )  # fmt: skip
        self._count_refused(call)
        return "over"

    def _count_refused(self, call: _Call) -> None:
        with suppress(JobqError):
            call.queue.count_refused(len(call.left))

    def _give_up(self, call: _Call) -> None:
        """Log that this call won't be sent again, because another try might enqueue the messages twice."""
        if call.accepted:
            logger.error(
                "accepted but not confirmed as durable: %s for queue %s: %s",
                ", ".join(call.mids), call.queue.name, self._trouble,
            )  # fmt: skip
            return
        with self._changed:
            self._unknown.extend(call.mids)
        logger.error(
            "outcome unknown: %s for queue %s may have arrived before the outage, and won't be sent again: %s",
            ", ".join(call.mids), call.queue.name, self._trouble,
        )  # fmt: skip


def _is_outage(error: JobqError) -> bool:
    """Return whether all calls fail now, because the server is unreachable or full, or its password was changed."""
    if isinstance(error, KeyFullError):
        return False
    return isinstance(error, UnavailableError | ServerFullError) or is_login_refused(error)


def _named(mids: Sequence[str]) -> str:
    return mids[0] if len(mids) == 1 else f"{mids[0]} and {len(mids) - 1} more"


class _Call:
    """One enqueue call, which can be sent several times unchanged."""

    def __init__(
        self,
        queue: Sender,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
    ) -> None:
        self.queue, self.mids = queue, mids
        #: Mids of messages that weren't accepted.
        self.left = mids
        self.tries, self.accepted = Tries(), False
        #: Whether other calls overtake this call, and when (time.monotonic) its rejections began; 0 = never.
        self.aside, self.refused_at = False, 0.0
        self.size = sum(len(arg) for arg in rows if not isinstance(arg, int))
        self._level, self._values, self._rows = level, values, rows
        self._made = time.monotonic()
        self._caller = queue.callers.take()
        self._number = self._caller.number

    @cached_property
    def _keys(self) -> Counter[str]:
        """Number of messages in the call by key; '' means messages without a key."""
        if len(self._rows) == 2 * len(self.mids):
            return Counter({"": len(self.mids)})
        return Counter(map(str, self._rows[2::3]))

    @cached_property
    def lines(self) -> set[Line]:
        """The queue, paired with each key in the call."""
        return {(self.queue.name, key) for key in self._keys}

    def may_pass(self, error: Exception) -> bool:
        """Return whether a retry of the call may succeed after `error`.

        After KeyFullError, no retry can succeed if this call alone exceeds the key's limit.
        """
        if isinstance(error, KeyFullError):
            return self._keys[error.key] <= error.most
        return isinstance(error, ConfigError)

    def send(self) -> Sequence[Enqueued]:
        """Send the call, always under the same number. Delays are counted from the creation of the call."""
        values, delay_ms = self._values, self._values["delay_ms"]
        if isinstance(delay_ms, int):
            passed_ms = round((time.monotonic() - self._made) * 1000)
            values = {**values, "delay_ms": max(0, delay_ms - passed_ms)}
        self._caller.number = self._number
        try:
            done = self.queue.send(
                self._level, values, self._rows, self.mids, self._caller, self.tries
            )
        except NotDurableError:
            self.accepted = True
            raise
        self.queue.callers.give_back(self._caller)
        return done

    def buffered(self) -> Sequence[Enqueued]:
        """Return the result 'buffered' for each message of the call."""
        return [Enqueued(mid, "buffered") for mid in self.mids]


def _at_exit() -> None:
    for buffer in list(runtime.buffers):
        buffer.leave()


atexit.register(_at_exit)
