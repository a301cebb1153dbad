"""Results of an explorer, for each kind of world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Any, Protocol, TypeVar

Step = tuple[Any, ...]
S = TypeVar("S", bound=Step)


class Named(Protocol):
    """The explored part; as text its bounds."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...


@dataclass
class Explored:
    """How far it went, and the shortest way to a violation, if any."""

    scope: Named
    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    cut_at: int = 0
    """How many steps it went before it stopped; 0 if it met every state."""
    kinds: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    trace: Sequence[Step] = ()

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.transitions:,} transitions"
        size += f" within {self.cut_at} steps" if self.cut_at else ""
        line = f"{self.scope.name} ({self.scope}): {size}, {self.seconds:.1f} s"
        steps = "\n".join(f"  {i}. {' '.join(map(str, s))}" for i, s in enumerate(self.trace, 1))
        return f"{line}\nVIOLATION {self.violation}\n{steps}" if self.violation else line


def way_to(index: int, came_from: Sequence[tuple[int, S]]) -> list[S]:
    """The steps that led to a state; of each state: the one before and the step from there, the first at 0."""
    way: list[S] = []
    while index:
        index, step = came_from[index]
        way.insert(0, step)
    return way


class Seen:
    """States that were met, each with the budgets that were left there.

    Who has no budget more than another who stood there can do nothing that the other couldn't: no need to go on.
    """

    def __init__(self) -> None:
        self.states = 0
        self._left: dict[bytes | str, list[tuple[int, ...]]] = {}

    def add(self, name: bytes | str, left: dict[str, int]) -> bool:
        """Return whether something may follow that didn't follow before."""
        budgets, met = tuple(left.values()), self._left.setdefault(name, [])
        for others in met:
            if all(map(ge, others, budgets)):
                return False
        self.states += 1
        met.append(budgets)
        return True
