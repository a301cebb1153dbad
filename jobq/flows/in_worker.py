"""The worker's entry point to flows. `import jobq` registers it, and it loads when the first flow message arrives."""

from __future__ import annotations

from jobq.client.connection import Client
from jobq.flows.adding import flow_of
from jobq.flows.draining import Drainer
from jobq.flows.inputs import FlowInputs
from jobq.jobs.context import Call, Context
from jobq.jobs.membership import MemberFlow


class FlowsInWorker:
    """Delivers outbox entries to flows, and loads the inputs of running members."""

    def __init__(self, client: Client) -> None:
        self._client, self._drainer = client, Drainer(client)

    def drain(self, queue: str, most: int) -> int:
        """Deliver about `most` records from a queue's outbox to the flows; return how many were delivered."""
        return self._drainer.drain(queue, most)

    def fill_inputs(self, call: Call) -> Call:
        """Return the call with the results of other steps in its arguments."""
        return FlowInputs(self._client)(call)

    def flow_of(self, context: Context) -> MemberFlow:
        """Return the flow of a running member."""
        return flow_of(self._client, context)
