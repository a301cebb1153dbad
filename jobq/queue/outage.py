"""Keep what a producer enqueues while the server is away in memory, in order, and send it when it is back.

Off unless a bound is set. Messages that wait here are lost with their process; their action is `buffered`. Each call
keeps its mids, its caller and its number. So a call whose outcome is unknown is sent again without harm, while the
server surely has its record. After that it isn't sent any more: the log and the next `flush` name its mids. Calls that
were never sent keep waiting. While anything waits, all that follows waits behind it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller, Callers, Tries
from jobq.client.runtime import runtime
from jobq.client.scripts import Argument
from jobq.config import ServerSettings
from jobq.errors import (
    BufferFullError,
    ConfigError,
    KeyFullError,
    NotDurableError,
    ServerFullError,
    UnavailableError,
)
from jobq.queue.types import Enqueued

logger = logging.getLogger("jobq")

MAX_BYTES = 64 * 1024 * 1024
#: How long a call is tried before it waits here; lost connections are opened again in that time.
FIRST_TRY_S = 0.2
#: A producer with a buffer rather waits at its end than lose what is in it.
FLUSH_S = 10.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25
#: Errors that pass, or that a person can repair at the server while messages wait.
_WAITED_FOR = (UnavailableError, ServerFullError, NotDurableError, ConfigError, KeyFullError)
#: Mids of unknown outcome that are kept until a flush names them; the log names all.
MOST_UNKNOWN = 10_000


Values = dict[str, Argument]


class Sender(Protocol):
    """The queue that a call goes to."""

    name: str
    callers: Callers

    def on(self, client: Client) -> Sender:
        """The same queue on another client."""
        ...

    def send(
        self,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
        caller: Caller | None,
        tries: Tries | None = None,
    ) -> Sequence[Enqueued]:
        """Make one enqueue call."""
        ...


def attach_buffer(client: Client) -> None:
    """Give the client its outage buffer, if its settings ask for one."""
    if client.settings.outage_buffer and runtime.may_buffer and client.outage is None:
        with runtime.lock:
            if client.outage is None:
                client.outage = OutageBuffer(client.settings)


def switch_off_buffers() -> None:
    """No client of this process, or forked from it, keeps messages in its memory alone any more."""
    runtime.may_buffer = False
    for client in list(runtime.clients):
        client.outage = None


class OutageBuffer:
    """The calls of one client that wait for its server. Threads may share it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._limit = settings.outage_buffer
        self._patience_s = settings.patience_s
        impatient_s = min(settings.patience_s, FIRST_TRY_S)
        self._client = Client(replace(settings, outage_buffer=0, patience_s=impatient_s))
        self.forget()
        runtime.buffers.add(self)

    def forget(self) -> None:
        """In a forked child: the parent sends what waits."""
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._queues: dict[str, Sender] = {}
        self._sender: threading.Thread | None = None
        self._size = 0
        self._trouble = ""
        self._unknown: deque[str] = deque(maxlen=MOST_UNKNOWN)
        self.nmessages = 0

    def enqueue(
        self,
        queue: Sender,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
    ) -> Sequence[Enqueued]:
        """Send now, or keep for later. Raises BufferFullError, and what Queue.enqueue raises."""
        call = _Call(self._impatient(queue), level, values, rows, mids)
        with self._changed:
            if self._waiting:
                self._keep(call)
                return call.buffered()
        try:
            return call.send()
        except UnavailableError as error:
            with self._changed:
                if not self._fits(call):
                    raise  # it may have arrived, so BufferFullError would be wrong
                self._trouble = str(error)
                self._keep(call)
            return call.buffered()

    def flush(self, within_s: float | None = None) -> None:
        """Wait until the buffer is empty, by default for the client's patience, but at least 10 s.

        Raises UnavailableError when it isn't by then, and, with their mids, when the outcome of some messages has
        become unknown since the last flush.
        """
        within_s = max(self._patience_s, FLUSH_S) if within_s is None else within_s
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, within_s):
                raise UnavailableError(
                    f"{self.nmessages} enqueued are still only in this process's memory after {within_s:g} s: "
                    f"{self._trouble}"
                )
            unknown, self._unknown = self._unknown, deque(maxlen=MOST_UNKNOWN)
        if unknown:
            raise UnavailableError(
                f"whether {_named(unknown)} arrived before an outage is unknown, since it lasted too long to send "
                "them again; check their status, or enqueue them again if a second run does no harm",
                tuple(unknown),
            )

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _impatient(self, queue: Sender) -> Sender:
        """The queue on the client of this buffer."""
        known = self._queues.get(queue.name)
        return known or self._queues.setdefault(queue.name, queue.on(self._client))

    def _fits(self, call: _Call) -> bool:
        nmessages, size = self.nmessages + len(call.mids), self._size + call.size
        return nmessages <= self._limit and size <= MAX_BYTES

    def _keep(self, call: _Call) -> None:
        if not self._fits(call):
            raise BufferFullError(
                f"{call.mids[0]} was not accepted: {self.nmessages} messages wait for the server already "
                f"({self._limit} may, and {MAX_BYTES >> 20} MiB); {self._trouble}"
            )
        if not self._waiting:
            logger.warning("enqueues wait in memory, up to %s: %s", self._limit, self._trouble)
        self._waiting.append(call)
        self._count(call, 1)
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="jobq-outage", daemon=True)
            self._sender.start()

    def _count(self, call: _Call, sign: int) -> None:
        self.nmessages += sign * len(call.mids)
        self._size += sign * call.size

    def _send_all(self) -> None:
        pause, sent = SHORTEST_PAUSE_S, 0
        while True:
            with self._changed:
                if not self._waiting:
                    self._sender = None
                    logger.info("the server is back: %s messages that waited were sent", sent)
                    return
                call = self._waiting[0]
            if not self._settled(call):
                time.sleep(pause)
                pause = min(LONGEST_PAUSE_S, pause * 2)
                continue
            with self._changed:
                sent += len(call.mids)
                self._count(self._waiting.popleft(), -1)
                self._changed.notify_all()
            pause = SHORTEST_PAUSE_S

    def _settled(self, call: _Call) -> bool:
        try:
            call.send()
        except _WAITED_FOR as error:
            self._trouble = str(error)
            if not call.tries.over:
                return False
            self._give_up(call)
        except Exception:
            # The server would refuse it for ever, and all behind it would wait.
            named = ", ".join(call.mids)
            logger.exception(
                "lost: %s for queue %s, refused after an outage", named, call.queue.name
            )
        return True

    def _give_up(self, call: _Call) -> None:
        """The server may have dropped the record of this call: sent again, it might run twice."""
        if call.accepted:
            logger.error(
                "accepted, and not confirmed to be durable: %s for queue %s: %s",
                ", ".join(call.mids), call.queue.name, self._trouble,
            )  # fmt: skip
            return
        with self._changed:
            self._unknown.extend(call.mids)
        logger.error(
            "outcome unknown: %s for queue %s may have arrived before the outage, and aren't sent again: %s",
            ", ".join(call.mids), call.queue.name, self._trouble,
        )  # fmt: skip


def _named(mids: Sequence[str]) -> str:
    return mids[0] if len(mids) == 1 else f"{mids[0]} and {len(mids) - 1} more"


class _Call:
    """One enqueue, the same each time it is sent."""

    def __init__(
        self,
        queue: Sender,
        level: str,
        values: Values,
        rows: Sequence[Argument],
        mids: Sequence[str],
    ) -> None:
        self.queue, self.mids = queue, mids
        self.tries, self.accepted = Tries(), False
        self.size = sum(len(arg) for arg in rows if not isinstance(arg, int))
        self._level, self._values, self._rows = level, values, rows
        self._made = time.monotonic()
        self._caller = queue.callers.take()
        self._number = self._caller.number

    def send(self) -> Sequence[Enqueued]:
        """Send the call under its number; a delay counts from the first enqueue."""
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
        """The producer's result until the call is sent."""
        return [Enqueued(mid, "buffered") for mid in self.mids]


def _at_exit() -> None:
    for buffer in list(runtime.buffers):
        try:
            buffer.flush()
        except UnavailableError as error:
            if buffer.nmessages:  # messages of unknown outcome were logged before
                logger.error("lost with this process: %s", error)


atexit.register(_at_exit)
