"""The faults, by name."""

from __future__ import annotations

from jobq.chaos import cluster, forks, load, neighbour, outage
from jobq.chaos import network_faults as network
from jobq.chaos import server_faults as server
from jobq.chaos import worker_faults as workers
from jobq.chaos.figures import Bound
from jobq.chaos.poison import KINDS
from jobq.chaos.producing import QUEUE, deadly
from jobq.chaos.stage import Fault, Stage
from jobq.queue.queue import Queue
from jobq.worker.shared_state import lease_and_margin

__all__ = ["FAULTS", "Fault", "Stage"]


def poison(stage: Stage) -> None:
    """A message that takes along whoever runs it."""
    kind = stage.random.choice(list(KINDS))
    mid = f"{kind}-{stage.random.getrandbits(32):x}"
    with stage.fault("poison"):
        deadly(Queue(QUEUE, stage.client), stage.crew.ledger, mid, kind, stage.crew.crash_limit)


def storm(stage: Stage) -> None:
    """One of the others, by chance."""
    able = {"own", "proxy"}
    chosen = [
        fault
        for fault in FAULTS.values()
        if fault.name not in CALM and able.issuperset({*fault.needs} - {"alone"})
    ]
    stage.random.choice(chosen).stroke(stage)


def calm(stage: Stage) -> None:
    """Nothing."""


#: No strokes, or no single ones.
CALM = ("none", "crowd", "poisoned-crowd", "poison", "storm")
#: Between strokes that leave somebody to boot.
SLOW = (1.0, 2.0)
#: Where leases are meant to end; elsewhere they mustn't, so that a busy machine is no fault.
SHORT_S, STORM_S = 2.0, 4.0
#: So few that half of the children keep up: what comes back after a lease waits behind all that is ready.
HALF = 60
PROXY, SIDE, ALONE, OWN = ("proxy",), ("proxy", "side"), ("alone",), ("own",)
SHARDS = ("own", "shards")
SOON = (Bound("recovery_p99", 1.0),)
AFTER_LEASE = (Bound("recovery_max", SHORT_S + 2.0),)
#: Past the deadline that a child keeps: what is left of the lease then.
FENCED = (Bound("overrun", lease_and_margin(round(SHORT_S * 1000))[1] / 1e9),)
UNDISTURBED = (Bound("share", 0.9, least=True),)
CROWDED = (Bound("share", 0.7, least=True),)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", "nothing: the clean run", calm),
        Fault("child-kill", "kill -9 of a child", workers.child_kill, bounds=SOON),
        Fault("worker-kill", "kill -9 of a supervisor", workers.worker_kill, (), SLOW, SHORT_S,
              bounds=AFTER_LEASE, per_second=HALF),
        Fault("host-loss", "kill -9 of a worker and its children", workers.host_loss, (), SLOW, SHORT_S,
              bounds=AFTER_LEASE, per_second=HALF),
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
        Fault("tear", "RST amid a request or a reply", network.tear, PROXY, (0.0, 0.1)),
        Fault("blackhole", "nothing delivered beyond a lease, then late", network.blackhole, PROXY, (0.5, 1.0), SHORT_S,
              bounds=FENCED),
        Fault("timeout", "nothing delivered until clients call again, then both", network.timeout, PROXY, SLOW, SHORT_S,
              bounds=FENCED),
        Fault("one-way", "nothing delivered in one direction, then late", network.one_way, PROXY, (0.5, 1.0), SHORT_S,
              bounds=FENCED),
        Fault("half-open", "connections die without a word", network.half_open, PROXY, SLOW, SHORT_S, bounds=FENCED),
        Fault("partition", "a worker cut off for two leases, then heard late", network.partition, SIDE, SLOW, SHORT_S,
              bounds=FENCED),
        Fault("long-outage", "the server is away for longer than a call is repeated (1.5 s here)", outage.long_outage,
              SIDE, SLOW, SHORT_S, record_s=outage.RECORD_S),
        Fault("latency", "up to 30 ms per KB each way", network.latency, PROXY),
        Fault("slow", "up to 200 ms per KB each way, 64 KB/s at most", network.slow, PROXY),
        Fault("poison", "messages that take along whoever runs them", poison, (), (0.1, 0.3), crash_limit=3),
        Fault("shard-gone", "kill -9 of one shard of three, for good", cluster.shard_gone, SHARDS, lease_s=SHORT_S,
              bounds=UNDISTURBED, loops=False),
        Fault("fork", "jobs that fork; the fork leaves by return, sys.exit, an exception or _exit", forks.fork, (),
              (0.1, 0.3)),
        Fault("neighbour", "another queue of the same workers is damaged", neighbour.damage, ("queues",), (0.1, 0.3),
              beside="none", bounds=UNDISTURBED, queues=(QUEUE, neighbour.NEIGHBOUR)),
        Fault("crowd", "nothing: all is there before the workers", calm, crowd=0, loops=False),
        Fault("poisoned-crowd", "as crowd, and one in a hundred is deadly", calm, crash_limit=3, crowd=100,
              beside="crowd", bounds=CROWDED, loops=False),
        Fault("storm", "all of the above, by chance", storm, ("own", "proxy"), lease_s=STORM_S),
    )
}  # fmt: skip
