"""`Batch`, a short form of a flow: one map and the steps that follow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from jobq.durations import Duration
from jobq.flows.definition import Failure, MapStep, step_name_of
from jobq.flows.flow import KEEP, Flow
from jobq.flows.run import FlowRun
from jobq.flows.state import When
from jobq.jobs.job import Args, Job
from jobq.jobs.queues import ClientLike

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
A = TypeVar("A")


class Batch(Generic[R]):
    """Calls of one job for many items, and jobs that run after these calls have ended.

    ::

        Batch(load, ids()).then(mail, "all loaded").on_failure(alert).start()

    Args:
        items: See `Flow.map`.
        name: Name of the flow. Default: the last part of the job's name.
        id: Id of the flow. Default: random.
        results: Keep the return values of the calls.
    """

    @overload
    def __init__(
        self: Batch[R],
        job: Job[P, R],
        items: Iterable[Args[P, R]],
        /,
        *,
        name: str | None = None,
        id: str | None = None,
        results: bool = False,
        keep: Duration = KEEP,
        client: ClientLike | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Batch[R],
        job: Job[..., R],
        items: Iterable[tuple[Any, ...]],
        /,
        *,
        name: str | None = None,
        id: str | None = None,
        results: bool = False,
        keep: Duration = KEEP,
        client: ClientLike | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Batch[R],
        job: Job[Concatenate[A, ...], R],
        items: Iterable[A],
        /,
        *,
        name: str | None = None,
        id: str | None = None,
        results: bool = False,
        keep: Duration = KEEP,
        client: ClientLike | None = None,
    ) -> None: ...
    def __init__(
        self,
        job: Any,
        items: Iterable[Any],
        /,
        *,
        name: str | None = None,
        id: str | None = None,
        results: bool = False,
        keep: Duration = KEEP,
        client: ClientLike | None = None,
    ) -> None:
        flow_name = name or step_name_of(str(getattr(job, "name", "batch")))
        #: The batch's flow; you can add more steps to it.
        self.flow = Flow(flow_name, id, keep=keep, client=client)
        #: The flow's map.
        self.calls: MapStep[R] = self.flow.map(job, items, results=results)

    @property
    def results(self) -> list[R]:
        """The return values of the calls; requires results=True. Pass this list to the job of `then` or `on_end`."""
        return self.calls.results

    @property
    def failures(self) -> list[Failure]:
        """The dead calls. Pass this list to the job of `on_failure` or `on_end`."""
        return self.calls.failures

    def then(self, job: Job[Q, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Self:
        """Run a job after all calls are done. If a call is dead, the job runs only after a retry completes the call."""
        return self._follow("done", job, args, kwargs)

    def on_failure(self, job: Job[Q, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Self:
        """Run a job after all calls have ended, if at least one call is dead."""
        return self._follow("failed", job, args, kwargs)

    def on_end(self, job: Job[Q, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Self:
        """Run a job after all calls are done or dead."""
        return self._follow("ended", job, args, kwargs)

    def start(self) -> FlowRun:
        """Start the batch; see Flow.start."""
        return self.flow.start()

    async def astart(self) -> FlowRun:
        """Run `start` in a thread, so that the event loop isn't blocked."""
        return await self.flow.astart()

    def __repr__(self) -> str:
        return f"<Batch {self.flow.flow_id}, {len(self.flow.steps)} steps>"

    def _follow(self, when: When, job: Job[..., Any], args: Any, kwargs: Any) -> Self:
        self.flow.step(job.args(*args, **kwargs), after=self.calls, when=when)
        return self
