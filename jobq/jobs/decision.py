"""What becomes of an attempt that raised: the job's rules applied to the error. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

from jobq.durations import wait_of
from jobq.errors import ConfigError, Dead, Retry, Snooze
from jobq.jobs.retry import Policy, bounded_s, exponential, wait_s

Matcher = Callable[[BaseException], bool]
ErrorFilter = type[BaseException] | tuple[type[BaseException], ...] | Matcher

Outcome = Literal["retry", "dead", "snooze"]

DEFAULT_RETRIES = 5
DEFAULT_POLICY = exponential()


class Decision(NamedTuple):
    """`why` says in words what decided, for the reason of a dead message."""

    outcome: Outcome
    after_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """A job's say over its failures."""

    retries: int = DEFAULT_RETRIES
    policy: Policy = DEFAULT_POLICY
    retry_on: ErrorFilter | None = None
    dead_on: ErrorFilter | None = None

    def decide(self, failures: int, error: BaseException) -> Decision:
        """`failures` counts this one; crashes and snoozes aren't failures."""
        if isinstance(error, Snooze):
            return Decision("snooze", bounded_s(error.after))
        if isinstance(error, Dead):
            return Decision("dead", why="given up by the job")
        asked = isinstance(error, Retry)
        if not asked and self.dead_on is not None and matches(self.dead_on, error):
            return Decision("dead", why="an error of dead_on")
        if not asked and self.retry_on is not None and not matches(self.retry_on, error):
            return Decision("dead", why="no error of retry_on")
        if failures > self.retries:
            return Decision("dead", why=f"attempt {failures} of {self.retries + 1}")
        if isinstance(error, Retry) and error.after is not None:
            return Decision("retry", bounded_s(error.after))
        return self._by_policy(failures, error)

    def by_count(self, failures: int, error: BaseException) -> Decision:
        """Where `decide` fails: retries alone decide, with the default waits. Runs no code of the job."""
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
    """`decision`, which middleware may have made, with a bounded wait; ConfigError or ValueError for nonsense."""
    if decision.outcome not in get_args(Outcome):
        raise ConfigError(f"outcome {decision.outcome!r:.40} is unknown; use retry, dead or snooze")
    return Decision(decision.outcome, bounded_s(wait_of(decision.after_s)), str(decision.why))


def matches(wanted: ErrorFilter, error: BaseException) -> bool:
    """Whether `error` is of these classes, or the function says so."""
    if isinstance(wanted, type | tuple):
        return isinstance(error, wanted)
    return bool(wanted(error))


def checked_filter(name: str, value: object) -> ErrorFilter | None:
    """`value` as classes or a function of the error, or ConfigError."""
    if value is None:
        return None
    given: tuple[Any, ...] = (
        tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    )
    if given and all(isinstance(one, type) and issubclass(one, BaseException) for one in given):
        return given
    if callable(value) and not isinstance(value, type):
        return cast(Matcher, value)
    raise ConfigError(
        f"{name}={value!r} names no errors; give exception classes, or a function of the error"
    )
