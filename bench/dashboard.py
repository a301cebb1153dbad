"""`python -m bench.dashboard`: costs of pages on a large installation; with --drain, costs of viewers during a
drain.

The installation has 500 queues, 1,000,000 messages and 1,000 workers by default. --fill URL fills an empty server
with it, to look at the dashboard.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil

from bench.server import ROOT, private_server
from bench.stage import FILLINGS, Row, stage
from jobq.client.connection import Client, connect
from jobq.events import attempt_record
from jobq.jobs.codec import encode
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

#: Pages that are measured.
PAGES = ("/", "/queues", "/queues/q7")
#: A page is asked for this many times; the median counts.
TIMES = 15
DRAINED, PROCESSES, LOOKS_S = 600_000, 2, 2.0


def fill(client: Client, queues: int, messages: int, workers: int, events: int = 20) -> None:
    """Make queues q0, q1, …, with waiting messages, a few events each, and workers that serve ten of them."""
    share = max(1, messages // queues)
    now = client.clock_ms()
    for number in range(queues):
        queue = Queue(f"q{number}", client)
        content = encode(f"shop.jobs.j{number % 40}", enqueued_at=now - 1000 * number)
        for first in range(0, share, 1000):
            queue.enqueue_many([content] * min(1000, share - first))
        taken = queue.dequeue(min(events, share)).messages
        queue.finish(
            [_ending(number + i, message.mid, message.token) for i, message in enumerate(taken)]
        )
    for number in range(workers):
        _start(client, f"host{number // 8}:{number}", number, queues, now)


def _ending(number: int, mid: str, token: str) -> Ending:
    outcome = ("done", "done", "done", "dead")[number % 4]
    error = "Timeout: no answer" if outcome == "dead" else ""
    record = attempt_record(
        "shop.jobs.j1", 1, 5000, 1000 * 2 ** (number % 12), 900, 0, "w", error, "f00d"
    )
    return Ending(mid=mid, token=token, outcome=outcome, record=record, reason=error)  # type: ignore[arg-type]


def _start(client: Client, name: str, number: int, queues: int, now: int) -> None:
    served = [f"q{(10 * number + i) % queues}" for i in range(10)]
    facts = {
        "host": name.partition(":")[0], "pid": number, "version": "1.0", "queues": served, "slots": 8, "quiet": False,
        "running": 2, "jobs": "", "lease_ms": 3_600_000, "started_at": now - 60_000 * (number % 600), "seen_at": now,
    }  # fmt: skip
    presence.put_worker(client, name, facts)
    running = tuple(RunningJob(served[i], f"m{i}", now - 1000) for i in range(2))
    presence.put_running(client, name, [ChildEntry(number, "busy", 50 << 20, 100, running)])


def page_costs(client: Client) -> Iterator[Row]:
    """Measure each page: CPU of the dashboard, commands, bytes sent to a browser."""
    from starlette.testclient import TestClient

    from jobq.web import Identity, UserRole, create_app
    from jobq.web.sampler import Sampling

    sampling = Sampling(client)
    sampling.catch_up()
    yield "reading of all queues, CPU of the dashboard", _cpu_ms(sampling.take_snapshot), "ms"
    yield (
        "reading of all queues, CPU of the server",
        _server_ms(client, sampling.take_snapshot),
        "ms",
    )
    app = create_app(client, identify=lambda request: Identity("bench", UserRole.ADMIN, True))
    with TestClient(app, base_url="http://127.0.0.1") as viewer:
        for path in PAGES:
            for kind, headers in (("page", {}), ("refresh", {"X-Jobq-Live": "1"})):
                took, before = [], _commands(client)
                for _ in range(TIMES):
                    began = time.process_time()
                    reply = viewer.get(path, headers=headers)
                    took.append((time.process_time() - began) * 1000)
                    assert reply.status_code == 200, reply.text
                    time.sleep(0.05)
                name = f"{kind} {path}"
                yield f"{name}, CPU of the dashboard", statistics.median(took), "ms"
                yield f"{name}, commands", (_commands(client) - before) / TIMES, ""
                yield f"{name}, compressed", len(gzip.compress(reply.content, 6)) / 1024, "KiB"
    app.state.site.close()


def _cpu_ms(act: Callable[[], object]) -> float:
    found = []
    for _ in range(TIMES):
        began = time.process_time()
        act()
        found.append((time.process_time() - began) * 1000)
    return statistics.median(found)


def _server_ms(client: Client, act: Callable[[], object]) -> float:
    client.command("CONFIG", "RESETSTAT")
    for _ in range(TIMES):
        act()
    return sum(_stats(client, "usec").values()) / 1000 / TIMES


def _commands(client: Client) -> float:
    return sum(_stats(client, "calls").values())


def _stats(client: Client, field: str) -> dict[str, float]:
    """Return a figure of each command that clients sent; commands inside scripts are part of these."""
    found = {}
    for line in client.command("INFO", "commandstats").decode().splitlines():
        name, _, facts = line.partition(":")
        numbers = dict(pair.split("=") for pair in facts.split(",") if "=" in pair)
        if field in numbers and name not in ("cmdstat_info", "cmdstat_config|resetstat"):
            found[name] = float(numbers[field])
    return found if field == "calls" else _outer(found)


def _outer(found: dict[str, float]) -> dict[str, float]:
    """Return server time per command; a script's time includes its commands."""
    outer = ("eval", "hgetall", "smembers", "time", "xrange", "xrevrange", "fcall")
    return {
        name: usec
        for name, usec in found.items()
        if name.removeprefix("cmdstat_").startswith(outer)
    }


