"""`Consumer` and `AsyncConsumer` receive messages, pass them to a function, and delete the handled messages.

Messages are handled at least once: a message is deleted only after its handler returned, and only by its last receiver.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from jobq.client.channel import Channel
from jobq.client.numbered_calls import ScriptCall
from jobq.client.steps import Steps, ask
from jobq.config import duration_s
from jobq.errors import (
    ConfigError,
    Dead,
    JobqError,
    Outcome,
    Retry,
    ServerFullError,
    Snooze,
    UnavailableError,
)
from jobq.protocols.rsmq import checks, steps
from jobq.protocols.rsmq.errors import QueueExistsError
from jobq.protocols.rsmq.messages import DELAY_S, VT_S, Attributes, RsmqMessage
from jobq.protocols.rsmq.requests import Requests, outcome_words

logger = logging.getLogger("jobq.rsmq")
#: Maximum wait of one poll; `stop` ends the wait.
POLL_S = 30.0
#: How often a message is hidden again within its visibility timeout.
RENEWALS = 3


class Consumed(NamedTuple):
    """The numbers of handled, failed and dead-lettered messages, and of messages lost to other clients or outages."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0


class ConsumeOptions(TypedDict, total=False):
    """The options of a consumer; see Consuming."""

    vt: int | None
    concurrency: int
    max_receives: int | None
    dead_letter: str | None
    retry_after: float | str | timedelta | None
    burst: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Consuming:
    """Options of a consumer.

    Attributes:
        vt: Hide received messages for this many seconds, and longer while the handler runs. Default: the queue's vt.
        concurrency: Maximum number of concurrent handlers.
        max_receives: Receive a message at most this often. After that, move the message to the dead-letter queue.
        dead_letter: The dead-letter queue, created if it is missing. Default: `<queue>-dead`.
        retry_after: Seconds until a failed message is visible again. Default: the rest of its vt.
        burst: Stop as soon as no message is visible.
    """

    qname: str
    vt: int | None = None
    concurrency: int = 1
    max_receives: int | None = None
    dead_letter: str | None = None
    retry_after: float | str | timedelta | None = None
    burst: bool = False

    def __post_init__(self) -> None:
        checks.existing_name(self.qname)
        for name in ("vt", "concurrency", "max_receives"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} is below 1; it must be at least 1")
        if self.retry_after is not None:
            whole_s(duration_s(self.retry_after))
        if self.dead_letter == self.qname:
            raise ConfigError(f"dead_letter {self.qname!r} is the queue itself; use another queue")
        if self.dead_letter is not None or self.max_receives is not None:
            checks.queue_name(self.dead_queue)

    @property
    def dead_queue(self) -> str:
        """Name of the dead-letter queue."""
        return self.dead_letter or f"{self.qname}-dead"

    def hidden_s(self, attributes: Attributes) -> int:
        """Return the visibility timeout. Raises ConfigError if it is too short to be renewed in time."""
        vt = self.vt or attributes.vt
        if vt < 1:
            raise ConfigError(
                f"queue {self.qname!r} hides received messages for {vt} s; pass vt=1 or more to the consumer"
            )
        return vt

    def is_worn_out(self, message: RsmqMessage) -> bool:
        """Return whether a message was received too often without an outcome, for example because receivers crashed."""
        return self.max_receives is not None and message.rc > self.max_receives

    def worn_out(self, message: RsmqMessage) -> Settlement:
        """Return the action for a message received too often: dead-letter the message."""
        return Settlement("dead", reason=f"received {message.rc} times without a reported outcome")

    def settlement(self, message: RsmqMessage, error: BaseException | None) -> Settlement:
        """Return the action for a message whose handler returned or raised an error."""
        if error is None:
            return Settlement("delete")
        if isinstance(error, Dead):
            if checks.is_regular_name(self.dead_queue):
                return Settlement("dead", reason=error.reason)
            logger.error(
                "queue %s: %r can't name a queue; pass dead_letter=…", self.qname, self.dead_queue
            )
        if self.max_receives is not None and message.rc >= self.max_receives:
            return Settlement(
                "dead", reason=f"received {message.rc} times, the last error was {error!r}"
            )
        return Settlement("retry", self._after_s(error), repr(error))

    def log_failure(self, message: RsmqMessage, error: BaseException | None) -> None:
        """Log the error, without a traceback if the handler raised an Outcome on purpose."""
        said = f": {error}" if isinstance(error, Outcome) else ""
        logger.warning(
            "queue %s: message %s failed%s", self.qname, message.id, said,
            exc_info=None if said else error,
        )  # fmt: skip

    def _after_s(self, error: BaseException) -> int | None:
        after: float | str | timedelta | None = self.retry_after
        if isinstance(error, Retry | Snooze) and error.after is not None:
            after = error.after
        if after is None:
            return None
        try:
            return whole_s(min(duration_s(after), checks.MAX_S))
        except (ValueError, TypeError, OverflowError, JobqError) as refused:
            # One handler's mistake must not end the loop.
            logger.warning("queue %s: ignored after=%r: %s", self.qname, after, refused)
            return None


