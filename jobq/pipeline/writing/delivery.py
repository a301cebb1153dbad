"""What becomes of one attempt's messages: enqueued batch by batch, or staged until the driver publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobq.pipeline.writing import janitor
from jobq.pipeline.writing.outlet import Outlet, Staged
from jobq.queue.binding import BYTES_PER_CALL

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.pipeline.writing.rows import Message
    from jobq.pipeline.writing.settings import WriteSettings

#: What may wait in memory for its batch to fill, in messages and bytes of content, all queues together.
MOST_WAITING = 20_000
MOST_BYTES = 16 * 1024 * 1024


class Delivery:
    """Gathers messages by queue and passes them on in batches. `staged`: what was staged, by queue."""

    def __init__(self, settings: WriteSettings, client: Client) -> None:
        self._settings, self._client = settings, client
        self._outlets: dict[str, Outlet] = {}
        self._waiting: dict[str, list[Message]] = {}
        self._bytes: dict[str, int] = {}
        self._nwaiting = self._nbytes = 0
        self.staged: dict[str, Staged] = {}

    @property
    def nadded(self) -> int:
        """Messages that are new in their queue."""
        return sum(outlet.nadded for outlet in self._outlets.values())

    @property
    def npresent(self) -> int:
        """Messages whose mid lived already."""
        return sum(outlet.npresent for outlet in self._outlets.values())

    def put(self, message: Message) -> None:
        """Take one message."""
        queue, size = message.queue, len(message.content)
        batch = self._waiting.get(queue)
        if batch is None:
            batch = self._waiting[queue] = []
            self._bytes[queue] = 0
        batch.append(message)
        self._bytes[queue] += size
        self._nwaiting += 1
        self._nbytes += size
        if len(batch) >= self._settings.batch or self._bytes[queue] >= BYTES_PER_CALL:
            self._flush(queue)
        elif self._nwaiting >= MOST_WAITING or self._nbytes >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass on all that waits."""
        for queue in list(self._waiting):
            self._flush(queue)

    def _flush(self, queue: str) -> None:
        batch, size = self._waiting.pop(queue), self._bytes.pop(queue)
        self._nwaiting -= len(batch)
        self._nbytes -= size
        self._send(queue, batch)

    def _send(self, queue: str, batch: list[Message]) -> None:
        self._outlet(queue).enqueue(batch)

    def _outlet(self, queue: str) -> Outlet:
        known = self._outlets.get(queue)
        if known is None:
            known = Outlet(self._client, queue, self._settings.dedupe_ms)
            self._outlets[queue] = known
        return known


class StagedDelivery(Delivery):
    """Stages instead."""

    def __init__(self, settings: WriteSettings, client: Client, run: str, attempt: str) -> None:
        super().__init__(settings, client)
        self._run, self._attempt = run, attempt

    def _send(self, queue: str, batch: list[Message]) -> None:
        known = self.staged.get(queue)
        if known is not None:
            self.staged[queue] = self._outlet(queue).stage(self._run, known, batch)
            return
        janitor.enter(self._client, self._run, queue)
        first = Staged(queue, "", self._attempt, 0, 0)
        self.staged[queue] = self._outlet(queue).stage(self._run, first, batch)
        # Again: an abort may have come between the two, and what isn't listed nobody drops.
        janitor.enter(self._client, self._run, queue)
