"""What is outside a flow's slot: messages, outboxes, drainers; and the truth about what ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Before the names of the sub-flow's keys and scripts; '' of the flow itself.
SUB = "p/"
#: kind, mid or detail, whose it is: '' or SUB
Record = tuple[str, str, str]
#: number of its entry, kind, mid or detail, the result that its queue has of it
Numbered = tuple[int, str, str, str]
#: number, queue, records, the run of the flow that they are about: how often it was started again
Entry = tuple[int, str, tuple[Record, ...], int]
#: Whose entries they are: '' or SUB, and the run.
Target = tuple[str, int]
#: step, todo, stamp, again, kind, queue, source, options
Todo = tuple[str, str, str, bool, str, str, str, str]


class StepOf(NamedTuple):
    """A step of a scope. edges: `a:done`. size: members of a map, each a chunk of its own. kept: it has a result."""

    name: str
    queue: str = "L"
    kind: str = "step"
    edges: str = ""
    source: str = ""
    size: int = 1
    timed: bool = False
    kept: bool = False


@dataclass(frozen=True)
class Scope:
    """Possible events, and how often they may happen."""

    name: str
    steps: tuple[StepOf, ...]
    budget: dict[str, int]
    """die, kill, lose, forget, revive, cancel, retry, signal, forge, stop, restart (under the same id)"""
    drainers: int = 2
    sub: tuple[StepOf, ...] = ()
    """Steps of the flow that the step of kind `flow` is, if there is one."""

    @property
    def slots(self) -> dict[str, tuple[StepOf, ...]]:
        """The steps of the flow, and of its sub-flow."""
        return {"": self.steps, SUB: self.sub} if self.sub else {"": self.steps}

    def __str__(self) -> str:
        steps = ", ".join(
            f"{one.name} {one.kind} {one.edges}".strip() for one in self.steps + self.sub
        )
        often = ", ".join(f"{name} {count}" for name, count in self.budget.items())
        return f"{steps}; {self.drainers} drainers; at most: {often}"


class Sender(NamedTuple):
    """Items that a drainer sends for a run of one flow. sub: where it is within an item, or what it read."""

    slot: str
    run: int = 0
    todo: tuple[Todo, ...] = ()
    known: frozenset[str] = frozenset()
    at: int = 0
    sub: tuple[Any, ...] = ()
    is_found: bool = False

    # The name of each state has it.
    __repr__ = tuple.__repr__


class Drain(NamedTuple):
    """One drainer between two of its calls. entries: what it read. targets: flows that it still takes them to.

    senders: for the first of these, and for its parent while that is told. results: what it read at the queue.
    """

    queue: str
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...]
    senders: tuple[Sender, ...] = ()
    results: dict[str, str] | None = None

    __repr__ = tuple.__repr__


@dataclass
class World:
    """The whole state but for the flow's slot."""

    scope: Scope
    left: dict[str, int]
    messages: dict[str, str] = field(default_factory=dict)
    """mid -> ready, run, dead"""
    taken: frozenset[str] = frozenset()
    """Mids of steps that are done and refused for a while."""
    up_to: dict[str, int] = field(default_factory=dict)
    """step -> the number of the last member that was accepted."""
    outbox: tuple[Entry, ...] = ()
    nentries: int = 0
    marks: tuple[int, ...] = ()
    """How many entries there were when members were retried."""
    run: int = 0
    """How often the flow was removed and started again."""
    drains: tuple[Drain | None, ...] = ()
    producer: tuple[Any, ...] = ()
    """Of streamed maps: step, phase, chunk, members; () before it began or after it died; ('over',) at its end."""
    done: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    was_dead: frozenset[str] = frozenset()
    accepted: Counter[str] = field(default_factory=Counter)
    cancelled: bool = False
    running: dict[str, str] = field(default_factory=dict)
    """mid -> what its last run returns"""
    results: dict[str, str] = field(default_factory=dict)
    """Beside the queues."""
    returned: dict[str, str] = field(default_factory=dict)
    """In truth."""

    def copy(self) -> World:
        made = World.__new__(World)
        made.__dict__.update(self.__dict__)
        made.left, made.messages, made.accepted = (
            dict(self.left),
            dict(self.messages),
            Counter(self.accepted),
        )
        made.running, made.results, made.returned, made.up_to = (
            dict(self.running),
            dict(self.results),
            dict(self.returned),
            dict(self.up_to),
        )
        return made

    def text(self) -> str:
        """For the name of the state: drainers are alike, and entries count by their order."""
        place = {number: at for at, (number, *_) in enumerate(self.outbox)}

        def named(entry: Entry) -> Any:
            number, queue, records, run = entry
            behind = sum(mark <= number for mark in self.marks)
            return place.get(number, -1), behind, queue, records, run

        drains = sorted(
            repr(
                one._replace(
                    entries=tuple(map(named, one.entries)),
                    senders=tuple(
                        each._replace(known=tuple(sorted(each.known)))  # type: ignore[arg-type]
                        for each in one.senders
                    ),
                )
            )
            if one
            else ""
            for one in self.drains
        )
        entries = [named(one) for one in self.outbox]
        return repr((
            sorted(self.messages.items()), sorted(self.taken), sorted(self.up_to.items()), entries, drains,
            self.producer, self.run, sorted(self.done),
            sorted(self.ended), sorted(self.was_dead), sorted(self.accepted.items()), self.cancelled,
            sorted(self.running.items()), sorted(self.results.items()), sorted(self.returned.items()),
        ))  # fmt: skip

    def step(self, name: str) -> StepOf:
        return next(one for one in self.scope.steps + self.scope.sub if one.name == name)

    def slot_of(self, mid: str) -> str:
        step = self.step(mid.partition(".")[0])
        return "" if step in self.scope.steps else SUB

    def mids(self, name: str) -> list[str]:
        """Messages of a step; of a sub-flow those of all its steps."""
        if self.step(name).kind == "flow":
            return [mid for one in self.scope.sub for mid in self.mids(one.name)]
        return [f"{name}.{number}" for number in range(self.step(name).size)]

    def is_met(self, name: str, when: str) -> bool:
        """Return whether a step has come to such an end, judged by the ends of its messages."""
        mids = set(self.mids(name))
        if when == "done":
            return mids <= self.done
        steps = self.scope.sub if self.step(name).kind == "flow" else [self.step(name)]
        return all(map(self._is_over, steps)) and (when == "ended" or bool(mids & self.was_dead))

    def _is_over(self, step: StepOf) -> bool:
        """Whether it has ended, or can't begin. Edges in sub-flows wait for `done`."""
        if set(self.mids(step.name)) <= self.ended:
            return True
        before = [edge.partition(":")[0] for edge in step.edges.split(",") if edge]
        return step in self.scope.sub and any(
            self._is_over(self.step(one)) and not set(self.mids(one)) <= self.done for one in before
        )

    def say(self, queue: str, *records: Record) -> None:
        self.outbox = (*self.outbox, (self.nentries, queue, records, self.run))
        self.nentries += 1

    def read(self, queue: str) -> tuple[Entry, ...]:
        return tuple(one for one in self.outbox if one[1] == queue)

    @staticmethod
    def targets_in(entries: tuple[Entry, ...]) -> tuple[Target, ...]:
        """The flows, and their runs, that these entries are for."""
        return tuple(sorted({(one[2], run) for _, _, records, run in entries for one in records}))

    def entries(
        self, entries: tuple[Entry, ...], target: Target, results: dict[str, str] | None = None
    ) -> list[Numbered]:
        """The announcements of these entries to a flow, in order. results: those that were read before, else those of
        now."""
        known = self.results if results is None else results
        return [
            (number, kind, what, known.get(what, "") if kind == "done+" else "")
            for number, _, records, run in entries
            for kind, what, whose in records
            if (whose, run) == target
        ]