class Settlement(NamedTuple):
    """The action for a message after its handler: delete, dead-letter or retry.

    If `after_s` is None, a retried message becomes visible when its vt ends.
    """

    verb: Literal["delete", "dead", "retry"]
    after_s: int | None = None
    reason: str = ""


def whole_s(seconds: float) -> int:
    """Round up to whole seconds, because RSMQ doesn't support fractions."""
    return checks.seconds("vt", math.ceil(seconds))


T = TypeVar("T")
Handler = Callable[[RsmqMessage], object]
AsyncHandler = Callable[[RsmqMessage], Coroutine[Any, Any, object]]
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Queues(Protocol):
    """The methods of Rsmq that a consumer uses."""

    requests: Requests

    def perform(self, steps: ScriptCall[T] | Steps[T]) -> T:
        """Run steps; return their result."""
        ...

    def channel(self, qname: str) -> Channel:
        """Return the channel that announces new messages in a queue."""
        ...


class AsyncQueues(Protocol):
    """The methods of AsyncRsmq that a consumer uses."""

    @property
    def blocking(self) -> Queues:
        """Return a blocking client for the same queues."""
        ...

    async def perform(self, steps: ScriptCall[T] | Steps[T]) -> T:
        """Run steps; return their result."""
        ...


class BaseConsumer:
    """Base class of both consumers. It handles messages in steps, and can be stopped."""

    def __init__(self, requests: Requests, qname: str, options: ConsumeOptions) -> None:
        self.options = Consuming(qname=qname, **options)
        self._requests, self._qname = requests, qname
        self._stopping = threading.Event()
        self._counted: list[str] = []
        self._woken, self._waking = os.pipe()

    def __del__(self) -> None:
        for file in (getattr(self, "_woken", None), getattr(self, "_waking", None)):
            if file is not None:
                os.close(file)

    def stop(self) -> None:
        """Stop receiving messages; run() returns once the running handlers have ended."""
        self._stopping.set()
        os.write(self._waking, b"!")

    def _begin(self) -> Steps[int]:
        """Check that the queue exists, create a missing dead-letter queue, and return the visibility timeout."""
        vt = self.options.hidden_s((yield from ask(self._requests.describe(self._qname))))
        if self.options.max_receives is not None:
            yield from self._make_dead_queue()
        return vt

    def _receive(self, channel: Channel, limit: int, vt: int) -> Steps[list[RsmqMessage] | None]:
        """Return messages; [] if no message arrived in time, None if the server is unreachable."""
        patience_s = 0.0 if self.options.burst else POLL_S
        try:
            return (
                yield from steps.await_messages(
                    self._requests, channel, self._qname, limit, vt, patience_s, self._woken
                )
            )
        except UnavailableError as error:
            logger.warning("queue %s: %s", self._qname, error)
            return None

    def _next(self, message: RsmqMessage, vt: int) -> Steps[list[RsmqMessage]]:
        """Delete a message and receive the next message in one request."""
        try:
            [deleted], messages = yield from steps.next_messages(
                self._requests, self._qname, [message], 1, vt
            )
        except UnavailableError:
            # The message may or may not be deleted. A received message becomes visible again when its vt ends.
            yield from self._settle(message, Settlement("delete"), again=True)
            return []
        self._counted.append("done" if deleted else self._lost(message))
        return messages

    def _settle(
        self, message: RsmqMessage, settlement: Settlement, *, again: bool = False
    ) -> Steps[None]:
        """Delete a message, move it to another queue, or make it visible later.

        Args:
            again: Whether the reply to an earlier try was lost.
        """
        try:
            self._counted.append((yield from self._settled(message, settlement, again)))
        except (ServerFullError, UnavailableError) as unsettled:
            # The message becomes visible again when its vt ends, so it is handled at least once.
            logger.warning("queue %s: message %s: %s", self._qname, message.id, unsettled)
            self._counted.append("lost")

    def _settled(self, message: RsmqMessage, settlement: Settlement, again: bool) -> Steps[str]:
        """Delete, dead-letter or retry a message. Return the name of the matching counter, such as `done`."""
        receipt, calls = (message.id, message.receipt), self._requests
        if settlement.verb == "delete":
            ours = yield from self._once_more(calls.delete(self._qname, [receipt]), again)
            return "done" if ours else self._lost(message)
        if settlement.verb == "dead":
            yield from self._make_dead_queue()
            logger.error(
                "queue %s: message %s is dead: %s", self._qname, message.id, settlement.reason
            )
            move = calls.move(self._qname, self.options.dead_queue, [receipt])
            ours = yield from self._once_more(move, again)
            return "dead" if ours else self._lost(message)
        if settlement.after_s is not None:
            yield from self._make_visible(message, settlement.after_s)
        return "failed"

    def _make_visible(self, message: RsmqMessage, after_s: int) -> Steps[None]:
        receipt = (message.id, message.receipt)
        yield from ask(self._requests.visibility(self._qname, [receipt], after_s))

    def _once_more(self, request: ScriptCall[list[bool]], again: bool) -> Steps[bool]:
        """Send a request. If the reply is lost, repeat the request.

        In a repeated request, a missing message counts as success, because the first request may have deleted it.
        """
        if not again:
            try:
                return (yield from ask(request))[0]
            except UnavailableError:
                pass
        return (yield from ask(outcome_words(request)))[0] != "stale"

    def _lost(self, message: RsmqMessage) -> str:
        logger.warning(
            "queue %s: message %s was received again before its handler ended; use a longer vt",
            self._qname, message.id,
        )  # fmt: skip
        return "lost"

    def _make_dead_queue(self) -> Steps[None]:
        dead = self.options.dead_queue
        try:
            yield from ask(self._requests.create(dead, VT_S, DELAY_S, checks.ANY_SIZE))
        except QueueExistsError:
            pass

    def _settlement(self, message: RsmqMessage, error: BaseException | None) -> Settlement:
        settlement = self.options.settlement(message, error)
        if settlement.verb == "retry":
            self.options.log_failure(message, error)
        return settlement

    def _result(self) -> Consumed:
        return Consumed(*(self._counted.count(word) for word in Consumed._fields))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop the consumer at the first signal; a second signal has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: Any) -> None:
            restore()
            self.stop()

        for number in STOP_SIGNALS:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


