"""Replay messages from a lake: a topic's messages into a topic or a queue, dead messages into their queue.

If a replay is killed and run again, each message still arrives once. A replay has a name, by default made from its
source. The target stores the replay's progress under that name:

- A topic appends messages and records the index of the last message in the same script call. The script rejects a call
  with a lower index.
- A queue stores the progress after each call, so after a crash, only one call can be repeated. A message's id consists
  of its topic and index, so the queue rejects repeated messages. The replay skips messages that are already dead.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import BYTES_PER_CALL, Caller
from jobq.errors import BadRecordError, CodecError, LakeError, LeaseLostError, PipelineError
from jobq.jobs.codec import decode_any, encode
from jobq.jobs.signing import seal_for
from jobq.pipeline.lake.tables import parted
from jobq.queue.mids import MAX_MID_LENGTH
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL
from jobq.topics import Record
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import encoded


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """One message of a topic in the lake.

    Attributes:
        at_ms: Time at which it was appended, epoch ms.
    """

    index: int
    at_ms: int
    key: str | None
    content: bytes | None
    headers: dict[str, str]

    @property
    def size(self) -> int:
        """Approximate number of bytes that the message takes in a call."""
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        return len(self.content or b"") + len(self.key or "") + texts


class ReplayTarget(Protocol):
    """The topic or queue to which a replay sends messages. Use the target in a `with` block."""

    #: Maximum number of messages per call.
    per_call: int

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def reached(self) -> int:
        """Return the index of the last message that the target has from this replay, or 0."""
        ...

    def begun(self, index: int) -> int:
        """Return the topic index at which this replay first began; `index` if this is its first run."""
        ...

    def send(self, batch: list[ArchivedMessage]) -> int:
        """Send messages; return how many were new."""
        ...


class Replayed(NamedTuple):
    """The result of a replay.

    Attributes:
        exists: Sent messages that the target already had.
        behind: Messages skipped because this replay has already sent them.
    """

    sent: int
    exists: int
    behind: int
    first: int
    last: int
    seconds: float


class Pace:
    """Limits the rate to `per_s` messages per second; None means no limit."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._due = time.monotonic()

    def most(self, per_call: int) -> int:
        """Return the maximum number of messages per call: `per_call`, or fewer to spread the calls over each second."""
        return per_call if self._per_s is None else max(1, min(per_call, int(self._per_s / 4)))

    def wait(self, sent: int) -> None:
        """Sleep after sending `sent` messages, to keep the rate."""
        if self._per_s is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 0.2) + sent / self._per_s
        if self._due > now:
            time.sleep(self._due - now)


def replay(
    rows: Iterable[dict[str, Any]], target: ReplayTarget, pace: Pace,
    tell: Callable[[int], object] = lambda _: None,
) -> Replayed:  # fmt: skip
    """Send the messages that the target doesn't have, in order. Call `tell` with the number of new messages so far."""
    began, reached = time.monotonic(), target.reached()
    sent = exists = behind = first = last = begun = 0
    for batch in batches(archived_messages(rows), pace.most(target.per_call)):
        begun = begun or _checked(target.begun(batch[0].index), batch[0].index)
        todo = [message for message in batch if message.index > reached]
        behind += len(batch) - len(todo)
        if not todo:
            continue
        new = target.send(todo)
        sent, exists = sent + new, exists + len(todo) - new
        first, last = first or todo[0].index, todo[-1].index
        tell(sent)
        pace.wait(len(todo))
    return Replayed(sent, exists, behind, first, last, round(time.monotonic() - began, 3))


def _checked(begun: int, first: int) -> int:
    if first < begun:
        raise PipelineError(
            f"this replay began with message {begun}, so it would skip older messages, beginning with {first}; "
            f"replay the older messages separately, with another --id and with --until"
        )
    return begun


def archived_messages(rows: Iterable[dict[str, Any]]) -> Iterator[ArchivedMessage]:
    """Convert rows of the table `topics`. Raises LakeError if the indexes restart, because the topic was recreated."""
    last = 0
    for row in rows:
        archived = ArchivedMessage(
            row["index"], row["at"] // 1000, row["key"],
            None if row["content"] is None else bytes(row["content"]), dict(row["headers"] or {}),
        )  # fmt: skip
        if archived.index <= last:
            raise LakeError(
                f"topic {row['topic']!r} has index {archived.index} after {last}: it was deleted and recreated; "
                "replay the old and the new topic separately, with --since and --until"
            )
        last = archived.index
        yield archived


