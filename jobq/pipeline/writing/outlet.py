"""One queue as a write sees it: messages enqueued at once, or staged and published later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from jobq.client.connection import Argument, Client
from jobq.client.numbered_calls import Caller
from jobq.client.scripts import load
from jobq.errors import PipelineError
from jobq.pipeline.writing.rows import Message
from jobq.queue import keys
from jobq.queue.binding import served
from jobq.queue.directory import register_queue
from jobq.queue.durability import Confirmation

#: How long a stage outlives the last sign of its write. The janitor comes earlier (janitor.py).
STAGE_TTL_MS = 3_600_000
_pack = msgspec.msgpack.Encoder().encode


class Staged(NamedTuple):
    """What one attempt staged for one queue: batches `<attempt>.0` to `<attempt>.<nbatches - 1>`."""

    queue: str
    birth: str
    attempt: str
    nbatches: int
    nrows: int


class Outlet:
    """Sends to one queue. Not shared between threads: its calls are numbered."""

    def __init__(self, client: Client, queue: str, dedupe_ms: int) -> None:
        self._client, self._name = client, queue
        self._prefix = keys.prefix(client.namespace, queue)
        self._dedupe_ms = dedupe_ms
        self._caller = Caller()
        self.patience_s = client.settings.patience_s
        self.nadded = self.npresent = 0

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Accept the messages; one whose mid lives already stays as it is."""
        register_queue(self._client, self._name)
        self._accept("deliver", [packed(messages)], [message.mid for message in messages])

    def stage(self, run: str, staged: Staged, messages: Sequence[Message]) -> Staged:
        """Keep one more batch aside; what is staged now. Harmless to repeat: its place has a name."""
        script = load("pipeline", "stage")
        field = f"{staged.attempt}.{staged.nbatches}"
        args: list[Argument] = [
            staged.attempt,
            staged.birth,
            field,
            packed(messages),
            STAGE_TTL_MS,
        ]
        reply = self._client.run(script, [stage_key(self._client, self._name, run)], args)
        if reply[0] != b"ok":
            raise _lost(self._name)
        return staged._replace(
            birth=reply[1].decode(),
            nbatches=staged.nbatches + 1,
            nrows=staged.nrows + len(messages),
        )

    def check(self, run: str, staged: Staged) -> None:
        """PipelineError unless all of it is still there."""
        key = stage_key(self._client, self._name, run)
        last = f"{staged.attempt}.{staged.nbatches - 1}"
        birth, there = self._client.command("HMGET", key, "born", last)
        if birth is None or birth.decode() != staged.birth or there is None:
            raise _lost(self._name)

    def publish(self, run: str, staged: Staged, number: int) -> None:
        """Enqueue one staged batch and drop it."""
        args: list[Argument] = [staged.birth, f"{staged.attempt}.{number}", STAGE_TTL_MS]
        self._accept("publish", args, ["a staged batch"], run)

    def _accept(self, name: str, args: list[Argument], mids: Sequence[str], run: str = "") -> None:
        """The next numbered call of a script that accepts a batch. run: whose stage has it."""
        script, caller = load("pipeline", name), self._caller
        names = [
            stage_key(self._client, self._name, run)
            if key == "staged"
            else keys.key(self._prefix, key, caller.id)
            for key in script.keys
        ]
        numbered = [caller.id, caller.next(), "", self._dedupe_ms or "", *args]
        confirmation = Confirmation(
            self._client.durability, self._client, keys.key(self._prefix, "last_call", caller.id)
        )
        reply = self._client.run(script, names, numbered, confirmation.exchange)
        if served(self._name, caller, reply)[0] == b"lost":
            raise _lost(self._name)
        confirmation.check(mids)
        self.nadded += int(reply[1])
        self.npresent += int(reply[2])


def stage_key(client: Client, queue: str, run: str) -> str:
    """Where a run stages for a queue: hash, `born` and `<attempt>.<n>` -> batch; TTL."""
    return f"{keys.prefix(client.namespace, queue)}staged:{run}"


def packed(messages: Sequence[Message]) -> bytes:
    """A batch as lua/pipeline/_batch.lua reads it."""
    head: list[Any] = []
    for _, when, mid, content in messages:
        head += (mid, when, len(content))
    text = _pack(head)
    return b"".join([b"%08d" % len(text), text, *[message.content for message in messages]])


def _lost(queue: str) -> PipelineError:
    return PipelineError(
        f"what was staged for queue {queue!r} is gone: the server lost it, or this write gave no sign of "
        "life for too long; write again, rows that are enqueued already stay as they are"
    )