def drain_costs(runs: int, count: int) -> Iterator[Row]:
    """Alternate drains without a dashboard, with one viewer and with ten.

    The first third isn't measured, because a dashboard reads earlier events once, before its first page.
    """
    rates: dict[int, list[float]] = {0: [], 1: [], 10: []}
    shares: dict[int, list[float]] = {1: [], 10: []}
    costs: dict[int, list[float]] = {0: [], 1: [], 10: []}
    contents = FILLINGS.of("own", "noop", count)
    for _ in range(runs):
        for viewers, found in rates.items():
            with (
                stage("own", contents=contents) as place,
                _watched(place.client.url, viewers) as web,
            ):
                with place.working(PROCESSES):
                    place.until(place.reached(count // 3))
                    done, began = place.done(), time.perf_counter()
                    used, work = _used(web), sum(place.cpu_s())
                    place.until(place.reached(count))
                    seconds = time.perf_counter() - began
                    jobs = place.done() - done
                    found.append(jobs / seconds)
                    costs[viewers].append((sum(place.cpu_s()) - work) / jobs * 1e6)
                    if web:
                        shares[viewers].append((_used(web) - used) / seconds)
    for viewers, found in rates.items():
        yield f"drain with {viewers} viewers", statistics.median(found), "jobs/s"
    for viewers, cost in costs.items():
        yield f"CPU of worker and server per job, {viewers} viewers", statistics.median(cost), "us"
    for viewers, share in shares.items():
        yield f"CPU of the dashboard with {viewers} viewers", 100 * statistics.median(share), "%"


def _used(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _watched(url: str, viewers: int) -> Iterator[psutil.Process | None]:
    """Serve a dashboard of a server to viewers who refresh the list of queues every two seconds."""
    if not viewers:
        yield None
        return
    program = [sys.executable, "-m", "jobq", "web", "--json", "--no-auth", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        program, cwd=ROOT, env={**os.environ, "JOBQ_URL": url}, stdout=subprocess.PIPE
    ) as web:
        assert web.stdout
        address = json.loads(web.stdout.readline())["address"].split("/login")[0].rstrip("/")
        over = threading.Event()
        threads = [
            threading.Thread(target=_look, args=(address, over, LOOKS_S * i / viewers), daemon=True)
            for i in range(viewers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield psutil.Process(web.pid)
        finally:
            over.set()
            web.terminate()


def _look(address: str, over: threading.Event, first_s: float) -> None:
    host = address.removeprefix("http://")
    over.wait(first_s)
    while not over.is_set():
        asking = http.client.HTTPConnection(host, timeout=30)
        asking.request("GET", "/queues", headers={"X-Jobq-Live": "1", "Accept-Encoding": "gzip"})
        asking.getresponse().read()
        asking.close()
        over.wait(LOOKS_S)


def main() -> None:
    """Measure, or fill a server."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    add: Any = parser.add_argument
    add("--queues", type=int, default=500)
    add("--messages", type=int, default=1_000_000)
    add("--workers", type=int, default=1_000)
    add("--fill", metavar="URL", help="fill this server and end")
    add("--drain", action="store_true", help="measure what viewers cost a drain")
    add("--runs", type=int, default=3)
    add("--jobs", type=int, default=DRAINED, help="of a drain")
    chosen = parser.parse_args()
    if chosen.fill:
        with closing(connect(chosen.fill)) as client:
            fill(client, chosen.queues, chosen.messages, chosen.workers)
        return
    if chosen.drain:
        rows = drain_costs(chosen.runs, chosen.jobs)
        _print(rows)
        return
    with private_server() as client:
        fill(client, chosen.queues, chosen.messages, chosen.workers)
        _print(page_costs(client))


def _print(rows: Iterator[Row]) -> None:
    for name, value, unit in rows:
        print(f"{name:60} {value:12,.1f} {unit}", flush=True)


if __name__ == "__main__":
    main()