class Consumer(BaseConsumer):
    """Consumes one queue; for the options see Consuming.

    If a handler raises an error, its message stays in the queue. `Retry(after=…)` sets when the message is visible
    again, and `Dead(…)` moves the message to the dead-letter queue. `stop()`, from any thread, stops the consumer after
    its running handlers. SIGTERM and SIGINT do the same in the main thread; a second signal has its usual effect.
    """

    def __init__(
        self, rsmq: Queues, qname: str, handler: Handler, **options: Unpack[ConsumeOptions]
    ) -> None:
        super().__init__(rsmq.requests, qname, options)
        self._rsmq, self._handler = rsmq, handler

    def run(self) -> Consumed:
        """Consume until stopped. Raises QueueNotFoundError if the queue is missing, or is deleted during the run."""
        vt = self._rsmq.perform(self._begin())
        with (
            self._signals(),
            self._rsmq.channel(self._qname) as channel,
            VisibilityRenewer(self._rsmq, self._qname, vt) as held,
        ):
            if self.options.concurrency == 1:
                self._one_by_one(channel, held, vt)
            else:
                self._several(channel, held, vt)
        return self._result()

    def _one_by_one(self, channel: Channel, held: VisibilityRenewer, vt: int) -> None:
        """Handle one message at a time.

        If another message waits, one request deletes a message and receives the next.
        """
        for messages in self._received(channel, vt, lambda: 1):
            while messages:
                [message] = messages
                settlement = self._handled(held, message)
                messages = []
                if settlement.verb == "delete" and not self._stopping.is_set():
                    messages = self._rsmq.perform(self._next(message, vt))
                else:
                    self._rsmq.perform(self._settle(message, settlement))

    def _several(self, channel: Channel, held: VisibilityRenewer, vt: int) -> None:
        most = self.options.concurrency
        running: set[Future[None]] = set()

        def free() -> int:
            nonlocal running
            if len(running) == most:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
            running = {future for future in running if not future.done() or future.result()}
            return most - len(running)

        with ThreadPoolExecutor(most, "jobq-rsmq") as pool:
            for messages in self._received(channel, vt, free):
                for message in messages:
                    held.add(message)
                    running.add(pool.submit(self._handle, held, message))
            for future in running:
                future.result()

    def _received(
        self, channel: Channel, vt: int, free: Callable[[], int]
    ) -> Iterator[list[RsmqMessage]]:
        """Yield messages until the consumer is stopped. With `burst`, also stop as soon as no message is visible."""
        while not self._stopping.is_set():
            limit = free()
            if self._stopping.is_set():
                return
            reply = self._rsmq.perform(self._receive(channel, limit, vt))
            if reply:
                yield reply
            elif self.options.burst and reply is not None:
                return

    def _handle(self, held: VisibilityRenewer, message: RsmqMessage) -> None:
        self._rsmq.perform(self._settle(message, self._handled(held, message)))

    def _handled(self, held: VisibilityRenewer, message: RsmqMessage) -> Settlement:
        """Call the handler, and keep the message hidden while it runs."""
        held.add(message)
        if self.options.is_worn_out(message):
            held.let_go(message)
            return self.options.worn_out(message)
        error: Exception | None = None
        try:
            self._handler(message)
        except Exception as raised:
            error = raised
        except BaseException:
            held.let_go(message)
            self._rsmq.perform(self._make_visible(message, 0))
            raise
        held.let_go(message)
        return self._settlement(message, error)


