"""What a lake archived, put back: a topic's messages into a topic or a queue, dead messages into their queue.

A replay may be killed and run again: each message gets there once. It is named, by what it reads unless
somebody names it, and its target remembers under that name how far it is: a topic in the very call that appends,
so that neither can happen without the other; a queue behind each call, where the one call in between is
made harmless by mids that are made of topic and index.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jobq.client.numbered_calls import BYTES_PER_CALL
from jobq.errors import LakeError, PipelineError

if TYPE_CHECKING:
    from jobq.queue.queue import Queue

#: How long a target remembers, and a message refuses to be enqueued again after it is done.
REMEMBER_S = 30 * 86_400.0
DEDUPE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Archived:
    """One message of a topic, as the lake has it. at_ms: when it was appended."""

    index: int
    at_ms: int
    key: str | None
    content: bytes | None
    headers: dict[str, str]

    @property
    def size(self) -> int:
        """About how many bytes it takes on the way."""
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        return len(self.content or b"") + len(self.key or "") + texts


class Target(Protocol):
    """Where messages go; used within its context."""

    #: Most messages of one call.
    per_call: int

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def reached(self) -> int:
        """The index of the last message that is there already, 0 for none."""
        ...

    def begun(self, index: int) -> int:
        """The first index that this replay was ever asked for: now `index`, if it never was."""
        ...

    def send(self, batch: list[Archived]) -> int:
        """Put messages there; how many were new."""
        ...


class Replayed(NamedTuple):
    """What a replay did. behind: messages left out, since they are there already."""

    sent: int
    exists: int
    behind: int
    first: int
    last: int
    seconds: float


class Pace:
    """At most `per_s` messages a second, None = as fast as it goes."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._due = time.monotonic()

    def most(self, per_call: int) -> int:
        """How many to send at once, so that a second has several calls."""
        return per_call if self._per_s is None else max(1, min(per_call, int(self._per_s / 4)))

    def wait(self, sent: int) -> None:
        """Until more may be sent."""
        if self._per_s is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 0.2) + sent / self._per_s
        if self._due > now:
            time.sleep(self._due - now)


def replay(
    rows: Iterable[dict[str, Any]], target: Target, pace: Pace,
    tell: Callable[[int], object] = lambda _: None,
) -> Replayed:  # fmt: skip
    """Send what isn't there yet, in order. `tell` hears how many were sent."""
    began, reached = time.monotonic(), target.reached()
    sent = exists = behind = first = last = begun = 0
    for batch in batches(archived(rows), pace.most(target.per_call)):
        begun = begun or _checked(target.begun(batch[0].index), batch[0].index)
        todo = [one for one in batch if one.index > reached]
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
            f"this replay began with message {begun}, and what is asked for with {first}: it goes on where it was, "
            "so the older ones would be left out; give them a replay of their own by --id, with an --until"
        )
    return begun


def archived(rows: Iterable[dict[str, Any]]) -> Iterator[Archived]:
    """Rows of the table `topics` as messages. LakeError where the topic was deleted and begun anew."""
    last = 0
    for row in rows:
        one = Archived(
            row["index"], row["at"] // 1000, row["key"],
            None if row["content"] is None else bytes(row["content"]), dict(row["headers"] or {}),
        )  # fmt: skip
        if one.index <= last:
            raise LakeError(
                f"topic {row['topic']!r} has index {one.index} after {last}: it was deleted and begun anew; "
                "replay its lives one by one, by --since and --until"
            )
        last = one.index
        yield one


def note_key(queue: Queue, source: str, name: str) -> str:
    """Where a queue notes how far the replay `name` of the topic `source` is; source '': of its own dead."""
    digest = hashlib.blake2b(f"{source}\x1f{name}".encode(), digest_size=12).hexdigest()
    return f"{queue.prefix}replay:{digest}"


def batches(messages: Iterable[Archived], most: int) -> Iterator[list[Archived]]:
    """What goes into one call each: no more messages, and no more bytes, than a call may have."""
    batch: list[Archived] = []
    size = 0
    for one in messages:
        if batch and (len(batch) == most or size + one.size > BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
    if batch:
        yield batch
