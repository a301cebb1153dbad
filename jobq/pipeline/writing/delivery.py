"""Send the messages of one partition to their queues, in batches.

A key can have only a limited number of waiting messages. At this limit, further messages of the key are held back in
their order, and sent when there is room again. Messages of other keys aren't held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

import msgspec

from jobq.client.connection import Client
from jobq.client.numbered_calls import BYTES_PER_CALL, Caller
from jobq.client.scripts import Argument
from jobq.durations import counted
from jobq.errors import JobqError, KeyFullError
from jobq.pipeline.writing.rows import RowMessage
from jobq.queue import keys
from jobq.queue.directory import register_queue
from jobq.queue.durability import Confirmation
from jobq.queue.fitting import send_fitting
from jobq.queue.partitions import place_text
from jobq.queue.queue import Queue, enqueue_values, line_full, queue_scripts
from jobq.queue.routing import PartitionRouter, PartlyAcceptedError, refusal_in
from jobq.queue.types import Enqueued

#: Limits on messages and content bytes waiting in memory for a full batch, over all queues.
MAX_WAITING = 20_000
#: How long messages that are set aside wait for room in a line that stays full, and the interval between tries.
FULL_S, PAUSE_S = 30.0, 0.25
MAX_WAITING_BYTES = 16 * 1024 * 1024
_pack = msgspec.msgpack.Encoder().encode


class QueueSender:
    """Sends batches to one queue. Threads can't share a sender, because its calls are numbered."""

    def __init__(self, client: Client, queue: str, dedupe_ms: int, keyed: str = "") -> None:
        self._client, self._name, self._keyed = client, queue, keyed
        self._prefix = keys.prefix(client.namespace, queue)
        self._dedupe_ms = dedupe_ms
        self._caller = Caller()
        self._script = queue_scripts(client, "pipeline", queue)["deliver"]
        self._routes: PartitionRouter | None = None
        #: Mids that partitions accepted in a call which then failed, so that this call will be repeated.
        self._accepted = set[str]()
        self.nadded = self.npresent = 0

    def send(self, messages: Sequence[RowMessage]) -> None:
        """Enqueue the messages. A message already in the queue stays unchanged."""
        if self._routes is not None:
            self._send_to_partitions(self._routes, messages)
            return
        register_queue(self._client, self._name)
        confirmation = Confirmation(
            self._client.durability,
            self._client,
            keys.key(self._prefix, "last_call", self._caller.id),
        )
        values: dict[str, Argument] = {
            "now": "",
            "dedupe_ms": self._dedupe_ms or "",
            "keyed": self._keyed,
            "batch": packed(messages, bool(self._keyed)),
        }
        reply = self._script.call(self._caller, values, by=confirmation.exchange)
        if reply[0] == b"sealed":
            self._routes = Queue(self._name, self._client).routed()
            self._send_to_partitions(self._routes, messages)
            return
        if reply[0] == b"full":
            raise line_full(reply)
        confirmation.check([message.mid for message in messages])
        _, nadded, npresent = reply
        self.nadded += int(nadded)
        self.npresent += int(npresent)

    def _send_to_partitions(self, routes: PartitionRouter, messages: Sequence[RowMessage]) -> None:
        """Enqueue the messages in their partitions. Each call sends messages with the same partition and start time.

        If a call fails with KeyFullError, other partitions may already have accepted messages. A repeated call skips
        these messages.
        """
        newest, groups = routes.map.newest, dict[tuple[str, str], list[RowMessage]]()
        for message in messages:
            if message.mid in self._accepted:
                self._accepted.remove(message.mid)
                continue
            name = newest.name_for(self._name, place_text(message.mid, message.key))
            groups.setdefault((name, message.when), []).append(message)
        accepted = list[str]()
        for (_, when), group in groups.items():
            rows: list[Argument] = []
            for message in group:
                rows += (message.mid, message.content, *([message.key] if self._keyed else ()))
            mids = [message.mid for message in group]
            try:
                done = routes.send(self._client.durability, self._values(when), rows, mids)
            except JobqError as error:
                if isinstance(error, PartlyAcceptedError):
                    self._count(error.accepted)
                    accepted += set(mids).difference(error.mids)
                self._accepted.update(accepted)
                raise
            self._count(done)
            accepted += mids

    def _count(self, done: Sequence[Enqueued]) -> None:
        nadded = sum(reply.action == "added" for reply in done)
        self.nadded += nadded
        self.npresent += len(done) - nadded

    def _values(self, when: str) -> dict[str, Argument]:
        """Return the enqueue options for this start time."""
        kind, digits = when[:1], when[1:]
        return {
            **enqueue_values(), "delay_ms": digits if kind == "d" else "", "at": digits if kind == "a" else "",
            "dedupe_ms": self._dedupe_ms or "", "keyed": self._keyed,
        }  # fmt: skip


