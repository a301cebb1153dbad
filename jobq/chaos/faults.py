"""The faults, by name: what each stroke of the nemesis does, and how it heals."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jobq.chaos import load
from jobq.chaos.crew import Crew, alive, children_of, signalled
from jobq.chaos.place import Place
from jobq.chaos.producing import DEADLY, QUEUE, enqueue
from jobq.chaos.proxy import Proxy
from jobq.config import ServerSettings
from jobq.engine.connection import Client
from jobq.engine.queue import Queue

ORPHAN_S = 5.0


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


def child_kill(stage: Stage) -> None:
    """kill -9 of one child."""
    children = children_of(stage.worker().pid)
    if children:
        pid = stage.random.choice(children)
        with stage.fault("child-kill", [pid], cuts=True):
            signalled(pid, signal.SIGKILL)


def worker_kill(stage: Stage) -> None:
    """kill -9 of one supervisor, whose children must go with it; then a new worker."""
    worker = stage.worker()
    children = children_of(worker.pid)
    stage.crew.drop(worker)
    with stage.fault("worker-kill", [worker.pid, *children], cuts=True):
        worker.kill()
        worker.wait()
    deadline = time.monotonic() + ORPHAN_S
    while left := list(filter(alive, children)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        stage.crew.ledger.write("orphan", pid=pid)
        signalled(pid, signal.SIGKILL)
    stage.crew.start()


def worker_stop(stage: Stage) -> None:
    """SIGSTOP of a worker and its children beyond their leases, then SIGCONT."""
    worker = stage.worker()
    pids = [worker.pid, *children_of(worker.pid)]
    with stage.fault("worker-stop", pids, cuts=True):
        try:
            for pid in pids:
                signalled(pid, signal.SIGSTOP)
            time.sleep(stage.crew.lease_s * stage.random.uniform(1.3, 1.8))
        finally:
            for pid in pids:
                signalled(pid, signal.SIGCONT)


def worker_term(stage: Stage) -> None:
    """TERM to one worker, which drains; a new one at once."""
    with stage.fault("worker-term"):
        stage.crew.leave(stage.worker())
    stage.crew.start()


def scripts_flush(stage: Stage) -> None:
    """SCRIPT FLUSH."""
    with stage.fault("scripts-flush"):
        stage.client.command("SCRIPT", "FLUSH")


def clients_kill(stage: Stage) -> None:
    """CLIENT KILL of every connection."""
    with stage.fault("clients-kill"):
        stage.client.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def server_restart(stage: Stage) -> None:
    """kill -9 of the server, and a start on its append-only file."""
    with stage.fault("server-restart"):
        stage.place.restart()


def memory_full(stage: Stage) -> None:
    """maxmemory below what is used, for a while."""
    before = stage.client.command("CONFIG", "GET", "maxmemory")[1]
    with stage.fault("memory-full"):
        try:
            stage.client.command("CONFIG", "SET", "maxmemory", "1")
            time.sleep(stage.random.uniform(0.3, 0.8))
        finally:
            stage.client.command("CONFIG", "SET", "maxmemory", before)


def disk_full(stage: Stage) -> None:
    """No room for the append-only file, for a while."""
    with stage.fault("disk-full"):
        try:
            stage.place.fill_disk()
            time.sleep(stage.random.uniform(0.3, 0.8))
        finally:
            stage.place.free_disk()


def lost_reply(stage: Stage) -> None:
    """The server runs an EVALSHA, its reply is lost with the connection."""
    road = stage.road()
    before = road.lost
    with stage.fault("lost-reply"):
        road.lose_reply(stage.random.randint(1, 8))
        deadline = time.monotonic() + 1
        while road.lost == before and time.monotonic() < deadline:
            time.sleep(0.005)


def reset(stage: Stage) -> None:
    """RST to every connection."""
    with stage.fault("reset"):
        stage.road().cut()


def blackhole(stage: Stage) -> None:
    """Nothing is delivered for longer than a lease; then all of it, late."""
    road = stage.road()
    with stage.fault("blackhole", cuts=True):
        try:
            road.swallow()
            time.sleep(stage.crew.lease_s * stage.random.uniform(1.2, 1.6))
        finally:
            road.deliver()


def timeout(stage: Stage) -> None:
    """Nothing is delivered for longer than clients wait for a reply; what they repeated arrives twice."""
    road = stage.road()
    with stage.fault("timeout", cuts=True):
        try:
            road.swallow()
            time.sleep(ServerSettings().socket_timeout_s + stage.random.uniform(0.5, 1.5))
        finally:
            road.deliver()


def latency(stage: Stage) -> None:
    """Up to 30 ms per KB each way, for a while."""
    road = stage.road()
    with stage.fault("latency"):
        try:
            road.latency_s = 0.03
            time.sleep(stage.random.uniform(0.5, 1.5))
        finally:
            road.latency_s = 0.0


def poison(stage: Stage) -> None:
    """A message that kills whoever runs it."""
    queue = Queue(QUEUE, stage.client)
    mid = f"poison-{stage.random.getrandbits(32):x}"
    with stage.fault("poison"):
        stage.crew.ledger.write("poison", mid=mid, limit=stage.crew.crash_limit)
        enqueue(queue, stage.crew.ledger, mid, DEADLY)


def storm(stage: Stage) -> None:
    """One of the others, by chance."""
    calm = ("none", "poison", "storm")
    chosen = stage.random.choice([name for name in FAULTS if name not in calm])
    FAULTS[chosen].stroke(stage)


#: Between strokes that leave somebody to boot.
SLOW = (1.0, 2.0)
#: Where leases are meant to end; elsewhere they mustn't, so that a busy machine is no fault.
SHORT_S, STORM_S = 2.0, 4.0
PROXY, ALONE, OWN = ("proxy",), ("alone",), ("own",)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", "nothing: the clean run", lambda _: None),
        Fault("child-kill", "kill -9 of a child", child_kill),
        Fault("worker-kill", "kill -9 of a supervisor", worker_kill, (), SLOW, SHORT_S),
        Fault("worker-stop", "SIGSTOP of a worker beyond its leases", worker_stop, lease_s=SHORT_S),
        Fault("worker-term", "TERM to a worker, and a new one", worker_term, (), SLOW),
        Fault("scripts-flush", "SCRIPT FLUSH", scripts_flush, ALONE),
        Fault("clients-kill", "CLIENT KILL of every connection", clients_kill, ALONE),
        Fault("server-restart", "kill -9 of the server, a start on its AOF", server_restart, OWN, SLOW),
        Fault("memory-full", "maxmemory reached", memory_full, ALONE),
        Fault("disk-full", "no room for the append-only file", disk_full, OWN),
        Fault("huge", "contents of 1 KB to 64 MB among the others", load.huge),
        Fault("backlog", "thousands at once", load.backlog),
        Fault("delayed", "20,000 that aren't due beside the others", load.delayed, (), SLOW),
        Fault("lost-reply", "an EVALSHA is run, its reply lost", lost_reply, PROXY, (0.0, 0.1)),
        Fault("reset", "RST to every connection", reset, PROXY),
        Fault("blackhole", "nothing delivered beyond a lease, then late", blackhole, PROXY, lease_s=SHORT_S),
        Fault("timeout", "nothing delivered until clients call again, then both", timeout, PROXY, SLOW, SHORT_S),
        Fault("latency", "up to 30 ms per KB each way", latency, PROXY),
        Fault("poison", "messages that kill whoever runs them", poison, (), (0.1, 0.3), crash_limit=3),
        Fault("storm", "all of the above, by chance", storm, ("own", "proxy"), lease_s=STORM_S),
    )
}  # fmt: skip
