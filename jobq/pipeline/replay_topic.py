"""A replay into a topic: in order, by one writer, each message once however often it is tried.

Each call that appends is numbered by the index of its last message, under a caller named after the replay. The
script appends and notes that number at once and refuses an older one, so the note is how far the replay is. It
is kept as long as the replay is remembered.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import urlsafe_b64encode

from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller
from jobq.errors import LeaseLostError, PipelineError
from jobq.pipeline.replay import Archived
from jobq.topics import Record
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import encoded

ORIGIN, ORIGIN_AT = "jobq-origin", "jobq-origin-at"
#: Of the right to be the only writer: renewed by every call, at the latest after a third of it.
LOCK_MS = 30_000
WAIT_S = LOCK_MS / 1000 + 5
POLL_S = 0.5


class Numbered(Caller):
    """A caller whose calls are numbered by indexes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        digest = hashlib.blake2b(name.encode(), digest_size=12).digest()
        self.id = urlsafe_b64encode(digest).decode()

    def at(self, index: int) -> Caller:
        """Itself, its next call numbered `index`."""
        self.number = index - 1
        return self


class ToTopic:
    """The topic `name`, for the replay `replay` of the topic `source`. Used as a context: the lock's time."""

    per_call = 1_000

    def __init__(
        self, client: Client, name: str, source: str, replay: str, *, remember_s: float, marked: bool = True
    ) -> None:  # fmt: skip
        self.name, self._source, self._marked = name, source, marked
        self._binding = TopicCalls(name, client)
        self._caller = Numbered(f"replay\x1f{source}\x1f{replay}")
        self._note = f"{self._binding.prefix}call:{self._caller.id}"
        self._lock, self._first = f"{self._note}.lock", f"{self._note}.first"
        self._remember_ms = round(remember_s * 1000)
        self._token = secrets.token_hex(8)

    def __enter__(self) -> ToTopic:
        deadline = time.monotonic() + WAIT_S
        while not self._taken():
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"another replay of {self._source!r} into topic {self.name!r} runs under this name; wait for it, "
                    "or give this one another name by --id"
                )
            time.sleep(POLL_S)
        # What the append script then keeps: it never shortens a note's life.
        self._command("SET", self._note, "0 ", "NX", "PX", self._remember_ms)
        self._command("PEXPIRE", self._note, self._remember_ms)
        return self

    def __exit__(self, *_: object) -> None:
        if self._command("GET", self._lock) == self._token.encode():
            self._command("PEXPIRE", self._first, self._remember_ms)
            self._command("DEL", self._lock)

    def reached(self) -> int:
        """How far this replay is, 0 before its first call."""
        note = self._command("GET", self._note)
        return int(note.split(b" ")[0]) if note else 0

    def begun(self, index: int) -> int:
        """The first index that this replay was ever asked for."""
        self._command("SET", self._first, index, "NX", "PX", self._remember_ms)
        self._command("PEXPIRE", self._first, self._remember_ms)
        return int(self._command("GET", self._first) or index)

    def send(self, batch: list[Archived]) -> int:
        """Append them in one call, or have it refused; how many those were.

        Back into the topic that they come from, what an earlier replay brought is left out.
        """
        if not self._taken():
            raise PipelineError(
                f"another replay of {self._source!r} took over topic {self.name!r} while this one stood still; "
                "start it again to go on behind what is there"
            )
        args: list[str | bytes] = []
        todo = [one for one in batch if not self._is_copy(one)]
        for one in todo:
            args += encoded(Record(one.content, one.key, self._headers(one)))
        if not todo:
            return 0
        self._binding.register()
        try:
            self._binding.call("append", self._caller.at(batch[-1].index), "", *args)
        except LeaseLostError as error:
            raise PipelineError(
                f"topic {self.name!r} has what this replay sends already, by another one under its name; "
                "start it again to go on behind that"
            ) from error
        return len(todo)

    def _is_copy(self, one: Archived) -> bool:
        return self.name == self._source and one.headers.get(ORIGIN, "").startswith(f"{self.name}/")

    def _headers(self, one: Archived) -> dict[str, str]:
        if not self._marked:
            return one.headers
        return {**one.headers, ORIGIN: f"{self._source}/{one.index}", ORIGIN_AT: str(one.at_ms)}

    def _taken(self) -> bool:
        """Whether the lock is ours, renewed or taken just now."""
        if self._command("GET", self._lock) == self._token.encode():
            self._command("PEXPIRE", self._lock, LOCK_MS)
            return True
        return self._command("SET", self._lock, self._token, "NX", "PX", LOCK_MS) is not None

    def _command(self, *args: str | int) -> bytes | None:
        found: bytes | None = self._binding.client.command(*args)
        return found
