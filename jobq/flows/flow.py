"""`Flow`: calls of jobs that wait for one another, over any queues."""

from __future__ import annotations

from jobq.client.threads import in_thread
from jobq.durations import Duration
from jobq.flows.definition import Definition
from jobq.flows.run import FlowRun
from jobq.flows.starting import started
from jobq.jobs.queues import ClientLike

KEEP = "7d"


class Flow(Definition):
    """Steps, and what each of them waits for. Nothing happens before `start`.

    ::

        flow = Flow("import", id="2026-11-22")
        rows = flow.map(load, ids(), results=True)
        flow.step(report, rows.results)
        run = flow.start()

    name and id name it together; the id is random if none is given. keep: how long it can be seen after its end.
    queue: where it is announced and its timers wait, by default the queue of its first step.
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
        """Start it, and enqueue the items of maps that wait for nothing. Starting it twice is starting it once.

        Once it is announced, it runs whatever becomes of this process. If this process ends while it enqueues items,
        start the flow again with the same id and items: that goes on where it was. Raises FlowConflictError if this id
        was started with another definition, or if a flow in it belongs to another flow or still runs for an earlier
        run; then nothing begins. ConfigError while a worker is too old for flows, UnavailableError and ServerFullError
        from the server.
        """
        self.check()
        run = started(self)
        self.is_started = True
        return run

    async def astart(self) -> FlowRun:
        """`start` in a thread, so that the event loop goes on."""
        return await in_thread(self.start)