def note_key(queue: Queue, source: str, name: str) -> str:
    """Return the key that stores the progress of a replay. For dead messages, `source` is ''."""
    digest = hashlib.blake2b(f"{source}\x1f{name}".encode(), digest_size=12).hexdigest()
    return f"{queue.prefix}replay:{digest}"


def batches(messages: Iterable[ArchivedMessage], most: int) -> Iterator[list[ArchivedMessage]]:
    """Yield the messages of each call: up to `most` messages, and about BYTES_PER_CALL bytes at most."""
    batch: list[ArchivedMessage] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == most or size + message.size > BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.size
    if batch:
        yield batch


Shape = Literal["text", "json", "base64"]


class QueueReplay:
    """A queue as the target of a replay. `source` is the topic, and `replay` is the replay's name or ''.

    Messages without content are skipped.

    Args:
        job: Each message becomes a call of this job, with the content as its argument. Without a job, contents are
            enqueued unchanged.
        shape: Form of the argument: text, parsed JSON, or Base64.
    """

    per_call = PER_CALL

    def __init__(
        self, queue: Queue, source: str, replay: str, *, job: str = "", shape: Shape = "text",
        dedupe_s: float, remember_s: float,
    ) -> None:  # fmt: skip
        self._queue, self._source, self._replay = queue, source, replay
        self._job, self._argument = job, _SHAPES[shape]
        self._dedupe_s, self._remember_ms = dedupe_s, round(remember_s * 1000)
        self._seal = seal_for(queue.client.settings.codec) if job else None
        self._note = note_key(queue, source, replay)
        self._unsure = PER_CALL
        self._begun = 0

    def __enter__(self) -> QueueReplay:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is no lock, because a queue accepts each message once, even from concurrent replays."""

    def reached(self) -> int:
        """Return the index of the last message recorded as sent; 0 if there is no record."""
        return self._noted()[0]

    def begun(self, index: int) -> int:
        """Return the topic index at which this replay first began."""
        self._begun = self._noted()[1] or index
        return self._begun

    def _noted(self) -> tuple[int, int]:
        last, first = (self._queue.client.command("GET", self._note) or b"0 0").split(b" ")
        return int(last), int(first)

    def send(self, batch: list[ArchivedMessage]) -> int:
        """Enqueue the messages in one call; return how many were new."""
        messages = [self._message(archived) for archived in batch if archived.content is not None]
        if self._unsure > 0:
            # The last run may have enqueued these and been killed before it recorded that.
            messages = [
                message for message in messages if self._queue.status(message[0]).word != "dead"
            ]
        done = self._queue.enqueue_many(messages, until=self._dedupe_s) if messages else []
        self._unsure -= len(batch)
        note = f"{batch[-1].index} {self._begun or batch[0].index}"
        self._queue.client.command("SET", self._note, note, "PX", self._remember_ms)
        return sum(result.action == "added" for result in done)

    def mid(self, index: int) -> str:
        named = ":".join(filter(None, ("replay", self._replay, self._source, str(index))))
        if len(named) <= MAX_MID_LENGTH:
            return named
        return f"replay:{hashlib.blake2b(named.encode(), digest_size=24).hexdigest()}"

    def _message(self, archived: ArchivedMessage) -> tuple[str, bytes]:
        mid, content = self.mid(archived.index), archived.content or b""
        if not self._job:
            return mid, content
        try:
            call = encode(self._job, [self._argument(content)])
        except (CodecError, UnicodeDecodeError) as error:
            raise BadRecordError(
                f"message {archived.index} of topic {self._source!r} can't be an argument of {self._job}: {error}; "
                "use --as base64, or leave out --job to enqueue contents as they are"
            ) from error
        return mid, call if self._seal is None else self._seal.close_call(
            self._queue.name, mid, call
        )


_SHAPES: dict[Shape, Callable[[bytes], Any]] = {
    "text": bytes.decode, "json": decode_any, "base64": lambda content: b64encode(content).decode(),
}  # fmt: skip


class ArchivedDeath(NamedTuple):
    """One dead message in the lake."""

    dead_id: str
    mid: str
    died_at_ms: int
    content: bytes


def newest_deaths(rows: Iterable[dict[str, Any]]) -> list[ArchivedDeath]:
    """Return the latest death of each mid, ordered by time of death."""
    newest: dict[str, ArchivedDeath] = {}
    for row in rows:
        death = ArchivedDeath(
            row["dead_id"], row["mid"], row["died_at"] // 1000, bytes(row["content"])
        )
        known = newest.get(death.mid)
        if known is None or death.died_at_ms >= known.died_at_ms:
            newest[death.mid] = death
    return sorted(newest.values(), key=lambda latest: (latest.died_at_ms, latest.dead_id))


MAX_REFUSED = 1_000


class DeadReplay:
    """Enqueues dead messages again under their own mids, as new messages with 0 attempts.

    After each call, the ids of the call's dead messages are recorded for `remember_s` seconds. If these messages are
    still in the queue's dead-letter set, they are purged from it.
    """

    def __init__(self, queue: Queue, replay: str, *, dedupe_s: float, remember_s: float) -> None:
        self._queue, self._dedupe_s, self._remember_ms = queue, dedupe_s, round(remember_s * 1000)
        self._note = note_key(queue, "", replay)
        #: The mids that the queue rejected, up to MAX_REFUSED.
        self.refused: list[str] = []

    def replay(
        self, dead: list[ArchivedDeath], pace: Pace, tell: Callable[[int], object] = lambda _: None
    ) -> Replayed:
        """Enqueue the messages that this replay hasn't enqueued before, unless a live message has the same mid."""
        began = time.monotonic()
        todo = self._left(dead)
        sent = 0
        step = pace.most(PER_CALL)
        for start in range(0, len(todo), step):
            some = todo[start : start + step]
            sent += self._put_back(list(self._not_again(some)) if start < PER_CALL else some)
            self._noted(some)
            tell(sent)
            pace.wait(len(some))
        behind = len(dead) - len(todo)
        seconds = round(time.monotonic() - began, 3)
        return Replayed(sent, len(todo) - sent, behind, 0, 0, seconds)

    def _left(self, dead: list[ArchivedDeath]) -> list[ArchivedDeath]:
        if not dead:
            return []
        left = []
        for start in range(0, len(dead), 1_000):
            some = dead[start : start + 1_000]
            known = self._queue.client.command("SMISMEMBER", self._note, *(d.dead_id for d in some))
            left += [death for death, there in zip(some, known, strict=True) if not there]
        return left

    def _not_again(self, some: Iterable[ArchivedDeath]) -> Iterator[ArchivedDeath]:
        """Skip messages that an interrupted run of this replay has enqueued, and that then died again."""
        for death in some:
            now = self._queue.admin.dead(mid=death.mid)
            if not now or now[0].dead_id == death.dead_id or now[0].died_at < death.died_at_ms:
                yield death

    def _put_back(self, some: list[ArchivedDeath]) -> int:
        if not some:
            return 0
        done = self._queue.enqueue_many(
            [(death.mid, death.content) for death in some], until=self._dedupe_s
        )
        ids = {death.mid: death.dead_id for death in some}
        added = [ids[result.mid] for result in done if result.action == "added"]
        refused = [result.mid for result in done if result.action != "added"]
        self.refused += refused[: MAX_REFUSED - len(self.refused)]
        if added:
            self._queue.admin.purge(*added)
        return len(added)

    def _noted(self, some: list[ArchivedDeath]) -> None:
        client = self._queue.client
        client.command("SADD", self._note, *(death.dead_id for death in some))
        client.command("PEXPIRE", self._note, self._remember_ms)


