"""How soon incidents are named: `python -m bench.incidents`, with real workers and kills, and a lease of 15 s.

Prints, for each incident, the seconds from its cause until it is the first finding of `jobq queues`. The bound is a
lease and 15 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.jobs.codec import encode
from jobq.observe.incidents import incidents
from jobq.observe.situation import read_situation
from jobq.queue import presence
from jobq.queue.queue import Queue

LEASE_S = 15.0
BOUND_S = LEASE_S + 15
ROOT = Path(__file__).resolve().parents[1]


def begin(url: str) -> subprocess.Popen[bytes]:
    """Start a worker in a separate session."""
    command = [
        sys.executable,
        "-m",
        "jobq",
        "worker",
        "--url",
        url,
        "--queues",
        "low",
        "--processes",
        "2",
    ]
    command += ["--import", "bench.incident_jobs"]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)


def seconds_until(client: Client, code: str) -> float:
    """Return the time until this is the first finding."""
    began = time.monotonic()
    while time.monotonic() - began < 4 * BOUND_S:
        found = incidents(read_situation(client))
        if found and found[0].code == code:
            return time.monotonic() - began
        time.sleep(0.1)
    raise SystemExit(f"{code} was never the first finding")


def full(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Fill the server."""
    client.command("CONFIG", "SET", "maxmemory", 1)


def renamed(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Enqueue calls of a job that the worker doesn't have."""
    Queue("low", client).enqueue_many([(f"old{n}", encode("shop.old_name")) for n in range(20)])


def poison(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Enqueue a job that kills its process."""
    Queue("low", client).enqueue(encode("bench.incident_jobs.die"))


def dead_host(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Kill all of a worker's processes while it runs two jobs and other jobs wait."""
    low = Queue("low", client)
    low.enqueue_many([(f"m{n}", encode("bench.incident_jobs.sleep", [600])) for n in range(5)])
    while low.admin.counts().locked < 2:
        time.sleep(0.05)
    os.killpg(worker.pid, signal.SIGKILL)


def stuck(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Let a job hang in every process of the worker, after runs that show how long it usually takes."""
    low = Queue("low", client)
    usual = encode("bench.incident_jobs.sleep", [0.01])
    low.enqueue_many([(f"usual{n}", usual) for n in range(4)])
    while low.admin.sample().fence < 4 or low.admin.counts().locked:
        time.sleep(0.05)
    low.enqueue_many([(f"m{n}", encode("bench.incident_jobs.sleep", [600])) for n in range(5)])


def backlog(client: Client, worker: subprocess.Popen[bytes]) -> None:
    """Enqueue five minutes of work for the worker."""
    call = encode("bench.incident_jobs.sleep", [1])
    Queue("low", client).enqueue_many([(f"m{n}", call) for n in range(600)])


CAUSES: tuple[tuple[str, Callable[[Client, subprocess.Popen[bytes]], None]], ...] = (
    ("server_full", full), ("unknown_job", renamed), ("poison", poison), ("worker_lost", dead_host),
    ("stuck", stuck), ("backlog", backlog),
)  # fmt: skip


def main(url: str) -> None:
    """Play each incident on an emptied server."""
    client = connect(settings=ServerSettings(url=url))
    for code, cause in CAUSES:
        client.command("CONFIG", "SET", "maxmemory", 0)
        client.command("FLUSHDB", "SYNC")
        worker = begin(url)
        try:
            while not presence.workers(client):
                time.sleep(0.05)
            cause(client, worker)
            took_s = seconds_until(client, code)
            print(f"{code:12} {took_s:5.1f} s of {BOUND_S:.0f}", flush=True)
        finally:
            client.command("CONFIG", "SET", "maxmemory", 0)
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m bench.incidents unix:///path/to/a/server/of/its/own")
    main(sys.argv[1])
