"""Where operations are kept: a hash each, for an hour after its last change.

`jobq:web:op:<id>`: state -> an OperationState as JSON; c<n> -> the n-th chunk of frozen messages, JSON; r<n> -> what
was done to them, a letter each; b<n> -> that the chunk was begun; t<n> -> their former times, JSON; u<n>, v<n> -> as r
and b, of the undo; stop -> who asked to stop. `jobq:web:op:<id>:lock`: which process works on it.
`jobq:web:operations`: the newest ids by time.
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
#: How long a process that works on an operation is believed to live without a sign.
LOCK_MS = 30_000
#: Messages of a chunk, and of an operation.
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
        at: When it was enqueued or died.
    """

    queue: str
    mid: str
    job: str
    error: str
    at: MomentOrZero


class OperationState(msgspec.Struct, kw_only=True):
    """State of an operation. Times are epoch ms by the server's clock.

    Attributes:
        by: The user.
        filter: Filter that selects the messages; '' for chosen messages.
        chosen: Digest of the chosen messages.
        number: Number of frozen messages.
        capped: Whether more messages match than an operation may have.
        queues, jobs, errors: Number of messages of each, the most frequent first.
        why_no_undo: '' if it can be undone.
        spread_ms: Time over which revived messages start.
        results, undone: Word -> number of messages.
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
    """Some frozen messages of one queue.

    Attributes:
        generations, digests, sizes: Of a live message and its content, to notice a replaced message.
        formers: When its wait ends.
        ids: Mids, or dead ids. The other lists have one entry for each id.
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
        """Return the hash of an operation. Raises ConfigError for an invalid id."""
        if not _ID.fullmatch(op):
            raise ConfigError(f"{op!r:.80} is not the id of an operation")
        return keys.web_operation(self.client.namespace, op)

    def add(self, state: OperationState) -> None:
        """Keep a new operation and list it."""
        listed = keys.web_operations(self.client.namespace)
        self.save(state)
        self.client.command("ZADD", listed, state.created_at, state.id)
        self.client.command("ZREMRANGEBYRANK", listed, 0, -MAX_LISTED - 1)
        self.client.command("PEXPIRE", listed, KEPT_MS)

    def save(self, state: OperationState, **fields: Argument) -> None:
        """Keep the state, with other fields of the hash."""
        key = self.key(state.id)
        words: list[Argument] = [word for pair in fields.items() for word in pair]
        written = ("HSET", key, "state", msgspec.json.encode(state), *words)
        self.many(state.id, [written, ("PEXPIRE", key, KEPT_MS)])

    def many(self, op: str, words: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands on the key of an operation together."""
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
        """The newest operations, with whether some process works on each, and for how many ms it is still kept."""
        ids = self._newest(most)
        reads = [
            read
            for op in ids
            for key in [self.key(op)]
            for read in (self._read(op, "HGET", "state"), Read(key, ("EXISTS", f"{key}:lock")), self._read(op, "PTTL"))
        ]  # fmt: skip
        replies = read_together(self.client, reads)
        found: list[tuple[OperationState, bool, int]] = []
        for reply, lock, left in zip(replies[::3], replies[1::3], replies[2::3], strict=True):
            state = _state_of(reply)
            if state is not None and isinstance(lock, int) and isinstance(left, int):
                found.append((state, bool(lock), max(0, left)))
        return found

    def _newest(self, most: int) -> list[str]:
        names = keys.web_operations(self.client.namespace)
        ids = self.client.command("ZREVRANGE", names, 0, MAX_LISTED - 1)
        found = [id_.decode() for id_ in ids if _ID.fullmatch(id_.decode("utf-8", "replace"))]
        return found[:most]

    def _read(self, op: str, verb: str, *words: Argument) -> Read:
        key = self.key(op)
        return Read(key, (verb, key, *words))

    def put_chunk(self, op: str, number: int, chunk: FrozenChunk) -> None:
        """Keep the frozen messages of a chunk."""
        self.client.command("HSET", self.key(op), f"c{number}", msgspec.json.encode(chunk))

    def chunk(self, op: str, number: int) -> FrozenChunk | None:
        """One chunk; None if it is gone."""
        reply = self.client.command("HGET", self.key(op), f"c{number}")
        return None if reply is None else _decoded(reply, FrozenChunk)

    def field(self, op: str, name: str) -> str | None:
        """Return another field of the hash."""
        reply = self.client.command("HGET", self.key(op), name)
        return None if reply is None else reply.decode("utf-8", "replace")

    def letters(self, op: str, kind: str, nchunks: int) -> list[str]:
        """Return the results for the messages of each chunk: `r`, or `u` for the undo; '' for an unprocessed chunk."""
        found: list[str] = []
        for first in range(0, nchunks, 100):
            names = [f"{kind}{number}" for number in range(first, min(nchunks, first + 100))]
            reply = self.client.command("HMGET", self.key(op), *names)
            found += [(one or b"").decode("utf-8", "replace") for one in reply]
        return found

    def left_ms(self, op: str) -> int:
        """Return how long an operation is still kept."""
        return max(0, int(self.client.command("PTTL", self.key(op))))

    def lock(self, op: str) -> str:
        """Become the only process that works on an operation; its token, '' if another does."""
        token = secrets.token_hex(8)
        words = ("SET", f"{self.key(op)}:lock", token, "NX", "PX", LOCK_MS)
        return token if self.client.command(*words) else ""

    def renew(self, op: str, token: str) -> None:
        """Renew this process's claim on the operation. InterruptedError: another process has it.

        A lock that ended and that nobody took is taken again.
        """
        key = f"{self.key(op)}:lock"
        reply = self.client.command("GET", key)
        if reply == token.encode():
            self.client.command("PEXPIRE", key, LOCK_MS)
        elif reply or not self.client.command("SET", key, token, "NX", "PX", LOCK_MS):
            raise InterruptedError

    def unlock(self, op: str, token: str) -> None:
        """Let others work on it."""
        key = f"{self.key(op)}:lock"
        if self.client.command("GET", key) == token.encode():
            self.client.command("DEL", key)

    def is_locked(self, op: str) -> bool:
        """Whether some process works on it."""
        return bool(self.client.command("EXISTS", f"{self.key(op)}:lock"))


def _state_of(reply: Any) -> OperationState | None:
    """Return the state in a reply; None for an error, as of a key that has another type."""
    return _state(reply) if isinstance(reply, bytes) else None


def _state(found: bytes | None) -> OperationState | None:
    state = None if found is None else _decoded(found, OperationState)
    return state if state is not None and state.verb in VERBS and _ID.fullmatch(state.id) else None


def _decoded(found: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None
