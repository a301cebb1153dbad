"""Erase from the server what was selected for the lake: messages, dead messages, results, entries of event streams.

An entry is deleted once the lake has read past it, so that the ingest doesn't count it as lost. A topic's log has no
call that deletes one message: such messages are counted as left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from jobq.client.connection import Client
from jobq.client.names import is_name
from jobq.errors import ConfigError
from jobq.pipeline import offsets
from jobq.pipeline.lake.commit import state_of
from jobq.pipeline.lake.conditions import Argument, Condition, Sought
from jobq.pipeline.lake.dead_messages import Tolerating
from jobq.pipeline.lake.erase import Erasable
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


@dataclass
class LiveErased:
    """What the server had: erased by kind, and left by the reason."""

    erased: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


def selected_live(
    client: Client, queue: str | None, conditions: Sequence[Condition], argument: Argument | None,
    tolerating: Tolerating, source: str = "",
) -> tuple[set[Erasable], int]:  # fmt: skip
    """Return the live messages that are meant, and how many contents could not be searched.

    queue: its name in the lake. source: the name under which the lake has the server's queues.
    """
    found, unsearched = set[Erasable](), 0
    known = {column.name for column in MESSAGE_COLUMNS}
    if any(one.column not in known for one in conditions):
        return found, 0
    owner, name = parted(queue) if queue is not None else (source, None)
    if owner != source:
        return found, 0
    sought = Sought(name, tuple(conditions), argument)
    request = ReadRequest(view="messages", settings=client.settings, columns=MESSAGE_COLUMNS)
    for each in [name] if name is not None else queue_names(client):
        with tolerating(f"messages of queue {each}"):
            for batch in message_batches(request, QueueRows(each, 0), client):
                mask, skipped = sought.mask(pa.Table.from_batches([batch]), "queue")
                unsearched += skipped
                rows = pa.Table.from_batches([batch]).filter(mask)
                stored = sourced(source, each)
                found.update(Erasable("mid", stored, str(mid)) for mid in rows["mid"].to_pylist())
    return found, unsearched


def erase_messages(
    client: Client, chosen: Iterable[Erasable], tolerating: Tolerating, source: str = ""
) -> LiveErased:
    """Cancel messages, purge dead ones and delete results. The outcome of a running attempt is refused.

    source: the name under which the lake has the server's queues. Those of other sources are left out.
    """
    done = LiveErased()
    for name, mids in _by_queue(client, chosen, done, source).items():
        with tolerating(f"messages of queue {name}"):
            queue = Queue(name, client)
            # A stream's entry may name what no message can have.
            for some in _pages(sorted(filter(_can_be_mid, mids))):
                words = Counter(queue.cancel(*some))
                done.erased["messages"] += words["cancelled"]
                done.left["done"] += sum(words[word] for word in words if word.startswith("done"))
                done.erased["dead"] += sum(_purged(queue, mid) for mid in some)
                for mid in some:
                    done.erased["results"] += int(client.command("DEL", queue.result_key(mid)))
    return done


def _purged(queue: Queue, mid: str) -> int:
    """Purge the dead messages of a mid; return how many there were."""
    number = 0
    while dead := queue.admin.dead(mid=mid, limit=1):
        ids = [one.dead_id for one in dead]
        if dead[0].mid != mid:
            # The dead id of a message is the mid of another, which `dead` doesn't find by it.
            ids = [one.dead_id for one in queue.admin.every_dead() if one.mid == mid]
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


def erase_events(
    lake: Lake, client: Client, chosen: Iterable[Erasable], done: LiveErased, tolerating: Tolerating,
    source: str = "",
) -> None:  # fmt: skip
    """Delete the entries that the lake has read past; count the others as left."""
    places = of_source(source, state_of(lake, EVENTS).places)
    for name, mids in _by_queue(client, chosen, LiveErased(), source).items():
        wanted = {mid.encode() for mid in mids}
        key = offsets.events_key(client.namespace, name)
        upto = offsets.parsed_id(places[name].id) if name in places else (0, 0)
        with tolerating(f"events of queue {name}"):
            for entries in _entries(client, key, wanted):
                ids = [one for one in entries if offsets.parsed_id(one) <= upto]
                done.left["events"] += len(entries) - len(ids)
                if ids:
                    done.erased["events"] += int(client.command("XDEL", key, *ids))


def _entries(client: Client, key: str, mids: set[bytes]) -> Iterator[list[str]]:
    """Yield the ids of entries that name one of the mids, page by page."""
    after = offsets.START
    while True:
        page = client.command("XRANGE", key, f"({after}", "+", "COUNT", PAGE)
        ids = [entry[0].decode() for entry in page]
        values = [b"\x1f".join(entry[1]).split(b"\x1f") for entry in page]
        yield [one for one, parts in zip(ids, values, strict=True) if not mids.isdisjoint(parts)]
        if len(page) < PAGE:
            return
        after = ids[-1]


def _by_queue(
    client: Client, chosen: Iterable[Erasable], done: LiveErased, source: str
) -> dict[str, set[str]]:
    """Return the mids by queue of the server; count messages of its topics, which stay."""
    everywhere, found = set[str](), dict[str, set[str]]()
    for one in chosen:
        owner, queue = parted(one.queue) if one.queue is not None else (source, None)
        if owner != source:
            continue
        if one.kind != "mid":
            done.left["topics"] += one.kind == "message"
        elif queue is None:
            everywhere.add(one.name)
        elif is_name("queue", queue.encode()):
            found.setdefault(queue, set()).add(one.name)
    for name in queue_names(client) if everywhere else ():
        found.setdefault(name, set()).update(everywhere)
    return found


def _pages(mids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(mids)
    while some := list(islice(rest, PAGE)):
        yield some