class AsyncConsumer(BaseConsumer):
    """Consumes one queue with coroutines. For the options see Consuming, for outcomes and signals see Consumer.

    Cancelling run() also cancels the handlers, and their messages become visible immediately.
    """

    def __init__(
        self,
        rsmq: AsyncQueues,
        qname: str,
        handler: AsyncHandler,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        super().__init__(rsmq.blocking.requests, qname, options)
        self._rsmq, self._handler = rsmq, handler
        self._held: dict[str, RsmqMessage] = {}
        # Also held during a renewal, because a late renewal would hide a settled message again.
        self._lock = asyncio.Lock()

    async def run(self) -> Consumed:
        """Consume until stopped. Raises QueueNotFoundError if the queue is missing, or is deleted during the run."""
        vt = await self._rsmq.perform(self._begin())
        with self._signals(), self._rsmq.blocking.channel(self._qname) as channel:
            beat = asyncio.create_task(self._beat(vt))
            try:
                await self._consume(channel, vt)
            finally:
                beat.cancel()
        return self._result()

    async def _consume(self, channel: Channel, vt: int) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while not self._stopping.is_set():
                free = self.options.concurrency - len(running)
                reply = await self._rsmq.perform(self._receive(channel, free, vt))
                if self.options.burst and not reply:
                    break
                for message in reply or ():
                    self._held[message.id] = message
                    running.add(asyncio.create_task(self._handle(message)))
                if len(running) == self.options.concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for ended in [task for task in running if task.done()]:
                    running.discard(ended)
                    ended.result()
            await asyncio.gather(*running)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        finally:
            # Let running handlers end, even if the queue was deleted.
            await asyncio.gather(*running, return_exceptions=True)

    async def _handle(self, message: RsmqMessage) -> None:
        settlement = await self._handled(message)
        await self._rsmq.perform(self._settle(message, settlement))

    async def _handled(self, message: RsmqMessage) -> Settlement:
        """Await the handler, and keep the message hidden while it runs."""
        if self.options.is_worn_out(message):
            await self._let_go(message)
            return self.options.worn_out(message)
        error: Exception | None = None
        try:
            await self._handler(message)
        except Exception as raised:
            error = raised
        except BaseException:
            await self._let_go(message)
            await self._rsmq.perform(self._make_visible(message, 0))
            raise
        await self._let_go(message)
        return self._settlement(message, error)

    async def _let_go(self, message: RsmqMessage) -> None:
        async with self._lock:
            self._held.pop(message.id, None)

    async def _beat(self, vt: int) -> None:
        while True:
            await asyncio.sleep(vt / RENEWALS)
            async with self._lock:
                await self._rsmq.perform(renewal(self._requests, self._qname, self._held, vt))


class VisibilityRenewer:
    """Keeps received messages hidden. While a message is handled, a thread hides it again every `vt` / 3 seconds."""

    def __init__(self, rsmq: Queues, qname: str, vt: int) -> None:
        self._rsmq, self._qname, self._vt = rsmq, qname, vt
        self._messages: dict[str, RsmqMessage] = {}
        # Also held during a renewal, because a late renewal would hide a settled message again.
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="jobq-rsmq-heartbeat", daemon=True)

    def __enter__(self) -> VisibilityRenewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: RsmqMessage) -> None:
        """Start renewing a message, so that it stays hidden."""
        with self._lock:
            self._messages[message.id] = message

    def let_go(self, message: RsmqMessage) -> None:
        """Stop renewing a message, and wait until no renewal is running."""
        with self._lock:
            self._messages.pop(message.id, None)

    def renew(self) -> None:
        """Hide all held messages for another `vt` seconds; forget messages that another client has received."""
        with self._lock:
            requests = self._rsmq.requests
            self._rsmq.perform(renewal(requests, self._qname, self._messages, self._vt))

    def _beat(self) -> None:
        while not self._over.wait(self._vt / RENEWALS):
            self.renew()


def renewal(
    requests: Requests, qname: str, messages: dict[str, RsmqMessage], vt: int
) -> Steps[None]:
    """Hide messages for another `vt` seconds; stop tracking messages that another client has received."""
    held = list(messages.values())
    try:
        kept = yield from steps.each(held, lambda some: requests.visibility(qname, some, vt))
    except JobqError as error:
        logger.warning("queue %s: could not extend the visibility timeout: %s", qname, error)
        return
    for message, ours in zip(held, kept, strict=True):
        if not ours:
            del messages[message.id]
            logger.warning(
                "queue %s: message %s was received or deleted by another consumer while its handler ran",
                qname, message.id,
            )  # fmt: skip
