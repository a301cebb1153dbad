"""The audit log: changes that people made or tried to make, from the command line or the dashboard.

The log is one stream outside the slots of queues. An operation writes an entry before it begins (`intent`) and another
entry when it is over; both have the same `op`. If the second entry is missing, the process or the server failed in
between. Anyone who may write the stream can write anything into it, so readers treat every field as untrusted text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, field

from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall
from jobq.client.scripts import load
from jobq.errors import ConfigError, JobqError, UnavailableError, masked_text
from jobq.queue import keys
from jobq.queue.types import text_of
from jobq.records import JsonRecord, Moment, words

Phase = Literal["intent", "done", "failed", "refused", "undone"]
#: The fields of an entry, and the maximum number of bytes of each.
LENGTHS = {
    "who": 200, "role": 40, "verb": 40, "queue": 1000, "filter": 1000, "count": 16, "op": 64, "phase": 10, "note": 2000,
}  # fmt: skip
PAGE = 500
_ASKED_OF_ARGUMENT = re.compile(r"(arg\.[^:]*:)(?:\"(?:\\.|[^\"\\])*\"?|[^\s\"])+", re.IGNORECASE)
_ENTRY_ID = re.compile(r"\d{1,20}(-\d{1,20})?")


class Act(NamedTuple):
    """A person's action.

    Attributes:
        role: The person's role in the dashboard, or 'cli'.
        queue: Names of queues, separated by commas; '*' for all.
        filter: The affected messages or other objects, as `key:value`.
        number: Number of affected objects; None if unknown.
        op: Id of the operation.
    """

    who: str
    role: str
    verb: str
    queue: str = ""
    filter: str = ""
    number: int | None = None
    op: str = ""
    note: str = ""


class AuditEntry(JsonRecord):
    """One entry of the log.

    Attributes:
        at: Time of the entry, by the server's clock.
        count: Number of changed objects; None if unknown.
        damaged: Whether another program wrote the entry.
    """

    entry_id: str = field(name="id")
    at_ms: Moment = field(name="at")
    who: str
    role: str
    verb: str
    queue: str
    filter: str
    number: int | None = field(name="count")
    op: str
    phase: str
    note: str
    damaged: bool = False


class KeptAuditEntry(AuditEntry, kw_only=True):
    """One entry of the audit log, and whether it comes from the server or a lake."""

    source: Annotated[str, words(("server", "lake")), Meta(description="Where it is kept.")]


class Performed:
    """An operation in progress. Its last entry in the audit log will record `act`."""

    def __init__(self, act: Act) -> None:
        self.act = act

    def set(self, **facts: Any) -> None:
        """Change fields of `act`."""
        self.act = self.act._replace(**facts)


def new_op() -> str:
    """Return a new id for an operation."""
    return secrets.token_hex(8)


class AuditLog:
    """The audit log of a namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._key = keys.audit_log(client.namespace)

    def append(self, act: Act, phase: Phase) -> str:
        """Write one entry and return its id, even while the server's memory is full. Long fields are cut."""
        facts = {**act._asdict(), "count": "" if act.number is None else str(act.number)}
        facts |= {"phase": phase, "note": masked_text(act.note)}
        facts["who"] = facts["who"] or "unknown"
        values = [_cut(facts[name], most) for name, most in LENGTHS.items()]
        script = load("audit", "append")
        return self._client.ask(ScriptCall(script, (self._key,), values, lambda r: text_of(r[0])))

    @contextmanager
    def performing(
        self, act: Act, lost: Callable[[JobqError], object] | None = None, ending: Phase = "done"
    ) -> Iterator[Performed]:
        """Write to the audit log before the block runs, and again when it has ended.

        After an UnavailableError, the second entry isn't written.

        Args:
            lost: Called with the error if an entry can't be written. By default, the error is raised, so that no
                operation runs without an entry.
            ending: The phase of a successful operation.
        """
        under_way = Performed(act._replace(op=act.op or new_op()))
        self._noted(under_way, "intent", lost)
        try:
            yield under_way
        except UnavailableError:
            # The operation may have taken effect, and writing an entry would wait for the server again.
            raise
        except BaseException as error:
            under_way.set(note=str(error) or type(error).__name__)
            self._noted(under_way, "refused" if isinstance(error, ConfigError) else "failed", lost)
            raise
        self._noted(under_way, ending, lost)

    def _noted(
        self, under_way: Performed, phase: Phase, lost: Callable[[JobqError], object] | None
    ) -> None:
        try:
            self.append(under_way.act, phase)
        except JobqError as error:
            if lost is None:
                raise
            lost(error)

    def page(self, before: str = "", limit: int = PAGE) -> list[AuditEntry]:
        """Return at most `limit` entries, newest first.

        Args:
            before: Return only entries older than the entry with this id.
        """
        if not 1 <= limit <= 1000 or (before and not _ENTRY_ID.fullmatch(before)):
            raise ConfigError(
                f"before={before!r:.80}, limit={limit!r} can't be used; before must be the id of an entry, limit "
                f"between 1 and 1,000"
            )
        reply = self._client.command(
            "XREVRANGE", self._key, f"({before}" if before else "+", "-", "COUNT", limit
        )
        return [entry_of(entry_id, fields) for entry_id, fields in reply]

    def newest(self, most: int) -> Iterator[AuditEntry]:
        """Yield at most `most` entries, newest first, page by page."""
        before = ""
        while most > 0 and (page := self.page(before, min(PAGE, most))):
            yield from page
            before = page[-1].entry_id
            most -= len(page)

    def length(self) -> int:
        """Return the number of entries in the log."""
        return int(self._client.command("XLEN", self._key))


def without_ended_intents(entries: Iterator[AuditEntry]) -> Iterator[AuditEntry]:
    """Leave out the 'intent' entry of each operation whose outcome has an entry. Pass the newest entry first."""
    ended = set()
    for entry in entries:
        if entry.phase != "intent":
            ended.add(entry.op)
        elif entry.op and entry.op in ended:
            continue
        yield entry


def without_values(text: str) -> str:
    """Return a filter's text, with [hidden] for each value that the filter compares with an argument."""
    return _ASKED_OF_ARGUMENT.sub(r"\1[hidden]", text)


def _cut(text: str, most: int) -> bytes:
    """Return a text as at most `most` bytes of UTF-8, without a partial character at the end."""
    raw = text.encode("utf-8", "backslashreplace")
    return raw if len(raw) <= most else raw[:most].decode("utf-8", "ignore").encode()


def entry_of(entry_id: bytes, fields: list[bytes] | None) -> AuditEntry:
    """Parse an entry of the stream. An entry that jobq can't have written is marked as damaged."""
    words = [text_of(word) for word in fields or ()]
    texts = dict(zip(words[::2], words[1::2]))
    count = texts.pop("count", "")
    damaged = (
        bool(texts.keys() - LENGTHS.keys())
        or not {"who", "verb", "phase"} <= texts.keys()
        or (count != "" and not (count.isascii() and count.isdigit() and len(count) <= 16))
        or any(len(text.encode()) > LENGTHS[name] for name, text in texts.items() if name in LENGTHS)
    )  # fmt: skip
    facts = {name: texts.get(name, "")[: LENGTHS[name]] for name in LENGTHS if name != "count"}
    return AuditEntry(
        text_of(entry_id), int(entry_id.partition(b"-")[0]),
        number=int(count) if count and not damaged else None, damaged=damaged, **facts,
    )  # fmt: skip
