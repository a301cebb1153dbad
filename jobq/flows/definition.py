"""Definition of a flow: its steps, their dependencies, and the results that they use as arguments.

Defining a flow doesn't need a server. Only names in `after` can create a cycle, because a step object can only be
passed to later steps. `checked_graph` rejects cycles.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from inspect import Parameter
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    overload,
)

import msgspec

from jobq.client.names import checked_queue
from jobq.config import duration_s
from jobq.durations import Duration, listed
from jobq.errors import ConfigError
from jobq.flows.identity import MAX_STEP_LENGTH, checked_step, flow_id
from jobq.flows.references import ResultOf, taken_out
from jobq.flows.state import Edge, Kind, When
from jobq.flows.types import MAX_STEPS
from jobq.jobs.codec import FLOW_HEADER, check
from jobq.jobs.job import Args, Job
from jobq.jobs.options import checked_options
from jobq.jobs.queues import ClientLike
from jobq.queue.mids import new_mid

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")
_WHENS: tuple[When, ...] = get_args(When)
#: Options that a step can't have, and what to do instead.
_REFUSED_OPTIONS = {
    "mid": "leave it out, because a flow generates the ids of its steps",
    "unique": "steps are unique by their names; pass unique=None",
    "debounce": "each step runs once; pass debounce=None",
    "throttle": "each step runs once; pass throttle=None",
    "expires_in": "it isn't known how long a step waits; set a timeout for the flow's wait",
}
#: Options of a job that its messages get when they are sent.
_SENT_WITH = ("delay", "at", "lease", "ordered")
_WORDS = ("after", "when", "name")
MAX_KEEP_S = 366 * 86_400.0
#: Number of a list's items that are checked when the map is defined. The others are checked when they are sent.
CHECKED_ITEMS = 250


class Failure(TypedDict):
    """A dead member of a step, in the list that `failures` passes to a job."""

    index: int
    mid: str
    reason: str


class FlowStep:
    """A step of a flow, of any kind. Pass it in `after` of later steps, or pass its result as an argument."""

    __slots__ = ("after", "keeps_results", "kind", "name", "owner", "queue")

    def __init__(
        self, owner: StepList, name: str, kind: Kind, after: Mapping[str, When], queue: str = ""
    ) -> None:
        self.owner, self.name, self.queue = owner, name, queue
        self.kind: Kind = kind
        #: Name of a step -> how the step must end before this step begins.
        self.after: dict[str, When] = dict(after)
        #: Whether the return values of its members are stored.
        self.keeps_results = False

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return the step's dependencies."""
        return tuple([Edge(step, when) for step, when in self.after.items()])

    @property
    def failures(self) -> list[Failure]:
        """The step's dead members. Pass them as an argument of a later step."""
        return cast("list[Failure]", ResultOf(self, "failures"))

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data. The hash of the flow's definition includes it."""
        return {"kind": self.kind, "after": self.after}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Step(FlowStep, Generic[R]):
    """One call of a job. R is the type of its result."""

    __slots__ = ("args", "inputs", "job", "kwargs", "options")

    def __init__(
        self,
        owner: StepList,
        name: str,
        job: Job[..., R],
        arguments: tuple[Sequence[Any], Mapping[str, Any]],
        after: Mapping[str, When],
    ) -> None:
        super().__init__(owner, name, "step", after, job.queue)
        self.job = job
        self.keeps_results = job.settings.stores_result
        self.args, self.kwargs, references = taken_out(*arguments)
        for _, reference in references:
            owner.add_reference(reference, self.after)
        filled_later = {path[0] for path, _ in references}
        for at in range(len(self.args)):
            if at not in filled_later:
                self.args[at] = job.encoded_argument(at, arguments[0][at])
            check(self.args[at], f"argument {at + 1} of {job.name}")
        for key in self.kwargs:
            if key not in filled_later:
                self.kwargs[key] = job.encoded_argument(key, arguments[1][key])
            check(self.kwargs[key], f"argument {key!r} of {job.name}")
        #: Positions of other steps' results in the arguments.
        self.inputs = references
        self.options = sent_with(job, job.key_of(*arguments))

    @property
    def result(self) -> R:
        """The job's return value. Pass it as an argument of a later step."""
        return cast("R", ResultOf(self, "result"))

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data; see `FlowStep.facts`."""
        job = self.job
        facts: dict[str, Any] = {
            "job": job.name,
            "queue": self.queue,
            "args": self.args,
            "kwargs": self.kwargs,
        }
        facts |= {"inputs": [[path, ref.name, ref.what] for path, ref in self.inputs]}
        facts |= {"headers": job.settings.headers, "options": self.options}
        return super().facts() | facts | {"overrides": job.overrides}


class MapStep(FlowStep, Generic[R]):
    """A call of a job for each of many items. R is the type of one result."""

    __slots__ = ("items", "job", "options")

    def __init__(
        self,
        owner: StepList,
        name: str,
        job: Job[..., R],
        items: Iterable[Any] | ResultOf,
        after: Mapping[str, When],
        keeps_results: bool,
    ) -> None:
        super().__init__(owner, name, "map", after, job.queue)
        self.job, self.keeps_results = job, keeps_results
        if isinstance(items, ResultOf):
            if items.what != "result":
                raise ConfigError(
                    f"{items!r} can't be mapped; use the result of a step that returns a list"
                )
            owner.add_reference(items, self.after)
        elif isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise ConfigError(
                f"map of {job.name} takes a list or another iterable of items, not {items!r:.80}"
            )
        elif self.after and not isinstance(items, list | tuple):
            raise ConfigError(
                f"map {name!r} waits for {listed(list(self.after))}, so its items must be stored; pass a list, or "
                f"the result of a step that returns a list"
            )
        self.items = items
        if isinstance(items, list | tuple):
            # Most mistakes affect all items, so checking some items finds them before anything is sent.
            deque(self.calls(items[:CHECKED_ITEMS]), maxlen=0)
        if self.after:
            self.refuse_keys_of_arguments()
        # A function of the arguments makes the key of each member.
        key = job.settings.key
        self.options = sent_with(job, None if callable(key) else key)

    @property
    def results(self) -> list[R]:
        """The members' return values in the order of the items. Pass them as an argument of a later step.

        If that step has when="ended", the list leaves out dead members.
        """
        if not self.keeps_results:
            raise ConfigError(
                f"map {self.name!r} doesn't keep results; pass results=True, or let its job store its output"
            )
        return cast("list[R]", ResultOf(self, "results"))

    def refuse_keys_of_arguments(self) -> None:
        """Raise ConfigError if the job computes keys from arguments, because a waiting map doesn't support that."""
        if callable(self.job.settings.key):
            raise ConfigError(
                f"map {self.name!r} waits for steps, so the key of {self.job.name} can't be computed from arguments of "
                f'members; set one key for all members with options(key="…"), or let a running '
                "step add the map without after="
            )

    def calls(
        self, items: Iterable[Any], first: int = 0
    ) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
        """Yield the arguments of each item's call. An item that is a tuple contains all positional arguments.

        Args:
            first: Number of the first item.
        """
        job = self.job
        for number, item in enumerate(items, first):
            if isinstance(item, Args):
                if item.job != job.name:
                    raise ConfigError(
                        f"item {number} of map {self.name} has arguments for {item.job}; use {job.name}.args(…)"
                    )
                yield item.args, item.kwargs
                continue
            args = item if isinstance(item, tuple) else (item,)
            try:
                job.check_arguments(args, {})
            except TypeError as error:
                raise TypeError(
                    f"item {number} of map {self.name}: {error}; pass a tuple of all arguments of a call, or "
                    f"{job.name}.args(…)"
                ) from None
            yield args, {}

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data, without streamed items; see `FlowStep.facts`."""
        job, items = self.job, self.items
        facts: dict[str, Any] = {"job": job.name, "queue": self.queue, "overrides": job.overrides}
        facts |= {"headers": job.settings.headers, "options": self.options}
        facts["results"] = self.keeps_results
        if isinstance(items, ResultOf):
            facts["source"] = [items.name, items.what]
        elif self.after:
            encoded = [job.encoded(args, kwargs) for args, kwargs in self.calls(items)]
            facts["items"] = [[list(args), kwargs] for args, kwargs in encoded]
        return super().facts() | facts


class WaitStep(FlowStep):
    """A step for one signal. The step is done when the signal arrives, and fails if its timeout comes first."""

    __slots__ = ("timeout_s",)

    def __init__(
        self, owner: StepList, name: str, after: Mapping[str, When], timeout_s: float | None
    ) -> None:
        super().__init__(owner, name, "wait", after)
        self.timeout_s = timeout_s

    @property
    def value(self) -> Any:
        """The value of the signal, for the arguments of a later step."""
        return ResultOf(self, "value")

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data; see `FlowStep.facts`."""
        return super().facts() | {"timeout": self.timeout_s}


