"""`Flow`: calls of jobs that depend on one another, in one or several queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobq.client.threads import in_thread
from jobq.durations import Duration
from jobq.flows.definition import Definition
from jobq.flows.run import FlowRun
from jobq.flows.starting import started
from jobq.habits import refuse_attribute
from jobq.jobs.queues import ClientLike

KEEP = "7d"


class Flow(Definition):
    """A flow: steps and their dependencies. It runs only after you call `start`.

    ::

        flow = Flow("import", id="2026-11-22")
        rows = flow.map(load, ids(), results=True)
        flow.step(report, rows.results)
        run = flow.start()

    Args:
        name, id: Together, they identify the flow. Default id: random.
        keep: How long the flow stays visible after its end.
        queue: Queue for the flow's signals and timers. Default: the queue of its first step.
    """

    def __init__(
        self,
        name: str,
        id: str | None = None,
        *,
        keep: Duration = KEEP,
        queue: str | None = None,
        client: ClientLike | None = None,
    ) -> None:
        super().__init__(name, id, keep, queue, client)

    def start(self) -> FlowRun:
        """Start the flow, and enqueue the items of maps without dependencies.

        If this process ends while it enqueues items, start the flow again with the same id and items to continue.
        Raises FlowConflictError, before anything begins, if this id was started with another definition, or if a
        sub-flow belongs to another flow or an earlier run. Raises UnavailableError or ServerFullError if the server
        can't be used now.
        """
        self.check()
        run = started(self)
        self.is_started = True
        return run

    async def astart(self) -> FlowRun:
        """Run `start` in a thread, so that the event loop isn't blocked."""
        return await in_thread(self.start)

    if not TYPE_CHECKING:  # a type checker would accept every misspelt name
        __getattr__ = refuse_attribute
