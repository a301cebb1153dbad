"""`@job(batch=100)`: a job whose function gets many calls together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, ParamSpec, Self, TypeVar, Unpack, get_args, get_origin

from msgspec import UNSET, structs

from jobq.errors import ConfigError
from jobq.jobs.admission import MAX_HOLDINGS
from jobq.jobs.argument_types import annotations_of
from jobq.jobs.calls import Calls
from jobq.jobs.codec import Overrides
from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares
from jobq.jobs.options import JobSettings, Options

P = ParamSpec("P")
R = TypeVar("R")
#: Options that a batch job can't have, with the reason and the remedy.
_REFUSED = {
    "ordered": "a batch runs its calls together; use only one option",
    "keep_logs": "one log would belong to many messages; log with calls[i].logger to a file or a service",
}
#: Options that apply to a call of the function, and so to many messages.
_OF_THE_FUNCTION = ("timeout", "hard_timeout")


class BatchJob(Job[P, R]):
    """A job whose function gets up to `batch` calls together.

    P stands for the parameters of one call, R for its result.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        settings: JobSettings,
        middleware: Middlewares,
    ) -> None:
        _check(name, settings)
        slots = sum(limit.rank == 0 for limit in settings.limits)
        if (settings.batch or 0) * slots > MAX_HOLDINGS:
            raise ConfigError(
                f"batch={settings.batch} of {name} with {slots} concurrency limits: each call takes a slot of each "
                f"limit, and a process holds at most {MAX_HOLDINGS} slots; use batch={MAX_HOLDINGS // slots} or less"
            )
        super().__init__(function, name, settings, middleware)

    def __call__(self, calls: Calls[P]) -> Any:  # type: ignore[override]
        """Call the function directly, without enqueueing, with `Calls.of(job.args(…), …)`."""
        return self.function(calls)

    def options(self, **changes: Unpack[Options]) -> Self:
        """Return a copy that enqueues with different options; the job itself doesn't change."""
        for name in (*_OF_THE_FUNCTION, "key"):
            if changes.get(name) is not None:
                remedy = "a function of the arguments" if name == "key" else "the value"
                raise ConfigError(
                    f"{name}={changes.get(name)!r} can't be set for one call of the batch job {self.name}; "
                    f"pass {remedy} to @job({name}=…)"
                )
        return super().options(**changes)

    def with_overrides(self, overrides: Overrides) -> Self:
        """Return a copy with the overrides from one message.

        Timeouts are ignored, because they apply to the whole batch.
        """
        return super().with_overrides(
            structs.replace(overrides, **dict.fromkeys(_OF_THE_FUNCTION, UNSET))
        )

    def _use(self, settings: JobSettings) -> None:
        _check(self.name, settings)
        super()._use(settings)

    def _one_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose parameters are the arguments of one call, as listed in `Calls[…]`."""
        taken = list(inspect.signature(function).parameters.values())
        if len(taken) != 1 or taken[0].kind not in (
            Parameter.POSITIONAL_ONLY,
            Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ConfigError(
                f"batch={self.settings.batch} of {self.name}: its function must take all calls as its only argument; "
                "write def function(calls: Calls[str, int]) with the types of one call's arguments"
            )
        annotations = annotations_of(function)
        parameters = _parameters(self.name, annotations.get(taken[0].name))
        result = annotations.get("return")
        # The function returns the results of all calls.
        is_typed = get_origin(result) in (list, Sequence) and len(get_args(result)) == 1
        result = get_args(result)[0] if is_typed else Parameter.empty

        def one_call(*args: Any, **kwargs: Any) -> None:
            """Represent one call."""

        kinds = {parameter.name: parameter.annotation for parameter in parameters}
        one_call.__annotations__ = {**kinds, "return": result}
        one_call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return one_call


def _check(job: str, settings: JobSettings) -> None:
    for name, why in _REFUSED.items():
        value = getattr(settings, name)
        if value is not None and value is not False:
            raise ConfigError(f"{name}={value!r} of {job} and batch={settings.batch}: {why}")


def _parameters(job: str, annotation: Any) -> list[Parameter]:
    """Return the parameters of one call from the annotation `Calls[…]`. Without types, any arguments are allowed."""
    any_arguments = [
        Parameter("args", Parameter.VAR_POSITIONAL, annotation=Any),
        Parameter("kwargs", Parameter.VAR_KEYWORD, annotation=Any),
    ]
    if annotation is None or annotation is Calls:
        return any_arguments
    if isinstance(annotation, str):
        raise ConfigError(
            f"the annotation {annotation!r} of {job} has a name that isn't defined when the job is declared; "
            "import Calls and the annotated types first, and not under TYPE_CHECKING"
        )
    if get_origin(annotation) is not Calls:
        raise ConfigError(
            f"the argument of {job} is annotated {annotation}, but a batch job gets Calls; write Calls[str, int] "
            "with the types of one call's arguments"
        )
    kinds = get_args(annotation)
    if kinds == (...,):
        return any_arguments
    if len(kinds) == 1 and isinstance(kinds[0], list | tuple):
        kinds = tuple(kinds[0])
    return [
        Parameter(f"arg{number}", Parameter.POSITIONAL_ONLY, annotation=kind)
        for number, kind in enumerate(kinds, 1)
    ]