class TimerStep(FlowStep):
    """A step that is done at a given time."""

    __slots__ = ("at_s",)

    def __init__(self, owner: StepList, name: str, after: Mapping[str, When], at_s: float) -> None:
        super().__init__(owner, name, "timer", after)
        self.at_s = at_s

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data; see `FlowStep.facts`."""
        return super().facts() | {"at": self.at_s}


class SubFlowStep(FlowStep):
    """A step that is a whole flow, which begins when the step begins."""

    __slots__ = ("sub",)

    def __init__(
        self, owner: StepList, name: str, after: Mapping[str, When], sub: Definition
    ) -> None:
        super().__init__(owner, name, "flow", after)
        self.sub = sub

    def facts(self) -> dict[str, Any]:
        """Return the step's definition as JSON data; see `FlowStep.facts`."""
        return super().facts() | {"flow": self.sub.flow_id, "definition": self.sub.hash}


#: Values of `after`: a step, several steps, or a mapping from steps to how they must end. A str names a step.
After = FlowStep | str | Iterable[FlowStep | str] | Mapping[FlowStep | str, When] | None


class StepList:
    """The steps of one flow, in the order in which they were defined."""

    #: Whether a step without a name is named after its job.
    names_steps = True
    #: Maximum number of steps.
    max_steps = MAX_STEPS

    def __init__(self, flow_id: str) -> None:
        #: `name:id`.
        self.flow_id = flow_id
        self.steps: dict[str, FlowStep] = {}

    # One call.

    @overload
    def step(self, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(
        self,
        call: Args[..., R],
        /,
        *,
        after: After = None,
        when: When = "done",
        name: str | None = None,
    ) -> Step[R]: ...
    @overload
    def step(
        self,
        job: Job[..., R],
        /,
        *args: Any,
        after: After,
        when: When = "done",
        name: str | None = None,
        **kwargs: Any,
    ) -> Step[R]: ...
    @overload
    def step(self, job: Job[..., R], /, *args: Any, name: str, **kwargs: Any) -> Step[R]: ...
    def step(self, job: Any, /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Add one call of a job: `flow.step(report, rows.results)`.

        A step waits for the steps whose results are its arguments, and for the steps in `after`. With `after` or
        `name`, type checkers can't check the job's arguments, unless you write `flow.step(report.args(rows.results),
        after=gate)`. Set options of the job with `job.options(...)`. Raises TypeError if the arguments don't fit the
        function, and CodecError if JSON can't represent them.

        Args:
            after: Further steps to wait for.
            when: How the steps in `after` must end: "done", "ended" or "failed".
            name: Name of the step.
        """
        words = {word: kwargs.pop(word) for word in _WORDS if word in kwargs}
        if isinstance(job, Args):
            if args or kwargs:
                raise ConfigError(f"{job!r} already has its arguments; don't pass more")
            job, args, kwargs = job.target, tuple(job.args), job.kwargs
        else:
            _refuse_ambiguous(job, words)
        checked = checked_job(job, self.flow_id)
        for value in (*args, *kwargs.values()):
            if isinstance(value, FlowStep):
                raise ConfigError(
                    f"{value!r} can't be an argument of {checked.name}; pass the step's result, or after={value.name!r}"
                )
        checked.check_arguments(args, kwargs)
        after = self._after(words.get("after"), words.get("when", "done"))
        name = self._name(words.get("name"), checked)
        return self._add(Step(self, name, checked, (args, kwargs), after))

    # Many calls.

    @overload
    def map(
        self,
        job: Job[P, R],
        items: Iterable[Args[P, R]],
        /,
        *,
        results: bool = False,
        after: After = None,
        when: When = "done",
        name: str | None = None,
    ) -> MapStep[R]: ...
    @overload
    def map(
        self,
        job: Job[..., R],
        items: Iterable[tuple[Any, ...]],
        /,
        *,
        results: bool = False,
        after: After = None,
        when: When = "done",
        name: str | None = None,
    ) -> MapStep[R]: ...
    @overload
    def map(
        self,
        job: Job[Concatenate[A, ...], R],
        items: Iterable[A],
        /,
        *,
        results: bool = False,
        after: After = None,
        when: When = "done",
        name: str | None = None,
    ) -> MapStep[R]: ...
    def map(
        self,
        job: Any,
        items: Iterable[Any],
        /,
        *,
        results: bool = False,
        after: After = None,
        when: When = "done",
        name: str | None = None,
    ) -> MapStep[Any]:
        """Add a call of a job for each item: `flow.map(load, ids())`.

        An item is the call's only argument, unless it is a tuple of arguments or `load.args(...)`. Without `after`,
        items can be any iterable. The iterable is read while its calls are sent, so ten million items need little
        memory. With `after`, items must be a list of at most 8 MiB, or the result of a step.

        Args:
            results: Keep the members' return values, of up to 64 KiB each, for `results`.
        """
        checked = checked_job(job, self.flow_id)
        edges = self._after(after, when)
        made = MapStep(self, self._name(name, checked), checked, items, edges, results)
        return self._add(made)

    def wait(self, name: str, timeout: Duration | None = None, *, after: After = None) -> WaitStep:
        """Add a step to wait for `run.signal(name)`. Without a signal, the step fails after `timeout`.

        The step doesn't occupy a worker. A signal that arrives before the step begins also counts.

        Args:
            timeout: Maximum wait after the step has begun.
        """
        timeout_s = None if timeout is None else duration_s(timeout)
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError(
                f"timeout={timeout!r} of wait {name!r} is out of range; it must be more than 0"
            )
        return self._add(
            WaitStep(self, self._name(name, None), self._after(after, "done"), timeout_s)
        )

    def at(self, when: datetime | float, *, after: After = None, name: str = "at") -> TimerStep:
        """Add a timer that ends at a given time, so that later steps can wait for that time.

        For a delay, use `job.options(delay="5m")` instead.

        Args:
            when: A datetime with a time zone, or epoch seconds.
        """
        at_s: float = checked_options({"at": when}, declaring=False)["at"]
        return self._add(TimerStep(self, self._name(name, None), self._after(after, "done"), at_s))

    def add_reference(self, ref: ResultOf, after: dict[str, When]) -> None:
        """Add the step of `ref` to the dependencies `after`. Store that step's result if `ref` needs the result."""
        source = ref.step
        if source.owner is not self:
            raise ConfigError(
                f"{ref!r} belongs to another flow, so steps of flow {self.flow_id} can't use it"
            )
        when = after.setdefault(source.name, "ended" if ref.what == "failures" else "done")
        if ref.what in ("result", "value") and when != "done":
            raise ConfigError(
                f"{ref!r} exists only if its step is done, but when={when!r} may run this step without it; use "
                "when='done', or don't pass the result"
            )
        if ref.what == "result":
            source.keeps_results = True

    def _add(self, step: S) -> S:
        self.steps[step.name] = step
        return step

    def _name(self, given: str | None, job: Job[..., Any] | None) -> str:
        if given is not None:
            name = _checked_name(given)
            if name in self.steps:
                raise ConfigError(
                    f"two steps of flow {self.flow_id} are named {name!r}; rename one"
                )
        elif job is None or not self.names_steps:
            raise ConfigError(
                "a running step must pass name=… when it adds a step, or another attempt would add the step again"
            )
        else:
            name = self._numbered(step_name_of(job.name))
        if len(self.steps) >= self.max_steps:
            raise ConfigError(
                f"flow {self.flow_id} has {self.max_steps:,} steps, the maximum; use maps for many calls of a job"
            )
        return name

    def _numbered(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.steps:
            number += 1
            ending = f"-{number}"
            name = stem[: MAX_STEP_LENGTH - len(ending)] + ending
        return name

    def _after(self, after: After, when: When) -> dict[str, When]:
        if when not in _WHENS:
            raise ConfigError(f"when={when!r} is unknown; use one of {', '.join(_WHENS)}")
        if after is None:
            if when != "done":
                raise ConfigError(f"when={when!r} needs after=… with the steps to wait for")
            return {}
        if isinstance(after, ResultOf):
            raise ConfigError(f"after={after!r} is not a step; pass the step itself")
        if isinstance(after, FlowStep | str):
            after = (after,)
        whens: dict[str, When] = {}
        if isinstance(after, Mapping):
            for step, wanted in after.items():
                whens |= StepList._after(self, (step,), wanted)
            return whens
        if not isinstance(after, Iterable):
            raise ConfigError(
                f"after={after!r:.80} is not a step; pass steps of this flow, or names"
            )
        for step in after:
            whens[self._named(step)] = when
        return whens

    def _named(self, step: Any) -> str:
        if isinstance(step, str):
            return _checked_name(step)
        if not isinstance(step, FlowStep):
            raise ConfigError(f"after= names {step!r:.80}, which isn't a step; pass steps or names")
        if step.owner is not self:
            raise ConfigError(f"{step!r} belongs to another flow, not to {self.flow_id}")
        return step.name


class Definition(StepList):
    """All steps of one flow. The flow's name and id together identify it; the default id is random."""

    def __init__(
        self, name: str, id: str | None, keep: Duration, queue: str | None, client: ClientLike | None
    ) -> None:  # fmt: skip
        if not isinstance(name, str) or not isinstance(id, str | None):
            raise ConfigError(
                f"flow name {name!r:.80} with id {id!r:.80} can't be used; pass strings"
            )
        self._has_id = id is not None
        self.name, self.id = name, new_mid() if id is None else id
        super().__init__(flow_id(name, self.id))
        self.keep_s = duration_s(keep)
        if not 1 <= self.keep_s <= MAX_KEEP_S:
            raise ConfigError(
                f"keep={keep!r} is out of range; it must be between 1 second and 366 days"
            )
        self.client = client
        self.is_started = False
        self._queue = None if queue is None else checked_queue(queue)

    @property
    def home(self) -> str:
        """The queue for the flow's signals and timers."""
        if self._queue is not None:
            return self._queue
        queues = (step.queue for step in self.steps.values() if step.queue)
        subs = (step.sub.home for step in self.steps.values() if isinstance(step, SubFlowStep))
        return next(queues, None) or next(subs, None) or "default"

    @property
    def hash(self) -> str:
        """A hash that is equal for definitions with the same steps and `keep`. It ignores items streamed to a map."""
        return hash_of(self.steps.values(), self.keep_s)

    def flow(self, sub: Definition, *, after: After = None, name: str | None = None) -> SubFlowStep:
        """Add a whole flow as a step. The step is done when that flow is done, and failed when that flow has failed.

        A sub-flow without an id gets an id made of this flow's id and the step's name. Items of its maps must be lists,
        or results of its steps.
        """
        if not isinstance(sub, Definition) or sub is self:
            raise ConfigError(
                f"{sub!r:.80} can't be a step of flow {self.flow_id}; pass a different Flow"
            )
        if name is None:
            name = self._numbered(step_name_of(sub.name))
        edges = self._after(after, "done")
        return self._add(SubFlowStep(self, self._name(name, None), edges, sub))

    def check(self) -> None:
        """Raise ConfigError if the flow has no steps, if a dependency is missing, or if dependencies form a cycle."""
        if not self.steps:
            raise ConfigError(f"flow {self.flow_id} has no steps; add one with flow.step(job, …)")
        checked_graph(self.steps)
        for step in self.steps.values():
            if isinstance(step, SubFlowStep):
                step.sub.set_parent(self, step.name)
                step.sub.check()

    def _add(self, step: S) -> S:
        if self.is_started:
            raise ConfigError(
                f"flow {self.flow_id} was started, so step {step.name!r} would never run; add it before start(), or "
                "let a running step add it, with current().flow"
            )
        return super()._add(step)

    def set_parent(self, parent: Definition, step: str) -> None:
        """Make the flow's id from the parent's id and the step's name, unless the flow has an id."""
        if not self._has_id:
            self.id = f"{parent.id}+{step}"
            self.flow_id = flow_id(self.name, self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.flow_id}, {len(self.steps)} steps>"


S = TypeVar("S", bound=FlowStep)


def sent_with(job: Job[..., Any], key: str | None) -> dict[str, Any]:
    """Return the options with which a step's messages are enqueued."""
    settings = job.settings
    options = {name: value for name in _SENT_WITH if (value := getattr(settings, name))}
    if key is not None:
        options["key"] = key
    elif not callable(settings.key):
        options.pop("ordered", None)
    return options


def checked_job(job: Any, flow: str) -> Job[..., Any]:
    """Return the job. Raises ConfigError if it can't be a step."""
    if not isinstance(job, Job):
        raise ConfigError(
            f"{job!r:.80} is not a job; pass the job and then its arguments: flow.step(load, 7), with @job on load"
        )
    settings = job.settings
    if FLOW_HEADER in settings.headers:
        raise ConfigError(
            f"{job.name} declares the header {FLOW_HEADER!r}, which is reserved for flows; rename the header"
        )
    for option, remedy in _REFUSED_OPTIONS.items():
        value = getattr(settings, option)
        if value is not None and value is not False:
            raise ConfigError(f"{option}={value!r:.80} can't be used in a flow; {remedy}")
    return job


def step_name_of(job: str) -> str:
    """Return the default name of a step: the last part of its job's name."""
    last = job.rpartition(".")[2]
    return _NOT_IN_NAMES.sub("-", last)[:MAX_STEP_LENGTH] or "step"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"step name {name!r:.80} can't be used; pass a str")
    return checked_step(name)


def checked_graph(steps: Mapping[str, FlowStep], known: Iterable[str] = ()) -> None:
    """Raise ConfigError if a dependency is missing, or if dependencies form a cycle."""
    there = {*steps, *known}
    for step in steps.values():
        for source in step.after:
            if source not in there:
                raise ConfigError(
                    f"step {step.name!r} waits for {source!r}, which this flow doesn't have; "
                    f"it has {listed(sorted(there))}"
                )
    if circle := _circle(steps):
        raise ConfigError(
            f"steps wait for each other: {' -> '.join(circle)}; remove one of these dependencies"
        )


def _circle(steps: Mapping[str, FlowStep]) -> list[str]:
    """Return the names of steps that form a cycle, and the first name again; [] if there is no cycle."""
    left = {name: {other for other in step.after if other in steps} for name, step in steps.items()}
    while free := [name for name, after in left.items() if not after]:
        for name in free:
            del left[name]
        for after in left.values():
            after.difference_update(free)
    if not left:
        return []
    # Each remaining step waits for another remaining step, so this loop must reach some step twice.
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]]))
    return path[path.index(path[-1]) :][::-1]


def hash_of(steps: Iterable[FlowStep], keep_s: float) -> str:
    """Return a hash that is equal for definitions with the same steps in the same order and the same `keep`."""
    facts = [[step.name, step.facts()] for step in steps]
    text = msgspec.json.encode([keep_s, facts], order="sorted")
    return blake2b(text, digest_size=16).hexdigest()


def _refuse_ambiguous(job: Any, words: Mapping[str, Any]) -> None:
    if not words or not isinstance(job, Job):
        return
    parameters = job.parameters
    for word in words:
        parameter = parameters.get(word)
        if parameter is not None and parameter.kind is not Parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{word}= is an argument of both {job.name} and flow.step; pass flow.step({job.name}.args(…), {word}=…)"
            )
