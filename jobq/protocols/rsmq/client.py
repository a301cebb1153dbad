"""`Rsmq`: RSMQ's queues by plain calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, Unpack

from jobq.client.channel import Channel
from jobq.config import duration_s
from jobq.protocols.rsmq import batches, steps
from jobq.protocols.rsmq.checks import MOST_SIZE
from jobq.protocols.rsmq.keys import Keys
from jobq.protocols.rsmq.messages import (
    DELAY_S,
    VT_S,
    Attributes,
    Healed,
    Peeked,
    Received,
    RsmqCounts,
    RsmqMessage,
)
from jobq.protocols.rsmq.requests import MessageRef, Requests
from jobq.protocols.rsmq.waiting import Patience

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.client.request import Request
    from jobq.protocols.rsmq.consuming import Consumed, ConsumeOptions

T = TypeVar("T")
Text = str | bytes


class Rsmq:
    """The queues of one namespace, shared with RSMQ's clients of other languages. Threads may share it.

    client: jobq's client, a URL, or None for the default one. realtime: publish after every send. A call
    whose effect may not happen twice isn't repeated once its reply is lost: UnavailableError says so. Every method
    raises the error that RSMQ names, UnavailableError, ServerFullError or ScriptError.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        ns: str = "rsmq",
        realtime: bool = False,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.client = _client(client)
        self.requests = Requests(
            Keys(ns, is_cluster=self.client.is_cluster), realtime=realtime, clock=clock
        )

    def __repr__(self) -> str:
        return f"Rsmq(ns={self.requests.keys.ns!r})"

    def create_queue(
        self, qname: str, vt: int = VT_S, delay: int = DELAY_S, maxsize: int = MOST_SIZE
    ) -> int:
        """1. vt, delay: 0 to 9,999,999 seconds. maxsize: 1,024 to 65,536 bytes, or -1 for any size."""
        return self._run(self.requests.create(qname, vt, delay, maxsize))

    def list_queues(self) -> list[str]:
        """Names of all queues, sorted."""
        return self._run(self.requests.list_queues())

    def delete_queue(self, qname: str) -> int:
        """1. All its messages go with it."""
        return self._run(self.requests.remove(qname))

    def get_queue_attributes(self, qname: str) -> Attributes:
        """Settings, totals and counts; hidden is who can't be received at this millisecond."""
        return self._run(self.requests.describe(qname))

    def set_queue_attributes(
        self,
        qname: str,
        vt: int | None = None,
        delay: int | None = None,
        maxsize: int | None = None,
    ) -> Attributes:
        """Change what is given; the attributes after that."""
        return self._run(self.requests.set(qname, vt, delay, maxsize))

    def counts(self, qname: str) -> RsmqCounts:
        """Exactly how many can be received now, and how many can't yet."""
        found = self.get_queue_attributes(qname)
        return RsmqCounts(found.msgs - found.hiddenmsgs, found.hiddenmsgs)

    def send_message(self, qname: str, message: Text, delay: int | None = None) -> str:
        """Its id. delay: seconds until it is visible, instead of the queue's."""
        return self._run(self.requests.send(qname, [message], delay))[0]

    def send_messages(
        self, qname: str, messages: Iterable[Text], delay: int | None = None
    ) -> list[str]:
        """Their ids, in order; received in that order too. 1,000 a round trip, each whole or not at all."""
        return self._drive(steps.send(self.requests, qname, messages, delay))

    def receive_message(
        self, qname: str, vt: int | None = None, *, wait: float | str | timedelta = 0
    ) -> RsmqMessage | None:
        """The first visible message, hidden for `vt` seconds; None when there is none within `wait`."""
        found = self.receive_messages(qname, 1, vt, wait=wait)
        return found[0] if found else None

    def receive_messages(
        self,
        qname: str,
        limit: int,
        vt: int | None = None,
        *,
        wait: float | str | timedelta = 0,
    ) -> list[RsmqMessage]:
        """Up to `limit` visible messages, at most 1,000, as soon as there is one."""
        patience = duration_s(wait)
        found = self._look(qname, limit, vt).messages
        if found or patience <= 0:
            return found
        with self.channel(qname) as channel:
            return self.await_messages(channel, qname, limit, vt, patience)

    def await_messages(
        self,
        channel: Channel,
        qname: str,
        limit: int,
        vt: int | None,
        seconds: float,
        others: Sequence[int] = (),
    ) -> list[RsmqMessage]:
        """As receive_messages, waiting on a channel that the caller keeps; it ends when one of the files
        `others` is readable."""
        patience = Patience(seconds)
        channel.open()
        while True:
            found = self._look(qname, limit, vt)
            pause = patience.pause_s(found)
            if found.messages or pause <= 0 or channel.wait(pause, others):
                return found.messages

    def pop_message(self, qname: str) -> RsmqMessage | None:
        """The first visible message, removed: who crashes now has lost it."""
        found = self._run(self.requests.pop(qname, 1))
        return found[0] if found else None

    def delete_message(self, qname: str, id: str, *, receipt: int | None = None) -> bool:
        """Whether it was there. receipt: a message's, to delete it only if nobody received it since."""
        return self._run(self.requests.delete(qname, [(id, receipt)]))[0]

    def delete_messages(self, qname: str, held: Iterable[RsmqMessage | MessageRef]) -> list[bool]:
        """Per message: whether it was there, and not received by anybody since."""
        return self._drive(steps.each(held, lambda some: self.requests.delete(qname, some)))

    def next_messages(
        self,
        qname: str,
        done: Iterable[RsmqMessage | MessageRef],
        limit: int = 1,
        vt: int | None = None,
    ) -> tuple[list[bool], list[RsmqMessage]]:
        """delete_messages of up to 1,000, then receive_messages, in one round trip."""
        request = self.requests.next(qname, batches.held(done), limit, vt)
        deleted, found = self._run(request)
        return deleted, found.messages

    def change_message_visibility(
        self, qname: str, id: str, vt: int, *, receipt: int | None = None
    ) -> bool:
        """Make it visible `vt` seconds from now; whether it was there. receipt: as in delete_message."""
        return self._run(self.requests.visibility(qname, [(id, receipt)], vt))[0]

    def change_messages_visibility(
        self, qname: str, held: Iterable[RsmqMessage | MessageRef], vt: int
    ) -> list[bool]:
        """The same of many, each only if nobody received it since."""
        return self._drive(steps.each(held, lambda some: self.requests.visibility(qname, some, vt)))

    def peek(
        self, qname: str, place: str = "visible", offset: int = 0, limit: int = 100
    ) -> list[Peeked]:
        """Look at messages without receiving them: 'visible', 'hidden' or 'all', the next first."""
        return self._drive(steps.peek(self.requests, qname, place, offset, limit))

    def purge(self, qname: str) -> int:
        """Remove the messages that are there, hidden ones too; how many. Settings and totals stay."""
        return self._drive(steps.purge(self.requests, qname))

    def move_messages(
        self, qname: str, target: str, held: Iterable[RsmqMessage | MessageRef]
    ) -> list[bool]:
        """To another queue, under the same ids, visible at once; per message as delete_messages."""
        return self._drive(steps.each(held, lambda some: self.requests.move(qname, target, some)))

    def redrive(self, qname: str, target: str, limit: int | None = None) -> int:
        """Move what is visible in one queue to another, as from a dead-letter queue back; how many."""
        return self._drive(steps.redrive(self.requests, qname, target, limit))

    def heal(self, qname: str) -> Healed:
        """Remove what crashed clients left: ids without a body, fields of deleted messages; list the queue."""
        return self._drive(steps.heal(self.requests, qname))

    def consume(
        self,
        qname: str,
        handler: Callable[[RsmqMessage], object],
        **options: Unpack[ConsumeOptions],
    ) -> Consumed:
        """Receive messages and hand them to `handler` until told to stop; see Consumer."""
        from jobq.protocols.rsmq.consumer import Consumer

        return Consumer(self, qname, handler, **options).run()

    def channel(self, qname: str) -> Channel:
        """The channel on which sends to this queue are told."""
        return Channel(self.client, self.requests.keys.channel(qname))

    def close(self) -> None:
        """Close the client's connections; the next call opens anew."""
        self.client.close()

    def _run(self, request: Request[T]) -> T:
        return request.run(self.client)

    def _look(self, qname: str, limit: int, vt: int | None) -> Received:
        return self._run(self.requests.receive(qname, limit, vt))

    def _drive(self, taken: steps.Steps[T]) -> T:
        try:
            request = next(taken)
            while True:
                request = taken.send(self._run(request))
        except StopIteration as end:
            result: T = end.value
            return result


def _client(client: Client | str | None) -> Client:
    if client is None:
        from jobq.client.connection import default_client

        return default_client()
    if isinstance(client, str):
        from jobq.client.connection import connect

        return connect(client)
    return client
