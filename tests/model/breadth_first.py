"""The search that explorers of small models share: every state once, by the shortest way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from tests.model.explored import Explored, Named, Seen, Step, way_to
from tests.model.machine import Machine, Violation


class Copied(Protocol):
    """What the model knows beside the server. left: budgets that are left."""

    @property
    def left(self) -> dict[str, int]: ...

    def copy(self) -> Self: ...


W = TypeVar("W", bound=Copied)


class BreadthFirst(Generic[W]):
    """A search of one scope on one machine, which those who derive from it fill in."""

    def __init__(self, machine: Machine, scope: Named) -> None:
        self.machine = machine
        self.result = Explored(scope)
        self._came_from: list[tuple[int, Step]] = [(0, ())]

    def moves(self, world: W) -> Iterable[Step]:
        """What may happen next."""
        raise NotImplementedError

    def act(self, world: W, step: Step) -> None:
        """Let it happen."""
        raise NotImplementedError

    def state(self, world: W) -> bytes:
        """What tells this state from others."""
        raise NotImplementedError

    def judge(self, world: W) -> None:
        """Raise if this state, which was just reached, breaks a promise. The machine may be left in any state."""
        raise NotImplementedError

    def search(self, world: W) -> Explored:
        """Begin where the machine is."""
        started, m = time.perf_counter(), self.machine
        queue = deque([(m.take(), world, 0)])
        seen = Seen()
        seen.add(self.state(world), world.left)
        while queue and not self.result.violation:
            snapshot, world, index = queue.popleft()
            m.open(snapshot)
            m.put()
            for step in list(self.moves(world)):
                found = self._step(world, step, seen)
                if self.result.violation:
                    self.result.trace = [*way_to(index, self._came_from), step]
                    break
                if found:
                    self._came_from.append((index, step))
                    queue.append((*found, len(self._came_from) - 1))
        self.result.states, self.result.seconds = seen.states, time.perf_counter() - started
        return self.result

    def _step(self, world: W, step: Step, seen: Seen) -> tuple[Any, W] | None:
        m, after = self.machine, world.copy()
        m.put()
        self.result.transitions += 1
        self.result.kinds[step[0]] += 1
        try:
            self.act(after, step)
            if not seen.add(self.state(after), after.left):
                return None
            found = m.take(), after
            self.judge(after)
        except Exception as error:
            self.result.violation = f"{error}" if isinstance(error, Violation) else repr(error)
            return None
        return found
