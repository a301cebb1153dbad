"""`python -m bench.profile`: where the time of a no-op job goes, in microseconds per job.

Two tables. Of a real drain: CPU of the children, the supervisor and the server, and the server's statistics of
commands; the remaining time of the scripts is Lua itself. Of a child's Python: its steps, each timed by itself on
one batch, the least of several rounds.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from bench.server import info, private_server, server_s
from bench.stage import wait_for
from bench.work import noop
from bench.worker import running_worker
from jobq import Client, Queue
from jobq.client.numbered_calls import Caller
from jobq.client.scripts import packed
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import default_registry
from jobq.observe.log import FORMATS, JobLog, Logging, logger
from jobq.queue.queue import _handed
from jobq.queue.types import Ending, Message
from jobq.worker.shared_state import SharedSlots

DRAINED, BATCH, ROUNDS = 100_000, 64, 200
FROM_SHARE = 0.2
COUNTING = {"info", "config|resetstat"}
Row = tuple[str, float]


def commands(client: Client) -> dict[str, tuple[int, float]]:
    """Calls and microseconds of each command since the last reset."""
    found = {}
    for name, text in info(client, "commandstats").items():
        fields = dict(item.split("=") for item in text.split(","))
        found[name.removeprefix("cmdstat_")] = (int(fields["calls"]), float(fields["usec"]))
    return {name: stat for name, stat in found.items() if name not in COUNTING}


def cpu_s(client: Client) -> dict[str, float]:
    """Seconds of CPU of the supervisor, its children and the server."""
    [worker] = [p for p in psutil.Process().children() if "valkey" not in p.name()]
    seconds = {"supervisor": sum(worker.cpu_times()[:2]), "children": 0.0}
    for child in worker.children():
        with suppress(psutil.NoSuchProcess):
            seconds["children"] += sum(child.cpu_times()[:2])
    return seconds | {"server": server_s(client)}


def drained(processes: int) -> Iterator[Row]:
    """Measure from one fifth to the end."""
    with private_server() as client:
        queue = Queue("bench", client)
        noop.options(client=client).enqueue_many([()] * DRAINED)
        with running_worker(client, client.url, processes):
            wait_for(lambda: queue.admin.counts().ready < DRAINED * (1 - FROM_SHARE), 60, 0.001)
            client.command("CONFIG", "RESETSTAT")
            before, jobs = cpu_s(client), queue.admin.counts().ready
            wait_for(lambda: queue.admin.counts().ready == 0, 300, 0.02)
            after, stats = cpu_s(client), commands(client)
        for who, seconds in after.items():
            yield f"CPU of the {who}", (seconds - before[who]) / jobs * 1e6
        scripts = stats.pop("evalsha")[1]
        inside = {name: us for name, (_, us) in stats.items() if not name.startswith("bl")}
        yield "scripts, of the server's", scripts / jobs
        yield "  Lua itself", (scripts - sum(inside.values())) / jobs
        for name, us in sorted(inside.items(), key=lambda item: -item[1])[:8]:
            yield f"  {name.upper()}, {stats[name][0] / jobs:.2f} calls", us / jobs


@contextmanager
def batch() -> Iterator[tuple[Caller, list[Message]]]:
    """Yield a batch that a real server has handed out."""
    with private_server() as client:
        queue, caller = Queue("bench", client), Caller()
        noop.options(client=client).enqueue_many([()] * BATCH)
        yield caller, queue.dequeue(BATCH, caller=caller).messages


def least(step: Callable[[], Any]) -> float:
    """Return microseconds per job, for a step that processes a whole batch."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - started)
    return best / BATCH * 1e6


def python() -> Iterator[Row]:
    """Measure a child's steps."""
    with batch() as (caller, messages):
        executor, reply = Executor(default_registry, worker="bench"), _reply(messages)
        calls = [executor.resolve("bench", message) for message in messages]
        runs = [call for call in calls if isinstance(call, Call)]
        endings = [executor.run(call) for call in runs]
        words: tuple[Any, ...] = ("EVALSHA", *_arguments(endings))
        yield "read the reply", least(lambda: _handed(reply, 0, caller, BATCH))
        yield from held(messages)
        yield (
            "decode, find the job",
            least(lambda: [executor.resolve("bench", m) for m in messages]),
        )
        yield "run and record", least(lambda: [executor.run(call) for call in runs])
        yield "  of it the function", least(lambda: [noop.function() for _ in runs])
        yield from logged(runs)
        yield "pack the command", least(lambda: packed(words))


def logged(runs: list[Call]) -> Iterator[Row]:
    """A line of log per job: as the worker writes it, and through `logging`, once a filter could change it."""
    for form in FORMATS:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            set_up = Logging("info", form)
            set_up.handler.setStream(nowhere)
            set_up.settle()

            def write(log: JobLog = set_up.jobs) -> None:
                for call in runs:
                    log.done(call, 0.000_1)
                log.flush()

            yield f"log line, {form}", least(write)
            logger.addFilter(bool)
            yield f"log line, {form}, with a filter of the application", least(write)
            logger.removeFilter(bool)
            logging.getLogger().removeHandler(set_up.handler)


def held(messages: list[Message]) -> Iterator[Row]:
    """Write to the memory shared by child and supervisor."""
    memory, until = SharedSlots(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 10**12

    def publish_all() -> None:
        memory.free(memory.publish(0, messages, until))

    def start_all() -> None:
        slots = memory.publish(0, messages, until)
        for slot in slots:
            memory.start(slot)
        memory.free(slots)

    publish = least(publish_all)
    yield "publish what is held, and free it", publish
    yield "mark the start", least(start_all) - publish


def _reply(messages: list[Message]) -> list[Any]:
    reply: list[Any] = [0, 0, 1]
    for message in messages:
        reply += [message.mid.encode(), message.content, 1, 0, b"", message.lock_expires_at, 0]
    return reply


def _arguments(endings: list[Ending]) -> list[Any]:
    """Return the words that `finish` sends."""
    rows = [
        (ending.mid, ending.token, ending.outcome, "", ending.age_ms, ending.record)
        for ending in endings
    ]
    return [word for row in rows for word in row]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    for title, rows in (
        (f"drain of no-op jobs, {chosen.processes} children", drained(chosen.processes)),
        ("Python of a child", python()),
    ):
        print(f"{title}, µs per job")
        for name, value in rows:
            print(f"  {name:54} {value:8.2f}")


if __name__ == "__main__":
    main()
