"""How late scheduled calls start: from the moment of a tick to the start of its job, on idle workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.latency import percentiles
from bench.server import private_server
from bench.stage import ACT_S, Row
from bench.work import noop
from bench.worker import running_worker
from jobq import Queue
from jobq.events import Event, decode
from jobq.schedules.definition import Schedule, encoded

#: Ticks of each schedule, which come every second, with all schedules at the same moment.
TICKS = 40
SCHEDULES, WORKERS = 5, (1, 3)


def lateness(_: str) -> Iterator[Row]:
    """Measured by the server's clock, from the events of ticks and runs; more workers check more often."""
    for count in WORKERS:
        with private_server() as client, ExitStack() as running:
            queue = Queue("bench", client)
            for index in range(SCHEDULES):
                schedule = Schedule(
                    name=f"s{index}", job=noop.name, every_ms=1_000, overlap="allow"
                )
                queue.admin.schedule("add", schedule.name, encoded(schedule))
            for _worker in range(count):
                running.enter_context(running_worker(client, client.url, 1))
            late = _late(queue)
            after = f"{count} worker{'s' if count > 1 else ''}"
            yield from percentiles(f"a tick's job starts late, {after}", late, "ms")


def _late(queue: Queue) -> list[float]:
    deadline, runs = time.monotonic() + ACT_S, list[Event]()
    while time.monotonic() < deadline:
        entries = queue.client.command("XRANGE", f"{queue.prefix}events", "-", "+")
        events = [decode(fields[1], fields[0]) for _, fields in entries]
        due = {event.fingerprint: event.enqueued_at for event in events if event.kind == "tick"}
        runs = [event for event in events if event.kind == "done" and event.mid in due]
        if len(runs) >= TICKS * SCHEDULES:
            return [_started(run) - due[run.mid] for run in runs]
        time.sleep(0.5)
    raise TimeoutError(f"{len(runs)} of {TICKS * SCHEDULES} ticks ran")


def _started(run: Event) -> float:
    return run.finished_at - run.run_us / 1000
