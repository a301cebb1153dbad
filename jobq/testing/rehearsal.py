"""Test whether faults change a job's effects.

A message is delivered at least once. So a job may start again after any of its lines, and an old attempt may continue
after the next attempt has taken over. Each trial runs one message to its end with one fault, and compares the effects
that the test observes.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from msgspec import structs

from jobq.client.clock import boot_ns, wall
from jobq.errors import ConfigError
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.executor import RunHooks
from jobq.jobs.job import Args, Job
from jobq.jobs.registry import Registry
from jobq.queue.types import LEASE_S, Ending, Message
from jobq.testing.attempts import keep, registry_for
from jobq.testing.draining import WORKER, in_thread, run_call, soft_timeout
from jobq.testing.lines import Line, LineWatch, WatchedCode

FaultName = Literal["twice", "killed", "zombie", "late", "reordered"]
#: Maximum number of attempts in one trial.
MAX_ATTEMPTS = 10
#: How long after the first attempt a late attempt starts, in seconds.
LATE_S = 7_200
#: Maximum length of a value in a report.
MAX_LENGTH = 200


_EXCEPTION = (
    "Killed attempts ended by an exception in this process: their variables were released and their sqlite3 "
    "transactions rolled back. fork=True kills a forked process instead."
)
_FORKED = "Killed attempts ran in a forked process that was ended by SIGKILL."


class _Killed(KeyboardInterrupt):
    """Ends an attempt as if its process had been killed. The executor doesn't catch this exception."""


class FailedTrial(NamedTuple):
    """A trial whose effects differ from the effects of a run without faults.

    Attributes:
        where: Where the attempt was interrupted.
        difference: The difference between the observed effects.
    """

    fault: str
    where: str
    difference: str

    def __str__(self) -> str:
        return f"{self.where}: {self.difference}"


class Rehearsed(NamedTuple):
    """The number of trials, and the trials whose effects differed. `killing` explains how attempts were killed."""

    job: str
    trials: int
    findings: list[FailedTrial]
    killing: str = ""

    def __str__(self) -> str:
        good = self.trials - len(self.findings)
        head = f"{self.job}: {good} of {self.trials} interruptions end as one clean run does"
        if not self.findings:
            return head
        lines = [f"{head}; {len(self.findings)} don't:", *(f"  {trial}" for trial in self.findings)]
        if self.killing and any(trial.fault == "killed" for trial in self.findings):
            lines.append(self.killing)
        return "\n".join(lines)


class TrialPlan(NamedTuple):
    """The faults to inject; see `Kit.rehearse`."""

    before: Callable[[], object]
    observe: Callable[[], Any]
    faults: Sequence[str]
    other: Args[..., Any] | None
    within: Sequence[Callable[..., Any] | ModuleType]
    allow: frozenset[str]
    points: int
    seed: int
    fork: bool


def checked_plan(plan: TrialPlan, job: Job[..., Any]) -> TrialPlan:
    """Return the plan with all defaults. Raise ConfigError if an option is invalid."""
    known: tuple[str, ...] = get_args(FaultName)
    faults = plan.faults or [name for name in known if name != "reordered" or plan.other]
    unknown = set(faults) - set(known)
    if unknown:
        raise ConfigError(f"fault {min(unknown)!r} is unknown; use {', '.join(known)}")
    if "reordered" in faults and plan.other is None:
        raise ConfigError(f"fault reordered needs a second call; pass other={job.name}.args(…)")
    if plan.points < 1:
        raise ConfigError(f"points={plan.points!r} is too small; it must be at least 1")
    module = inspect.getmodule(job.function)
    return plan._replace(
        faults=faults, within=plan.within or ([module] if module else [job.function])
    )


