"""`AsyncConsumer`: as Consumer, for coroutines of one event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from jobq.errors import JobqError, ServerFullError, UnavailableError
from jobq.protocols.rsmq.consuming import (
    POLL_S,
    Consumed,
    ConsumeOptions,
    Consuming,
    Settlement,
    logger,
)
from jobq.protocols.rsmq.errors import QueueExistsError
from jobq.protocols.rsmq.messages import RsmqMessage
from jobq.protocols.rsmq.requests import told

if TYPE_CHECKING:
    from jobq.client.channel import Channel
    from jobq.client.request import Request
    from jobq.protocols.rsmq.aio import AsyncRsmq

AsyncHandler = Callable[[RsmqMessage], Coroutine[Any, Any, object]]
HEARD = (signal.SIGTERM, signal.SIGINT)


class AsyncConsumer:
    """Consumes one queue; for the options see Consuming, for outcomes and signals Consumer.

    When its run() is cancelled, so are the handlers, and what they held is visible again at once.
    """

    def __init__(
        self, rsmq: AsyncRsmq, qname: str, handler: AsyncHandler, **options: Unpack[ConsumeOptions]
    ) -> None:
        self.options = Consuming(qname=qname, **options)
        self._rsmq, self._qname, self._handler = rsmq, qname, handler
        self._stopping = asyncio.Event()
        self._held: dict[str, RsmqMessage] = {}
        self._counted: list[str] = []
        # Held during a renewal too: one that arrived after a message was settled would hide it again.
        self._lock = asyncio.Lock()

    def stop(self) -> None:
        """Take no more messages; run() returns once the handlers that run have ended."""
        self._stopping.set()

    async def run(self) -> Consumed:
        """Consume until told to stop. Raises QueueNotFoundError, also when the queue is deleted meanwhile."""
        vt = self.options.hidden_s(await self._rsmq.get_queue_attributes(self._qname))
        if self.options.max_receives is not None:
            await self._make_dead_queue()
        with self._signals(), self._rsmq.plain.channel(self._qname) as channel:
            beat = asyncio.create_task(self._beat(vt))
            try:
                await self._receive(channel, vt)
            finally:
                beat.cancel()
        return Consumed(*(self._counted.count(word) for word in Consumed._fields))

    async def _receive(self, channel: Channel, vt: int) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while not self._stopping.is_set():
                free = self.options.concurrency - len(running)
                found = await self._found(channel, free, vt)
                if self.options.burst and not found:
                    break
                for message in found:
                    self._held[message.id] = message
                    running.add(asyncio.create_task(self._handle(message)))
                if len(running) == self.options.concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for ended in [one for one in running if one.done()]:
                    running.discard(ended)
                    ended.result()
            await asyncio.gather(*running)
        except asyncio.CancelledError:
            for one in running:
                one.cancel()
            raise
        finally:
            # What runs may end, also when the queue is gone.
            await asyncio.gather(*running, return_exceptions=True)

    async def _found(self, channel: Channel, free: int, vt: int) -> list[RsmqMessage]:
        patience = 0.0 if self.options.burst else POLL_S
        try:
            return await self._rsmq.await_messages(
                channel, self._qname, free, vt, patience, self._stopping
            )
        except UnavailableError as error:
            logger.warning("queue %s: %s", self._qname, error)
            return []

    async def _handle(self, message: RsmqMessage) -> None:
        error: Exception | None = None
        if self.options.is_worn_out(message):
            ending = Settlement("dead", reason=f"received {message.rc} times, and nobody said why")
        else:
            try:
                await self._handler(message)
            except Exception as raised:
                error = raised
            except BaseException:
                await self._let_go(message)
                await self._visible(message, 0)
                raise
            ending = self.options.ending(message, error)
        await self._let_go(message)
        try:
            self._counted.append(await self._settle(message, ending, error))
        except (ServerFullError, UnavailableError) as unsettled:
            logger.warning("queue %s: message %s: %s", self._qname, message.id, unsettled)
            self._counted.append("lost")

    async def _settle(
        self, message: RsmqMessage, ending: Settlement, error: Exception | None
    ) -> str:
        receipt, calls = (message.id, message.receipt), self._rsmq.requests
        if ending.verb == "delete":
            ours = await self._ended(calls.delete(self._qname, [receipt]))
            return "done" if ours else self._told_lost(message)
        if ending.verb == "dead":
            await self._make_dead_queue()
            logger.error("queue %s: message %s is dead: %s", self._qname, message.id, ending.reason)
            dead = self.options.dead_queue
            ours = await self._ended(calls.move(self._qname, dead, [receipt]))
            return "dead" if ours else self._told_lost(message)
        self.options.log_failure(message, error)
        if ending.after_s is not None:
            await self._visible(message, ending.after_s)
        return "failed"

    async def _visible(self, message: RsmqMessage, after_s: int) -> None:
        await self._rsmq.change_message_visibility(
            self._qname, message.id, after_s, receipt=message.receipt
        )

    async def _ended(self, request: Request[list[bool]]) -> bool:
        """Once more where the reply was lost; then a message that isn't there says that the first one did it."""
        try:
            return (await self._rsmq._run(request))[0]
        except UnavailableError:
            return (await self._rsmq._run(told(request)))[0] != "stale"

    def _told_lost(self, message: RsmqMessage) -> str:
        logger.warning(
            "queue %s: message %s was received again before its handler ended; give a longer vt",
            self._qname, message.id,
        )  # fmt: skip
        return "lost"

    async def _make_dead_queue(self) -> None:
        try:
            await self._rsmq.create_queue(self.options.dead_queue, maxsize=-1)
        except QueueExistsError:
            pass

    async def _let_go(self, message: RsmqMessage) -> None:
        async with self._lock:
            self._held.pop(message.id, None)

    async def _beat(self, vt: int) -> None:
        while True:
            await asyncio.sleep(vt / 3)
            try:
                await self._renew(vt)
            except JobqError as error:
                logger.warning("queue %s: no renewal: %s", self._qname, error)

    async def _renew(self, vt: int) -> None:
        async with self._lock:
            messages = list(self._held.values())
            kept = await self._rsmq.change_messages_visibility(self._qname, messages, vt)
            for message, ours in zip(messages, kept, strict=True):
                if not ours:
                    del self._held[message.id]
                    logger.warning(
                        "queue %s: message %s was received or deleted by somebody else while its handler ran",
                        self._qname, message.id,
                    )  # fmt: skip

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in HEARD}

        def restore() -> None:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

        def hear() -> None:
            restore()
            self.stop()

        for number in HEARD:
            loop.add_signal_handler(number, hear)
        try:
            yield
        finally:
            restore()