ORIGIN, ORIGIN_AT = "jobq-origin", "jobq-origin-at"
#: Duration of the lock that keeps other replays from writing. Every call renews it.
LOCK_MS = 30_000
WAIT_S = LOCK_MS / 1000 + 5
POLL_S = 0.5


class IndexedCaller(Caller):
    """A caller that numbers each call with the index of the call's topic entry."""

    def __init__(self, name: str) -> None:
        super().__init__()
        digest = hashlib.blake2b(name.encode(), digest_size=12).digest()
        self.id = urlsafe_b64encode(digest).decode()

    def at(self, index: int) -> Caller:
        """Return this caller with `index` as the number of its next call."""
        self.number = index - 1
        return self


class TopicReplay:
    """A replay named `replay` that copies messages of the topic `source` to the topic `name`.

    In a `with` block, it holds a lock, so that no other process runs the same replay.
    """

    per_call = 1_000

    def __init__(
        self, client: Client, name: str, source: str, replay: str, *, remember_s: float, marked: bool = True
    ) -> None:  # fmt: skip
        self.name, self._source, self._marked = name, source, marked
        self._binding = TopicCalls(name, client)
        self._caller = IndexedCaller(f"replay\x1f{source}\x1f{replay}")
        self._note = f"{self._binding.prefix}call:{self._caller.id}"
        self._lock, self._first = f"{self._note}.lock", f"{self._note}.first"
        self._remember_ms = round(remember_s * 1000)
        self._token = secrets.token_hex(8)

    def __enter__(self) -> TopicReplay:
        deadline = time.monotonic() + WAIT_S
        while not self._taken():
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"another replay of {self._source!r} into topic {self.name!r} is running with this name; wait for "
                    f"it, "
                    "or use another name with --id"
                )
            time.sleep(POLL_S)
        # The append script keeps this TTL: it never shortens the life of a record.
        self._command("SET", self._note, "0 ", "NX", "PX", self._remember_ms)
        self._command("PEXPIRE", self._note, self._remember_ms)
        return self

    def __exit__(self, *_: object) -> None:
        if self._command("GET", self._lock) == self._token.encode():
            self._command("PEXPIRE", self._first, self._remember_ms)
            self._command("DEL", self._lock)

    def reached(self) -> int:
        """Return the index of the last message that this replay has appended, or 0 if there is none."""
        note = self._command("GET", self._note)
        # The record of a numbered call begins with the number: see lua/shared/_call.lua.
        number = re.match(rb"\d+", note or b"")
        return int(number[0]) if number else 0

    def begun(self, index: int) -> int:
        """Return the topic index at which this replay first began."""
        self._command("SET", self._first, index, "NX", "PX", self._remember_ms)
        self._command("PEXPIRE", self._first, self._remember_ms)
        return int(self._command("GET", self._first) or index)

    def send(self, batch: list[ArchivedMessage]) -> int:
        """Append the messages in one call; return their number.

        Messages that an earlier replay copied from this topic to itself are skipped.
        """
        if not self._taken():
            raise PipelineError(
                f"another replay of {self._source!r} took over topic {self.name!r} while this replay was paused; "
                "run this replay again to continue after the existing messages"
            )
        args: list[str | bytes] = []
        todo = [message for message in batch if not self._is_copy(message)]
        for message in todo:
            args += encoded(Record(message.content, message.key, self._headers(message)))
        if not todo:
            return 0
        self._binding.register()
        try:
            self._binding.call("append", self._caller.at(batch[-1].index), {"now": ""}, args)
        except LeaseLostError as error:
            raise PipelineError(
                f"another replay with this name already sent these messages to topic {self.name!r}; "
                "run this replay again to continue with the next messages"
            ) from error
        return len(todo)

    def _is_copy(self, archived: ArchivedMessage) -> bool:
        is_own = self.name == parted(self._source)[1]
        return is_own and archived.headers.get(ORIGIN, "").startswith(f"{self._source}/")

    def _headers(self, archived: ArchivedMessage) -> dict[str, str]:
        if not self._marked:
            return archived.headers
        return {
            **archived.headers,
            ORIGIN: f"{self._source}/{archived.index}",
            ORIGIN_AT: str(archived.at_ms),
        }

    def _taken(self) -> bool:
        """Renew or acquire the lock. Return whether this replay now holds it."""
        if self._command("GET", self._lock) == self._token.encode():
            self._command("PEXPIRE", self._lock, LOCK_MS)
            return True
        return self._command("SET", self._lock, self._token, "NX", "PX", LOCK_MS) is not None

    def _command(self, *args: str | int) -> bytes | None:
        reply: bytes | None = self._binding.client.command(*args)
        return reply
