"""Find the messages of an operation, and store their ids and digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import takewhile

from jobq.client.connection import Client
from jobq.client.scripts import Argument
from jobq.queue import keys
from jobq.queue.bin import MAX_BYTES
from jobq.queue.bin import MAX_MESSAGES as MAX_IN_BIN
from jobq.queue.directory import listed_queues
from jobq.queue.queue import Queue
from jobq.web import search
from jobq.web.contents import Contents
from jobq.web.filters import Filter, Row
from jobq.web.operations.store import (
    CHUNK,
    MAX_MESSAGES,
    FrozenChunk,
    OperationState,
    OperationStore,
    SampleMessage,
)
from jobq.web.operations.verbs import verb_of
from jobq.web.search import ListedRow, SearchLimits, dead_row

#: Maximum number of content bytes per call.
BYTES_AT_ONCE = 1 << 20
#: Maximum number of jobs, errors and queues that a preview names, and of its samples.
MAX_NAMED, SAMPLES = 20, 5
#: Estimated bytes per message in the bin, in addition to its content and its error.
ROOM = 2_000
_PLACES = {
    "queued": "ready", "queued-with-backoff": "due", "locked": "running", "locked-with-requeue": "running",
}  # fmt: skip


class Freezer:
    """Stores the ids and digests of one operation's messages.

    Attributes:
        reads: Client that reads queues.
        ended: Function that returns whether to stop.
        token: Token of the operation's lock.
    """

    def __init__(
        self, store: OperationStore, reads: Client, contents: Contents, state: OperationState,
        ended: Callable[[], bool] = bool, token: str = "",
    ) -> None:  # fmt: skip
        self.store, self.reads, self.contents, self.state = store, reads, contents, state
        self.ended, self.token = ended, token
        self.verb = verb_of(state.verb)
        self._counters = {name: Counter[str]() for name in ("queues", "jobs", "errors")}
        self._known: set[tuple[str, str]] = set()
        self._sizes = Counter[str]()

    def matching(self, asked: Filter) -> None:
        """Freeze up to 100,000 messages that match the filter."""
        names, cursor = listed_queues(self.reads).names, ""
        limits = SearchLimits(rows=1000)
        while not self.ended():
            messages = search.messages(
                self.reads, self.contents, asked, names, self.verb.places, cursor, limits
            )
            self.state.problems |= messages.problems
            self._take(messages.rows)
            self.state.looked_at, self.state.total = messages.looked_at, messages.total
            self.state.capped = self.state.number >= MAX_MESSAGES and bool(messages.cursor)
            cursor = messages.cursor
            if not cursor or self.state.number >= MAX_MESSAGES:
                return self._finish()
            self._save()
            self._renew()
        raise InterruptedError

    def chosen(self, ids: Sequence[tuple[str, str]]) -> None:
        """Add messages to the operation. Each pair contains a queue and a message id or dead id."""
        self.state.total = len(ids)
        for first in range(0, len(ids), CHUNK):
            if self.ended():
                raise InterruptedError
            rows = [
                row for queue, id_ in ids[first : first + CHUNK] for row in self._row(queue, id_)
            ]  # fmt: skip
            self._take(rows)
            self.state.looked_at = min(len(ids), first + CHUNK)
            self._save()
            self._renew()
        self._finish()

    def _renew(self) -> None:
        if self.token:
            self.store.renew(self.state.id, self.token)

    def _row(self, name: str, id_: str) -> Iterator[ListedRow]:
        queue = Queue(name, self.reads)
        if self.verb.is_dead:
            for part in queue.alone():
                for message in part.admin.dead(mid=id_)[:1]:
                    if message.dead_id == id_:
                        yield dead_row(self.contents, part.name, message, message.died_at)
            return
        queue = queue.holder(id_)
        status = queue.status(id_)
        place = _PLACES.get(status.word)
        if place in self.verb.places:
            key = keys.key(queue.prefix, "messages")
            content = self.store.client.command("HGET", key, id_) or b""
            job, at_ms = self.contents.job(queue.name, id_, content)
            row = Row(queue.name, id_, place, job, attempt=status.attempts, crashes=status.ncrashes)
            yield ListedRow(
                row,
                status.word,
                at_ms,
                status.not_before,
                status.lock_expires_at,
                size=len(content),
            )

    def _take(self, rows: Sequence[ListedRow]) -> None:
        """Store rows in chunks. Each chunk has messages of a single queue."""
        room = MAX_MESSAGES - self.state.number
        fresh = [row for row in rows if self._is_new(row)][:room]
        while fresh:
            queue = fresh[0].row.queue
            some = list(takewhile(lambda row: row.row.queue == queue, fresh[:CHUNK]))  # noqa: B023
            fresh = fresh[len(some) :]
            if kept := self._kept(queue, some):
                chunk = FrozenChunk(queue, [row.dead_id or row.row.mid for row, *_ in kept])
                if not self.verb.is_dead:
                    chunk.generations = [generation for _, generation, _ in kept]
                    chunk.digests = [digest for *_, digest in kept]
                    chunk.sizes = [row.size for row, *_ in kept]
                    chunk.formers = [row.not_before for row, *_ in kept]
                self.store.put_chunk(self.state.id, self.state.nchunks, chunk)
                self.state.nchunks += 1
                self._count([row for row, *_ in kept])

    def _is_new(self, row: ListedRow) -> bool:
        key = (row.row.queue, row.dead_id or row.row.mid)
        if key in self._known or row.row.place not in self.verb.places:
            return False
        self._known.add(key)
        return True

    def _kept(self, queue: str, rows: Sequence[ListedRow]) -> list[tuple[ListedRow, str, str]]:
        """Return the rows whose messages still exist, each with its message's generation and content digest."""
        if self.verb.is_dead:
            return [(row, "", "") for row in rows]
        mids = [row.row.mid for row in rows]
        now = present(self.store.client, queue, mids, [row.size for row in rows])
        return [
            (row, generation, digest)
            for row, (generation, digest) in zip(rows, now, strict=True)
            if digest
        ]

    def _count(self, rows: Sequence[ListedRow]) -> None:
        state = self.state
        state.number += len(rows)
        for listed in rows:
            row = listed.row
            self._counters["queues"][row.queue] += 1
            self._counters["jobs"][row.job] += 1
            self._counters["errors"][error_label(row.error)] += 1
            self._sizes[row.queue] += listed.size + len(row.error) + ROOM
            if listed.at_ms:
                state.oldest_ms = min(state.oldest_ms or listed.at_ms, listed.at_ms)
                state.newest_ms = max(state.newest_ms, listed.at_ms)
            if len(state.samples) < SAMPLES:
                error = error_label(row.error)
                state.samples.append(
                    SampleMessage(row.queue, row.mid, row.job, error, listed.at_ms)
                )

    def _save(self) -> None:
        for name, counter in self._counters.items():
            setattr(self.state, name, counter.most_common(MAX_NAMED))
        self.store.save(self.state)

    def _finish(self) -> None:
        self.state.why_no_undo = self._why_no_undo()
        self.state.phase = "previewed"
        self._save()

    def _why_no_undo(self) -> str:
        if not self.verb.undone:
            return "An interrupted run can't be continued."
        if self.verb.undone == "time":
            return ""
        for queue, number in self._counters["queues"].most_common(1):
            if number > MAX_IN_BIN:
                return f"This affects {number:,} messages of {queue}; at most {MAX_IN_BIN:,} can be kept for an undo."
        for queue, size in self._sizes.most_common(1):
            if size > MAX_BYTES:
                return f"The messages of {queue} take more than 16 MiB in total; no more can be kept for an undo."
        return ""


