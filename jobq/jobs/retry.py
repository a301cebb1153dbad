"""Retry policies, and the rules that a job applies to an error.

Everything here is a pure function of (failures, error), and doesn't use a server or a clock.

- **failures**: attempts ended by an error, including the current attempt. Crashes, snoozes and releases don't count.
- **retries**: how many failures are retried. A job with `retries=5` is dead at its sixth failure.
- **max_attempts**: `retries + 1`. Crashes have a separate limit, the worker's `crash_limit`.

A policy returns the seconds to wait, or None to give up. Any function of (failures, error) is a policy.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args

from jobq.config import duration_s
from jobq.durations import Duration, wait_of
from jobq.errors import ConfigError, Dead, HoldKey, Retry, Snooze

Policy = Callable[[int, BaseException], Duration | None]
Matcher = Callable[[BaseException], bool]
ErrorFilter = type[BaseException] | tuple[type[BaseException], ...] | Matcher

AfterError = Literal["retry", "dead", "snooze", "hold"]

DEFAULT_RETRIES = 5
MAX_RETRIES = 10_000

#: Maximum backoff: ten years.
MAX_S = 315_360_000.0


@dataclass(frozen=True)
class Fixed:
    """Wait for the same time before each retry."""

    seconds: float

    def __call__(self, failures: int, error: BaseException) -> float:
        return self.seconds


@dataclass(frozen=True)
class Linear:
    """Wait `step` seconds longer before each retry, but never longer than `longest`."""

    step: float
    longest: float

    def __call__(self, failures: int, error: BaseException) -> float:
        return min(self.longest, self.step * failures)


@dataclass(frozen=True)
class Exponential:
    """Wait `factor` times longer before each retry, up to `longest`.

    With full jitter, wait for a random part of that time.
    """

    base: float
    factor: float
    longest: float
    jitter: Literal["full", "none"] = "full"
    random: Callable[[], float] = field(default=_random.random, repr=False, compare=False)

    def ceiling(self, failures: int) -> float:
        """Return the longest possible wait after this number of failures."""
        try:
            return min(self.longest, self.base * self.factor ** (failures - 1))
        except OverflowError:
            return self.longest

    def __call__(self, failures: int, error: BaseException) -> float:
        ceiling = self.ceiling(failures)
        return ceiling * self.random() if self.jitter == "full" else ceiling


@dataclass(frozen=True)
class Listed:
    """Wait the listed number of seconds before each retry, and give up after the last wait."""

    waits: tuple[float, ...]

    def __call__(self, failures: int, error: BaseException) -> float | None:
        return self.waits[failures - 1] if failures <= len(self.waits) else None


def fixed(seconds: Duration) -> Fixed:
    """Return a policy with equal waits: `fixed(10)` waits 10, 10, 10 … seconds."""
    return Fixed(_positive("fixed", seconds))


def linear(step: Duration, max: Duration = 3600) -> Linear:
    """Return a policy with evenly growing waits: `linear(10, max=25)` waits 10, 20, 25, 25 … seconds."""
    return Linear(_positive("linear", step), _positive("linear max", max))


def exponential(
    base: Duration = 5,
    factor: float = 3,
    max: Duration = 3600,
    jitter: Literal["full", "none"] = "full",
    *,
    random: Callable[[], float] = _random.random,
) -> Exponential:
    """Return a policy whose waits grow by `factor`: by default up to 5, 15, 45 … seconds, and at most an hour.

    With full jitter, the actual wait is random between 0 and that time. `random` returns 0 ≤ x < 1.
    """
    if not factor >= 1 or math.isinf(factor):
        raise ConfigError(
            f"exponential factor={factor!r} is out of range; use a finite number of at least 1"
        )
    if jitter not in ("full", "none"):
        raise ConfigError(f"exponential jitter={jitter!r} is unknown; use 'full' or 'none'")
    return Exponential(
        _positive("exponential base", base),
        float(factor),
        _positive("exponential max", max),
        jitter,
        random,
    )


def listed(waits: Sequence[Duration]) -> Listed:
    """Return a policy with the given waits: `listed([1, 30, "5m"])` waits 1, 30 and 300 seconds, and then gives up."""
    return Listed(tuple(_positive("listed", wait) for wait in waits))


def wait_s(policy: Policy, failures: int, error: BaseException) -> float | None:
    """Return the policy's wait in seconds, up to ten years; None to give up. Raises ConfigError for an invalid wait."""
    answer = policy(failures, error)
    if answer is None:
        return None
    try:
        return bounded_s(wait_of(answer))
    except ValueError:
        raise ConfigError(
            f"the retry policy returned {answer!r:.200}; return seconds, a timedelta, text like '5m', "
            "an HTTP date, or None to give up"
        ) from None


