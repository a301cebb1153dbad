"""Delivers outbox entries from a child's queues to flows.

An idle child delivers entries immediately, a busy child after its next report.

The server reports with each dequeue whether the queue's outbox has entries. A claim prevents two children from
delivering the same entries. A worker loads the code of flows only when it first receives a message of a flow.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from time import monotonic
from typing import Protocol

from jobq.client.connection import Client
from jobq.client.runtime import runtime
from jobq.errors import JobqError
from jobq.jobs.context import Call, Context
from jobq.jobs.membership import MemberFlow
from jobq.worker import logger
from jobq.worker.cautions import OnceAMinute

#: While there are messages to run, a child drains at most this often: one call to a flow delivers thousands of ends.
EVERY_S = 0.05
#: Number of entries to deliver in a row, before fetched messages run.
MAX_ENTRIES = 1_024


class Flows(Protocol):
    """The functions that a worker calls for flows. Another package implements them."""

    def drain(self, queue: str, most: int, /) -> int:
        """Deliver about `most` entries of the queue's outbox to flows; return the number of delivered entries."""
        ...

    def fill_inputs(self, call: Call, /) -> Call:
        """Return the call with results of earlier steps inserted into its arguments."""
        ...

    def flow_of(self, context: Context, /) -> MemberFlow:
        """Return the flow that contains the running job."""
        ...


class LateFlows:
    """Implements Flows, but imports the code of flows only at the first call. All calls use `client`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @cached_property
    def _flows(self) -> Flows:
        flows: Flows = runtime.flows_of(self._client)
        return flows

    def drain(self, queue: str, most: int) -> int:
        return self._flows.drain(queue, most)

    def fill_inputs(self, call: Call) -> Call:
        return self._flows.fill_inputs(call)

    def flow_of(self, context: Context) -> MemberFlow:
        return self._flows.flow_of(context)


class FlowDrains:
    """Delivers outbox entries of queues to flows. Queues are given by index.

    Args:
        client: A client with a short timeout.
        aside: Whether to deliver the entries in a separate thread.
    """

    def __init__(self, client: Client, names: Sequence[str], *, aside: bool) -> None:
        self._flows, self._names, self._aside = LateFlows(client), names, aside
        self._lock = threading.Lock()
        # Queues for the thread to drain, and the thread while there are such queues.
        self._wanted: dict[int, None] = {}
        self._thread: threading.Thread | None = None
        self._drained_at: dict[int, float] = {}
        self._once = OnceAMinute()
        #: Queues whose entries another drainer has, or this drainer could not deliver.
        self.left: set[int] = set()

    def noticed(self, index: int, *, is_busy: bool) -> bool:
        """Deliver entries of a queue's outbox now, or later if this child is busy.

        Return whether any were delivered now.
        """
        if is_busy and monotonic() - self._drained_at.get(index, 0.0) < EVERY_S:
            return False
        if not self._aside:
            return self._drain(index) > 0
        with self._lock:
            self._wanted[index] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain_wanted, daemon=True)
                self._thread.start()
        return False

    def _drain_wanted(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                index = next(iter(self._wanted))
                del self._wanted[index]
            self._drain(index)

    def settle(self, seconds: float) -> None:
        """Before the child exits, wait until the thread has delivered outbox entries."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _drain(self, index: int) -> int:
        try:
            taken = self._flows.drain(self._names[index], MAX_ENTRIES)
        except JobqError as error:
            taken = 0
            if self._once.is_due(self._names[index]):
                logger.warning(
                    "results in queue %s can't be delivered to flows yet: %s",
                    self._names[index],
                    error,
                )
        self._drained_at[index] = monotonic()
        if taken:
            self.left.discard(index)
        else:
            self.left.add(index)
        return taken
