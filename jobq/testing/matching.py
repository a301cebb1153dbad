"""Compare a call with the call that a test expects, and describe the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.jobs.argument_types import to_json
from jobq.jobs.job import Job
from jobq.testing.waiting import EnqueuedCall

#: Maximum difference between matching times, in seconds. A long delay may differ by one percent.
CLOSE_S = 1.0
#: Maximum number of calls that an error lists.
MAX_LISTED = 5
#: Weight of a different job name: a call of another job always differs more than a call of this job.
OTHER_JOB = 100


class Expectations(TypedDict, total=False):
    """Expected facts of a call; see Kit.assert_enqueued."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str
    mid: str
    delay: Duration
    at: datetime | float
    headers: Mapping[str, str]
    reason: str


class Expected(NamedTuple):
    """The call that a test expects. A field with the value None matches anything."""

    job: Job[..., Any] | str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    mid: str | None = None
    delay: Duration | None = None
    at: datetime | float | None = None
    headers: Mapping[str, str] | None = None
    reason: str | None = None

    @property
    def name(self) -> str | None:
        """The job's name."""
        return self.job.name if isinstance(self.job, Job) else self.job

    def differences(self, call: EnqueuedCall) -> list[str]:
        """Return how a call differs from the expected call, or an empty list if it matches."""
        texts = self._arguments(call) if self.name in (None, call.job) else []
        for what in ("queue", "mid"):
            wanted, given = getattr(self, what), getattr(call, what)
            if wanted is not None and not same(wanted, given):
                texts.append(f"{what} is {given!r}, not {wanted!r}")
        if self.headers is not None and not same(dict(self.headers), dict(call.headers)):
            texts.append(f"headers are {dict(call.headers)!r}, without {dict(self.headers)!r}")
        if self.reason is not None and self.reason not in call.reason:
            texts.append(
                f"reason is {call.reason.partition(chr(10))[0]!r}, without {self.reason!r}"
            )
        return texts + self._times(call)

    def distance(self, call: EnqueuedCall) -> int:
        """Return the number of differences, plus OTHER_JOB if the call is of another job."""
        return len(self.differences(call)) + OTHER_JOB * (self.name not in (None, call.job))

    def _times(self, call: EnqueuedCall) -> list[str]:
        texts = []
        if self.delay is not None:
            delay = duration_s(self.delay)
            if abs(call.delay - delay) > max(CLOSE_S, delay / 100):
                texts.append(f"delay is {call.delay:.3f} s, not {delay:g} s")
        if self.at is not None:
            at = self.at.timestamp() if isinstance(self.at, datetime) else self.at
            if abs(call.due - at) > CLOSE_S:
                texts.append(f"at is {call.due:.3f}, not {at:.3f}")
        return texts

    def _arguments(self, call: EnqueuedCall) -> list[str]:
        if self.args is None and self.kwargs is None:
            return []
        wanted = bound(self.job, self.args or (), self.kwargs or {}, whole=False)
        given = bound(self.job, call.args, call.kwargs, whole=True)
        return [
            f"{name} is {given[name]!r}, not {_shown(value)}"
            if name in given
            else f"{name} is missing"
            for name, value in wanted.items()
            if name not in given or not same(value, given[name])
        ]

    def __str__(self) -> str:
        called = [_shown(value) for value in self.args or ()]
        called += [f"{name}={_shown(value)}" for name, value in (self.kwargs or {}).items()]
        text = "call" if self.name is None else f"{self.name}({', '.join(called) or '…'})"
        others = {
            name: value
            for name, value in self._asdict().items()
            if value is not None and name not in ("job", "args", "kwargs")
        }
        return text + "".join(f", {name}={value!r}" for name, value in others.items())


def bound(
    job: Job[..., Any] | str | None, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool
) -> dict[str, Any]:
    """Return arguments by parameter name, or by position if the function is unknown.

    Raises TypeError for arguments that don't fit the function, unless `whole` is true.

    Args:
        whole: Include the defaults. Arguments that don't fit are returned by position.
    """
    if not isinstance(job, Job):
        return {f"argument {index + 1}": value for index, value in enumerate(args)} | dict(kwargs)
    signature = job.signature
    try:
        arguments = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        if whole:  # as an older version of the job was called
            return bound(None, args, kwargs, whole=True)
        raise TypeError(f"{job.name}(): {error}") from None
    if whole:
        arguments.apply_defaults()
    named = dict(arguments.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    return named


def same(wanted: Any, given: Any) -> bool:
    """Return whether `given` matches `wanted`: a JSON value, a dict of required items, or a function that checks it."""
    if isinstance(wanted, Mapping):
        return isinstance(given, Mapping) and all(
            name in given and same(value, given[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(wanted) == len(given)
            and all(map(same, wanted, given))
        )
    if wanted == given:
        return True
    if callable(wanted):
        return bool(wanted(given))
    try:
        return bool(to_json(wanted) == given)
    except (TypeError, ValueError, NotImplementedError):  # a type without JSON
        return False


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def listing(expected: Expected, calls: Sequence[EnqueuedCall], what: str) -> str:
    """Describe the calls that are most similar to the expected call, and their differences from the expected call."""
    if not calls:
        return f"nothing is {what}"
    lines = [f"{what}, nearest first:"]
    nearest = sorted(calls, key=expected.distance)
    for call in nearest[:MAX_LISTED]:
        lines.append(f"  {call!r}")
        if expected.name not in (None, call.job):
            lines.append(f"    - job is {call.job!r}, not {expected.name!r}")
        lines += [f"    - {difference}" for difference in expected.differences(call)]
    if len(calls) > MAX_LISTED:
        lines.append(f"  and {len(calls) - MAX_LISTED:,} more")
    return "\n".join(lines)


def checked(job: Job[..., Any] | str | None, given: Expectations) -> Expected:
    """Return the expected call. Raise ConfigError or TypeError if calls can never match it."""
    if unknown := given.keys() - set(Expected._fields):
        name, *_ = sorted(unknown)
        raise TypeError(
            f"{name}=… is not a property of a call; pass arguments of the job in args=(…,) or kwargs={{{name!r}: …}}"
        )
    expected = Expected(job, **given)
    if expected.job is None and (expected.args is not None or expected.kwargs is not None):
        raise ConfigError("args and kwargs need a job; name the job")
    bound(expected.job, expected.args or (), expected.kwargs or {}, whole=False)
    return expected