class Lifecycle:
    """One message, and the state that its attempts share. The latest attempt owns the message."""

    def __init__(
        self, registry: Registry, job: Job[..., Any], call: Args[..., Any], mid: str
    ) -> None:
        self._registry, self._job = registry, job
        plain, named = job.encoded(call.args, call.kwargs)
        self._content = encode(job.name, plain, named, wall.ms(), job.settings.headers)
        self._mid = mid
        self._kept = [""]
        self.nattempts = self.ncrashes = 0
        self.ending: Ending | None = None
        self.error: BaseException | None = None

    def attempt(self, watching: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Run the next attempt. Exceptions that end the attempt without an outcome aren't caught."""
        self.nattempts += 1
        number = self.nattempts
        executor = self._executor(number)
        message = Message(
            self._mid, self._content, number, self.ncrashes, number, f"{self._mid}.generation",
            f"{self._mid}.{number}", wall.ms(),
        )  # fmt: skip
        call = executor.resolve("test", message)
        if isinstance(call, Call):
            call = structs.replace(call, job=_under(call.job, watching))
            ending = run_call(executor, call)
        else:
            ending = call
        if number == self.nattempts:
            self.ending = ending

    def to_the_end(self) -> None:
        """Run attempts until the message is done, dead or expired, or until MAX_ATTEMPTS attempts have run."""
        while not self.is_over and self.nattempts < MAX_ATTEMPTS:
            self.attempt()

    @property
    def is_over(self) -> bool:
        """Return whether the message is done, dead or expired."""
        return self.ending is not None and self.ending.outcome in ("done", "dead", "expired")

    @property
    def outcome(self) -> str:
        """Describe the message's outcome and its error. Return '' if the outcome is `done` or isn't known yet."""
        if self.ending is None or self.ending.outcome == "done":
            return ""
        why = f": {self.error!r}" if self.error is not None else ""
        return f"the message ends {self.ending.outcome} after {self.nattempts} attempts{why}"

    def _executor(self, number: int) -> BatchExecutor:
        began = boot_ns() / 1e9

        def holds() -> bool:
            return number == self.nattempts

        def failed(call: Call, error: BaseException) -> None:
            self.error = error

        hooks = RunHooks(
            soft_timeout=soft_timeout, report_progress=lambda *_: holds(),
            lease_deadline=lambda: began + LEASE_S if holds() else began - 1,
            checkpoint=lambda queue, mid, token, value: keep(self._kept, value) if holds() else None,
            on_failure=failed,
        )  # fmt: skip
        return BatchExecutor(registry_for(self._job, self._registry), worker=WORKER, hooks=hooks)


class Rehearsal:
    """All trials of one call. `queues` has two functions: one empties the queues, the other lists waiting calls."""

    def __init__(
        self,
        registry: Registry,
        job: Job[..., Any],
        call: Args[..., Any],
        plan: TrialPlan,
        queues: tuple[Callable[[], object], Callable[[], Any]],
    ) -> None:
        self._registry, self._job, self._call, self._plan = registry, job, call, plan
        self._empty, self._enqueued = queues
        self._code = WatchedCode(plan.within)
        self._lines: list[Line] = []
        self._expected: Any = None
        #: Connections of sqlite3 that outlive an attempt.
        self._databases: list[sqlite3.Connection] = []

    def run(self) -> Rehearsed:
        """Run a trial with each fault. Raise AssertionError if the job fails without a fault."""
        self._clean()
        findings: list[FailedTrial] = []
        trials = 0
        for fault in dict.fromkeys(self._plan.faults):
            for trial in getattr(self, f"_{fault}")():
                trials += 1
                if trial is not None:
                    findings.append(trial)
        killing = _FORKED if self._plan.fork else _EXCEPTION
        return Rehearsed(self._job.name, trials, findings, killing)

    def _clean(self) -> None:
        self._begin()
        watch = LineWatch(self._code)
        message = self._message()
        message.attempt(watch.watching)
        if message.ending is None or message.ending.outcome != "done":
            ended = message.ending.outcome if message.ending else "nothing"
            raise AssertionError(
                f"{self._job.name} isn't done even without a fault, but ends as {ended}: {message.error!r}"
            ) from message.error
        self._lines, self._expected = watch.lines, self._observed()
        self._databases = [
            value for value in gc.get_objects() if issubclass(type(value), sqlite3.Connection)
        ]
        if not self._lines:
            raise ConfigError(
                f"no line of {self._job.name} was seen; name its functions or modules with within="
            )

    # Faults. Each yields None for a trial without a difference.

    def _twice(self) -> Iterator[FailedTrial | None]:
        self._begin()
        message = self._message()
        message.attempt()
        message.ending = None
        message.to_the_end()
        yield self._compared("twice", "run twice", message)

    def _late(self) -> Iterator[FailedTrial | None]:
        self._begin()
        message = self._message()
        message.attempt()
        message.ending = None
        with later(LATE_S):
            message.to_the_end()
        yield self._compared("late", "run again two hours later", message)

    def _reordered(self) -> Iterator[FailedTrial | None]:
        assert self._plan.other is not None
        ends: list[Any] = []
        outcome = ""
        for order in ((self._call, self._plan.other), (self._plan.other, self._call)):
            self._begin()
            for call in order:
                # A call has the same mid in both orders.
                message = self._message(call, f"reordered-{int(call is self._call)}")
                message.to_the_end()
                outcome = outcome or message.outcome
            ends.append(self._observed())
        difference = outcome or _difference(ends[0], ends[1])
        yield (
            FailedTrial("reordered", "two calls in the other order", difference)
            if difference
            else None
        )

    def _killed(self) -> Iterator[FailedTrial | None]:
        for at in self._points(2):
            self._begin()
            message = self._message()
            if self._plan.fork:
                self._killed_in_fork(message, at)
            else:
                self._killed_here(message, at)
            message.to_the_end()
            yield self._compared("killed", f"killed after {self._shown(at - 2)}", message)

    def _killed_here(self, message: Lifecycle, at: int) -> None:
        """Run an attempt and end it before line `at`.

        Like a killed process, the attempt loses its variables, and its transactions are rolled back.
        """
        idle = [connection for connection in self._databases if not _is_busy(connection)]
        with _kept_young():
            try:
                message.attempt(LineWatch(self._code, at, _kill).watching)
            except _Killed as end:
                _release(end)
                message.ncrashes += 1
                message.ending = None
        for connection in idle:
            if _is_busy(connection):
                with suppress(sqlite3.ProgrammingError):  # it belongs to another thread
                    connection.rollback()

    def _killed_in_fork(self, message: Lifecycle, at: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            try:
                end = partial(os.kill, os.getpid(), signal.SIGKILL)
                message.attempt(LineWatch(self._code, at, end).watching)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        message.nattempts += 1
        message.ncrashes += 1

    def _zombie(self) -> Iterator[FailedTrial | None]:
        for at in self._points(1):
            self._begin()
            message = self._message()

            def take_over(message: Lifecycle = message) -> None:
                if self._job.is_async:
                    in_thread(message.attempt)
                else:
                    message.attempt()

            message.attempt(LineWatch(self._code, at, take_over).watching)
            # If the zombie made the next attempt fail, the message is retried.
            message.to_the_end()
            where = f"halted before {self._shown(at - 1)} while the next attempt ran"
            yield self._compared("zombie", where, message)

    # Parts of a trial.

    def _points(self, first: int) -> list[int]:
        count = len(self._lines)
        every = list(range(first, count + 1))
        most = self._plan.points
        if len(every) <= most:
            return every
        # One line from each of several ranges of equal length.
        chance = random.Random(self._plan.seed)
        width = len(every) / most
        return [
            every[min(len(every) - 1, int(width * (index + chance.random())))]
            for index in range(most)
        ]

    def _begin(self) -> None:
        self._plan.before()
        self._empty()

    def _message(self, call: Args[..., Any] | None = None, mid: str = "test-mid") -> Lifecycle:
        return Lifecycle(self._registry, self._job, call or self._call, mid)

    def _observed(self) -> dict[str, Any]:
        seen, allow = self._plan.observe(), self._plan.allow
        if isinstance(seen, Mapping):
            effects = {str(name): value for name, value in seen.items() if name not in allow}
        else:
            effects = {"observe()": seen}
        if "enqueued" not in allow:
            effects["enqueued calls"] = self._enqueued()
        return effects

    def _compared(self, fault: str, where: str, message: Lifecycle) -> FailedTrial | None:
        difference = _difference(self._expected, self._observed()) or message.outcome
        return FailedTrial(fault, where, difference) if difference else None

    def _shown(self, index: int) -> str:
        file, number = self._lines[index]
        text = linecache.getline(file, number).strip()
        place = "" if file == self._job.function.__code__.co_filename else f" of {Path(file).name}"
        return f"line {number}{place} `{text}`"


def _kill() -> None:
    raise _Killed


@contextmanager
def _kept_young() -> Iterator[None]:
    """Turn off garbage collection, so that new objects stay in the youngest generation, which is cheap to collect."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _release(end: _Killed) -> None:
    """Close the attempt's resources without warnings, as the operating system does for a killed process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        traceback.clear_frames(end.__traceback__)
        gc.collect(0)


def _is_busy(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # it is closed
        return False


def _under(
    job: Job[..., Any], watching: Callable[[], AbstractContextManager[None]]
) -> Job[..., Any]:
    function = job.function

    if job.is_async:

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with watching():
                return await function(*args, **kwargs)

        return job.calling(awaited)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with watching():
            return function(*args, **kwargs)

    return job.calling(called)


def _difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    parts = []
    for name in {**expected, **actual}:
        wanted, given = expected.get(name), actual.get(name)
        if wanted != given:
            parts.append(f"{name} {_count(wanted, given)}{_short(given)}, not {_short(wanted)}")
    return "; ".join(parts)


def _count(wanted: Any, given: Any) -> str:
    collections = isinstance(given, list | tuple | set) and isinstance(wanted, list | tuple | set)
    if collections and len(given) != len(wanted):
        return f"has {len(given)} items, not {len(wanted)}: "
    return "is "


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"


@contextmanager
def later(seconds: float) -> Iterator[None]:
    """Move jobq's clock forward for the duration of a `with` block.

    If freezegun is installed, the clock of the whole program is moved.
    """
    if find_spec("freezegun") is not None:
        from freezegun import freeze_time

        with freeze_time(datetime.fromtimestamp(time.time() + seconds, UTC), tick=True):
            yield
        return
    wall.ahead_ms += round(seconds * 1000)
    try:
        yield
    finally:
        wall.ahead_ms -= round(seconds * 1000)
