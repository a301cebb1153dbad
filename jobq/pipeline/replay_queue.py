"""A replay into a queue: under mids that are made of topic and index, so that a repeated one is refused.

How far it is, is noted behind each call. Only the call between two notes can be made twice; there the mids
refuse what lives or is still deduped, and what died meanwhile is looked up and left alone.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Literal

from jobq.errors import BadRecordError, CodecError
from jobq.jobs.codec import decode_any, encode
from jobq.jobs.signing import seal_for
from jobq.pipeline.replay import Archived, note_key
from jobq.queue.mids import LONGEST_MID
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL

Shape = Literal["text", "json", "base64"]


class ToQueue:
    """A queue, for the replay `replay` of the topic `source`; '' for the one that isn't named.

    job: each message becomes a call of it, with the content as its one argument, as `shape` says; without,
    contents are enqueued as they are. A deletion, which has no content, is left out.
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

    def __enter__(self) -> ToQueue:
        return self

    def __exit__(self, *_: object) -> None:
        """Two replays at once are one: what one has enqueued, its mids refuse to the other."""

    def reached(self) -> int:
        """How far this replay is for certain."""
        return self._noted()[0]

    def begun(self, index: int) -> int:
        """The first index that this replay was ever asked for."""
        self._begun = self._noted()[1] or index
        return self._begun

    def _noted(self) -> tuple[int, int]:
        last, first = (self._queue.client.command("GET", self._note) or b"0 0").split(b" ")
        return int(last), int(first)

    def send(self, batch: list[Archived]) -> int:
        """Enqueue them in one call; how many were new."""
        messages = [self._message(one) for one in batch if one.content is not None]
        if self._unsure > 0:
            # The last run may have enqueued these and been killed before it noted that.
            messages = [one for one in messages if self._queue.status(one[0]).word != "dead"]
        done = self._queue.enqueue_many(messages, dedupe=self._dedupe_s) if messages else []
        self._unsure -= len(batch)
        note = f"{batch[-1].index} {self._begun or batch[0].index}"
        self._queue.client.command("SET", self._note, note, "PX", self._remember_ms)
        return sum(one.action == "added" for one in done)

    def mid(self, index: int) -> str:
        """Of the message of that index."""
        named = ":".join(filter(None, ("replay", self._replay, self._source, str(index))))
        if len(named) <= LONGEST_MID:
            return named
        return f"replay:{hashlib.blake2b(named.encode(), digest_size=24).hexdigest()}"

    def _message(self, one: Archived) -> tuple[str, bytes]:
        mid, content = self.mid(one.index), one.content or b""
        if not self._job:
            return mid, content
        try:
            call = encode(self._job, [self._argument(content)])
        except (CodecError, UnicodeDecodeError) as error:
            raise BadRecordError(
                f"message {one.index} of topic {self._source!r} can't be an argument of {self._job}: {error}; "
                "take --as base64, or leave out --job to enqueue contents as they are"
            ) from error
        return mid, call if self._seal is None else self._seal.close_call(
            self._queue.name, mid, call
        )


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


_SHAPES: dict[Shape, Callable[[bytes], Any]] = {
    "text": bytes.decode, "json": decode_any, "base64": _base64,
}  # fmt: skip
