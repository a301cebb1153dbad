"""Tombstones: salted hashes of the ids of erased messages. An ingest skips rows that match a tombstone.

The table `erased` has a row for each erased message, topic message and entry of the quarantine. Executors get a
`TombstoneFiles` and read the hashes once per process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from jobq.client.names import base_of
from jobq.pipeline.lake.files import live_files, rows_of_paths
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import (
    AUDIT,
    DEAD,
    ERASED,
    EVENTS,
    JOB_RUNS,
    QUARANTINE,
    TOPICS,
    parted,
    sourced,
)
from jobq.pipeline.schema import is_of

#: The name of a row, by table: the kind of tombstone, the column with the queue or topic, and the columns of the name.
NAMED = {
    EVENTS.name: ("mid", "queue", ("mid",)),
    JOB_RUNS.name: ("mid", "queue", ("mid",)),
    DEAD.name: ("mid", "queue", ("mid",)),
    TOPICS.name: ("message", "topic", ("index", "at")),
    QUARANTINE.name: ("entry", "queue", ("entry_id",)),
}
#: Columns of the audit log that may contain message ids, and the text that replaces erased ids.
AUDIT_TEXTS = ("filter", "note")
REDACTED = "[erased]"
#: Parts of such a text that may be a message id: a quoted value, or a word.
_NAMES = re.compile(r'"(?:\\.|[^"\\])*"|[^\s"/,;()\[\]{}]+')
#: Words of an entry that may be message ids. Ids may have other characters, so each field of a record is also compared
#: as a whole.
_WORDS = re.compile(rb"[\w~:.@+-]+")


class TombstoneFiles(NamedTuple):
    """The files of the table `erased`, as plain data that can be sent to executors."""

    store: LakeStore
    paths: tuple[str, ...]

    def load(self) -> Tombstones:
        """Read the hashes, or return the hashes already read by this process."""
        key = (self.store.uri, self.paths)
        if key not in _LOADED:
            _LOADED.clear()
            _LOADED[key] = Tombstones(rows_of_paths(self.store, self.paths))
        return _LOADED[key]


_LOADED: dict[tuple[str, tuple[str, ...]], Tombstones] = {}


def tombstone_files(lake: Lake) -> TombstoneFiles | None:
    """Return the files with the tombstones; None if nothing was ever erased."""
    paths = tuple(sorted(file.path for file in live_files(lake.table(ERASED.name))))
    return TombstoneFiles(lake.below(ERASED.name), paths) if paths else None


def hash_of(salt: bytes, kind: str, name: str) -> bytes:
    """Return the 16-byte hash of a name."""
    text = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16, key=salt).digest()


class Tombstones:
    """The hashes of erased messages, in memory.

    Attributes:
        begun: Notes on unfinished erasures, by erasure id.
    """

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        #: Queues by salt and hash. None among the queues means every queue.
        self._queues: dict[bytes, dict[bytes, set[str | None]]] = {}
        self.begun: dict[str, str] = {}
        self.salt = b""
        done = set()
        for table in tables:
            for row in table.to_pylist():
                if row["kind"] == "begun":
                    self.begun[row["erasure"]] = row["note"] or ""
                elif row["kind"] == "done":
                    done.add(row["erasure"])
                else:
                    hashes = self._queues.setdefault(row["salt"], {})
                    hashes.setdefault(row["hash"], set()).add(row["queue"])
                self.salt = row["salt"] or self.salt
        for erasure in done:
            self.begun.pop(erasure, None)

    def load(self) -> Tombstones:
        """Return this object, so that callers can use it like `TombstoneFiles`."""
        return self

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._queues.values())

    def queues(self, kind: str, name: str) -> set[str | None]:
        """Return the queues in which this name was erased, including None if it was erased in every queue."""
        queues: set[str | None] = set()
        for salt, hashes in self._queues.items():
            queues |= hashes.get(hash_of(salt, kind, name), set())
        return queues

    def has(self, kind: str, queue: str, name: str) -> bool:
        """Return whether this name was erased in the queue."""
        mine = {None, queue, base_of(queue)} if kind == "mid" else {None, queue}
        return not mine.isdisjoint(self.queues(kind, name))

    def mask(self, table: str, rows: pa.Table) -> Any:
        """Return a mask of erased rows and of rows that mention an erased mid; None if there are none."""
        if table == AUDIT.name:
            mask = pa.array([self._redacted(row) != row for row in rows.to_pylist()], pa.bool_())
            return mask if pc.any(mask).as_py() else None
        kind, column, _ = NAMED[table]
        mask = self._named(kind, rows[column], names_of_rows(table, rows))
        if table == QUARANTINE.name and "content" in rows.column_names:
            inside = pa.array(self._in_contents(rows), pa.bool_())
            mask = inside if mask is None else pc.or_(mask, inside)
        return mask if mask is not None and pc.any(mask).as_py() else None

    def kept(self, table: str, rows: pa.Table) -> pa.Table:
        """Return the rows that aren't erased. Entries of the audit log stay, but lose erased mids."""
        if table == AUDIT.name:
            return pa.Table.from_pylist(
                [self._redacted(row) for row in rows.to_pylist()], rows.schema
            )
        mask = self.mask(table, rows) if rows.num_rows else None
        return rows if mask is None else rows.filter(pc.invert(mask))

    def is_named_in(self, queue: str, content: bytes | None) -> bool:
        """Return whether an entry of the queue contains an erased message's id. `content` is the entry's bytes."""
        words = {*(content or b"").split(b"\x1f"), *_WORDS.findall(content or b"")}
        return any(self.has("mid", queue, word.decode("utf-8", "replace")) for word in words)

    def _redacted(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an entry of the audit log with REDACTED in place of erased mids."""
        source, queues = parted(entry["log"])[0], (entry["queue"] or "*").split(",")
        names = {sourced(source, name) for queue in queues for name in (queue, base_of(queue))}
        known = None if "*" in queues else {None, *names}

        def is_erased(word: str) -> bool:
            queues = self.queues("mid", word)
            if known is None:
                return any(queue is None or parted(queue)[0] == source for queue in queues)
            return bool(queues & known)

        def shown(match: re.Match[str]) -> str:
            for word in _mids_of(match[0]):
                if is_erased(word[1]):
                    return f"{word[0]}{REDACTED}"
            return match[0]

        texts = {
            name: REDACTED if is_erased(text) else _NAMES.sub(shown, text)
            for name in AUDIT_TEXTS
            if (text := entry[name])
        }
        return {**entry, **texts}

    def _named(self, kind: str, queues: Any, names: Any) -> Any:
        everywhere: list[str] = []
        by_queue: dict[str, list[str]] = {}
        each: list[Any] = pc.unique(names).to_pylist()
        for name in each:
            for queue in self.queues(kind, name) if name is not None else ():
                (everywhere if queue is None else by_queue.setdefault(queue, [])).append(str(name))
        combined = None
        for queue, some in [(None, everywhere), *by_queue.items()]:
            if not some:
                continue
            mask = pc.is_in(names, pa.array(some, pa.string()))
            if queue is not None:
                column = "queue" if kind == "mid" else "topic"
                mask = pc.and_(mask, is_of(column, queues, [queue]))
            combined = mask if combined is None else pc.or_(combined, mask)
        return combined

    def _in_contents(self, rows: pa.Table) -> list[bool]:
        pairs: Any = zip(rows["queue"].to_pylist(), rows["content"].to_pylist(), strict=True)
        return [self.is_named_in(queue, content) for queue, content in pairs]


def _mids_of(word: str) -> Iterator[tuple[str, str]]:
    """Yield each possible message id in a word, as a pair of the text before it and the id.

    Possible ids are the whole word, and the part after each colon.
    """
    for text in (
        word,
        word.rstrip(".:!?'"),
        unquote(word),
        word.strip("\"'"),
        word.replace('\\"', '"').strip('"'),
    ):
        yield "", text
        at = -1
        while (at := text.find(":", at + 1)) >= 0:
            yield text[: at + 1], text[at + 1 :].strip("\"'")


def names_of_rows(table: str, rows: pa.Table) -> Any:
    """Return the id of each row, from which its tombstone is made."""
    columns: list[Any] = [_text(rows[name]) for name in NAMED[table][2]]
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "@")


def _text(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.string())
