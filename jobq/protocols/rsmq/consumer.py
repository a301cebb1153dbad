"""`Consumer`: a loop that receives messages, hands them to a function, and deletes what it handled.

At least once: a message is deleted only after its handler returned, and only by who received it last.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from jobq.errors import ServerFullError, UnavailableError
from jobq.protocols.rsmq.consuming import (
    POLL_S,
    Consumed,
    ConsumeOptions,
    Consuming,
    Settlement,
    logger,
)
from jobq.protocols.rsmq.errors import QueueExistsError
from jobq.protocols.rsmq.held import VisibilityRenewer
from jobq.protocols.rsmq.messages import RsmqMessage
from jobq.protocols.rsmq.requests import told

if TYPE_CHECKING:
    from jobq.client.channel import Channel
    from jobq.client.request import Request
    from jobq.protocols.rsmq.client import Rsmq

Handler = Callable[[RsmqMessage], object]
HEARD = (signal.SIGTERM, signal.SIGINT)


class Consumer:
    """Consumes one queue; for the options see Consuming.

    A handler that raises leaves its message in the queue; `Retry(after=…)` says when it comes back, `Dead(…)`
    sends it to the dead-letter queue. `stop()`, from any thread, or SIGTERM or SIGINT in the main thread lets
    running handlers end and takes no more; a second signal acts as if nobody had listened.
    """

    def __init__(
        self, rsmq: Rsmq, qname: str, handler: Handler, **options: Unpack[ConsumeOptions]
    ) -> None:
        self.options = Consuming(qname=qname, **options)
        self._rsmq, self._qname, self._handler = rsmq, qname, handler
        self._stopping = threading.Event()
        self._counted: list[str] = []
        self._woken, self._waking = os.pipe()

    def __del__(self) -> None:
        for file in (getattr(self, "_woken", None), getattr(self, "_waking", None)):
            if file is not None:
                os.close(file)

    def stop(self) -> None:
        """Take no more messages; run() returns once the handlers that run have ended."""
        self._stopping.set()
        os.write(self._waking, b"!")

    def run(self) -> Consumed:
        """Consume until told to stop. Raises QueueNotFoundError, also when the queue is deleted meanwhile."""
        vt = self.options.hidden_s(self._rsmq.get_queue_attributes(self._qname))
        if self.options.max_receives is not None:
            self._make_dead_queue()
        with (
            self._signals(),
            self._rsmq.channel(self._qname) as channel,
            VisibilityRenewer(self._rsmq, self._qname, vt) as held,
        ):
            if self.options.concurrency == 1:
                self._one_by_one(channel, held, vt)
            else:
                self._several(channel, held, vt)
        return Consumed(*(self._counted.count(word) for word in Consumed._fields))

    def _one_by_one(self, channel: Channel, held: VisibilityRenewer, vt: int) -> None:
        """While messages wait, one is deleted by the call that receives the next."""
        for messages in self._received(channel, vt, lambda: 1):
            while messages:
                [message] = messages
                ending = self._handled(held, message)
                messages = []
                if ending.verb == "delete" and not self._stopping.is_set():
                    messages = self._next(message, vt)
                else:
                    self._settled(message, ending)

    def _next(self, message: RsmqMessage, vt: int) -> list[RsmqMessage]:
        try:
            [deleted], messages = self._rsmq.next_messages(self._qname, [message], 1, vt)
        except UnavailableError:
            # Whether it is deleted is unknown; what it received comes back when its vt runs out.
            self._settled(message, Settlement("delete"), again=True)
            return []
        self._counted.append("done" if deleted else self._told_lost(message))
        return messages

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
        """Messages as they come, until stopped; in a burst until none is visible."""
        while not self._stopping.is_set():
            limit, patience = free(), 0.0 if self.options.burst else POLL_S
            if self._stopping.is_set():
                return
            try:
                found = self._rsmq.await_messages(
                    channel, self._qname, limit, vt, patience, [self._woken]
                )
            except UnavailableError as error:
                logger.warning("queue %s: %s", self._qname, error)
                continue
            if found:
                yield found
            elif self.options.burst:
                return

    def _handle(self, held: VisibilityRenewer, message: RsmqMessage) -> None:
        self._settled(message, self._handled(held, message))

    def _handled(self, held: VisibilityRenewer, message: RsmqMessage) -> Settlement:
        """Call the handler, the message kept hidden meanwhile."""
        held.add(message)
        if self.options.is_worn_out(message):
            held.let_go(message)
            return Settlement("dead", reason=f"received {message.rc} times, and nobody said why")
        error: Exception | None = None
        try:
            self._handler(message)
        except Exception as raised:
            error = raised
        except BaseException:
            held.let_go(message)
            self._visible(message, 0)
            raise
        held.let_go(message)
        ending = self.options.ending(message, error)
        if ending.verb == "retry":
            self.options.log_failure(message, error)
        return ending

    def _settled(self, message: RsmqMessage, ending: Settlement, *, again: bool = False) -> None:
        try:
            self._counted.append(self._settle(message, ending, again))
        except (ServerFullError, UnavailableError) as unsettled:
            # It comes back when its vt runs out: at least once.
            logger.warning("queue %s: message %s: %s", self._qname, message.id, unsettled)
            self._counted.append("lost")

    def _settle(self, message: RsmqMessage, ending: Settlement, again: bool) -> str:
        """The word it is counted under."""
        receipt, calls = (message.id, message.receipt), self._rsmq.requests
        if ending.verb == "delete":
            ours = self._ended(calls.delete(self._qname, [receipt]), again)
            return "done" if ours else self._told_lost(message)
        if ending.verb == "dead":
            self._make_dead_queue()
            logger.error("queue %s: message %s is dead: %s", self._qname, message.id, ending.reason)
            ours = self._ended(calls.move(self._qname, self.options.dead_queue, [receipt]), again)
            return "dead" if ours else self._told_lost(message)
        if ending.after_s is not None:
            self._visible(message, ending.after_s)
        return "failed"

    def _visible(self, message: RsmqMessage, after_s: int) -> None:
        self._rsmq.change_message_visibility(
            self._qname, message.id, after_s, receipt=message.receipt
        )

    def _ended(self, request: Request[list[bool]], again: bool) -> bool:
        """Once more where the reply was lost; then a message that isn't there says that the first one did it."""
        client = self._rsmq.client
        if not again:
            try:
                return request.run(client)[0]
            except UnavailableError:
                pass
        return told(request).run(client)[0] != "stale"

    def _told_lost(self, message: RsmqMessage) -> str:
        logger.warning(
            "queue %s: message %s was received again before its handler ended; give a longer vt",
            self._qname, message.id,
        )  # fmt: skip
        return "lost"

    def _make_dead_queue(self) -> None:
        try:
            self._rsmq.create_queue(self.options.dead_queue, maxsize=-1)
        except QueueExistsError:
            pass

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in HEARD}

        def hear(number: int, frame: Any) -> None:
            for one, handler in before.items():
                signal.signal(one, handler)
            self.stop()

        for number in HEARD:
            signal.signal(number, hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
