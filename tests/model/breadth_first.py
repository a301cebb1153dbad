"""The search that explorers of small models share: every state once, by the shortest way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from tests.model.explored import Explored, Named, Seen, Step, way_to
from tests.model.machine import Violation


class Copied(Protocol):
    """The model's knowledge besides the server's keys. left: budgets that are left."""

    @property
    def left(self) -> dict[str, int]: ...

    def copy(self) -> Self: ...


W = TypeVar("W", bound=Copied)


class Host(Protocol):
    """The server, and its snapshots."""

    def take(self) -> Any:
        """Return a snapshot of the server as it is."""

    def open(self, snapshot: Any) -> None:
        """Choose the snapshot that `put` restores; no other is needed afterwards."""

    def put(self) -> None:
        """Restore the chosen snapshot."""


#: Transitions that a search with a depth makes at least, if there are so many.
ENOUGH = 2_500


class BreadthFirst(Generic[W]):
    """A search of one scope, which those who derive from it fill in.

    depth: follow every path for so many steps, and then stop when ENOUGH transitions were made; None: no end.
    """

    def __init__(self, host: Host, scope: Named, depth: int | None = None) -> None:
        self.host, self.depth = host, depth
        self.result = Explored(scope)
        self._came_from: list[tuple[int, Step]] = [(0, ())]

    def moves(self, world: W) -> Iterable[Step]:
        """Return the possible next steps."""
        raise NotImplementedError

    def act(self, world: W, step: Step) -> W:
        """Let it happen in this copy; return the world after it."""
        raise NotImplementedError

    def state(self, world: W) -> bytes | str:
        """Return the facts that distinguish this state from others."""
        raise NotImplementedError

    def judge(self, world: W) -> None:
        """Raise if this state, which was just reached, breaks a promise. The machine may be left in any state."""
        raise NotImplementedError

    def search(self, world: W) -> Explored:
        """Begin where the machine is."""
        started, host = time.perf_counter(), self.host
        queue = deque([(host.take(), world, 0, 0)])
        seen = Seen()
        seen.add(self.state(world), world.left)
        while queue and not self.result.violation:
            snapshot, world, index, depth = queue.popleft()
            if self._is_enough(depth):
                self.result.cut_at = depth
                break
            host.open(snapshot)
            host.put()
            for step in list(self.moves(world)):
                found = self._step(world, step, seen)
                if self.result.violation:
                    self.result.trace = [*way_to(index, self._came_from), step]
                    break
                if found:
                    self._came_from.append((index, step))
                    queue.append((*found, len(self._came_from) - 1, depth + 1))
        self.result.states, self.result.seconds = seen.states, time.perf_counter() - started
        return self.result

    def _is_enough(self, depth: int) -> bool:
        deep = self.depth is not None and depth >= self.depth
        return deep and self.result.transitions >= ENOUGH

    def _step(self, world: W, step: Step, seen: Seen) -> tuple[Any, W] | None:
        self.host.put()
        self.result.transitions += 1
        self.result.kinds[step[0]] += 1
        try:
            after = self.act(world.copy(), step)
            if not seen.add(self.state(after), after.left):
                return None
            found = self.host.take(), after
            self.judge(after)
        except Exception as error:
            self.result.violation = f"{error}" if isinstance(error, Violation) else repr(error)
            return None
        return found
