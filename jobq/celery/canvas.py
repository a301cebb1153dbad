"""Signatures, and chains, groups and chords of signatures, which run as flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jobq.celery import shared, states
from jobq.celery.result import FLOW, AsyncResult, EagerResult, GroupResult
from jobq.celery.sending import as_list, job_for
from jobq.errors import ConfigError
from jobq.flows.definition import FlowStep
from jobq.flows.flow import Flow
from jobq.queue.mids import new_mid


class Built(NamedTuple):
    """A signature's steps in a flow. The next step waits for `steps` and receives `value` as an argument."""

    value: Any
    steps: tuple[FlowStep, ...]


class Signature(dict[str, Any]):
    """A call of a task, to send later or add to a flow. A signature is a dict, so it can be another task's argument."""

    kind = ""

    def __init__(
        self, task: Any = None, args: Any = None, kwargs: Any = None, options: Any = None, *,
        immutable: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        name = task if isinstance(task, str) else getattr(task, "name", None)
        super().__init__(
            task=name, args=list(args or ()), kwargs=dict(kwargs or {}), options={**(options or {}), **more},
            immutable=immutable, subtask_type=self.kind,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return str(self["task"])

    args = property(lambda self: tuple(self["args"]))
    kwargs = property(lambda self: self["kwargs"])
    options = property(lambda self: self["options"])
    immutable = property(lambda self: self["immutable"])

    @property
    def type(self) -> Any:
        """Return the task that the signature calls."""
        return shared.tasks[self.name]

    def clone(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Return a copy of the signature with additional options.

        Unless the signature is immutable, `args` are inserted before its arguments, and `kwargs` are added to its
        keyword arguments.
        """
        made = signature(dict(self))
        if not self.immutable:
            made["args"] = [*args, *self["args"]]
            made["kwargs"] = {**self["kwargs"], **(kwargs or {})}
        made["options"] = {**self["options"], **options}
        return made

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Change options, and return this signature."""
        self["options"].update(options)
        if immutable is not None:
            self["immutable"] = immutable
        return self

    def link(self, callback: Any) -> Any:
        """Send `callback` with the result after the task succeeds."""
        self["options"]["link"] = [*as_list(self["options"].get("link")), callback]
        return callback

    def link_error(self, errback: Any) -> Any:
        """Send `errback` with the task's id after the task fails."""
        self["options"]["link_error"] = [*as_list(self["options"].get("link_error")), errback]
        return errback

    def on_error(self, errback: Any) -> Signature:
        """Add an errback like `link_error`, and return this signature."""
        self.link_error(errback)
        return self

    def __or__(self, other: Any) -> chain:  # type: ignore[override]
        return chain(self, other)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task in this process."""
        made = self.clone(args, kwargs)
        return self.type(*made.args, **made.kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send the call with additional arguments, combined as in `clone`."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Send the call with additional arguments and options, combined as in `clone`."""
        made = self.clone(args or (), kwargs, **options)
        if self.name in shared.tasks:
            return self.type.apply_async(made.args, made.kwargs, **made.options)
        return shared.apps[-1].send_task(self.name, made.args, made.kwargs, **made.options)

    def apply(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Run the call in this process."""
        made = self.clone(args or (), kwargs)
        return self.type.apply(made.args, made.kwargs, **options)

    def build(self, flow: Flow, before: Built | None, errbacks: Sequence[Any]) -> Built:
        """Add this signature's steps to a flow."""
        given = () if before is None or self.immutable else (before.value,)
        args = [*given, *self["args"]]
        options = dict(self["options"])
        options["link_error"] = [*as_list(options.get("link_error")), *errbacks]
        job = job_for(self.name, args, self["kwargs"], options)
        after = before.steps if before is not None and not given else None
        step = flow.step(job.args(*args, **self["kwargs"]), after=after)
        return Built(step.result, (step,))


class xmap(Signature):
    """Calls of a task, one for each item, which run as a map. With `star`, each item is a sequence of arguments."""

    kind = "xmap"

    def __init__(
        self, task: Any = None, items: Iterable[Any] = (), star: bool = False, **options: Any
    ) -> None:
        super().__init__(task, (), {"items": list(items), "star": star}, options)

    def build(self, flow: Flow, before: Built | None, errbacks: Sequence[Any]) -> Built:
        """Add a map to a flow."""
        options = {**self["options"], "link_error": list(errbacks)}
        job = job_for(self.name, (), {}, options)
        star, items = self["kwargs"]["star"], self["kwargs"]["items"]
        step = flow.map(
            job, [tuple(item) if star else (item,) for item in items], results=job.settings.stores_result,
            after=before and before.steps,
        )  # fmt: skip
        return Built(step.results if job.settings.stores_result else None, (step,))

    def apply_async(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Start the calls as a flow."""
        return _start(self, (), options)

    def apply(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Run all calls in this process."""
        star = self["kwargs"]["star"]
        results = [self.type.apply(item if star else (item,)) for item in self["kwargs"]["items"]]
        return _eager([result.get() for result in results])


class _Composed(Signature):
    """Base class of chains, groups and chords."""

    def __init__(self, tasks: Iterable[Any] = (), options: Any = None, **more: Any) -> None:
        super().__init__(
            f"celery.{self.kind}",
            (),
            {"tasks": [signature(task) for task in tasks]},
            options,
            **more,
        )

    @property
    def tasks(self) -> list[Any]:
        """Return the signatures of the chain, group or chord."""
        return [signature(part) for part in self["kwargs"]["tasks"]]

    def apply_async(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Start the tasks as a flow. The first tasks receive `args`."""
        if shared.apps[-1].conf.task_always_eager:
            return self.apply(args)
        return _start(self, args or (), options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Start the tasks as a flow, because in Celery, calling a chain, group or chord starts it."""
        return self.apply_async(args)

    def clone(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Return a copy with these additional options. This method ignores `args` and `kwargs`."""
        made = signature(dict(self))
        made["options"] = {**self["options"], **options}
        return made

    def _errbacks(self, errbacks: Sequence[Any]) -> list[Any]:
        return [*errbacks, *as_list(self["options"].get("link_error"))]


class chain(_Composed):
    """Tasks that run in sequence. Each task receives the result of the previous task."""

    kind = "chain"

    def __init__(self, *tasks: Any, options: Any = None, **more: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Mapping):
            tasks = tuple(tasks[0])
        flat: list[Any] = []
        for part in map(signature, tasks):
            flat += part.tasks if isinstance(part, chain) else [part]
        super().__init__(flat, options, **more)

    def build(self, flow: Flow, before: Built | None, errbacks: Sequence[Any]) -> Built:
        """Add the tasks to a flow, each after the previous task."""
        for part in self.tasks:
            before = part.build(flow, before, self._errbacks(errbacks))
        if before is None:
            raise ConfigError("a chain without tasks can't be sent; add tasks")
        return before

    def apply(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Run the tasks in this process."""
        result: Any = None
        for number, part in enumerate(self.tasks):
            result = part.apply(args if not number else (result.get(),))
            if not result.successful():
                break
        return result


class group(_Composed):
    """Tasks to run concurrently."""

    kind = "group"

    def __init__(self, *tasks: Any, options: Any = None, **more: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Mapping):
            tasks = tuple(tasks[0])
        super().__init__(tasks, options, **more)

    def build(self, flow: Flow, before: Built | None, errbacks: Sequence[Any]) -> Built:
        """Add the tasks to a flow, all after the same previous steps."""
        parts = [part.build(flow, before, self._errbacks(errbacks)) for part in self.tasks]
        return Built(
            [part.value for part in parts], tuple(step for part in parts for step in part.steps)
        )

    def apply(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Run the tasks in this process."""
        return GroupResult(new_mid(), [part.apply(args) for part in self.tasks])


class chord(_Composed):
    """A group, and a task that receives the list of the group's results."""

    kind = "chord"

    def __init__(
        self, header: Any = (), body: Any = None, options: Any = None, **more: Any
    ) -> None:
        super().__init__(header.tasks if isinstance(header, group) else header, options, **more)
        self["kwargs"]["body"] = None if body is None else signature(body)

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Start the chord. `body`, if given, is the task that receives the results."""
        if body is not None:
            self["kwargs"]["body"] = signature(body)
        return self.apply_async((), **options)

    @property
    def body(self) -> Any:
        """Return the task that receives the results."""
        if self["kwargs"]["body"] is None:
            raise ConfigError("a chord without a body can't be sent; use group")
        return signature(self["kwargs"]["body"])

    def build(self, flow: Flow, before: Built | None, errbacks: Sequence[Any]) -> Built:
        """Add the group's tasks to a flow, then the body. If a task of the group fails, the body's errbacks are also
        called.
        """
        outer, body = self._errbacks(errbacks), self.body
        header = group(self.tasks).build(
            flow, before, [*outer, *as_list(body.options.get("link_error"))]
        )
        return body.build(flow, header, outer)  # type: ignore[no-any-return]

    def apply(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Any:
        """Run the tasks in this process."""
        return self.body.apply((group(self.tasks).apply(args).get(),))


_KINDS: dict[str, Any] = {
    "": Signature, "xmap": xmap, "chain": chain, "group": group, "chord": chord,
}  # fmt: skip


def signature(task: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
    """Return the signature of a task, given the task or its name, or restore a signature from a dict."""
    if isinstance(task, Signature):
        return task
    if isinstance(task, Mapping):
        made = _KINDS[task.get("subtask_type", "")]()
        made.update(task)
        made.update(
            args=list(task["args"]), kwargs=dict(task["kwargs"]), options=dict(task["options"])
        )
        return made
    return Signature(task, args, kwargs, **options)


def _start(composed: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    made = composed.clone(**options) if options else composed
    rest = {key: value for key, value in made.options.items() if key != "link_error"}
    mid = rest.pop("task_id", None)
    if rest.pop("link", None) or any(value is not None for value in rest.values()):
        raise ConfigError(
            f"a {made.kind} doesn't support the options {', '.join(made.options)}; set them on its tasks: "
            f"task.s(…).set(…)"
        )
    flow = Flow(made.kind, mid)
    before = Built(args[0] if len(args) == 1 else list(args), ()) if args else None
    built = made.build(flow, before, ())
    flow.start()
    ids = [f"{FLOW}{flow.flow_id}/{step.name}" for step in built.steps]
    if made.kind == "group":
        return GroupResult(flow.flow_id, [AsyncResult(id_) for id_ in ids])
    return AsyncResult(ids[-1])


def _eager(value: Any) -> EagerResult:
    return EagerResult(new_mid(), value, states.SUCCESS)
