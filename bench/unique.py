"""`python -m bench.unique URL`: server costs of unique jobs, in µs of CPU per message, compared with plain jobs.

The kinds take turns, in rounds whose order is reversed each time; each figure is the median. The server at URL
should do nothing else, and is emptied.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import redis

import jobq
from jobq import Ending, Queue, Registry
from jobq.jobs.job import Job

COUNT, ROUNDS, BATCH = 5_000, 7, 64
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unique": {"unique": True},
    "until start": {"unique": True, "until": "start"},
    "until 1h": {"unique": True, "until": "1h"},
    "throttle": {"throttle": "1h"},
    "debounce": {"debounce": "1ms", "at_most": "1m"},
}


def declared(name: str, client: jobq.Client) -> Job[..., Any]:
    """The job of one kind, in its own queue."""

    def work(number: int) -> None:
        raise NotImplementedError(number)

    return jobq.job(
        name=name.replace(" ", "-"),
        registry=Registry(),
        queue="bench",
        client=client,
        **KINDS[name],
    )(work)


def cpu_us(server: redis.Redis) -> int:
    """Return the total CPU time of scripts."""
    return int(
        sum(stat["usec"] for name, stat in server.info("commandstats").items() if "eval" in name)
    )


def once(job: Job[..., Any], queue: Queue, server: redis.Redis) -> Iterator[tuple[str, float]]:
    """Measure a round: an enqueue per call, rejected calls, and the drain."""
    server.flushall()
    for figure in ("enqueue", "enqueue again"):
        began = cpu_us(server)
        for number in range(COUNT):
            job.enqueue(number)
        yield figure, (cpu_us(server) - began) / COUNT
    began, ended, nothing = cpu_us(server), 0, 0
    messages = queue.dequeue(BATCH).messages
    while nothing < 3:
        endings = [Ending(mid=message.mid, token=message.token) for message in messages]
        ended += len(endings)
        handed = queue.finish(endings, dequeue=BATCH).dequeued
        messages = handed.messages if handed else []
        nothing = 0 if messages else nothing + 1
    yield "drain", (cpu_us(server) - began) / ended


def main() -> None:
    """Print a line per kind."""
    client = jobq.connect(sys.argv[1])
    server, queue = redis.Redis.from_url(sys.argv[1]), Queue("bench", client)
    jobs = {name: declared(name, client) for name in KINDS}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(ROUNDS):
        for name in list(KINDS)[:: 1 if turn % 2 else -1]:
            for figure, value in once(jobs[name], queue, server):
                found[name][figure].append(value)
    print(f"{'':12}" + "".join(f"{figure:>16}" for figure in found["plain"]))
    for name in KINDS:
        medians = (statistics.median(values) for values in found[name].values())
        print(f"{name:12}" + "".join(f"{value:16.1f}" for value in medians))


if __name__ == "__main__":
    main()
