"""One function per measurement; each yields (figure, value, unit) rows of one run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.durable import durability
from bench.server import calls, info, private_server
from bench.work import noop, picked_up
from bench.worker import running_worker, wait_for
from jobq import Queue

Row = tuple[str, float, str]
DRAINED = 100_000
PICKED_UP = 500
IDLE_S = 10.0


def drain(processes: int) -> Iterator[Row]:
    """No-op jobs through `jobq worker`: rate from the first finish seen to the last, and Redis' share."""
    with private_server() as client:
        queue = Queue("bench", client)
        noop.options(client=client).enqueue_many([()] * DRAINED)
        with running_worker(client, client.url, processes):
            wait_for(lambda: queue.counts().locked > 0, 30, 0.001)
            client.command("CONFIG", "RESETSTAT")
            started, left = time.perf_counter(), queue.counts().ready
            wait_for(lambda: queue.counts().ready == 0 and queue.counts().locked == 0, 300, 0.05)
            seconds = time.perf_counter() - started
            trips, commands = calls(client)
        yield f"drain no-op, {processes} children", left / seconds, "jobs/s"
        yield f"round trips per job, {processes} children", trips / left, ""
        yield f"Redis commands per job, {processes} children", commands / left, ""


def size() -> Iterator[Row]:
    """Server memory per message of a no-op job."""
    for name, delay in (("queued", None), ("delayed", 3600)):
        with private_server() as client:
            before = int(info(client, "memory")["used_memory"])
            noop.options(client=client, delay=delay).enqueue_many([()] * DRAINED)
            used = int(info(client, "memory")["used_memory"]) - before
            yield f"bytes per {name} job", used / DRAINED, "B"


def enqueue() -> Iterator[Row]:
    """Rates of one producer."""
    with private_server() as client:
        bound = noop.options(client=client)
        bound.enqueue()
        started = time.perf_counter()
        for _ in range(10_000):
            bound.enqueue()
        yield "enqueue, one at a time", 10_000 / (time.perf_counter() - started), "jobs/s"
        started = time.perf_counter()
        bound.enqueue_many([()] * DRAINED)
        yield "enqueue_many", DRAINED / (time.perf_counter() - started), "jobs/s"


def pick_up() -> Iterator[Row]:
    """Enqueue to start of the handler, with one idle child."""
    with private_server() as client, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        bound = picked_up.options(client=client)
        with running_worker(client, client.url, 1):
            bound.enqueue(time.monotonic_ns(), str(ledger))
            wait_for(lambda: ledger.stat().st_size > 0, 30)
            for index in range(PICKED_UP):
                bound.enqueue(time.monotonic_ns(), str(ledger))
                wait_for(lambda want=index + 2: ledger.read_bytes().count(b"\n") == want, 30, 0.005)
        waits = sorted(int(line) for line in ledger.read_text().split()[1:])
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            yield f"idle pick-up {name}", waits[int(share * len(waits))] / 1e6, "ms"


def idle() -> Iterator[Row]:
    """What 20 idle children ask of the server, once they have settled."""
    with private_server() as client:
        with running_worker(client, client.url, 20):
            queue = Queue("bench", client)
            noop.options(client=client).enqueue()
            wait_for(lambda: queue.counts().messages == 0, 30)
            time.sleep(5)
            client.command("CONFIG", "RESETSTAT")
            time.sleep(IDLE_S)
            trips, commands = calls(client)
        yield "round trips of 20 idle children", trips / IDLE_S, "/s"
        yield "Redis commands of 20 idle children, those in scripts too", commands / IDLE_S, "/s"


CASES = {
    "drain1": lambda: drain(1),
    "drain2": lambda: drain(2),
    "enqueue": enqueue,
    "durability": durability,
    "size": size,
    "pickup": pick_up,
    "idle": idle,
}
