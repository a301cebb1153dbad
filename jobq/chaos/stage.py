"""What a fault is, and what its strokes may act on."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jobq.chaos.crew import Crew
from jobq.chaos.place import Place
from jobq.chaos.proxy import Proxy
from jobq.engine.connection import Client


class Stage(NamedTuple):
    """What a stroke may act on. `client` goes past the proxy."""

    crew: Crew
    place: Place
    client: Client
    proxy: Proxy | None
    random: random.Random

    @contextmanager
    def fault(self, name: str, pids: Sequence[int] = (), *, cuts: bool = False) -> Iterator[None]:
        """Note in the ledger what is done inside; `cuts`: it may make second runs necessary."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.crew.ledger.write(
                "fault", at=began, name=name, pids=list(pids), until=time.monotonic(), cuts=cuts
            )

    def worker(self) -> subprocess.Popen[bytes]:
        """One of those that live."""
        return self.random.choice(self.crew.living)

    def road(self) -> Proxy:
        """The proxy of a fault that declared to need one."""
        assert self.proxy is not None
        return self.proxy


class Fault(NamedTuple):
    """`needs`: "proxy"; "own", a server that may be killed; "alone", since it disturbs everybody on the server.

    `pause_s`: between strokes. `lease_s`, `crash_limit`: of the workers.
    """

    name: str
    does: str
    stroke: Callable[[Stage], None]
    needs: tuple[str, ...] = ()
    pause_s: tuple[float, float] = (0.2, 0.8)
    lease_s: float = 15.0
    crash_limit: int = 100
