"""Counted work, which doesn't depend on the machine's mood: commands and round trips per no-op job.

Times are measured by `make bench` and asserted nowhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.work import noop
from jobq.engine.connection import Client
from jobq.engine.queue import Queue

ROOT = Path(__file__).resolve().parents[2]
JOBS = 5_000
#: 64 to a batch is 0.0156; the rest is how a batch grows from one, and the supervisor.
TRIPS, COMMANDS = 0.025, 1.95
COUNTING = {"info", "config|resetstat"}


def work(redis: Any) -> tuple[int, int]:
    """Round trips that scripts and blocking pops made, and all commands, since the last reset."""
    counted = {
        name.removeprefix("cmdstat_"): found["calls"]
        for name, found in redis.info("commandstats").items()
    }
    trips = sum(
        calls for name, calls in counted.items() if name.startswith(("eval", "fcall", "bl"))
    )
    return trips, sum(calls for name, calls in counted.items() if name not in COUNTING)


@pytest.mark.parametrize("processes", [1, 2])
def test_noop_job_costs_few_commands_and_hardly_a_round_trip(
    redis: Any, client: Client, server: Any, processes: int
):
    noop.options(client=client).enqueue_many([()] * JOBS)
    redis.config_resetstat()
    # By count alone: how long a batch took must not change how many messages the next one has.
    command = [
        sys.executable, "-m", "jobq", "worker", "--url", server.url, "--queues", "bench", "--import", "bench.work",
        "--processes", str(processes), "--burst", "--prefetch-ms", "100000", "--log-level", "warning",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    trips, commands = work(redis)
    assert Queue("bench", client).counts().messages == 0
    assert trips / JOBS <= TRIPS
    assert commands / JOBS <= COMMANDS


def test_enqueue_of_many_makes_one_round_trip_per_thousand(redis: Any, client: Client):
    bound = noop.options(client=client)
    bound.enqueue()
    redis.config_resetstat()
    bound.enqueue_many([()] * JOBS)
    trips, commands = work(redis)
    assert trips == JOBS / 1_000
    assert commands / JOBS <= 2.1


def test_single_enqueue_is_one_round_trip(redis: Any, client: Client):
    bound = noop.options(client=client)
    bound.enqueue()
    redis.config_resetstat()
    for _ in range(100):
        bound.enqueue()
    trips, commands = work(redis)
    assert trips == 100
    assert commands <= 10 * 100
