"""Topics and the queues of RSMQ, RELIABLEQ, Sidekiq and Resque on pages and in the API.

Parts that can't be read are named, and the rest is still shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from jobq.client.connection import Client
from jobq.errors import JobqError, OutOfRangeError, ScriptError
from jobq.observe.redaction import Redactor
from jobq.protocols.reliable import ReliableQueue, ReliableRecord
from jobq.protocols.reliable.listing import FoundQueues, find_queues
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.dashboard_entries import RubyWorker, resque_workers, sidekiq_processes
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.queue_records import RubyQueueRecord, queues_of
from jobq.protocols.ruby.queue_records import queue_record as ruby_record
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue
from jobq.queue.types import text_of
from jobq.records import JsonRecord, MomentOrZero
from jobq.topics.calls import topic_names
from jobq.topics.listing import TopicRecord, topic_record
from jobq.topics.messages import Retention, TopicMessage
from jobq.topics.topic import Topic

#: Maximum rows on a page, groups whose lag a list of topics reads, and characters of a content.
MAX_ROWS, MAX_GROUPS, MAX_SHOWN = 100, 200, 2_000
#: Where Sidekiq and Resque keep their keys.
SYSTEMS = (RubyQueueName("sidekiq", "", ""), RubyQueueName("resque", "resque", ""))
RELIABLE_PLACES = ("waiting", "pending", "dead")


T = TypeVar("T")


class Readable(NamedTuple, Generic[T]):
    """Some rows of a list.

    Attributes:
        unread: Name -> why the row of this name can't be read.
        more: Whether the list has further names.
    """

    rows: list[T]
    unread: dict[str, str]
    more: bool = False


def read_each(client: Client, names: Iterable[Any], read: Callable[[Any], T]) -> Readable[T]:
    """Read a row for each name. A name that the server rejects is reported, and the others are still read."""
    rows, unread = [], dict[str, str]()
    for name in names:
        try:
            rows.append(read(name))
        except JobqError as error:
            if client.is_lost(error):
                raise
            unread[str(name)] = str(error)
    return Readable(rows, unread)


class ShownBytes:
    """Shows contents to a user who may see them, with secrets hidden.

    Attributes:
        may_see: Whether the user has the `arguments` right.
    """

    def __init__(self, redactor: Redactor, may_see: bool) -> None:
        self._redactor, self.may_see = redactor, may_see

    def __call__(self, content: bytes | None) -> str | None:
        """Return a message's content as text with secrets hidden. Return None if this user may not see it."""
        if content is None or not self.may_see:
            return None
        try:
            tree = self._redactor.tree(msgspec.json.decode(content))
            text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = self._redactor.text(text_of(content[: 2 * MAX_SHOWN]))
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


# Topics.


class TopicRow(TopicRecord):
    """A topic's row in the list of topics.

    Attributes:
        lag: The greatest lag of the topic's groups; null if the page has too many groups.
        paused: Number of the topic's paused groups.
    """

    lag: int | None
    newest_at: MomentOrZero
    paused: int


class GroupRow(JsonRecord):
    """A group's position in a topic."""

    group: str
    lag: int
    age_ms: int
    settled: int
    handed_out: int
    held: int
    expired: int
    skipped: int
    out_of_range: str
    paused: bool


class TopicView(JsonRecord):
    """A topic, with the position of each of its groups."""

    topic: str
    messages: int
    first: int
    last: int
    nbytes: int
    oldest_at: MomentOrZero
    newest_at: MomentOrZero
    compacted_to: int
    groups: list[GroupRow]
    unread: dict[str, str]
    compacting: bool
    limits: Retention


def topics(client: Client, offset: int = 0) -> Readable[TopicRow]:
    """Return a page of topics, starting at `offset`. A topic's lag is None if the page would have to read too many
    groups.
    """
    names, asked = topic_names(client), 0

    def row(name: str) -> TopicRow:
        nonlocal asked
        topic = Topic(name, client)
        facts = topic.describe()
        asked += len(facts.groups)
        lags = [topic.group(group).lag() for group in facts.groups] if asked <= MAX_GROUPS else []
        lag = max((lag.messages for lag in lags), default=None if facts.groups else 0)
        paused = sum(lag.paused for lag in lags)
        return TopicRow.of(
            topic_record(name, facts), lag=lag, newest_at=facts.newest_at, paused=paused
        )

    listed = read_each(client, names[offset : offset + MAX_ROWS], row)
    return listed._replace(more=len(names) > offset + MAX_ROWS)


def topic(client: Client, name: str) -> TopicView:
    """Return the facts about a topic, with its groups and their positions."""
    opened = Topic(name, client)
    facts = opened.describe()

    def row(group: str) -> GroupRow:
        lag = opened.group(group).lag()
        return GroupRow.of(lag, group=group, lag=lag.messages)

    groups = read_each(client, facts.groups[:MAX_GROUPS], row)
    return TopicView.of(facts, topic=name, groups=groups.rows, unread=groups.unread)


def topic_messages(
    client: Client, name: str, shown: ShownBytes, start: int | None = None, most: int = 20
) -> list[dict[str, Any]]:
    """Return messages starting at an index or, without an index, the latest messages, latest first."""
    opened = Topic(name, client)
    facts = opened.describe()
    first = max(facts.first, facts.last - most + 1) if start is None else start
    if not facts.messages or first > facts.last:
        return []
    try:
        messages = list(islice(opened.read(max(first, 1), out_of_range="earliest"), most))
    except OutOfRangeError:
        return []
    rows = [_message(message, shown) for message in messages]
    return rows[::-1] if start is None else rows


