"""The faults that `jobq chaos` can inject, by name."""

from __future__ import annotations

from jobq.chaos import network_faults as network
from jobq.chaos import queue_faults as queues
from jobq.chaos import schedule_faults as schedules
from jobq.chaos import server_faults as server
from jobq.chaos import worker_faults as workers
from jobq.chaos.producers import QUEUE
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.verdict import Bound
from jobq.worker.shared_state import lease_and_margin


def storm(setup: RoundSetup) -> None:
    """Inject another fault, chosen at random."""
    able = {"own", "proxy"}
    chosen = [
        fault
        for fault in FAULTS.values()
        if fault.name not in NOT_IN_STORM and able.issuperset({*fault.needs} - {"alone"})
    ]
    setup.random.choice(chosen).inject(setup)


def nothing(setup: RoundSetup) -> None:
    """Inject no fault."""


#: Faults that inject nothing, or that `storm` cannot inject one by one.
NOT_IN_STORM = ("none", "crowd", "poisoned-crowd", "poison", "keys-under-kills", "batches", "storm")
#: Pause after a fault that makes a process or the server restart.
SLOW = (1.0, 2.0)
#: Lease of faults that let leases expire. Other faults have long leases, so that a busy machine causes no second run.
SHORT_S, STORM_S = 2.0, 4.0
#: Messages per second that half of the processes can run, so that a recovered message doesn't wait for a backlog.
HALF_LOAD = 60
PROXY, SIDE, ALONE, OWN = ("proxy",), ("proxy", "side"), ("alone",), ("own",)
SHARDS = ("own", "shards")
SOON = (Bound("recovery_p99", 1.0),)
AFTER_LEASE = (Bound("recovery_max", SHORT_S + 2.0),)
#: A process stops this long before its lease ends; it may overrun by no more.
FENCED = (Bound("overrun", lease_and_margin(SHORT_S)[1] / 1e9),)
UNDISTURBED = (Bound("share", 0.9, least=True),)
CROWDED = (Bound("share", 0.7, least=True),)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", "no fault, as a baseline", nothing),
        Fault("child-kill", "kill -9 of a worker process", workers.child_kill, bounds=SOON,
              threads=4),
        Fault("limits-kill", "jobs waiting for limits, and kill -9 of a worker process", workers.limits_kill,
              ("limits",), threads=2),
        Fault("worker-kill", "kill -9 of a supervisor", workers.worker_kill, (), SLOW, SHORT_S,
              bounds=AFTER_LEASE, per_second=HALF_LOAD),
        Fault("host-loss", "kill -9 of a supervisor and its processes", workers.host_loss, (), SLOW, SHORT_S,
              bounds=AFTER_LEASE, per_second=HALF_LOAD),
        Fault("worker-stop", "SIGSTOP of a worker for longer than its leases", workers.worker_stop, lease_s=SHORT_S),
        Fault("worker-term", "TERM to a worker, and a new worker", workers.worker_term, (), SLOW, threads=4),
        Fault("keys-under-kills", "kill -9 of processes and supervisors while each key has a limit", workers.any_kill,
              (), SLOW, SHORT_S, per_second=HALF_LOAD, threads=4, event_loops=False, keys=3),
        Fault("batches", "calls of a batch job, some cancelled, and faults of workers and the server",
              workers.batches, OWN, SLOW, SHORT_S, per_second=HALF_LOAD, module="jobq.chaos.batch_jobs"),
        Fault("scripts-flush", "SCRIPT FLUSH", server.scripts_flush, ALONE),
        Fault("clients-kill", "CLIENT KILL of every connection", server.clients_kill, ALONE),
        Fault("server-restart", "kill -9 of the server, then a start from its AOF", server.server_restart, OWN, SLOW),
        Fault("memory-full", "maxmemory reached", server.memory_full, ALONE),
        Fault("disk-full", "no disk space for the append-only file", server.disk_full, OWN),
        Fault("huge", "payloads of 1 KB to 64 MB among small payloads", queues.huge),
        Fault("backlog", "2,000 messages in one burst", queues.backlog),
        Fault("delayed", "20,000 delayed messages in addition to the others", queues.delayed, (), SLOW),
        Fault("lost-reply", "the server runs an EVALSHA, but its reply is lost", network.lost_reply, PROXY, (0.0, 0.1)),
        Fault("reset", "RST to every connection", network.reset, PROXY),
        Fault("tear", "RST inside a request or a reply", network.tear, PROXY, (0.0, 0.1)),
        Fault("blackhole", "traffic is held for longer than a lease, then delivered",
              network.blackhole, PROXY, (0.5, 1.0), SHORT_S,
              bounds=FENCED),
        Fault("timeout", "traffic is held until clients repeat calls, then both arrive",
              network.timeout, PROXY, SLOW, SHORT_S,
              bounds=FENCED),
        Fault("one-way", "traffic in one direction is held, then delivered",
              network.one_way, PROXY, (0.5, 1.0), SHORT_S,
              bounds=FENCED),
        Fault("half-open", "connections die without a FIN or RST",
              network.half_open, PROXY, SLOW, SHORT_S, bounds=FENCED),
        Fault("partition", "half of the workers are cut off, for two leases", network.partition, SIDE, SLOW, SHORT_S,
              bounds=FENCED),
        Fault("long-outage", "the server is unreachable for longer than calls are retried (1.5 s here)",
              network.long_outage,
              SIDE, SLOW, SHORT_S, record_s=network.RECORD_S),
        Fault("latency", "up to 30 ms per KB each way", network.latency, PROXY),
        Fault("slow", "up to 200 ms per KB each way, 64 KB/s at most", network.slow, PROXY),
        Fault("poison", "messages that crash their process",
              queues.poison, (), (0.1, 0.3), crash_limit=3),
        Fault("shard-gone", "kill -9 of one shard of three, without a restart",
              server.shard_gone, SHARDS, lease_s=SHORT_S,
              bounds=UNDISTURBED, event_loops=False),
        Fault("flows", "kill -9 of processes, supervisors and producers of flows on a Cluster of three shards",
              workers.any_kill, (*SHARDS, "flows"), lease_s=SHORT_S, event_loops=False),
        Fault("fork", "jobs that fork; the fork ends by return, sys.exit, an exception or _exit", queues.fork, (),
              (0.1, 0.3)),
        Fault("schedulers", "kill -9 and SIGSTOP of schedulers; each tick is enqueued once",
              schedules.schedulers),
        Fault("neighbour", "damaged keys of another queue that the same workers serve",
              queues.neighbour, ("queues",), (0.1, 0.3),
              baseline="none", bounds=UNDISTURBED, queues=(QUEUE, queues.NEIGHBOUR)),
        Fault("crowd", "no fault: all messages are enqueued before the workers start",
              nothing, preload=True, event_loops=False),
        Fault("poisoned-crowd", "like crowd, but one message in a hundred crashes its process",
              nothing, crash_limit=3, preload=True, poison_every=100,
              baseline="crowd", bounds=CROWDED, event_loops=False),
        Fault("storm", "a random mix of the faults above", storm, ("own", "proxy"), lease_s=STORM_S),
    )
}  # fmt: skip
