"""History of a topic, kept outside Redis: accepted messages, held batches, settled messages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Scope:
    """Possible events, and how often they may happen. Kinds without a budget are unlimited."""

    name: str
    budget: dict[str, int]
    """append, forget, release, seek, trim, pause, compaction"""
    shapes: tuple[str, ...] = ("m",)
    """Per append: its messages, each by its fields; a digit behind is its key: `mk1 k1`."""
    readers: str = "AB"
    counts: tuple[int, ...] = (1, 2)
    auto: bool = False
    """Polls commit what the one before gave."""
    parts: bool = True
    """Commits of the first message alone, too."""
    lease: int = 4

    def __str__(self) -> str:
        told = ", ".join(f"{n} {kind}" for kind, n in self.budget.items())
        return f"readers {self.readers}; at most {told}"


@dataclass(frozen=True)
class Hold:
    """The batch that a reader believes it holds."""

    token: str
    indexes: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """The last numbered call of a caller, to be repeated."""

    script: str
    number: int
    args: tuple[str | int, ...]
    reply: tuple[object, ...]


@dataclass
class World:
    """The whole state but for Redis."""

    scope: Scope
    left: dict[str, int]
    now: int = 1_000_000_000
    accepted: tuple[tuple[str, str], ...] = ()
    """Content ('' for a deletion) and key ('' for none) by index, the first has 1."""
    settled: frozenset[int] = frozenset()
    deliveries: dict[int, int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    """Of stretches that nobody took over, committed or moved away from."""
    first: int = 1
    paused: bool = False
    numbers: dict[str, int] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    def copy(self) -> World:
        return replace(
            self, left=dict(self.left), deliveries=dict(self.deliveries), holds=dict(self.holds),
            numbers=dict(self.numbers), calls=dict(self.calls),
        )  # fmt: skip

    def spend(self, kind: str) -> None:
        self.left[kind] -= 1

    def text(self) -> str:
        """For the canonical state; readers are alike, and deliveries would grow without end."""
        holds = sorted(f"{h.indexes}{h.token in self.tokens}" for h in self.holds.values())
        open_to = sorted(set(range(1, len(self.accepted) + 1)) - self.settled)
        return f"{self.accepted} {open_to} {holds} {self.first} {self.paused}"

    def newest(self, key: str) -> int:
        """The index of the last message of `key`."""
        return max(i for i, (_, k) in enumerate(self.accepted, 1) if k == key)


def begin(scope: Scope) -> World:
    return World(scope, dict(scope.budget))
