"""Erase messages from a lake and, if there is a server, from that server.

The server stores messages, dead messages, results and event streams. An event is deleted from its stream only after the
ingest has read it, because otherwise the ingest would count it as lost. A message in a topic's log can't be deleted, so
it is counted as not erased.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from jobq.client.connection import Client
from jobq.client.names import base_of, is_name
from jobq.errors import ConfigError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase
from jobq.pipeline.lake.commit import state_of
from jobq.pipeline.lake.conditions import (
    Sought,
    checked_text,
    parsed_argument,
    parsed_conditions,
)
from jobq.pipeline.lake.erase import Erasable, Selection
from jobq.pipeline.lake.ingest import Ingest, IngestBatch, one_round
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, of_source, parted, sourced
from jobq.pipeline.reading.live import QueueRows, message_batches
from jobq.pipeline.reading.request import ReadRequest
from jobq.pipeline.schema import MESSAGE_COLUMNS
from jobq.queue.directory import queue_names
from jobq.queue.mids import checked_mid
from jobq.queue.queue import Queue

#: Entries of a stream per call, and mids per call.
PAGE = 1_000


class ErasureRequest(NamedTuple):
    """A request to erase these mids, and all rows that `sought` selects."""

    mids: Sequence[str]
    sought: Sought

    @classmethod
    def parsed(
        cls, mids: Sequence[str] = (), where: str | None = None, argument: str | None = None, queue: str | None = None
    ) -> ErasureRequest:  # fmt: skip
        """Parse the options of `jobq lake erase`; raise ConfigError for invalid options."""
        for mid in mids:
            checked_text("--mid", mid)
        if queue is not None:
            checked_text("--queue", queue)
        conditions = parsed_conditions(where) if where else ()
        sought = Sought(queue, conditions, parsed_argument(argument) if argument else None)
        return cls(mids, sought)

    @property
    def basis(self) -> str:
        """Return the option that selects the messages: --mid, --where, or --arg followed by the argument's name."""
        if self.sought.argument:
            return f"--arg {self.sought.argument.name}"
        return "--where" if self.sought.conditions else "--mid"


@dataclass
class LiveErased:
    """The result of erasing messages on the server.

    Attributes:
        erased: Number of erased items, by kind.
        left: Number of items that could not be erased, by kind or reason.
    """

    erased: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Erasure:
    """Erases messages from a lake: call `select`, `begin`, then `erase.finish`.

    With a server, call `erase_live` before `erase.finish`.

    Attributes:
        alone: Returns a context manager, such as a RepeatedLock, for each step that changes the lake.
        enough: Returns whether to stop.
        server: The ingest from a server whose messages must also be erased, or None to change only the lake.
        told: Called with each ingested batch.
    """

    lake: Lake
    engine: Engine
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    enough: Callable[[], bool] = bool
    server: Ingest | None = None
    told: Callable[[IngestBatch], None] = field(default=lambda batch: None)

    def select(self, request: ErasureRequest, *, ingest: bool = True) -> Selection:
        """Find the messages that the request selects, and count their rows.

        Args:
            ingest: Whether to ingest the server's events before the search.
        """
        if self.server and ingest:
            self._ingest(self.server)
        chosen = erase.selected(self.lake, self.engine, *request)
        if self.server and not request.mids:
            _select_live(self.server, request.sought, chosen)
        chosen.rows.update(erase.counted(self.lake, self.engine, chosen.names))
        return chosen

    def begin(self, request: ErasureRequest, chosen: Selection) -> None:
        """Commit the tombstones; after that `erase.finish` can complete the erasure in any process."""
        with self.alone():
            erase.begin(self.lake, chosen.names, request.basis)

    def erase_live(self, server: Ingest, chosen: Selection) -> LiveErased:
        """Erase the chosen messages that the server still has. Outcomes of their running attempts are rejected."""
        done = LiveErased()
        by_queue = _by_queue(server, chosen.names, done)
        _erase_messages(server, by_queue, done)
        # Ingest the events that cancelling added to the streams.
        self._ingest(server)
        _erase_events(server, by_queue, done)
        return done

    def _ingest(self, server: Ingest) -> None:
        with self.alone():
            one_round(server, self.told, self.enough)


