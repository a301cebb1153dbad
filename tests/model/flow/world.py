"""What is outside a flow's slot: messages, outboxes, drainers; and the truth about what ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: kind, mid or detail
Record = tuple[str, str]
#: The same behind the number of its entry.
Numbered = tuple[int, str, str]
#: step, todo, stamp, again, kind, queue, source
Todo = tuple[str, str, str, bool, str, str, str]


class StepOf(NamedTuple):
    """A step of a scope. edges: `a:done`. size: members of a map, each a chunk of its own."""

    name: str
    queue: str = "L"
    kind: str = "step"
    edges: str = ""
    source: str = ""
    size: int = 1
    timed: bool = False


@dataclass(frozen=True)
class Scope:
    """What may happen, and how often."""

    name: str
    steps: tuple[StepOf, ...]
    budget: dict[str, int]
    """die, kill, lose, forget, revive, cancel, retry, signal, forge, again (the producer begins again)"""
    drainers: int = 2

    def __str__(self) -> str:
        steps = ", ".join(f"{one.name} {one.kind} {one.edges}".strip() for one in self.steps)
        often = ", ".join(f"{name} {count}" for name, count in self.budget.items())
        return f"{steps}; {self.drainers} drainers; at most: {often}"


class Drain(NamedTuple):
    """One drainer between two of its calls. entries: ids it read. sub: where it is within an item."""

    queue: str
    entries: tuple[int, ...]
    phase: str = "apply"
    todo: tuple[Todo, ...] = ()
    known: frozenset[str] = frozenset()
    at: int = 0
    sub: tuple[Any, ...] = ()


@dataclass
class World:
    """The whole state but for the flow's slot."""

    scope: Scope
    left: dict[str, int]
    messages: dict[str, str] = field(default_factory=dict)
    """mid -> ready, run, dead"""
    taken: frozenset[str] = frozenset()
    """Mids that are done and refused for a while."""
    outbox: tuple[tuple[int, str, tuple[Record, ...]], ...] = ()
    """Number, queue, records."""
    nentries: int = 0
    drains: tuple[Drain | None, ...] = ()
    producer: tuple[Any, ...] = ()
    """Of streamed maps: step, phase, chunk, members; () before it began or after it died; ('over',) at its end."""
    done: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    was_dead: frozenset[str] = frozenset()
    accepted: Counter[str] = field(default_factory=Counter)
    cancelled: bool = False

    def copy(self) -> World:
        made = World.__new__(World)
        made.__dict__.update(self.__dict__)
        made.left, made.messages, made.accepted = (
            dict(self.left),
            dict(self.messages),
            Counter(self.accepted),
        )
        return made

    def text(self) -> str:
        """For the name of the state: drainers are alike, and entries count by their order."""
        place = {number: at for at, (number, _, _) in enumerate(self.outbox)}
        drains = sorted(
            repr(
                one._replace(
                    entries=tuple(place.get(n, -1) for n in one.entries),
                    known=tuple(sorted(one.known)),
                )
            )  # type: ignore[arg-type]
            if one
            else ""
            for one in self.drains
        )
        entries = [(queue, records) for _, queue, records in self.outbox]
        return repr((
            sorted(self.messages.items()), sorted(self.taken), entries, drains, self.producer, sorted(self.done),
            sorted(self.ended), sorted(self.was_dead), sorted(self.accepted.items()), self.cancelled,
        ))  # fmt: skip

    def step(self, name: str) -> StepOf:
        return next(one for one in self.scope.steps if one.name == name)

    def mids(self, name: str) -> list[str]:
        return [f"{name}.{number}" for number in range(self.step(name).size)]

    def say(self, queue: str, *records: Record) -> None:
        self.outbox = (*self.outbox, (self.nentries, queue, records))
        self.nentries += 1

    def read(self, queue: str) -> tuple[int, ...]:
        return tuple(number for number, where, _ in self.outbox if where == queue)

    def entries(self, numbers: tuple[int, ...]) -> list[Numbered]:
        """What these entries say, in order."""
        return [
            (number, *one)
            for number, _, records in self.outbox
            if number in numbers
            for one in records
        ]
