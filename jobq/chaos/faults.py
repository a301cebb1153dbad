"""The faults, by name."""

from __future__ import annotations

from jobq.chaos import load
from jobq.chaos import network_faults as network
from jobq.chaos import server_faults as server
from jobq.chaos import worker_faults as workers
from jobq.chaos.producing import DEADLY, QUEUE, enqueue
from jobq.chaos.stage import Fault, Stage
from jobq.engine.queue import Queue

__all__ = ["FAULTS", "Fault", "Stage"]


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
        Fault("child-kill", "kill -9 of a child", workers.child_kill),
        Fault("worker-kill", "kill -9 of a supervisor", workers.worker_kill, (), SLOW, SHORT_S),
        Fault("worker-stop", "SIGSTOP of a worker beyond its leases", workers.worker_stop, lease_s=SHORT_S),
        Fault("worker-term", "TERM to a worker, and a new one", workers.worker_term, (), SLOW),
        Fault("scripts-flush", "SCRIPT FLUSH", server.scripts_flush, ALONE),
        Fault("clients-kill", "CLIENT KILL of every connection", server.clients_kill, ALONE),
        Fault("server-restart", "kill -9 of the server, a start on its AOF", server.server_restart, OWN, SLOW),
        Fault("memory-full", "maxmemory reached", server.memory_full, ALONE),
        Fault("disk-full", "no room for the append-only file", server.disk_full, OWN),
        Fault("huge", "contents of 1 KB to 64 MB among the others", load.huge),
        Fault("backlog", "thousands at once", load.backlog),
        Fault("delayed", "20,000 that aren't due beside the others", load.delayed, (), SLOW),
        Fault("lost-reply", "an EVALSHA is run, its reply lost", network.lost_reply, PROXY, (0.0, 0.1)),
        Fault("reset", "RST to every connection", network.reset, PROXY),
        Fault("blackhole", "nothing delivered beyond a lease, then late", network.blackhole, PROXY, lease_s=SHORT_S),
        Fault("timeout", "nothing delivered until clients call again, then both", network.timeout, PROXY, SLOW, SHORT_S),
        Fault("latency", "up to 30 ms per KB each way", network.latency, PROXY),
        Fault("poison", "messages that kill whoever runs them", poison, (), (0.1, 0.3), crash_limit=3),
        Fault("storm", "all of the above, by chance", storm, ("own", "proxy"), lease_s=STORM_S),
    )
}  # fmt: skip
