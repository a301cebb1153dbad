"""The interface through which a running job adds steps to its flow. `jobq.flows` implements the interface."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from jobq.jobs.job import Args, Job

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

#: How a step must end before another step begins.
EndedAs = Literal["done", "ended", "failed"]


class AddedStep(Protocol[R_co]):
    """A step that a running step added. Later steps can name it in `after`, and use its result as an argument."""

    @property
    def name(self) -> str: ...
    @property
    def result(self) -> R_co: ...
    @property
    def failures(self) -> list[Any]: ...


class AddedMap(Protocol[R]):
    """A map that a running step added."""

    @property
    def name(self) -> str: ...
    @property
    def results(self) -> list[R]: ...
    @property
    def failures(self) -> list[Any]: ...


class MemberFlow(Protocol):
    """The flow of the running message. Added steps need names, so that the next attempt doesn't add them twice.

    `after` can be names of steps of the flow, or steps added by this attempt.
    """

    @property
    def id(self) -> str:
        """Name and id of the flow, joined by a colon."""
        ...

    @property
    def step_name(self) -> str:
        """The name of the running step."""
        ...

    @property
    def index(self) -> int:
        """The number of this member in its step, from 0."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Add all steps of a block, or none of them: `with current().flow.together(): …`.

        The added steps begin once this step is done. If this step is a map, they begin once all its members are done.
        Don't catch errors within the block: they must fail the step.
        """
        ...

    @overload
    def step(
        self, call: Args[..., R], /, *, name: str, after: Any = None, when: EndedAs = "done"
    ) -> AddedStep[R]: ...
    @overload
    def step(
        self,
        job: Job[..., R],
        /,
        *args: Any,
        name: str,
        after: Any = None,
        when: EndedAs = "done",
        **kwargs: Any,
    ) -> AddedStep[R]: ...
    def step(self, job: Any, /, *args: Any, **kwargs: Any) -> AddedStep[Any]:
        """Add a step: `current().flow.step(load.args(7), name="seventh")`.

        Raises FlowClosedError if the flow has ended.
        """
        ...

    @overload
    def map(
        self,
        job: Job[P, R],
        items: Iterable[Args[P, R]],
        /,
        *,
        name: str,
        results: bool = False,
        after: Any = None,
        when: EndedAs = "done",
    ) -> AddedMap[R]: ...
    @overload
    def map(
        self,
        job: Job[..., R],
        items: Iterable[tuple[Any, ...]],
        /,
        *,
        name: str,
        results: bool = False,
        after: Any = None,
        when: EndedAs = "done",
    ) -> AddedMap[R]: ...
    @overload
    def map(
        self,
        job: Job[Concatenate[A, ...], R],
        items: Iterable[A],
        /,
        *,
        name: str,
        results: bool = False,
        after: Any = None,
        when: EndedAs = "done",
    ) -> AddedMap[R]: ...
    def map(self, job: Any, items: Any, /, **options: Any) -> AddedMap[Any]:
        """Add a call for each item. All calls are enqueued before this method returns."""
        ...
