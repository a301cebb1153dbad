"""The ingest: batch after batch from event streams and topics into the lake, each entry once.

A batch: look at the streams' ends; plan ranges from the offsets in the table's last commit; tasks read,
decode and write files; one commit names the files and holds the new offsets. Whatever dies in between, the
next batch begins where the last commit ended, and files without a commit count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from jobq.errors import JobqError, ScriptError
from jobq.pipeline import offsets
from jobq.pipeline.decode import Bounds
from jobq.pipeline.lake import quarantine
from jobq.pipeline.lake.clock import DAY_MS, clocks
from jobq.pipeline.lake.commit import CommitConflictError, State, commit, state_of, taken_back
from jobq.pipeline.lake.live import live
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.portion import Answer, raised
from jobq.pipeline.lake.runner import Runner
from jobq.pipeline.lake.sharing import ENTRIES, Done, gathered, portions
from jobq.pipeline.lake.store import Store, remove
from jobq.pipeline.lake.tables import EVENTS, TOPICS, Table
from jobq.pipeline.offsets import Place, Plan, Range, Tail
from jobq.queue.directory import queue_names
from jobq.topics import keys as topic_keys
from jobq.topics.calls import topic_names

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.pipeline.decode import Bad

MAX_ROWS = 1_000_000
#: What can't be read, and why.
Problem = Callable[[str, JobqError], None]


class Batch(NamedTuple):
    """What a batch brought. more: there was more to read than fits in one."""

    table: str
    rows: int = 0
    files: int = 0
    bad: int = 0
    lost: Mapping[str, int] = MappingProxyType({})
    remade: Sequence[str] = ()
    more: bool = False


class Ingest:
    """From one server into one lake. names: these queues alone, and no topics; None = all there are.

    portion: entries of one task. trim: once committed, entries are dropped from their streams. problem: is told
    what the server refuses to read, a key of another type mostly, and the rest is read; without it that raises.
    """

    def __init__(
        self, lake: Lake, client: Client, runner: Runner, *, names: Sequence[str] | None = None,
        max_rows: int = MAX_ROWS, trim: bool = False, portion: int = ENTRIES, problem: Problem | None = None,
    ) -> None:  # fmt: skip
        self._problem = problem
        self.lake, self.client, self.runner = lake, client, runner
        self.names, self._max_rows, self._trim, self._portion = names, max_rows, trim, portion

    def events(self) -> Batch:
        """One batch of events."""
        state = state_of(self.lake.table(EVENTS.name), EVENTS.app)
        tails = {}
        for name in self.names or sorted({*self.queues(), *state.places}):
            with self.tolerating(f"events of queue {name}"):
                tails[name] = self._tail(name)
        batch = self._batch(EVENTS, state, tails)
        if self._trim:
            self._drop(tails)
        return batch

    def topics(self) -> Batch:
        """One batch of topics."""
        state = state_of(self.lake.table(TOPICS.name), TOPICS.app)
        names: set[str] = set()
        if self.names is None:
            names.update(state.places)
            with self.tolerating("the list of topics"):
                names.update(topic_names(self.client))
        tails = {}
        for name in sorted(names):
            with self.tolerating(f"topic {name}"):
                found = offsets.topic_tail(self.client, name)
                # The tail is told by another key than these, which tasks read.
                start = topic_keys.base(self.client.namespace, name)
                for part in ("log", "base"):
                    self.client.command("XRANGE", f"{start}{part}", "0-0", "0-0")
                tails[name] = found
        return self._batch(TOPICS, state, tails)

    def queues(self) -> list[str]:
        """Those it reads, as far as the server lists them."""
        found = list(self.names or ())
        if not found:
            with self.tolerating("the list of queues"):
                found = queue_names(self.client)
        return found

    @contextmanager
    def tolerating(self, what: str) -> Iterator[None]:
        """What the server refuses to read is a problem of this alone."""
        try:
            yield
        except ScriptError as error:
            if self._problem is None:
                raise
            self._problem(what, error)

    def _tail(self, queue: str) -> Tail:
        return offsets.tail(self.client, offsets.events_key(self.client.namespace, queue))

    def _batch(self, table: Table, state: State, tails: Mapping[str, Tail]) -> Batch:
        known = {name: state.places[name] for name in tails if name in state.places}
        plan = offsets.plan(known, tails, self._max_rows)
        if not plan.ranges and not plan.remade:
            return Batch(table.name)
        answers = self._answers(table, plan, tails)
        found, kept, dropped = gathered(answers)
        _forget(self.lake.below(table.name), dropped)
        places = {name: tails[name].oldest for name in plan.remade}
        lost: dict[str, int] = {}
        for one in plan.ranges:
            places[one.queue], missing = self._reached(one, found[one.queue])
            lost |= {one.queue: missing} if missing else {}
        bad = [record for answer in kept for record in answer.bad]
        files = [file for answer in kept for file in answer.files]
        rows = sum(file.rows for file in files)
        after = state.following(places, rows, lost, bad=len(bad), remade=plan.remade)
        self._commit(table, kept, after, bad)
        more = any(places[one.queue].n < one.end.n for one in plan.ranges)
        return Batch(table.name, rows, len(files), len(bad), lost, plan.remade, more)

    def _answers(self, table: Table, plan: Plan, tails: Mapping[str, Tail]) -> list[Answer]:
        settings = replace(self.client.settings, url=self.client.url, codec=None, outage_buffer=0)
        store = self.lake.below(table.name)
        self.lake.made(table.name)
        found = {one.queue: self._first(one, tails[one.queue]) for one in plan.ranges}
        bounds = self._bounds(tails) if table is EVENTS else None
        todo = portions(table.name, settings, store, plan.ranges, found, self._portion, bounds)
        answers = self.runner.run(todo, sum(one.expected for one in plan.ranges))
        for answer in answers:
            if answer.failed:
                _forget(store, answers)
                raised(answer)
        return answers

    def _bounds(self, tails: Mapping[str, Tail]) -> Bounds:
        """From a day before jobq's first use here, as far as streams and lake tell, to a day after now."""
        earlier, later = clocks(self.client)
        oldest = [offsets.parsed(one.first_id)[0] for one in tails.values() if one.length]
        for file in live(self.lake.table(EVENTS.name))[:1]:
            oldest.append(round(datetime.fromisoformat(f"{file.dt}T00Z").timestamp() * 1000))
        return Bounds(max(0, min(*oldest, earlier) - DAY_MS), later + DAY_MS)

    def _first(self, one: Range, now: Tail) -> Tail:
        """The tail with the id of the first entry after the place, where the range is cut by that."""
        if not one.limit or one.limit <= self._portion or "-" not in one.upto:
            return now
        page = self.client.command("XRANGE", one.key, f"({one.after}", one.upto, "COUNT", 1)
        return now._replace(first_id=page[0][0].decode()) if page else now

    def _reached(self, one: Range, done: Done) -> tuple[Place, int]:
        """The place after what was read, and how many entries were dropped before they could be."""
        last = done.reads[-1]
        if "-" not in one.upto:
            upto = last.stretch.upto
            return Place(upto, int(upto)), sum(read.lost for read in done.reads)
        if last.stretch.upto == one.upto and not last.cut:
            return one.end, offsets.lost(one, done.entries)
        if not done.entries:
            # The first part was dropped before it could be read; what follows it may still be there.
            oldest = offsets.tail(self.client, one.key).oldest
            dropped = max(0, oldest.n - one.start.n)
            return (oldest, dropped) if dropped else (one.start, 0)
        asked = one._replace(limit=done.entries)
        return offsets.reached(self.client, asked, done.entries, done.last_id or one.after)

    def _commit(
        self, table: Table, kept: Sequence[Answer], after: State, bad: list[tuple[str, Bad]],
    ) -> None:  # fmt: skip
        files = [file for answer in kept for file in answer.files]
        with taken_back(self.lake.below(table.name), files):
            if bad:
                quarantine.keep(self.lake, bad, after.facts["remade"])
            delta = self.lake.made(table.name)
            before = state_of(delta, table.app)
            if before.batch != after.batch - 1:
                raise CommitConflictError(
                    f"another ingest committed batch {after.batch} of {table.name} first"
                )
            # Rows may have expired while this batch was read.
            after = replace(after, expired=before.expired, before=before.before)
            commit(self.lake, table.name, delta, [file.action() for file in files], after)

    def _drop(self, queues: Iterable[str]) -> None:
        """Drop from the streams what is in the lake."""
        places = state_of(self.lake.table(EVENTS.name), EVENTS.app).places
        for queue in queues:
            if queue in places and places[queue].n:
                key = offsets.events_key(self.client.namespace, queue)
                upto = offsets.following(places[queue].id)
                self.client.command("XTRIM", key, "MINID", "=", upto)


def _forget(store: Store, answers: Iterable[Answer]) -> None:
    remove(store, [file.path for answer in answers for file in answer.files])
