"""The machine and the drains that the searches of a queue and its partition share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tests.model.breadth_first import BreadthFirst, Copied
from tests.model.digest import digest
from tests.model.explored import Named
from tests.model.machine import Machine, Mutation
from tests.model.partition.world import NEW, OLD

#: A rest of idle workers is explored in the scopes of one queue. Here they ask whenever they like.
RESTS = tuple(f"{place}{key}" for place in (OLD, NEW) for key in ("eoq_backoff", "ndry_runs"))


class Told(Copied, Protocol):
    """A world with a text that distinguishes its states."""

    def text(self) -> str: ...


W = TypeVar("W", bound=Told)


class TwoQueues(BreadthFirst[W]):
    """One scope on one machine."""

    def __init__(
        self, scope: Named, mutation: Mutation | None = None, changes: Sequence[Mutation] = ()
    ) -> None:
        faults = [mutation] if mutation else []
        self.machine = Machine([*changes, *faults], slots=(OLD, NEW))
        super().__init__(self.machine, scope)
        # States from which a drain was followed; without a violation, it ends well from each of them.
        self._drained: set[bytes] = set()

    def state(self, world: W) -> bytes:
        return digest(self.machine.canonical(world.text(), False))

    def was_drained(self, world: W) -> bool:
        """Return whether a drain came through this state before; from now on, one has."""
        name = self.state(world)
        before = name in self._drained
        self._drained.add(name)
        return before