def bounded_s(seconds: float) -> float:
    """Return the wait, limited to between 0 and ten years."""
    return min(max(0.0, seconds), MAX_S)


def _positive(name: str, value: Duration) -> float:
    seconds = duration_s(value)
    if not 0 <= seconds <= MAX_S:
        raise ConfigError(
            f"{name} wait of {value!r} is out of range; it must be between 0 seconds and ten years"
        )
    return seconds


#: The policy of jobs that declare none.
DEFAULT_POLICY = exponential()


class Decision(NamedTuple):
    """How an attempt ends. If the message dies, `why` becomes part of the stored reason."""

    outcome: AfterError
    after_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a job declares for its failures."""

    retries: int = DEFAULT_RETRIES
    policy: Policy = DEFAULT_POLICY
    retry_on: ErrorFilter | None = None
    dead_on: ErrorFilter | None = None
    retry_within: float | None = None

    def decide(self, failures: int, error: BaseException, age_s: float = 0.0) -> Decision:
        """Decide whether a message that raised `error` is retried, and when.

        With `retry_within`, a message is dead if its next attempt would begin after that span.

        Args:
            failures: Number of failures, including this attempt.
            age_s: Age of the message in seconds.
        """
        decision = self._decision(failures, error)
        if decision.outcome != "retry" or self.retry_within is None:
            return decision
        return decision if age_s + decision.after_s <= self.retry_within else self.over()

    def over(self) -> Decision:
        """Return the decision for a message that is too old for another retry."""
        return Decision("dead", why=f"retry_within={self.retry_within:g} s is over")

    def _decision(self, failures: int, error: BaseException) -> Decision:
        if isinstance(error, Snooze):
            word: AfterError = "hold" if isinstance(error, HoldKey) else "snooze"
            return Decision(word, bounded_s(error.after))
        if isinstance(error, Dead):
            return Decision("dead", why="the job gave up")
        asked = isinstance(error, Retry)
        if not asked and self.dead_on is not None and matches(self.dead_on, error):
            return Decision("dead", why="the error is in dead_on")
        if not asked and self.retry_on is not None and not matches(self.retry_on, error):
            return Decision("dead", why="the error is not in retry_on")
        if failures > self.retries:
            return Decision("dead", why=f"attempt {failures} of {self.retries + 1}")
        if isinstance(error, Retry) and error.after is not None:
            return Decision("retry", bounded_s(error.after))
        return self._by_policy(failures, error)

    def by_count(self, failures: int, error: BaseException) -> Decision:
        """Decide by `retries` and the default policy only. Call this if `decide` raised an error."""
        if failures > self.retries:
            return Decision("dead", why=f"attempt {failures} of {self.retries + 1}")
        return Decision("retry", DEFAULT_POLICY(failures, error))

    def _by_policy(self, failures: int, error: BaseException) -> Decision:
        wait = wait_s(self.policy, failures, error)
        return (
            Decision("dead", why="the retry policy gave up")
            if wait is None
            else Decision("retry", wait)
        )


def checked(decision: Decision) -> Decision:
    """Check a decision of the job or middleware, and limit its `after_s` to ten years.

    Raises ConfigError or ValueError if the decision is invalid.
    """
    if decision.outcome not in get_args(AfterError):
        raise ConfigError(
            f"outcome {decision.outcome!r:.40} is unknown; use retry, dead, snooze or hold"
        )
    return Decision(decision.outcome, bounded_s(wait_of(decision.after_s)), str(decision.why))


def matches(wanted: ErrorFilter, error: BaseException) -> bool:
    """Return whether an error matches a filter, which is a class, a tuple of classes or a function."""
    if isinstance(wanted, type | tuple):
        return isinstance(error, wanted)
    return bool(wanted(error))


def checked_filter(name: str, value: object) -> ErrorFilter | None:
    """Check that `value` is an exception class, several of them, or a function of the error; else raise ConfigError."""
    if value is None:
        return None
    given: tuple[Any, ...] = (
        tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    )
    if given and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in given):
        return given
    if callable(value) and not isinstance(value, type):
        return cast(Matcher, value)
    raise ConfigError(
        f"{name}={value!r} is not a selection of errors; pass exception classes, or a function of the error"
    )