def _message(message: TopicMessage, shown: ShownBytes) -> dict[str, Any]:
    return {
        "index": message.index, "at": message.at, "key": message.key if shown.may_see else None,
        "content": shown(message.content), "deleted": message.content is None, "bytes": len(message.content or b""),
    }  # fmt: skip


# RSMQ.


def rsmq_queues(rsmq: Rsmq, offset: int = 0) -> Readable[dict[str, Any]]:
    """Return a page of RSMQ's queues, with the values that `jobq rsmq queue describe` shows."""
    names = rsmq.list_queues()

    def row(name: str) -> dict[str, Any]:
        facts = rsmq.get_queue_attributes(name).as_dict()
        return {"queue": name, "visible": facts["msgs"] - facts["hiddenmsgs"], **facts}

    listed = read_each(rsmq.client, names[offset : offset + MAX_ROWS], row)
    return listed._replace(more=len(names) > offset + MAX_ROWS)


def rsmq_messages(
    rsmq: Rsmq, name: str, place: str, offset: int, shown: ShownBytes, most: int = MAX_ROWS
) -> list[dict[str, Any]]:
    """Return messages of a queue, next message first."""
    return [
        {
            "id": message.id, "content": shown(message.body), "bytes": len(message.body), "received": message.rc,
            "sent_at": message.sent, "visible_at": message.visible_at,
        }
        for message in rsmq.peek(name, place, offset, most)
    ]  # fmt: skip


# RELIABLEQ.


class ReliableQueues(NamedTuple):
    """Rows of RELIABLEQ's queues, and the result of the search that found the queues."""

    queues: FoundQueues
    readable: Readable[ReliableRecord]


def reliable_queues(queue: ReliableQueue, offset: int = 0) -> ReliableQueues:
    """Return a page of RELIABLEQ's queues, with the values that `jobq reliable list` shows."""
    try:
        queues = find_queues(queue.client, queue.ns)
    except ScriptError as error:  # the user may not list keys
        refused = Readable[ReliableRecord]([], {f"{queue.ns}:*": str(error)})
        return ReliableQueues(FoundQueues([], 0, False), refused)
    names = queues.names[offset : offset + MAX_ROWS]
    readable = read_each(queue.client, names, queue.info)
    more = len(queues.names) > offset + MAX_ROWS
    return ReliableQueues(queues, readable._replace(more=more))


def reliable_messages(
    queue: ReliableQueue, key: str, place: str, offset: int, shown: ShownBytes
) -> list[dict[str, Any]]:
    """Return a queue's waiting, unacknowledged or dead messages."""
    reads: dict[str, Callable[[str, int, int], Sequence[Any]]] = {
        "waiting": queue.inspect, "pending": queue.pending, "dead": queue.dead,
    }  # fmt: skip
    return [
        {
            "id": message.id, "content": shown(message.content), "bytes": len(message.content),
            "at": getattr(message, "delivered_at", None) or getattr(message, "died_at", None),
            "elapsed_ms": getattr(message, "elapsed_ms", None), "deliveries": getattr(message, "deliveries", 0),
        }
        for message in reads[place](key, offset, MAX_ROWS)
    ]  # fmt: skip


# Sidekiq and Resque.


def ruby_queues(client: Client) -> Readable[RubyQueueRecord]:
    """Return the queues of Sidekiq and Resque, with the values that `jobq ruby queues` shows."""
    rows, unread, more = list[RubyQueueRecord](), dict[str, str](), False
    for system in SYSTEMS:
        listed = read_each(client, [system], lambda ruby: queues_of(client, ruby))
        names = listed.rows[0] if listed.rows else []
        read = read_each(client, names[:MAX_ROWS], lambda ruby: ruby_record(client, ruby))
        rows += read.rows
        unread |= {system.key("queues"): why for why in listed.unread.values()} | read.unread
        more = more or len(names) > MAX_ROWS
    return Readable(rows, unread, more)


def ruby_workers(client: Client) -> Readable[RubyWorker]:
    """Return the workers of Sidekiq and Resque, including jobq's workers that serve Ruby queues."""
    reads = {"sidekiq": lambda: sidekiq_processes(client), "resque": lambda: resque_workers(client)}
    read = read_each(client, reads, lambda name: list(islice(reads[name](), MAX_ROWS)))
    return Readable(list(chain.from_iterable(read.rows)), read.unread)


def ruby_queue(
    client: Client, system: str, name: str, shown: ShownBytes, offset: int = 0
) -> dict[str, Any]:
    """Return a queue's counts, its next jobs in Ruby's format, and the jobs claimed by jobq's workers."""
    of = next(ruby for ruby in SYSTEMS if ruby.system == system)._replace(queue=name)
    kind = SidekiqQueue if system == "sidekiq" else ResqueQueue
    jobs = kind(name, client, namespace=of.namespace).peek(offset, MAX_ROWS)
    return structs.asdict(ruby_record(client, of)) | {
        "jobs": [{"content": shown(raw), "bytes": len(raw)} for raw in jobs],
        "claims": [claim._asdict() for claim in Claims(client, of).waiting()],
    }  # fmt: skip