def _select_live(server: Ingest, sought: Sought, chosen: Selection) -> None:
    """Add the selected live messages to `chosen`, and count contents that could not be searched."""
    known = {column.name for column in MESSAGE_COLUMNS}
    client, source = server.client, server.options.source
    owner, name = parted(sought.queue) if sought.queue is not None else (source, None)
    if owner != source or any(condition.column not in known for condition in sought.conditions):
        return
    sought = sought._replace(queue=name)
    names = queue_names(client) if name is None else server.places(name)
    request = ReadRequest(view="messages", settings=client.settings, columns=MESSAGE_COLUMNS)
    for each in names:
        with server.tolerating(f"messages of queue {each}"):
            for batch in message_batches(request, QueueRows(each, 0), client):
                rows = pa.Table.from_batches([batch])
                mask, skipped = sought.mask(rows, "queue")
                if skipped:
                    chosen.unsearched["live messages"] += skipped
                mids = rows.filter(mask)["mid"].to_pylist()
                chosen.names.update(
                    Erasable("mid", sourced(source, base_of(each)), str(mid)) for mid in mids
                )


def _erase_messages(server: Ingest, by_queue: dict[str, set[str]], done: LiveErased) -> None:
    """Cancel messages, purge dead messages, and delete results."""
    for name, mids in by_queue.items():
        with server.tolerating(f"messages of queue {name}"):
            queue = Queue(name, server.client)
            queue.is_alone = True
            # A stream's entry may have an id that no message can have.
            for some in _pages(sorted(filter(_can_be_mid, mids))):
                words = Counter(queue.cancel(*some))
                done.erased["messages"] += words["cancelled"]
                done.left["done"] += sum(words[word] for word in words if word.startswith("done"))
                done.erased["dead"] += sum(_purged(queue, mid) for mid in some)
                for mid in some:
                    done.erased["results"] += int(
                        server.client.command("DEL", queue.result_key(mid))
                    )


def _purged(queue: Queue, mid: str) -> int:
    """Purge all dead messages with this message id, and return their number."""
    number = 0
    while dead := queue.admin.dead(mid=mid, limit=1):
        ids = [message.dead_id for message in dead]
        if dead[0].mid != mid:
            # `dead` found another message, whose dead id equals this mid.
            ids = [message.dead_id for message in queue.admin.iter_dead() if message.mid == mid]
        purged = queue.admin.purge(*ids) if ids else 0
        if not purged:
            break
        number += purged
    return number


def _can_be_mid(mid: str) -> bool:
    try:
        checked_mid(mid)
    except ConfigError:
        return False
    return True


def _erase_events(server: Ingest, by_queue: dict[str, set[str]], done: LiveErased) -> None:
    """Delete ingested stream entries that mention an erased message. `done.left` counts matches not yet ingested."""
    client, places = (
        server.client,
        of_source(server.options.source, state_of(server.lake, EVENTS).places),
    )
    for name, mids in by_queue.items():
        wanted = {mid.encode() for mid in mids}
        key = offsets.events_key(client.namespace, name)
        upto = offsets.parsed_id(places[name].id) if name in places else (0, 0)
        with server.tolerating(f"events of queue {name}"):
            for entries in _entries(client, key, wanted):
                ids = [entry for entry in entries if offsets.parsed_id(entry) <= upto]
                done.left["events"] += len(entries) - len(ids)
                if ids:
                    done.erased["events"] += int(client.command("XDEL", key, *ids))


def _entries(client: Client, key: str, mids: set[bytes]) -> Iterator[list[str]]:
    """Yield the ids of entries that mention one of the mids, page by page."""
    after = offsets.START
    while True:
        page = client.command("XRANGE", key, f"({after}", "+", "COUNT", PAGE)
        ids = [entry[0].decode() for entry in page]
        values = [b"\x1f".join(entry[1]).split(b"\x1f") for entry in page]
        yield [id_ for id_, parts in zip(ids, values, strict=True) if not mids.isdisjoint(parts)]
        if len(page) < PAGE:
            return
        after = ids[-1]


def _by_queue(server: Ingest, chosen: Iterable[Erasable], done: LiveErased) -> dict[str, set[str]]:
    """Group the chosen mids by queue, for queues of this server. Count the chosen messages of topics as not erased."""
    everywhere, by_queue, source = set[str](), dict[str, set[str]](), server.options.source
    for erasable in chosen:
        owner, queue = parted(erasable.queue) if erasable.queue is not None else (source, None)
        if owner != source:
            continue
        if erasable.kind != "mid":
            done.left["topics"] += erasable.kind == "message"
        elif queue is None:
            everywhere.add(erasable.name)
        elif is_name("queue", queue.encode()):
            by_queue.setdefault(queue, set()).add(erasable.name)
    for name, mids in list(by_queue.items()):
        for place in server.places(name):
            by_queue.setdefault(place, set()).update(mids)
    for name in queue_names(server.client) if everywhere else ():
        by_queue.setdefault(name, set()).update(everywhere)
    return by_queue


def _pages(mids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(mids)
    while some := list(islice(rest, PAGE)):
        yield some
