"""`python -m bench.events`: costs of events in server CPU per job and in bytes of memory.

A drain of no-op jobs by two processes at each level, and the streams of a made-up week of attempts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import pyarrow.compute as pc

from bench.history import QUEUES, events, fill
from bench.machine import versioned
from bench.page import put
from bench.server import ROOT, VALKEY, info, private_server, redis_binary, server_s
from bench.stage import wait_for
from bench.work import noop
from bench.worker import running_worker
from jobq import Client, Queue

PAGE = ROOT / "docs" / "reference" / "events.md"
COMMAND = "python -m bench.events --report"
HEADERS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
LEVELS = {
    "off": ("off", {}),
    "attempts": ("attempts", {}),
    "all": ("all", {}),
    "all, with trace ids": ("all", HEADERS),
}
MESSAGES = 100_000
MADE_UP = (
    f"Server memory per event, in bytes. The events are attempts of {MESSAGES:,} messages from a simulated week "
    "(`bench/history.py`). The numbers in brackets come from `MEMORY USAGE`."
)
Figures = dict[str, float]


def drained(level: str, headers: dict[str, str], jobs: int) -> Figures:
    """Return figures of a drain: µs of the server per job, and memory of its events."""
    with private_server() as client:
        queue = Queue("bench", client)
        queue.admin.events_level(level)
        queue.admin.events_maxlen(10 * jobs)
        used = [server_s(client)]
        noop.options(client=client, headers=headers).enqueue_many([()] * jobs)
        used.append(server_s(client))
        with running_worker(client, client.url, 2):
            wait_for(
                lambda: queue.admin.counts().ready + queue.admin.counts().locked == 0, 300, 0.05
            )
            used.append(server_s(client))
        count, size = weighed(client, f"{queue.prefix}events")
    enqueued, ran = ((after - before) / jobs * 1e6 for before, after in pairwise(used))
    return {"enqueue": enqueued, "drain": ran, "events": count / jobs, "bytes": size / jobs}


def weighed(client: Client, key: str) -> tuple[int, int]:
    """Return a stream's number of entries, and their bytes."""
    size = client.command("MEMORY", "USAGE", key, "SAMPLES", "0", routed_by=key)
    return client.command("XLEN", key), size or 0


def per_attempt(binary: str, traces: bool) -> tuple[float, float]:
    """Bytes per event of a made-up week's attempts: of the server's memory, and by MEMORY USAGE."""
    table = events(MESSAGES, traces=traces)
    with private_server(binary=binary) as client:
        before = int(info(client, "memory")["used_memory"])
        count = fill(client, table.filter(pc.field("kind") != "enqueued"))
        used = int(info(client, "memory")["used_memory"]) - before
        sizes = [weighed(client, f"jobq:{{{queue}}}:events") for queue in QUEUES]
    return used / count, sum(size for _, size in sizes) / count


def tables(jobs: int, runs: int) -> Iterator[str]:
    """Return the medians as Markdown."""
    found: dict[str, list[Figures]] = {name: [] for name in LEVELS}
    for _ in range(runs):
        for name, (level, headers) in LEVELS.items():
            found[name].append(drained(level, headers, jobs))
    yield (
        f"CPU time of the server (Valkey) per job. In each of {runs} runs, two processes drain {jobs:,} no-op jobs; "
        "the table has medians."
    )
    yield from ("", "| level | enqueue, µs | drain, µs | events | bytes |", "|---|---|---|---|---|")
    for name, each in found.items():
        middle = {figure: statistics.median(one[figure] for one in each) for figure in each[0]}
        cells = f"{middle['enqueue']:.1f} | {middle['drain']:.1f} | {middle['events']:.2f} | {middle['bytes']:.0f}"
        yield f"| {name} | {cells} |"
    yield from ("", MADE_UP, "", "| | without trace ids | with |", "|---|---|---|")
    for binary in (redis_binary(), VALKEY):
        both = [per_attempt(binary, traces) for traces in (False, True)]
        cells = " | ".join(f"{used:.0f} ({usage:.0f})" for used, usage in both)
        yield f"| {versioned(binary)} | {cells} |"


def main() -> None:
    """Measure, and print or write into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.events", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--report", action="store_true", help="into docs/reference/events.md")
    chosen = parser.parse_args()
    started = time.monotonic()
    text = "\n".join(tables(chosen.jobs, chosen.runs))
    print(text, f"\n{time.monotonic() - started:.0f} s")
    if chosen.report:
        put(PAGE, COMMAND, text)


if __name__ == "__main__":
    main()
