"""The state outside the two queues: producers between two calls, accepted contents, running messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from tests.model.world import START, Flavour

#: The scripts see from its name that the new queue is a partition.
OLD, NEW = "0/", "{q/1}:"


@dataclass(frozen=True)
class Scope:
    """Possible steps and their maximum numbers."""

    name: str
    flavours: dict[str, Flavour]
    budget: dict[str, int]
    """enqueue, fail, lose, revive, take, put, hold, wipe"""
    endings: tuple[str, ...] = ("done",)
    mids: tuple[str, ...] = ("m1", "m2")
    producers: int = 2
    knows: bool = False
    """The map is there from the start, and all producers have read it."""
    paired: bool = False
    """The first mid is enqueued by the first flavour, and so on."""
    rule: tuple[int | str, ...] = ()
    """Of all keys: most, starts, span_ms, weight, waiting."""
    once: bool = False
    """Each flavour is accepted once."""
    lists_one: bool = False
    """The seal lists the key of one delayed message in each call."""

    @property
    def enqueues(self) -> list[tuple[str, str]]:
        """The mids and flavours of which each enqueue has one."""
        if self.paired:
            return list(zip(self.mids, self.flavours, strict=True))
        return list(product(self.mids, self.flavours))

    def __str__(self) -> str:
        often = ", ".join(f"{name} {count}" for name, count in self.budget.items())
        return f"{', '.join(self.flavours)}; {self.producers} producers; at most: {often}"


class Producer(NamedTuple):
    """One producer between two of its calls; without a mid it is idle."""

    has_map: bool = False
    mid: str = ""
    flavour: str = ""
    content: str = ""
    place: str = OLD


class Run(NamedTuple):
    """A message that a worker runs."""

    place: str
    mid: str
    token: str
    content: str


@dataclass
class World:
    """The whole state but for the two queues."""

    scope: Scope
    left: dict[str, int]
    now: int = START
    has_map: bool = False
    is_sealed: bool = False
    is_made: bool = False
    """The new queue has a fence."""
    producers: tuple[Producer, ...] = ()
    owed: tuple[str, ...] = ()
    """Contents that were accepted, and neither ended nor replaced."""
    newer: dict[str, str] = field(default_factory=dict)
    """(queue mid) -> accepted content that waits for the end of a run."""
    order: tuple[str, ...] = ()
    """Contents of the ordered key that aren't over, in the order in which they were accepted."""
    running: tuple[Run, ...] = ()
    dead: tuple[tuple[str, str, str], ...] = ()
    """Queue, dead id, content."""
    binned: tuple[tuple[str, str, str], ...] = ()
    """Queue, mid, content."""
    contents: dict[str, str] = field(default_factory=dict)
    """(queue mid) -> the content that waits or runs there."""
    flavour_of: dict[str, str] = field(default_factory=dict)
    """content -> its flavour, for the scopes with a rule"""
    starts: tuple[tuple[str, int], ...] = ()
    """Keys and times of the starts in the last span of the rule."""
    ncontents: int = 0
    number: int = 0

    def copy(self) -> World:
        twin = World.__new__(World)
        twin.__dict__.update(self.__dict__)
        twin.left, twin.newer, twin.contents, twin.flavour_of = (
            dict(self.left),
            dict(self.newer),
            dict(self.contents),
            dict(self.flavour_of),
        )
        return twin

    def over(self, content: str) -> None:
        """Forget a content that ended or was replaced."""
        self.owed = tuple(one for one in self.owed if one != content)
        self.order = tuple(one for one in self.order if one != content)

    def text(self) -> str:
        """For the name of the state. Producers are alike."""
        return repr((
            self.has_map, self.is_sealed, self.is_made, sorted(self.producers), self.owed, sorted(self.newer.items()),
            self.order, self.running, self.dead, self.binned, self.starts, sorted(self.flavour_of.items()),
        ))  # fmt: skip
