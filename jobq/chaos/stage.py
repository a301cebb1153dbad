"""What a fault is, and what its strokes may act on."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jobq.chaos.crew import Crew
from jobq.chaos.figures import Bound
from jobq.chaos.place import Place
from jobq.chaos.producing import QUEUE
from jobq.chaos.proxy import Proxy
from jobq.client.connection import Client

#: What four children run with time to spare.
PER_SECOND = 150


class Stage(NamedTuple):
    """What a stroke may act on. `client` goes past the proxies; by way of `side` goes every other worker alone."""

    crew: Crew
    place: Place
    client: Client
    proxy: Proxy | None = None
    side: Proxy | None = None
    random: random.Random = random.Random()

    @contextmanager
    def fault(
        self, name: str, pids: Sequence[int] = (), *, cuts: bool = False, spares: bool = False
    ) -> Iterator[None]:
        """Note in the ledger what is done inside. `cuts`: it may make second runs necessary; `spares`: but not
        of what those processes had ended, which somebody else reports for them.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            self.crew.ledger.write(
                "fault", at=began, name=name, pids=list(pids), until=time.monotonic(), cuts=cuts,
                spares=spares,
            )  # fmt: skip

    def worker(self) -> subprocess.Popen[bytes]:
        """One of those that live."""
        return self.random.choice(self.crew.living)

    def road(self) -> Proxy:
        """The proxy of a fault that declared to need one."""
        assert self.proxy is not None
        return self.proxy

    def side_road(self) -> Proxy:
        """The proxy of every other worker, for a fault that declared to need one."""
        assert self.side is not None
        return self.side


class Fault(NamedTuple):
    """`needs`: "proxy"; "side", one more for every other worker; "own", a server that may be killed; "alone",
    since it disturbs everybody on the server; "queues", workers that serve more than the queue under test;
    "shards", a Cluster of its own (jobq/chaos/shards.py).

    `pause_s`: between strokes. `lease_s`, `crash_limit`: of the workers. `bounds`: on what is measured.
    `per_second`: how many are enqueued.
    `crowd`: all is enqueued before the workers start, and one in so many is poison, 0 for none; None: at a
    steady pace while they work. `beside`: the clean fault to whose rate this one's is compared.
    `loops`: of half of the workers, children have an event loop. `queues`: what the workers serve; the first is
    the one under test. `record_s`: how long records of calls live, 0 as usual; producers then have an outage buffer.
    """

    name: str
    does: str
    stroke: Callable[[Stage], None]
    needs: tuple[str, ...] = ()
    pause_s: tuple[float, float] = (0.2, 0.8)
    lease_s: float = 15.0
    crash_limit: int = 100
    bounds: tuple[Bound, ...] = ()
    per_second: int = PER_SECOND
    crowd: int | None = None
    beside: str = ""
    loops: bool = True
    queues: tuple[str, ...] = (QUEUE,)
    record_s: float = 0.0
