"""When a failed attempt is tried again: pure functions of (failures so far, error).

A policy returns seconds to wait, or None to give up. Any function of that shape is one; these make the
usual ones. Nothing here knows of a server or a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jobq.config import duration_s
from jobq.durations import Duration, wait_of
from jobq.errors import ConfigError

Policy = Callable[[int, BaseException], Duration | None]

#: No backoff is longer: ten years.
LONGEST_S = 315_360_000.0


def _random() -> float:
    import random

    return random.random()


@dataclass(frozen=True)
class Fixed:
    """The same wait each time."""

    seconds: float

    def __call__(self, failures: int, error: BaseException) -> float:
        return self.seconds


@dataclass(frozen=True)
class Linear:
    """`step` longer each time."""

    step: float
    longest: float

    def __call__(self, failures: int, error: BaseException) -> float:
        return min(self.longest, self.step * failures)


@dataclass(frozen=True)
class Exponential:
    """`factor` times longer each time; with full jitter anything from 0 up to that."""

    base: float
    factor: float
    longest: float
    jitter: Literal["full", "none"] = "full"
    random: Callable[[], float] = field(default=_random, repr=False, compare=False)

    def ceiling(self, failures: int) -> float:
        """The longest wait after so many failures."""
        try:
            return min(self.longest, self.base * self.factor ** (failures - 1))
        except OverflowError:
            return self.longest

    def __call__(self, failures: int, error: BaseException) -> float:
        ceiling = self.ceiling(failures)
        return ceiling * self.random() if self.jitter == "full" else ceiling


@dataclass(frozen=True)
class Listed:
    """One wait per retry; gives up after the last."""

    waits: tuple[float, ...]

    def __call__(self, failures: int, error: BaseException) -> float | None:
        return self.waits[failures - 1] if failures <= len(self.waits) else None


def fixed(seconds: Duration) -> Fixed:
    """`fixed(10)` waits 10, 10, 10 … seconds."""
    return Fixed(_positive("fixed", seconds))


def linear(step: Duration, max: Duration = 3600) -> Linear:
    """`linear(10, max=25)` waits 10, 20, 25 … seconds."""
    return Linear(_positive("linear", step), _positive("linear max", max))


def exponential(
    base: Duration = 5,
    factor: float = 3,
    max: Duration = 3600,
    jitter: Literal["full", "none"] = "full",
    *,
    random: Callable[[], float] = _random,
) -> Exponential:
    """The default: up to 5, 15, 45 … seconds, never over an hour.

    Full jitter spreads retries evenly over that span, so that what failed together doesn't come back
    together. `random` returns 0 ≤ x < 1.
    """
    if not factor >= 1 or math.isinf(factor):
        raise ConfigError(f"exponential factor={factor!r} would shrink or leap; take 1 or more")
    if jitter not in ("full", "none"):
        raise ConfigError(f"exponential jitter={jitter!r} is unknown; take 'full' or 'none'")
    return Exponential(
        _positive("exponential base", base),
        float(factor),
        _positive("exponential max", max),
        jitter,
        random,
    )


def listed(waits: Sequence[Duration]) -> Listed:
    """`listed([1, 30, "5m"])` waits 1, 30 and 300 seconds, then gives up."""
    return Listed(tuple(_positive("listed", wait) for wait in waits))


def wait_s(policy: Policy, failures: int, error: BaseException) -> float | None:
    """What `policy` says, in seconds from 0 to ten years; None: give up. ConfigError for nonsense."""
    answer = policy(failures, error)
    if answer is None:
        return None
    try:
        return bounded_s(wait_of(answer))
    except ValueError:
        raise ConfigError(
            f"the retry policy answered {answer!r:.200}; return seconds, a timedelta, text like '5m', "
            "an HTTP date, or None to give up"
        ) from None


def bounded_s(seconds: float) -> float:
    """A wait from 0 to ten years."""
    return min(max(0.0, seconds), LONGEST_S)


def _positive(name: str, value: Duration) -> float:
    seconds = duration_s(value)
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigError(f"{name} wait of {value!r} is out of range; take 0 seconds to ten years")
    return seconds
