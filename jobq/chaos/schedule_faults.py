"""Kills or stops schedulers at random times, and checks that they enqueue each scheduled job exactly once.

`python -m jobq.chaos.schedule_faults QUEUE` runs one scheduler with sixty schedules, each with a job per second.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import keys_of
from jobq.chaos.workers import signalled, wait_until
from jobq.client.connection import Client, default_client
from jobq.errors import JobqError
from jobq.events import Event, decode
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue
from jobq.schedules.definition import Schedule, encoded
from jobq.schedules.scheduler import Scheduler

PACKAGE = Path(__file__).resolve().parents[2]
JOB, STEP_MS = "chaos.tick", 1_000
SCHEDULES, SCHEDULERS, TICKS = 60, 3, 100
DEADLINE_S = 120.0


def schedulers(setup: RoundSetup) -> None:
    """Kill or stop schedulers of a separate queue, and record errors in their ticks."""
    with setup.injected("schedulers"):
        for text in play(setup.client, setup.server.url, setup.random):
            setup.workers.ledger.write("tick", text=text)


def play(
    client: Client,
    url: str,
    chance: random.Random,
    count: int = SCHEDULERS,
    ticks: int = TICKS,
    step: Callable[[], object] | None = None,
) -> list[str]:
    """Disturb schedulers until they have enqueued `ticks` jobs. Return errors, such as jobs enqueued twice.

    Args:
        count: The number of schedulers that run at the same time.
        step: A function to call repeatedly, which changes the server's clock.
    """
    queue = Queue(f"ticks-{chance.getrandbits(32):x}", client)
    running: list[subprocess.Popen[bytes]] = []
    queue.admin.events_maxlen(1_000_000)
    for number in range(SCHEDULES):
        schedule = Schedule(name=f"s{number}", job=JOB, every_ms=STEP_MS, overlap="allow")
        queue.admin.schedule("add", schedule.name, encoded(schedule))
    first = {name: state.last_ms for name, state in queue.admin.schedules().ticks.items()}
    try:
        running += (_started(queue, url) for _ in range(count))
        wait_until(lambda: nticks(queue) > 0, "no scheduler enqueued a tick", DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S + ticks / SCHEDULES
        while nticks(queue) < ticks and time.monotonic() < deadline:
            _disturb(queue, url, running, chance)
            if step is not None:
                step()
        _end(running)
        return list(wrong(queue, first if step is None else {}))
    finally:
        _end(running)
        if names := [name for name in keys_of(client) if name.startswith(queue.prefix)]:
            client.command("UNLINK", *names)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.kill()
        process.wait()


def nticks(queue: Queue) -> int:
    """Return the number of events in the queue's event stream."""
    return int(queue.client.command("XLEN", f"{queue.prefix}events"))


def _started(queue: Queue, url: str) -> subprocess.Popen[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    env = {**kept, "PYTHONPATH": path, "JOBQ_URL": url, "JOBQ_NAMESPACE": queue.client.namespace}
    command = [sys.executable, "-P", "-m", "jobq.chaos.schedule_faults", queue.name]
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)


def _disturb(
    queue: Queue, url: str, running: list[subprocess.Popen[bytes]], chance: random.Random
) -> None:
    time.sleep(chance.uniform(0.1, 0.5))
    process = chance.choice(running)
    if chance.random() < 0.5:
        process.kill()
        process.wait()
        running[running.index(process)] = _started(queue, url)
        return
    signalled(process.pid, signal.SIGSTOP)
    time.sleep(chance.uniform(0.1, 0.5))
    signalled(process.pid, signal.SIGCONT)


def wrong(queue: Queue, first: dict[str, int]) -> Iterator[str]:
    """Yield errors of schedules in a queue, such as a tick enqueued twice.

    Args:
        first: The first tick of each schedule. If given, all ticks since that tick must exist.
    """
    ticks, stored = _settled(queue)
    runs = Counter((tick.job, tick.enqueued_at) for tick in ticks if tick.error == "enqueued")
    yield from (f"{name} at {at}: enqueued {n} times" for (name, at), n in runs.items() if n > 1)
    early = [t for t in ticks if t.error != "missed" and t.finished_at < t.enqueued_at]
    yield from (f"{tick.job} at {tick.enqueued_at}: enqueued early" for tick in early)
    if stored != len(runs):
        yield f"{len(runs)} ticks were enqueued, but {stored} messages are stored"
    counted: dict[str, int] = defaultdict(int)
    last: dict[str, int] = {}
    for tick in ticks:
        counted[tick.job] += 1 + tick.attempt
        last[tick.job] = max(last.get(tick.job, 0), tick.enqueued_at)
    for name, at in first.items():
        due = last.get(name, at) // STEP_MS - at // STEP_MS
        if counted[name] != due:
            yield f"{name}: {counted[name]} of {due} ticks are accounted for"


def _settled(queue: Queue) -> tuple[list[Event], int]:
    while True:
        before = nticks(queue)
        ticks, stored = _events(queue), queue.admin.counts().messages
        time.sleep(0.1)
        if nticks(queue) == before:
            return ticks, stored


def _events(queue: Queue) -> list[Event]:
    entries = queue.client.command("XRANGE", f"{queue.prefix}events", "-", "+")
    events = (decode(fields[1], fields[0]) for _, fields in entries)
    return [event for event in events if event.kind == "tick"]


def main(name: str) -> None:
    """Run one scheduler for the queue `name` until it is killed."""
    logging.getLogger("jobq.schedules").setLevel(logging.ERROR)
    registry = Registry(Middlewares())
    job(name=JOB, queue=name, registry=registry)(lambda: None)
    parent, scheduler = os.getppid(), Scheduler([Queue(name, default_client())], registry)

    def ask(_: int, call: Callable[[], object]) -> bool:
        try:
            call()
        except JobqError:
            return False
        return True

    while os.getppid() == parent:
        scheduler.enqueue_due(ask)
        time.sleep(min(0.1, scheduler.next_s()))


if __name__ == "__main__":
    main(sys.argv[1])
