"""Defines `Fault`, and `RoundSetup`, the objects that a fault can use."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jobq.chaos.producers import QUEUE
from jobq.chaos.proxy import Proxy
from jobq.chaos.servers import TargetServer
from jobq.chaos.verdict import Bound
from jobq.chaos.workers import WORKLOAD, WorkerGroup
from jobq.client.connection import Client

#: Rate that four processes can run with time to spare.
PER_SECOND = 150


class RoundSetup(NamedTuple):
    """Objects that a fault uses.

    Attributes:
        client: Connects directly to the server.
        proxy: Forwards connections from all other clients to the server.
        side: A second proxy, which every second worker uses.
        random: Random numbers for this injection.
    """

    workers: WorkerGroup
    server: TargetServer
    client: Client
    proxy: Proxy | None = None
    side: Proxy | None = None
    random: random.Random = random.Random()

    @contextmanager
    def injected(
        self, name: str, pids: Sequence[int] = (), *, cuts: bool = False, spares: bool = False
    ) -> Iterator[None]:
        """Record in the ledger a fault that lasts while the block runs.

        Args:
            pids: The processes affected by the fault; an empty sequence means all processes.
            cuts: Whether the fault can cause second runs.
            spares: Whether runs that finished in `pids` are not repeated, because the supervisor reports them.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            self.workers.ledger.write(
                "fault", at=began, name=name, pids=list(pids), until=time.monotonic(), cuts=cuts,
                spares=spares,
            )  # fmt: skip

    def worker(self) -> subprocess.Popen[bytes]:
        return self.random.choice(self.workers.running)

    def main_proxy(self) -> Proxy:
        assert self.proxy is not None
        return self.proxy

    def second_proxy(self) -> Proxy:
        assert self.side is not None
        return self.side


class Fault(NamedTuple):
    """A kind of fault, and the settings of tests that inject it.

    Attributes:
        needs: Requirements: "proxy"; "side", a second proxy for every second worker; "own", a server that may be
            killed; "alone", because the fault disturbs every user of the server; "queues", workers that serve more than
            the tested queue; "limits", jobs with limits; "shards", a separate Cluster; "flows", a round of flows on a
            Cluster.
        pause_s: Minimum and maximum time between injections.
        lease_s, crash_limit: Options of the workers.
        bounds: Limits for the measurements.
        per_second: Messages enqueued per second.
        preload: Whether to enqueue all messages before the workers start.
        poison_every: Number of messages between two messages that crash their process, or 0 for no such messages.
        baseline: Name of a fault, to compare the measured rates of both faults.
        event_loops: Whether half of the workers run async jobs.
        threads: Concurrent sync jobs per process.
        queues: Queues of the workers; the first is tested.
        record_s: Lifetime of call records, or 0 for the usual time. If it isn't 0, producers have an outage buffer.
        keys: Number of keys with many messages, in addition to up to 10,000 other keys. With 0, messages don't have
            keys. KEY_MAX messages of each key may run concurrently.
        module: Module with the jobs of the workers.
    """

    name: str
    does: str
    inject: Callable[[RoundSetup], None]
    needs: tuple[str, ...] = ()
    pause_s: tuple[float, float] = (0.2, 0.8)
    lease_s: float = 15.0
    crash_limit: int = 100
    bounds: tuple[Bound, ...] = ()
    per_second: int = PER_SECOND
    preload: bool = False
    poison_every: int = 0
    baseline: str = ""
    event_loops: bool = True
    threads: int = 1
    queues: tuple[str, ...] = (QUEUE,)
    record_s: float = 0.0
    keys: int = 0
    module: str = WORKLOAD
