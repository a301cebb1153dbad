"""Records of tasks: `jobq:{mails}:django:<mid>`, a hash that workers write at the start and the end of each attempt.

The field `call` stores the call. Every other field stores one attempt, and its name is the attempt's fence number, so a
late attempt never overwrites a newer attempt. Fields are JSON, and sealed if calls are sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from jobq.client.connection import Client
from jobq.client.pipelining import commands
from jobq.errors import CodecError
from jobq.jobs.codec import HARD_LIMIT, checked_size
from jobq.jobs.signing import opened, seal_of
from jobq.queue import keys

T = TypeVar("T", bound=msgspec.Struct)
_Ms = Annotated[int, Meta(ge=0, le=253_402_300_799_000)]
_CALL = "call"
#: Maximum number of attempts to keep per message, latest first.
MAX_ATTEMPTS = 100


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header `django` of a message: the options with which its Task was enqueued.

    Attributes:
        at: Time of the enqueue, epoch ms.
        queue: The queue_name of the enqueued Task if it differs from the registered Task's; otherwise ''.
        run_after: Time in ISO format.
    """

    at: _Ms = 0
    backend: str = ""
    priority: int = 0
    queue: str = ""
    run_after: str = ""


class Called(msgspec.Struct, frozen=True, omit_defaults=True):
    """The task and arguments of a message. Records contain a copy, because the queue deletes finished messages."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    sent: Sent = Sent()


class Tried(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record of an attempt.

    Attributes:
        finished: Time of its end, epoch ms; 0 if it is running or was killed.
        error: The path of the exception's class.
    """

    attempt: Annotated[int, Meta(ge=1, le=1_000_000)]
    generation: str
    worker: str
    started: _Ms
    finished: _Ms = 0
    done: bool = False
    value: Any = None
    error: str = ""
    traceback: str = ""


class Recorded(NamedTuple):
    """The record of a message: its call, or None if unknown, and its attempts, oldest first."""

    called: Called | None
    attempts: Sequence[Tried]


class Records:
    """Reads and writes Django's records of one queue."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client, self._queue = client, queue
        self._prefix = keys.prefix(client.namespace, queue)
        self._seal = seal_of(client)

    def write(self, mid: str, fence: int, tried: Tried, called: Called, ttl_s: float) -> None:
        """Store an attempt and the call of a message. The record expires after `ttl_s` seconds."""
        key = keys.django_record(self._prefix, mid)
        fields = (_CALL, self._sealed(mid, called), str(fence), self._sealed(mid, tried))
        ttl_ms = max(1, round(ttl_s * 1000))
        commands(self._client, key, [("HSET", key, *fields), ("PEXPIRE", key, ttl_ms)])

    def read_record(self, mid: str) -> Recorded:
        """Return a message's record with the attempts of the latest generation; raise CodecError if it is invalid."""
        key = keys.django_record(self._prefix, mid)
        reply = self._client.command("HGETALL", key)
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2])
        fields = {bytes(name): bytes(content) for name, content in pairs}
        call = fields.pop(_CALL.encode(), None)
        called = None if call is None else self._opened(mid, call, Called)
        fences = sorted((fence for fence in fields if fence.isdigit()), key=int)[-MAX_ATTEMPTS:]
        attempts = [self._opened(mid, fields[fence], Tried) for fence in fences]
        return Recorded(
            called,
            [attempt for attempt in attempts if attempt.generation == attempts[-1].generation],
        )

    def forget_oldest(self, mid: str) -> None:
        """Delete all but the latest MAX_ATTEMPTS attempts of a message."""
        key = keys.django_record(self._prefix, mid)
        fields = [bytes(name) for name in self._client.command("HKEYS", key)]
        fences = sorted((fence for fence in fields if fence.isdigit()), key=int)
        if len(fences) > MAX_ATTEMPTS:
            self._client.command("HDEL", key, *fences[:-MAX_ATTEMPTS])

    def _sealed(self, mid: str, value: msgspec.Struct) -> bytes:
        content = msgspec.json.encode(value)
        checked_size(content, f"the record of {mid}", HARD_LIMIT)
        return self._seal.of("result").close(self._queue, mid, content) if self._seal else content

    def _opened(self, mid: str, content: bytes, kind: type[T]) -> T:
        seal = self._seal.of("result") if self._seal else None
        try:
            return msgspec.json.decode(opened(seal, self._queue, mid, content), type=kind)
        except (ValueError, RecursionError, OverflowError) as error:
            raise CodecError(
                f"the stored record of the task {self._queue}/{mid} is invalid: {error}"
            ) from error


def read_sent(header: str) -> Sent:
    """Decode a message's header `django`. Return an empty Sent if the header is missing or invalid."""
    try:
        return msgspec.json.decode(header, type=Sent)
    except (ValueError, RecursionError, OverflowError):
        return Sent()


def header_of(sent: Sent) -> dict[str, str]:
    """Return the header in which a message stores Django's data."""
    return {"django": msgspec.json.encode(sent).decode()}
