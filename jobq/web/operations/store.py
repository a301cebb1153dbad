"""Storage of operations: a hash per operation, kept for an hour after its last change.

The hash `jobq:web:op:<id>` has these fields:

- `state`: the OperationState as JSON.
- `c<n>`: chunk n of the frozen messages, as JSON.
- `b<n>`: set before chunk n is processed.
- `r<n>`: the results of the chunk, one letter per message.
- `t<n>`: the previous start times of the chunk's messages, as JSON.
- `v<n>` and `u<n>`: like `b<n>` and `r<n>`, for the undo.
- `stop`: the user who asked to stop the operation.

`jobq:web:op:<id>:lock` has the token of the process that works on the operation. `jobq:web:operations` lists the ids of
the latest operations.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from jobq.client.connection import Client
from jobq.client.pipelining import Read, commands, read_together
from jobq.client.scripts import Argument
from jobq.errors import ConfigError
from jobq.queue import keys
from jobq.records import JsonRecord, MomentOrZero
from jobq.web.operations.verbs import VERBS

KEPT_MS = 3_600_000
#: How long a lock lasts without a renewal.
LOCK_MS = 30_000
#: Maximum number of messages in a chunk, and in an operation.
CHUNK, MAX_MESSAGES = 250, 100_000
MAX_LISTED = 200
_ID = re.compile(r"[0-9a-f]{16}")
OperationPhase = Literal[
    "freezing", "previewed", "applying", "stopped", "done", "undoing", "undone", "failed"
]
#: The letters of results.
APPLIED, CHANGED, GONE, NO_ROOM, DAMAGED = "acgfd"


class SampleMessage(JsonRecord):
    """One message of a preview.

    Attributes:
        at: When the message was enqueued or died.
    """

    queue: str
    mid: str
    job: str
    error: str
    at: MomentOrZero


class OperationState(msgspec.Struct, kw_only=True):
    """State of an operation. Times are epoch ms by the server's clock.

    Attributes:
        by: Name of the operation's creator.
        filter: Filter that selects the messages; '' for chosen messages.
        chosen: Digest of the chosen messages.
        number: Number of the operation's messages.
        capped: Whether more messages match than an operation may have.
        queues, jobs, errors: Names with their numbers of messages, most frequent first.
        why_no_undo: Why the operation can't be undone, or ''.
        spread_ms: Time over which revived messages start.
        results, undone: Result of the action or undo -> number of messages.
    """

    id: str
    verb: str
    by: str
    role: str = ""
    filter: str = ""
    chosen: str = ""
    phase: OperationPhase = "freezing"
    created_at: int = 0
    began_at: int = 0
    ended_at: int = 0
    looked_at: int = 0
    total: int = 0
    number: int = 0
    nchunks: int = 0
    capped: bool = False
    queues: list[tuple[str, int]] = []
    jobs: list[tuple[str, int]] = []
    errors: list[tuple[str, int]] = []
    oldest_ms: int = 0
    newest_ms: int = 0
    samples: list[SampleMessage] = []
    problems: dict[str, str] = {}
    why_no_undo: str = ""
    spread_ms: int = 0
    applied_by: str = ""
    stopped_by: str = ""
    results: dict[str, int] = {}
    undone: dict[str, int] = {}
    error: str = ""


class FrozenChunk(msgspec.Struct):
    """Some of an operation's messages, from one queue.

    Attributes:
        ids: Message ids, or dead ids. The other lists have one entry per id, but are empty for dead messages.
        generations: Generation of each message.
        digests: Digest of each content.
        sizes: Size of each content.
        formers: Start time of each message, epoch ms.
    """

    queue: str
    ids: list[str]
    generations: list[str] = []
    digests: list[str] = []
    sizes: list[int] = []
    formers: list[int] = []


class OperationStore:
    """The operations of a namespace.

    Attributes:
        client: Client of a user with write access.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def key(self, op: str) -> str:
        """Return the key of the hash of an operation. Raises ConfigError for an invalid id."""
        if not _ID.fullmatch(op):
            raise ConfigError(f"{op!r:.80} is not the id of an operation")
        return keys.web_operation(self.client.namespace, op)

    def add(self, state: OperationState) -> None:
        """Store a new operation, and add it to the list of operations."""
        listed = keys.web_operations(self.client.namespace)
        self.save(state)
        self.client.command("ZADD", listed, state.created_at, state.id)
        self.client.command("ZREMRANGEBYRANK", listed, 0, -MAX_LISTED - 1)
        self.client.command("PEXPIRE", listed, KEPT_MS)

    def save(self, state: OperationState, **fields: Argument) -> None:
        """Store an operation's state, and other fields of its hash."""
        key = self.key(state.id)
        words: list[Argument] = [word for pair in fields.items() for word in pair]
        written = ("HSET", key, "state", msgspec.json.encode(state), *words)
        self.many(state.id, [written, ("PEXPIRE", key, KEPT_MS)])

    def many(self, op: str, words: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send several commands on the key of one operation in one round trip."""
        return commands(self.client, self.key(op), words)

    def load(self, op: str) -> OperationState | None:
        """Return the state of an operation; None if it doesn't exist or is damaged."""
        return _state(self.client.command("HGET", self.key(op), "state"))

    def listed(self) -> list[OperationState]:
        """Return the newest operations, newest first."""
        ids = self._newest(50)
        replies = read_together(self.client, [self._read(op, "HGET", "state") for op in ids])
        return [state for reply in replies if (state := _state_of(reply)) is not None]

    def recent(self, most: int) -> list[tuple[OperationState, bool, int]]:
        """Return recent operations as tuples.

        A tuple has the operation's state, True if a process has locked the operation, and the ms until its deletion.
        """
        ids = self._newest(most)
        reads = [
            read
            for op in ids
            for key in [self.key(op)]
            for read in (self._read(op, "HGET", "state"), Read(key, ("EXISTS", f"{key}:lock")), self._read(op, "PTTL"))
        ]  # fmt: skip
        replies = read_together(self.client, reads)
        operations: list[tuple[OperationState, bool, int]] = []
        for reply, lock, left in zip(replies[::3], replies[1::3], replies[2::3], strict=True):
            state = _state_of(reply)
            if state is not None and isinstance(lock, int) and isinstance(left, int):
                operations.append((state, bool(lock), max(0, left)))
        return operations

    def _newest(self, most: int) -> list[str]:
        names = keys.web_operations(self.client.namespace)
        ids = self.client.command("ZREVRANGE", names, 0, MAX_LISTED - 1)
        ops = [id_.decode() for id_ in ids if _ID.fullmatch(id_.decode("utf-8", "replace"))]
        return ops[:most]

    def _read(self, op: str, verb: str, *words: Argument) -> Read:
        key = self.key(op)
        return Read(key, (verb, key, *words))

    def put_chunk(self, op: str, number: int, chunk: FrozenChunk) -> None:
        """Store a chunk of frozen messages."""
        self.client.command("HSET", self.key(op), f"c{number}", msgspec.json.encode(chunk))

    def chunk(self, op: str, number: int) -> FrozenChunk | None:
        """Return a chunk; None if it doesn't exist or is damaged."""
        reply = self.client.command("HGET", self.key(op), f"c{number}")
        return None if reply is None else _decoded(reply, FrozenChunk)

    def field(self, op: str, name: str) -> str | None:
        """Return the field `name` of an operation's hash; None if it doesn't exist."""
        reply = self.client.command("HGET", self.key(op), name)
        return None if reply is None else reply.decode("utf-8", "replace")

    def letters(self, op: str, kind: str, nchunks: int) -> list[str]:
        """Return each chunk's results as a string with a letter per message; '' for an unprocessed chunk.

        Args:
            kind: `r` for results of the action, `u` for results of the undo.
        """
        letters: list[str] = []
        for first in range(0, nchunks, 100):
            names = [f"{kind}{number}" for number in range(first, min(nchunks, first + 100))]
            reply = self.client.command("HMGET", self.key(op), *names)
            letters += [(text or b"").decode("utf-8", "replace") for text in reply]
        return letters

    def left_ms(self, op: str) -> int:
        """Return the time until an operation is deleted."""
        return max(0, int(self.client.command("PTTL", self.key(op))))

    def lock(self, op: str) -> str:
        """Lock an operation for this process. Return the lock's token; '' if another process has the lock."""
        token = secrets.token_hex(8)
        words = ("SET", f"{self.key(op)}:lock", token, "NX", "PX", LOCK_MS)
        return token if self.client.command(*words) else ""

    def renew(self, op: str, token: str) -> None:
        """Renew this process's lock. Raises InterruptedError if another process has the lock.

        If the lock has expired and no other process has it, lock again.
        """
        key = f"{self.key(op)}:lock"
        reply = self.client.command("GET", key)
        if reply == token.encode():
            self.client.command("PEXPIRE", key, LOCK_MS)
        elif reply or not self.client.command("SET", key, token, "NX", "PX", LOCK_MS):
            raise InterruptedError

    def unlock(self, op: str, token: str) -> None:
        """Release the lock if this process still has it."""
        key = f"{self.key(op)}:lock"
        if self.client.command("GET", key) == token.encode():
            self.client.command("DEL", key)

    def is_locked(self, op: str) -> bool:
        """Return whether a process is working on the operation."""
        return bool(self.client.command("EXISTS", f"{self.key(op)}:lock"))


def _state_of(reply: Any) -> OperationState | None:
    return _state(reply) if isinstance(reply, bytes) else None


def _state(data: bytes | None) -> OperationState | None:
    state = None if data is None else _decoded(data, OperationState)
    return state if state is not None and state.verb in VERBS and _ID.fullmatch(state.id) else None


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None
