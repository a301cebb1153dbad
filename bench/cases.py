"""The cases: measurements, peers and repetitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench import crowds, drains, weight
from bench.durable import durability
from bench.latency import latency
from bench.limits import limits
from bench.peers import PEERS, QUEUES
from bench.producing import enqueue
from bench.schedules import lateness
from bench.scripts import scripts
from bench.stage import Row
from bench.start import imports
from bench.targets import CPU, CPU_ALONE
from bench.topic import topics
from bench.topic_layouts import layouts
from bench.waiters import waiters
from bench.waiting import idle, recovery


class Case(NamedTuple):
    """A measurement, its peers and its number of runs.

    Attributes:
        steady: Results are the same every time, even on a busy machine, so one run is enough.
        at_once: Number of peers to run concurrently, for measurements that don't need a quiet machine; jobq, if
            measured repeatedly, runs before them and alone.
    """

    run: Callable[[str], Iterator[Row]]
    peers: tuple[str, ...]
    about: str
    steady: bool = False
    at_once: int = 1


OWN = ("own",)
#: Peers that enqueue 100,000 delayed jobs within seconds.
SWIFT = ("own", "huey", "bullmq", "sidekiq")
_SHORT = ("own", "scripts", "lists")
_QUEUES = QUEUES[1:]
CASES = {
    "enqueue": Case(enqueue, (*_SHORT, *_QUEUES), "one at a time, in bulk"),
    "drain1": Case(drains.noop(1), (*_SHORT, *_QUEUES), "no-op jobs, one process"),
    "drain2": Case(drains.noop(2), (*_SHORT, *_QUEUES), "no-op jobs, two processes"),
    "mixed": Case(
        drains.mixed, ("own", "taskiq"), "no-op sync jobs where async jobs run too, two processes"
    ),
    "cpu": Case(drains.cpu(CPU), ("own", "bare", "lists", *_QUEUES), "jobs of 1 ms of CPU"),
    "cpu1": Case(
        drains.cpu(CPU_ALONE), ("own", "bare"), "the same, one process: the server has its own core"
    ),
    "threads": Case(
        drains.waiting, ("own", "dramatiq", "celery", "sidekiq"), "jobs that wait 20 ms, in threads"
    ),
    "coroutines": Case(
        drains.napping,
        ("own", "bare", "arq", "saq", "taskiq", "bullmq"),
        "jobs that wait 20 ms, as coroutines",
    ),
    "costs": Case(
        drains.costs,
        ("own", "celery", "dramatiq", "bullmq", "sidekiq"),
        "server CPU of jobs waiting 1 ms, 20 ms and 1 s",
    ),
    "latency": Case(latency, ("own", "lists", *_QUEUES), "idle pick-up, and at half load"),
    "delayed": Case(crowds.beside(100_000), SWIFT, "a drain beside 100,000 delayed jobs"),
    "delayed1m": Case(crowds.beside(1_000_000), OWN, "a drain beside a million delayed jobs"),
    "due": Case(crowds.punctual(1_000_000), OWN, "due jobs and retries beside a million delayed"),
    "ready1m": Case(crowds.deep, OWN, "dequeue with a million ready"),
    "scripts": Case(scripts, OWN, "every script at its default limits"),
    "import": Case(imports, OWN, "import jobq, import redis, a first enqueue"),
    "durability": Case(durability, OWN, "the cost of an enqueue at each level of durability"),
    "topic": Case(topics, OWN, "topics: append, poll, read, memory per message"),
    "limits": Case(limits, OWN, "limits: starts, refusals, slots, memory"),
    "waiters": Case(waiters, OWN, "500 coroutines that wait for results"),
    "schedules": Case(lateness, OWN, "how late scheduled calls start"),
    "topic-layouts": Case(layouts, OWN, "ways to store a topic's messages"),
    "leftover": Case(weight.left_over, OWN, "keys left after a drain", steady=True),
    "worker": Case(weight.resident, QUEUES, "memory of a worker's processes", steady=True),
    "size": Case(
        weight.on_redis, ("own", "lists", *_QUEUES), "server memory per job", steady=True, at_once=2
    ),
    "size-valkey": Case(weight.on_valkey, OWN, "server memory per job on Valkey", steady=True),
    "recovery": Case(recovery, QUEUES, "kill -9 in the middle of a job", at_once=len(PEERS)),
    "idle": Case(idle, QUEUES, "commands of idle workers", steady=True, at_once=len(PEERS)),
}


def close() -> None:
    """Close resources that cases keep between runs."""
    crowds.close()
