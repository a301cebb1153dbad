"""Clients for RSMQ's queues: `Rsmq` with blocking calls, and `AsyncRsmq` with coroutines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from jobq.client.aio import close_async
from jobq.client.channel import Channel
from jobq.client.connection import Client, connect, default_client
from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise
from jobq.client.numbered_calls import ScriptCall
from jobq.client.steps import Steps
from jobq.protocols.rsmq import steps
from jobq.protocols.rsmq.checks import MAX_SIZE
from jobq.protocols.rsmq.consumer import AsyncConsumer, Consumed, ConsumeOptions, Consumer
from jobq.protocols.rsmq.keys import Keys
from jobq.protocols.rsmq.messages import (
    DELAY_S,
    VT_S,
    Attributes,
    Peeked,
    Repaired,
    RsmqCounts,
    RsmqMessage,
)
from jobq.protocols.rsmq.requests import MessageRef, Requests, first, then

T = TypeVar("T")
Text = str | bytes


class Rsmq(BlockingFacade):
    """A thread-safe client for the RSMQ queues of one namespace. Clients in other languages can use the same queues.

    If the reply to a call is lost and repeating the call would be unsafe, the call raises UnavailableError. Every
    method may raise RSMQ's errors, UnavailableError, ServerFullError or ScriptError.

    Args:
        client: A jobq client, a URL, or None for the default client.
        realtime: After every send, publish the queue's message count on the queue's channel.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        ns: str = "rsmq",
        realtime: bool = False,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if client is None:
            client = default_client()
        self.client = connect(client) if isinstance(client, str) else client
        keys = Keys(ns, is_cluster=self.client.is_cluster)
        self.requests = Requests(keys, realtime=realtime, clock=clock)

    def __repr__(self) -> str:
        return f"Rsmq(ns={self.requests.keys.ns!r})"

    @stepwise
    def create_queue(
        self, qname: str, vt: int = VT_S, delay: int = DELAY_S, maxsize: int = MAX_SIZE
    ) -> ScriptCall[int]:
        """Create a queue.

        Args:
            vt: How long received messages are hidden: 0 to 9,999,999 seconds.
            delay: How long new messages are hidden: 0 to 9,999,999 seconds.
            maxsize: Maximum message size: 1,024 to 65,536 bytes, or -1 for any size.
        """
        return self.requests.create(qname, vt, delay, maxsize)

    @stepwise
    def list_queues(self) -> ScriptCall[list[str]]:
        """Return the names of all queues, sorted."""
        return self.requests.list_queues()

    @stepwise
    def delete_queue(self, qname: str) -> ScriptCall[int]:
        """Delete a queue and all its messages; return 1."""
        return self.requests.remove(qname)

    @stepwise
    def get_queue_attributes(self, qname: str) -> ScriptCall[Attributes]:
        """Return the queue's settings, totals and counts.

        A message counts as hidden until the exact millisecond at which it becomes visible.
        """
        return self.requests.describe(qname)

    @stepwise
    def set_queue_attributes(
        self,
        qname: str,
        vt: int | None = None,
        delay: int | None = None,
        maxsize: int | None = None,
    ) -> ScriptCall[Attributes]:
        """Change the given attributes; return all attributes."""
        return self.requests.set(qname, vt, delay, maxsize)

    @stepwise
    def counts(self, qname: str) -> Steps[RsmqCounts]:
        """Return the exact numbers of visible and hidden messages."""
        return steps.counts(self.requests, qname)

    @stepwise
    def send_message(self, qname: str, message: Text, delay: int | None = None) -> ScriptCall[str]:
        """Send a message; return its id.

        Args:
            delay: Seconds until the message is visible. Default: the queue's delay.
        """
        return self.requests.send_one(qname, message, delay)

    @stepwise
    def send_messages(
        self, qname: str, messages: Iterable[Text], delay: int | None = None
    ) -> Steps[list[str]]:
        """Send messages; return their ids in the order of `messages`.

        Messages are sent in batches of up to 1,000. Each batch is either sent completely or rejected.
        """
        return steps.send(self.requests, qname, messages, delay)

    @stepwise
    def receive_message(
        self, qname: str, vt: int | None = None, *, wait: float | str | timedelta = 0
    ) -> ScriptCall[RsmqMessage | None] | Steps[RsmqMessage | None]:
        """Receive the first visible message and hide it for `vt` seconds.

        Return None if no message is visible within `wait`.
        """
        if wait == 0:
            return self.requests.receive_one(qname, vt)
        return _first(steps.receive(self.requests, self.channel, qname, 1, vt, wait))

    @stepwise
    def receive_messages(
        self,
        qname: str,
        limit: int,
        vt: int | None = None,
        *,
        wait: float | str | timedelta = 0,
    ) -> Steps[list[RsmqMessage]]:
        """Return up to `limit` visible messages, at most 1,000, as soon as at least one is visible."""
        return steps.receive(self.requests, self.channel, qname, limit, vt, wait)

    @stepwise
    def pop_message(self, qname: str) -> ScriptCall[RsmqMessage | None]:
        """Remove and return the first visible message. If the process then crashes, the message is lost."""
        return then(self.requests.pop(qname, 1), lambda popped: popped[0] if popped else None)

    @stepwise
    def delete_message(
        self, qname: str, id: str, *, receipt: int | None = None
    ) -> ScriptCall[bool]:
        """Delete a message; return whether it was there.

        Args:
            receipt: The message's receipt, to delete the message only if no other client has received it since.
        """
        return self.requests.delete_one(qname, id, receipt)

    @stepwise
    def delete_messages(
        self, qname: str, held: Iterable[RsmqMessage | MessageRef]
    ) -> Steps[list[bool]]:
        """Delete messages, unless another client has received them since. Return whether each message was deleted."""
        return steps.each(held, lambda some: self.requests.delete(qname, some))

    @stepwise
    def next_messages(
        self,
        qname: str,
        done: Iterable[RsmqMessage | MessageRef],
        limit: int = 1,
        vt: int | None = None,
    ) -> Steps[tuple[list[bool], list[RsmqMessage]]]:
        """Call delete_messages for up to 1,000 messages, and then receive_messages, in one round trip."""
        return steps.next_messages(self.requests, qname, done, limit, vt)

    @stepwise
    def change_message_visibility(
        self, qname: str, id: str, vt: int, *, receipt: int | None = None
    ) -> ScriptCall[bool]:
        """Make a message visible in `vt` seconds; return whether it existed. For `receipt`, see delete_message."""
        return then(self.requests.visibility(qname, [(id, receipt)], vt), first)

    @stepwise
    def change_messages_visibility(
        self, qname: str, held: Iterable[RsmqMessage | MessageRef], vt: int
    ) -> Steps[list[bool]]:
        """Make messages visible in `vt` seconds. Skip messages that another client has received again."""
        return steps.each(held, lambda some: self.requests.visibility(qname, some, vt))

    @stepwise
    def peek(
        self, qname: str, place: str = "visible", offset: int = 0, limit: int = 100
    ) -> Steps[list[Peeked]]:
        """Return messages without receiving them, next message first. `place` is 'visible', 'hidden' or 'all'."""
        return steps.peek(self.requests, qname, place, offset, limit)

    @stepwise
    def purge(self, qname: str) -> Steps[int]:
        """Remove all current messages, including hidden messages; return their number. Settings and totals stay."""
        return steps.purge(self.requests, qname)

    @stepwise
    def move_messages(
        self, qname: str, target: str, held: Iterable[RsmqMessage | MessageRef]
    ) -> Steps[list[bool]]:
        """Move messages to another queue, where they have the same ids and are visible immediately.

        The result for a message is False if the message was missing or another client has received it since.
        """
        return steps.each(held, lambda some: self.requests.move(qname, target, some))

    @stepwise
    def redrive(self, qname: str, target: str, limit: int | None = None) -> Steps[int]:
        """Move visible messages to another queue, for example back from a dead-letter queue; return their number."""
        return steps.redrive(self.requests, qname, target, limit)

    @stepwise
    def repair(self, qname: str) -> Steps[Repaired]:
        """Remove leftovers of crashed clients: ids without a body, and fields of deleted messages.

        Also add the queue to the list of queues if it is missing there.
        """
        return steps.repair(self.requests, qname)

    def consume(
        self,
        qname: str,
        handler: Callable[[RsmqMessage], object],
        **options: Unpack[ConsumeOptions],
    ) -> Consumed:
        """Receive messages and pass them to `handler` until stopped; see Consumer."""
        return Consumer(self, qname, handler, **options).run()

    def channel(self, qname: str) -> Channel:
        """Return the channel that announces new messages in this queue."""
        return Channel(self.client, self.requests.keys.channel(qname))

    def close(self) -> None:
        """Close the client's connections; the next call opens new ones."""
        self.client.close()


