"""A chaos test with twelve queues on a Cluster. It kills one of three shards, which must not affect the others."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from jobq.chaos.ledger import Line
from jobq.chaos.producers import Producer, ProducerLoad, enqueue
from jobq.chaos.round import (
    DRAIN_S,
    SLOWEST,
    RoundPlan,
    WakeupMonitor,
    collected,
    drained,
    injections,
)
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import SHARDS, OwnCluster
from jobq.chaos.verdict import FinalState, Verdict, verdict_of
from jobq.chaos.workers import WorkerGroup, WorkerOptions
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.queue.queue import Queue

QUEUES, WORKERS, CHILDREN = 12, 2, 5
#: Duration before and after the kill, longer than a lease.
MIN_S = 3.0
#: A message that ran this soon after its enqueue was not delayed.
SOON_S = 2.0
#: Two long jobs per shard start this long before the kill and outlast their leases. So each worker holds both
#: leases that it cannot renew and leases that it can.
LONG_BEFORE_S, LONG_JOBS = 1.0, 2
PATIENCE_S = 1.0


def run_cluster_round(server: OwnCluster, plan: RoundPlan, folder: Path) -> Verdict:
    """Run the test. `share` is the number of promptly run messages after the kill, divided by the number before."""
    namespace, fault = f"chaos-{secrets.token_hex(4)}", plan.fault
    client, names = server.client(namespace), queues_on(server, namespace)
    # The shard that the fault will choose.
    gone = next(injections(plan.seed, fault)).random.randrange(SHARDS)
    healthy = [name for name in names if server.shard_of(_key(namespace, name)) != gone]
    options = WorkerOptions(fault.lease_s, fault.crash_limit, queues=names)
    workers = WorkerGroup(folder, server.url, namespace, options)
    wakeups = WakeupMonitor(workers.ledger, fault.lease_s)
    wakeups.start()
    with ExitStack() as after:
        after.callback(workers.kill)
        after.callback(client.close)
        after.callback(wakeups.stop)
        for _ in range(WORKERS):
            workers.start(CHILDREN)
        workers.ready()
        span_s = max(MIN_S, plan.jobs / fault.per_second / 2)
        setup = RoundSetup(
            workers, server, client, random=next(injections(plan.seed, fault)).random
        )
        killed_at = _work(setup, plan, names, healthy, span_s)
        queues = [Queue(name, client) for name in healthy]
        deadline = time.monotonic() + DRAIN_S + plan.jobs / SLOWEST
        waiting = frozenset().union(*[drained(queue, plan.jobs, deadline) for queue in queues])
        exited = workers.exited()
        workers.stop()
        workers.ledger.write("late", worst=wakeups.stop())
        lines = list(of_queues(workers.ledger.lines(), healthy))
        verdict = verdict_of(lines, _final(queues, workers, waiting, exited))
        verdict.broken["aborted"] = sorted(cut_short(lines))
        return verdict._replace(share=kept_up(lines, killed_at, span_s))


def queues_on(server: OwnCluster, namespace: str, count: int = QUEUES) -> list[str]:
    """Return `count` names of queues, evenly spread over the shards."""
    by_shard: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
    for number in itertools.count():
        name = f"q{number}"
        there = by_shard[server.shard_of(_key(namespace, name))]
        if len(there) < count // SHARDS:
            there.append(name)
        if all(len(names) == count // SHARDS for names in by_shard.values()):
            return [name for names in zip(*by_shard.values(), strict=True) for name in names]
    raise AssertionError("count() ended")


def _work(
    setup: RoundSetup, plan: RoundPlan, names: Sequence[str], healthy: Sequence[str], span_s: float
) -> float:
    """Enqueue messages at a steady rate, and kill the shard halfway. Return the time of the kill."""
    workers, client = setup.workers, setup.client
    settings = ServerSettings(
        url=setup.server.url,
        namespace=client.namespace,
        durability=plan.durability,
        patience_s=PATIENCE_S,
    )
    load = ProducerLoad(max(4, plan.jobs // len(names)), 2 * span_s, plan.seed)
    producers = [Producer(settings, name, workers.ledger, name, load) for name in names]
    _warm_up(workers, client, names)
    for producer in producers:
        producer.start()
    try:
        time.sleep(max(0.0, span_s - LONG_BEFORE_S))
        long_s = LONG_BEFORE_S + max(span_s, 1.5 * plan.fault.lease_s)
        # The first three names are of three shards, and so on.
        for number, name in enumerate(names[: SHARDS * LONG_JOBS]):
            enqueue(Queue(name, client), workers.ledger, f"{name}-long{number}", long_s)
        time.sleep(LONG_BEFORE_S)
        killed_at = time.monotonic()
        workers.ledger.write("injection", number=0, pause=span_s)
        plan.fault.inject(setup)
        time.sleep(span_s)
    finally:
        for producer, name in zip(producers, names, strict=True):
            if name not in healthy:
                producer.stop()
        for producer in producers:
            producer.join()
    return killed_at


def _warm_up(workers: WorkerGroup, client: Client, names: Sequence[str]) -> None:
    """Run one message in each queue, so that every worker has opened its connections."""
    for name in names:
        enqueue(Queue(name, client), workers.ledger, f"{name}-first", 0.0)
    for name in names:
        drained(Queue(name, client), 0)


def of_queues(lines: Iterable[Line], names: Sequence[str]) -> Iterator[Line]:
    """Yield ledger lines about messages of these queues, and ledger lines that aren't about messages.

    Each mid begins with the name of its queue.
    """
    known = frozenset(names)

    def ours(mid: str) -> bool:
        return mid.partition("-")[0] in known

    calls: set[str] = set()
    finished: list[Line] = []
    for line in lines:
        word = line["word"]
        if word == "handed":
            yield {**line, "messages": [row for row in line["messages"] if ours(row[0])]}
        elif word == "finish":
            # All messages of a call are of one queue.
            if all(ours(mid) for mid, *_ in line["endings"]):
                calls.add(line["call"])
                yield line
        elif word == "finished":
            finished.append(line)
        elif "mid" not in line or ours(line["mid"]):
            yield line
    yield from (line for line in finished if line["call"] in calls)


def cut_short(lines: Iterable[Line]) -> set[str]:
    """Return the mids of started but unfinished runs."""
    began, ended = set[tuple[str, int, int]](), set[tuple[str, int, int]]()
    for line in lines:
        if line["word"] in ("start", "end"):
            run = (line["mid"], line["fence"], line["pid"])
            (began if line["word"] == "start" else ended).add(run)
    return {mid for mid, *_ in began - ended}


def kept_up(lines: Sequence[Line], killed_at: float, span_s: float) -> float:
    """Return how the share of promptly run messages changed: the share after the kill, divided by the share before."""
    asked, ended = dict[str, float](), dict[str, float]()
    for line in lines:
        if line["word"] == "enqueue":
            asked[line["mid"]] = line["at"]
        elif line["word"] == "end":
            ended[line["mid"]] = min(line["at"], ended.get(line["mid"], line["at"]))
    before = after = 0
    for mid, at in asked.items():
        if ended.get(mid, at + 2 * SOON_S) - at <= SOON_S:
            before += killed_at - span_s <= at < killed_at
            after += killed_at <= at < killed_at + span_s
    return after / before if before else 0.0


def _final(
    queues: Sequence[Queue], workers: WorkerGroup, waiting: frozenset[str], exited: tuple[str, ...]
) -> FinalState:
    parts = [collected(queue, not waiting) for queue in queues]
    return FinalState(
        waiting, frozenset().union(*[dead for dead, _ in parts]), (),
        tuple(violation for _, broken in parts for violation in broken), workers.tracebacks(), exited,
    )  # fmt: skip


def _key(namespace: str, name: str) -> str:
    return f"{namespace}:{{{name}}}:ready"