class Delivery:
    """Collects messages by queue, and sends them in batches of at most `batch` messages.

    Attributes:
        keyed: 'key' or 'ordered' if messages have keys, else ''.
    """

    def __init__(self, client: Client, batch: int, dedupe_ms: int, keyed: str = "") -> None:
        self._client, self._batch, self._dedupe_ms, self._keyed = client, batch, dedupe_ms, keyed
        self._senders: dict[str, QueueSender] = {}
        self._waiting: dict[str, list[RowMessage]] = {}
        self._bytes: dict[str, int] = {}
        self._nwaiting = self._nbytes = 0
        #: Messages set aside until there is room, by queue and key.
        self._aside: dict[tuple[str, str], list[RowMessage]] = {}

    @property
    def nadded(self) -> int:
        """Number of added messages."""
        return sum(sender.nadded for sender in self._senders.values())

    @property
    def npresent(self) -> int:
        """Number of messages that weren't added, because the queue already had their mid."""
        return sum(sender.npresent for sender in self._senders.values())

    def put(self, message: RowMessage) -> None:
        """Add a message. If its queue's batch is full, send the batch."""
        queue, size = message.queue, len(message.content)
        batch = self._waiting.get(queue)
        if batch is None:
            batch = self._waiting[queue] = []
            self._bytes[queue] = 0
        batch.append(message)
        self._bytes[queue] += size
        self._nwaiting += 1
        self._nbytes += size
        if len(batch) >= self._batch or self._bytes[queue] >= BYTES_PER_CALL:
            self._send(queue)
        elif self._nwaiting >= MAX_WAITING or self._nbytes >= MAX_WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all waiting messages. Raises KeyFullError if full keys accept no messages for FULL_S seconds."""
        for queue in list(self._waiting):
            self._send(queue)
        self._send_aside()

    def _send(self, queue: str) -> None:
        batch, size = self._waiting.pop(queue), self._bytes.pop(queue)
        self._nwaiting -= len(batch)
        self._nbytes -= size
        left: list[RowMessage] = []
        for message in batch:
            self._aside.get((queue, message.key), left).append(message)
        while left:
            try:
                self._sender(queue).send(left)
                break
            except JobqError as error:
                full = refusal_in(error)
                key = full.key if isinstance(full, KeyFullError) else ""
                line = [message for message in left if key and message.key == key]
                if not line:
                    raise
                self._aside[queue, key] = line
                left = [message for message in left if message.key != key]
                self._send_line(queue, key)
        if sum(map(len, self._aside.values())) >= MAX_WAITING:
            self._send_aside()

    def _sender(self, queue: str) -> QueueSender:
        sender = self._senders.get(queue)
        if sender is None:
            sender = QueueSender(self._client, queue, self._dedupe_ms, self._keyed)
            self._senders[queue] = sender
        return sender

    def _send_line(self, queue: str, key: str) -> KeyFullError | None:
        """Send the key's next messages, at most one batch. Return an error if the key has too many waiting messages."""
        line = self._aside[queue, key]
        sent, full = send_fitting(line[: self._batch], self._sender(queue).send)
        del line[:sent]
        if not line:
            del self._aside[queue, key]
        return full

    def _send_aside(self) -> None:
        """Send the messages that were held back because their keys had too many waiting messages."""
        deadline = monotonic() + FULL_S
        while self._aside:
            before = sum(map(len, self._aside.values()))
            refused = [self._send_line(*line) for line in list(self._aside)]
            left = sum(map(len, self._aside.values()))
            if left < before:
                deadline = monotonic() + FULL_S
            full = next((error for error in refused if error is not None), None)
            if full is None:
                continue
            if monotonic() >= deadline:
                raise KeyFullError(
                    f"{counted(left, 'row')} of this partition couldn't be enqueued for {FULL_S:g} s: key {full.key} "
                    f"has {counted(full.most, 'waiting message')}, the maximum. Other rows are enqueued. Raise this "
                    "limit, or write again later with the same ids or loadId", full.key, full.most,
                ) from full  # fmt: skip
            sleep(PAUSE_S)


def packed(messages: Sequence[RowMessage], keyed: bool = False) -> bytes:
    """Return a batch in the format that lua/pipeline/deliver.lua reads."""
    head: list[Any] = []
    for _, when, mid, content, key in messages:
        head += (mid, when, len(content), key) if keyed else (mid, when, len(content))
    text = _pack(head)
    return b"".join([b"%08d" % len(text), text, *[message.content for message in messages]])
