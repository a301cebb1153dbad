"""What a fault is, and what it acts on."""

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
from jobq.chaos.workers import WorkerGroup
from jobq.client.connection import Client

#: What four processes run with time to spare.
PER_SECOND = 150


class RoundSetup(NamedTuple):
    """What a fault acts on.

    client: reaches the server directly. proxy: between the server and everybody else. side: a second proxy, for
    every other worker. random: seeded for this injection.
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
        """Write a fault into the ledger that lasts while the block runs.

        pids: the processes that it affects; none: all. cuts: it can cause second runs. spares: but not of runs
        that those processes had finished, because their supervisor reports these.
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
        """Return a random running worker."""
        return self.random.choice(self.workers.running)

    def main_proxy(self) -> Proxy:
        """Return the proxy; only for a fault that needs one."""
        assert self.proxy is not None
        return self.proxy

    def second_proxy(self) -> Proxy:
        """Return the proxy of every other worker; only for a fault that needs it."""
        assert self.side is not None
        return self.side


class Fault(NamedTuple):
    """A kind of fault, and the round in which it is injected.

    needs: "proxy"; "side", a second proxy for every other worker; "own", a server that may be killed; "alone",
    because it disturbs every user of the server; "queues", workers that serve more than the tested queue;
    "limits", jobs with limits; "shards", a Cluster of its own; "flows", a round of flows on that.
    pause_s: between injections, least and most. lease_s, crash_limit: of the workers.
    bounds: on what is measured. per_second: messages enqueued. preload: enqueue everything before the workers
    start. poison_every: one message in so many is poison, 0 for none. baseline: the fault whose rate this one's is
    compared to. event_loops: half of the workers run async jobs. threads: sync jobs at once in one process. queues:
    what the workers serve; the first is tested. record_s: how long records of calls live, 0 for the usual time;
    producers then have an outage buffer. keys: how many crowded keys there are beside up to 10,000 others, 0 for
    messages without keys; of each key, KEY_MAX messages may run at once.
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
