"""`python -m bench.flows`: cost of map members compared with plain messages, in jobs per second and server CPU.

Two processes of a worker drain no-op jobs, alternating between plain jobs and as many members of one map. A map
counts as drained when its flow is done, so its records are applied and deleted by then. The first fifth isn't measured:
the processes start, and load the code of flows with the first member.

Then, how much CPU of the server the one call takes that ends a step for which all others wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jobq
from bench.page import measure
from bench.server import private_server, server_s
from bench.stage import wait_for
from bench.work import noop
from bench.worker import running_worker, tree_s
from jobq import Flow, Queue
from jobq.flows.state import Edge
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep

#: A drain counts from here to the end: by then all processes have started.
FROM_SHARE = 0.2
DEADLINE_S = 600
#: Steps waiting for one step, and how many are added to a flow per call.
READY_AT_ONCE, ADDED_TOGETHER = (1_000, 9_999), 250


class Drain(NamedTuple):
    """Jobs per second; CPU per message in µs: of the worker, of the server to enqueue and to drain."""

    rate: float
    worker_us: float
    enqueue_us: float
    drain_us: float


def plain(client: jobq.Client, count: int) -> Callable[[], bool]:
    """Enqueue plain messages; return whether all have run."""
    noop.options(client=client).enqueue_many([(number,) for number in range(count)])
    queue = Queue("bench", client)
    return lambda: not _left(queue)


def mapped(client: jobq.Client, count: int) -> Callable[[], bool]:
    """Start a flow with a map; return whether it is done."""
    flow = Flow("bench", id=str(count), client=client)
    flow.map(noop, range(count))
    run = flow.start()
    queue = Queue("bench", client)
    return lambda: not _left(queue) and run.status().state == "done"


KINDS = {"plain": plain, "members of a map": mapped}


def drained(kind: str, count: int) -> Drain:
    """Drain a queue."""
    with private_server() as client:
        before = server_s(client)
        over = KINDS[kind](client, count)
        enqueue_us = (server_s(client) - before) / count * 1e6
        queue = Queue("bench", client)
        with running_worker(client, client.url, 2) as worker:
            wait_for(lambda: _left(queue) <= count * (1 - FROM_SHARE), DEADLINE_S)
            began, left = (time.perf_counter(), tree_s(worker), server_s(client)), _left(queue)
            wait_for(over, DEADLINE_S)
            ended = time.perf_counter(), tree_s(worker), server_s(client)
    wall_s, worker_s, drain_s = (b - a for a, b in zip(began, ended, strict=True))
    return Drain(left / wall_s, worker_s / left * 1e6, enqueue_us, drain_s / left * 1e6)


def readied_ms(count: int) -> float:
    """Measure server CPU of the call that ends a step and makes this many steps ready."""
    with private_server() as client:
        store = FlowStore(client, "bench:1")
        steps = [
            StoredStep(f"s{n}", "step", "bench", (Edge("first", "done"),)) for n in range(count)
        ]
        first = StoredStep("first", "step", "bench")
        store.create(StoredFlow((first,), "hash", "bench", 600_000))
        store.apply("qbench", [FlowChange("begin")])
        for at in range(0, count, ADDED_TOGETHER):
            store.add_steps(steps[at : at + ADDED_TOGETHER])
        before = server_s(client)
        store.apply("qbench", [FlowChange("done", "first")])
        return (server_s(client) - before) * 1e3


def _left(queue: Queue) -> int:
    counts = queue.admin.counts()
    return counts.ready + counts.locked


def tables(count: int, runs: int) -> Iterator[str]:
    """Return the medians as Markdown."""
    found: dict[str, list[Drain]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind, drains in found.items():
            drains.append(drained(kind, count))
    yield f"Medians of {runs} alternating rounds of {count:,} no-op jobs, two processes, Valkey."
    yield ""
    yield "| messages | jobs/s | CPU of the worker, µs | enqueue, server µs | drain, server µs |"
    yield "|---|---|---|---|---|"
    medians = {
        kind: Drain(*map(statistics.median, zip(*rows, strict=True)))
        for kind, rows in found.items()
    }
    for kind, median in medians.items():
        costs = f"{median.worker_us:.0f} | {median.enqueue_us:.1f} | {median.drain_us:.1f}"
        yield f"| {kind} | {median.rate:,.0f} | {costs} |"
    ratios = (b / a for a, b in zip(*medians.values(), strict=True))
    yield f"| ratio | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"
    for steps in READY_AT_ONCE:
        cpu_ms = statistics.median(readied_ms(steps) for _ in range(runs))
        yield ""
        yield f"{steps:,} steps become ready in one call: {cpu_ms:,.0f} ms CPU of the server."


if __name__ == "__main__":
    measure("bench.flows", __doc__, tables, 5, 100_000)