class AsyncRsmq(AsyncFacade[Rsmq]):
    """The methods of Rsmq as coroutines, for one event loop.

    All calls of an event loop share one connection. Concurrent calls are sent together, in order. Cancelling a
    coroutine doesn't cancel its sent call: messages that the call received stay hidden until their vt ends.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        ns: str = "rsmq",
        realtime: bool = False,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(Rsmq(client, ns, realtime, clock=clock))

    create_queue = awaited(Rsmq.create_queue)
    list_queues = awaited(Rsmq.list_queues)
    delete_queue = awaited(Rsmq.delete_queue)
    get_queue_attributes = awaited(Rsmq.get_queue_attributes)
    set_queue_attributes = awaited(Rsmq.set_queue_attributes)
    counts = awaited(Rsmq.counts)
    send_message = awaited(Rsmq.send_message)
    send_messages = awaited(Rsmq.send_messages)
    receive_message = awaited(Rsmq.receive_message)
    receive_messages = awaited(Rsmq.receive_messages)
    pop_message = awaited(Rsmq.pop_message)
    delete_message = awaited(Rsmq.delete_message)
    delete_messages = awaited(Rsmq.delete_messages)
    next_messages = awaited(Rsmq.next_messages)
    change_message_visibility = awaited(Rsmq.change_message_visibility)
    change_messages_visibility = awaited(Rsmq.change_messages_visibility)
    peek = awaited(Rsmq.peek)
    purge = awaited(Rsmq.purge)
    move_messages = awaited(Rsmq.move_messages)
    redrive = awaited(Rsmq.redrive)
    repair = awaited(Rsmq.repair)

    async def consume(
        self,
        qname: str,
        handler: Callable[[RsmqMessage], Coroutine[Any, Any, object]],
        **options: Unpack[ConsumeOptions],
    ) -> Consumed:
        """Receive messages and pass them to `handler` until stopped; see AsyncConsumer."""
        return await AsyncConsumer(self, qname, handler, **options).run()

    def close(self) -> None:
        """Close the client's connections; the next call opens new ones."""
        close_async(self.blocking.client)
        self.blocking.close()


def _first(receiving: Steps[list[RsmqMessage]]) -> Steps[RsmqMessage | None]:
    messages = yield from receiving
    return messages[0] if messages else None
