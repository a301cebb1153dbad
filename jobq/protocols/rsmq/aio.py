"""`AsyncRsmq`: the same calls for asyncio. What coroutines ask for at the same time travels together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from jobq.client.inflight import IN_FLIGHT, Flights
from jobq.config import duration_s
from jobq.protocols.rsmq import batches, steps
from jobq.protocols.rsmq.checks import MOST_SIZE
from jobq.protocols.rsmq.client import Rsmq, Text
from jobq.protocols.rsmq.messages import (
    DELAY_S,
    VT_S,
    Attributes,
    Healed,
    Peeked,
    RsmqCounts,
    RsmqMessage,
)
from jobq.protocols.rsmq.requests import MessageRef
from jobq.protocols.rsmq.waiting import Patience

if TYPE_CHECKING:
    from jobq.client.channel import Channel
    from jobq.client.connection import Client
    from jobq.client.request import Request
    from jobq.protocols.rsmq.consuming import Consumed, ConsumeOptions

T = TypeVar("T")


class AsyncRsmq:
    """As Rsmq, method by method, for one event loop.

    Requests are collected while a round trip is under way and make the next one together, in their order.
    A coroutine that is cancelled meanwhile doesn't take its request back: what it received stays hidden until
    its vt runs out.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        ns: str = "rsmq",
        realtime: bool = False,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.plain = Rsmq(client, ns, realtime, clock=clock)
        self.requests = self.plain.requests
        self._flights = Flights(self.plain.client)
        self._waiting: list[tuple[Request[Any], asyncio.Future[Any]]] = []
        self._carrier: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"AsyncRsmq(ns={self.requests.keys.ns!r})"

    async def create_queue(
        self, qname: str, vt: int = VT_S, delay: int = DELAY_S, maxsize: int = MOST_SIZE
    ) -> int:
        """See Rsmq, as all of these."""
        return await self._run(self.requests.create(qname, vt, delay, maxsize))

    async def list_queues(self) -> list[str]:
        return await self._run(self.requests.list_queues())

    async def delete_queue(self, qname: str) -> int:
        return await self._run(self.requests.remove(qname))

    async def get_queue_attributes(self, qname: str) -> Attributes:
        return await self._run(self.requests.describe(qname))

    async def set_queue_attributes(
        self,
        qname: str,
        vt: int | None = None,
        delay: int | None = None,
        maxsize: int | None = None,
    ) -> Attributes:
        return await self._run(self.requests.set(qname, vt, delay, maxsize))

    async def counts(self, qname: str) -> RsmqCounts:
        found = await self.get_queue_attributes(qname)
        return RsmqCounts(found.msgs - found.hiddenmsgs, found.hiddenmsgs)

    async def send_message(self, qname: str, message: Text, delay: int | None = None) -> str:
        return (await self._run(self.requests.send(qname, [message], delay)))[0]

    async def send_messages(
        self, qname: str, messages: Iterable[Text], delay: int | None = None
    ) -> list[str]:
        return await self._drive(steps.send(self.requests, qname, messages, delay))

    async def receive_message(
        self, qname: str, vt: int | None = None, *, wait: float | str | timedelta = 0
    ) -> RsmqMessage | None:
        found = await self.receive_messages(qname, 1, vt, wait=wait)
        return found[0] if found else None

    async def receive_messages(
        self,
        qname: str,
        limit: int,
        vt: int | None = None,
        *,
        wait: float | str | timedelta = 0,
    ) -> list[RsmqMessage]:
        patience = duration_s(wait)
        found = (await self._run(self.requests.receive(qname, limit, vt))).messages
        if found or patience <= 0:
            return found
        with self.plain.channel(qname) as channel:
            return await self.await_messages(channel, qname, limit, vt, patience)

    async def await_messages(
        self,
        channel: Channel,
        qname: str,
        limit: int,
        vt: int | None,
        seconds: float,
        stop: asyncio.Event | None = None,
    ) -> list[RsmqMessage]:
        patience = Patience(seconds)
        await asyncio.to_thread(channel.open)
        while True:
            found = await self._run(self.requests.receive(qname, limit, vt))
            pause = patience.pause_s(found)
            if found.messages or pause <= 0 or (stop and stop.is_set()):
                return found.messages
            await _published(channel, pause, stop or asyncio.Event())

    async def pop_message(self, qname: str) -> RsmqMessage | None:
        found = await self._run(self.requests.pop(qname, 1))
        return found[0] if found else None

    async def delete_message(self, qname: str, id: str, *, receipt: int | None = None) -> bool:
        return (await self._run(self.requests.delete(qname, [(id, receipt)])))[0]

    async def delete_messages(
        self, qname: str, held: Iterable[RsmqMessage | MessageRef]
    ) -> list[bool]:
        return await self._drive(steps.each(held, lambda some: self.requests.delete(qname, some)))

    async def next_messages(
        self,
        qname: str,
        done: Iterable[RsmqMessage | MessageRef],
        limit: int = 1,
        vt: int | None = None,
    ) -> tuple[list[bool], list[RsmqMessage]]:
        request = self.requests.next(qname, batches.held(done), limit, vt)
        deleted, found = await self._run(request)
        return deleted, found.messages

    async def change_message_visibility(
        self, qname: str, id: str, vt: int, *, receipt: int | None = None
    ) -> bool:
        return (await self._run(self.requests.visibility(qname, [(id, receipt)], vt)))[0]

    async def change_messages_visibility(
        self, qname: str, held: Iterable[RsmqMessage | MessageRef], vt: int
    ) -> list[bool]:
        return await self._drive(
            steps.each(held, lambda some: self.requests.visibility(qname, some, vt))
        )

    async def peek(
        self, qname: str, place: str = "visible", offset: int = 0, limit: int = 100
    ) -> list[Peeked]:
        return await self._drive(steps.peek(self.requests, qname, place, offset, limit))

    async def purge(self, qname: str) -> int:
        return await self._drive(steps.purge(self.requests, qname))

    async def move_messages(
        self, qname: str, target: str, held: Iterable[RsmqMessage | MessageRef]
    ) -> list[bool]:
        return await self._drive(
            steps.each(held, lambda some: self.requests.move(qname, target, some))
        )

    async def redrive(self, qname: str, target: str, limit: int | None = None) -> int:
        return await self._drive(steps.redrive(self.requests, qname, target, limit))

    async def heal(self, qname: str) -> Healed:
        return await self._drive(steps.heal(self.requests, qname))

    async def consume(
        self,
        qname: str,
        handler: Callable[[RsmqMessage], Coroutine[Any, Any, object]],
        **options: Unpack[ConsumeOptions],
    ) -> Consumed:
        """Receive messages and hand them to `handler` until told to stop; see AsyncConsumer."""
        from jobq.protocols.rsmq.async_consumer import AsyncConsumer

        return await AsyncConsumer(self, qname, handler, **options).run()

    def close(self) -> None:
        self.plain.close()

    async def _run(self, request: Request[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._carrier is None:
            self._carrier = asyncio.create_task(self._carry())
        return await future

    async def _carry(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:IN_FLIGHT], self._waiting[IN_FLIGHT:]
                try:
                    requests = [request for request, _ in some]
                    outcomes = await asyncio.to_thread(self._flights.run, requests)
                except BaseException:
                    for _, future in some + self._waiting:
                        future.cancel()
                    self._waiting = []
                    raise
                for (_, future), outcome in zip(some, outcomes, strict=True):
                    _resolve(future, outcome)
        finally:
            self._carrier = None

    async def _drive(self, taken: steps.Steps[T]) -> T:
        try:
            request = next(taken)
            while True:
                request = taken.send(await self._run(request))
        except StopIteration as end:
            result: T = end.value
            return result


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.cancelled():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def _published(channel: Channel, seconds: float, stop: asyncio.Event) -> None:
    """Until something is published, so many seconds are over, or `stop` is set."""
    loop, file, told = asyncio.get_running_loop(), channel.open_file, asyncio.Event()
    if file is not None:
        loop.add_reader(file, told.set)
    waits = [asyncio.ensure_future(event.wait()) for event in (told, stop)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        if file is not None:
            loop.remove_reader(file)
    if told.is_set():
        channel.drain()
