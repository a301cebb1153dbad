"""`python -m bench.keys`: costs of keys, in server CPU per message and jobs per second of a worker.

One driver enqueues by 250, and dequeues and finishes by 64. Then two processes of a worker drain no-op jobs and
jobs of 1 ms CPU. Each round measures every case once, and prints medians. Peers drain the same jobs without keys,
since BullMQ has groups only in its paid edition, and Sidekiq and Dramatiq have none. Peers that can't be installed
are left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.drains import drain
from bench.page import measure
from bench.peers import PEERS
from bench.peers.venvs import Missing, named
from bench.server import private_server, server_s
from bench.stage import wait_for
from bench.work import noop, spin
from bench.worker import running_worker
from jobq import Ending, Queue

BATCH, SPINS = 64, 2_400
BESIDE = ("bullmq", "sidekiq", "dramatiq")
#: A drain counts from here to the end: by then all processes have started.
FROM_SHARE = 0.2


class Case(NamedTuple):
    """A number of keys used in turn, and the limit of concurrent messages per key."""

    keys: int
    key_max: int | None = None

    def key_of(self, number: int) -> str | None:
        """Return the key of a message."""
        return f"customer-{number % self.keys}" if self.keys else None


CASES = {
    "none": Case(0),
    "1": Case(1),
    "32": Case(32),
    "1,000": Case(1_000),
    "1,000, at most 5 of each at once": Case(1_000, 5),
}


def driven(case: Case, count: int) -> tuple[float, float]:
    """µs of the server per message: to enqueue it, and to hand it out and end it."""
    with private_server() as client:
        queue = Queue("bench", client)
        if case.key_max:
            queue.rules(key_max=case.key_max)
        rows: list[Any] = [b"{}"] * count
        if case.keys:
            rows = [(None, b"{}", case.key_of(number)) for number in range(count)]
        used = [server_s(client)]
        queue.enqueue_many(rows)
        used.append(server_s(client))
        endings: list[Ending] = []
        while True:
            dequeued = queue.finish(endings, dequeue=BATCH).dequeued
            assert dequeued is not None
            if not dequeued.messages and not endings:
                break
            endings = [
                Ending(mid=message.mid, token=message.token) for message in dequeued.messages
            ]
        used.append(server_s(client))
    return (used[1] - used[0]) / count * 1e6, (used[2] - used[1]) / count * 1e6


def drained(case: Case, job: Any, count: int) -> float:
    """Return jobs per second of two processes."""
    with private_server() as client:
        queue = Queue("bench", client)
        if case.key_max:
            queue.rules(key_max=case.key_max)
        keyed = (
            job.options(client=client, key=case.key_of) if case.keys else job.options(client=client)
        )
        keyed.enqueue_many([(number,) for number in range(count)])
        with running_worker(client, client.url, 2):
            wait_for(lambda: _left(queue) <= count * (1 - FROM_SHARE), 300)
            began, first = time.perf_counter(), _left(queue)
            wait_for(lambda: not _left(queue), 300)
            return first / (time.perf_counter() - began)


def _left(queue: Queue) -> int:
    counts = queue.admin.counts()
    return counts.ready + counts.locked


def beside(name: str, count: int) -> tuple[float, float]:
    """Return jobs per second of a peer's two processes, without keys: no-op jobs, and jobs of 1 ms."""
    counts = {"noop": min(count, PEERS[name].jobs), "spin": min(count, SPINS)}
    rates = [next(drain(name, handler, 2, most, handler))[1] for handler, most in counts.items()]
    return rates[0], rates[1]


def tables(count: int, runs: int) -> Iterator[str]:
    """Return the medians as Markdown."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in CASES}
    for _ in range(runs):
        for name, case in CASES.items():
            rates = (drained(case, noop, count), drained(case, spin, min(count, SPINS)))
            found[name].append((*driven(case, count), *rates))
    yield f"Medians of {runs} alternating rounds of {count:,} messages ({min(count, SPINS):,} of 1 ms), Valkey."
    yield ""
    yield "| keys | enqueue, server µs | hand out and end, server µs | no-op jobs/s | 1 ms jobs/s |"
    yield "|---|---|---|---|---|"
    for name, rows in found.items():
        enqueued, ran, noops, spins = map(statistics.median, zip(*rows, strict=True))
        yield f"| {name} | {enqueued:.1f} | {ran:.1f} | {noops:,.0f} | {spins:,.0f} |"
    for peer in BESIDE:
        try:
            theirs = [beside(peer, count) for _ in range(runs)]
        except Missing as error:
            yield f"| {peer}, no keys | – | – | {error} | – |"
        else:
            noops, spins = map(statistics.median, zip(*theirs, strict=True))
            yield f"| {named(peer)}, no keys | – | – | {noops:,.0f} | {spins:,.0f} |"


if __name__ == "__main__":
    measure("bench.keys", __doc__, tables, 3)