def error_label(error: str) -> str:
    """Return the label for grouping errors: the first line, up to its first colon."""
    return error.partition("\n")[0].partition(":")[0][:120]


def present(
    client: Client, queue: str, mids: Sequence[str], sizes: Sequence[int]
) -> list[tuple[str, str]]:
    """Return each message's generation and content digest; two empty strings if the message isn't live.

    Args:
        sizes: Approximate sizes of the contents, to limit the data per call.
    """
    prefix = keys.prefix(client.namespace, queue)
    versions: list[tuple[str, str]] = []
    for some in _portions(mids, sizes):
        contents = client.command("HMGET", keys.key(prefix, "messages"), *some)
        generations = client.command("HMGET", keys.key(prefix, "generations"), *some)
        for content, generation in zip(contents, generations, strict=True):
            digest = "" if content is None else blake2b(content, digest_size=8).hexdigest()
            versions.append(((generation or b"").decode("utf-8", "replace"), digest))
    return versions


def _portions(mids: Sequence[str], sizes: Sequence[int]) -> Iterator[list[Argument]]:
    some: list[Argument] = []
    nbytes = 0
    for mid, size in zip(mids, sizes, strict=True):
        some.append(mid)
        nbytes += size
        if nbytes >= BYTES_AT_ONCE:
            yield some
            some, nbytes = [], 0
    if some:
        yield some
