"""Counted work, which doesn't depend on the machine's mood: commands and round trips per message.

Times are measured by `make bench` and asserted nowhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.work import noop, twice
from jobq.client.connection import Client
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL, Ending

ROOT = Path(__file__).resolve().parents[2]
JOBS = 5_000
#: 64 to a batch is 0.0156; the rest is how a batch grows from one, and the supervisor.
TRIPS, COMMANDS = 0.025, 1.92
#: To enqueue one that is delayed, and from due to done.
DELAYED_IN, DELAYED_OUT = 4.01, 9.2
#: Three of the commands keep the traceback of a retry, and the first attempt that counts after it; some are
#: of calls that turn out not to be plain, and of the upkeep, which a slow machine pays more of.
RETRIED, RETRY_TRIPS, RETRY_COMMANDS = 500, 1.1, 46
#: Commands of a dequeue that finds nothing, and of one that needn't look; that of the test included. Most of them
#: read the type of a key, so that nothing can fail after the first write.
DRY, RESTING = 19.2, 7.2
#: A moment that stands still: each new millisecond is a write of its own.
NOW = 1_700_000_000_000
#: The part of the supervisor may differ by this in a drain. One command for each of 80 batches is more.
METRICS = 40
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


def drain(url: str, processes: int = 1, *options: str) -> None:
    """Run all there is, in batches by count alone: how long one took must not change the next one's size."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--url", url, "--queues", "bench", "--import", "bench.work",
        "--processes", str(processes), "--burst", "--prefetch-time", "100s", "--log-level", "error", *options,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("processes", [1, 2])
def test_noop_job_costs_few_commands_and_hardly_a_round_trip(
    redis: Any, client: Client, server: Any, processes: int
):
    noop.options(client=client).enqueue_many([()] * JOBS)
    redis.config_resetstat()
    drain(server.url, processes)
    trips, commands = work(redis)
    assert Queue("bench", client).admin.counts().messages == 0
    assert trips / JOBS <= TRIPS
    assert commands / JOBS <= COMMANDS


def test_delayed_job_costs_four_commands_to_enqueue_and_few_more_to_promote(
    redis: Any, client: Client, server: Any
):
    bound = noop.options(client=client, delay=0.001)
    bound.enqueue()
    redis.config_resetstat()
    bound.enqueue_many([()] * JOBS)
    enqueued = work(redis)
    redis.config_resetstat()
    drain(server.url)
    drained = work(redis)
    assert Queue("bench", client).admin.counts().messages == 0
    assert enqueued[1] / JOBS <= DELAYED_IN
    assert drained[0] / JOBS <= TRIPS
    assert drained[1] / JOBS <= DELAYED_OUT


def test_messages_that_wait_cost_those_beside_them_a_look_at_the_first_in_each_call(
    redis: Any, client: Client
):
    alone, beside = Queue("alone", client), Queue("beside", client)
    beside.enqueue_many([b"{}"] * 1_000, delay=3600, now=NOW)
    # The server knows the scripts before anything is counted.
    first = Queue("first", client)
    first.finish([], dequeue=1, now=NOW)
    first.dequeue(now=NOW)
    counted = []
    for queue in (alone, beside):
        queue.enqueue_many([b"{}"] * 320, now=NOW)
        redis.config_resetstat()
        held = queue.dequeue(64, now=NOW).messages
        while held:
            endings = [Ending(mid=message.mid, token=message.token) for message in held]
            handed = queue.finish(endings, dequeue=64, now=NOW).dequeued
            held = handed.messages if handed else []
        counted.append(work(redis))
    # The first dequeue of a queue is no plain call yet.
    assert counted[0][0] == counted[1][0] == 7
    assert counted[1][1] - counted[0][1] <= counted[0][0]


def test_retried_job_costs_few_commands_and_a_round_trip_per_retry(
    redis: Any, client: Client, server: Any
):
    twice.options(client=client).enqueue_many([()] * RETRIED)
    redis.config_resetstat()
    drain(server.url)
    trips, commands = work(redis)
    assert Queue("bench", client).admin.counts().messages == 0
    assert trips / RETRIED <= RETRY_TRIPS
    assert commands / RETRIED <= RETRY_COMMANDS


def test_dry_dequeue_is_one_round_trip_of_few_commands_and_fewer_while_it_may_rest(
    redis: Any, client: Client
):
    queue = Queue("idle", client)
    queue.dequeue(now=NOW)
    redis.config_resetstat()
    for ms in range(10):
        redis.delete("jobq:{idle}:eoq-backoff?")
        queue.dequeue(now=NOW + ms)
    dry = work(redis)
    redis.config_resetstat()
    for ms in range(10):
        queue.dequeue(now=NOW + 10 + ms)
    resting = work(redis)
    assert dry[0] == resting[0] == 10
    assert dry[1] / 10 <= DRY
    assert resting[1] / 10 <= RESTING


def test_enqueue_of_many_makes_few_round_trips(redis: Any, client: Client):
    bound = noop.options(client=client)
    bound.enqueue()
    redis.config_resetstat()
    bound.enqueue_many([()] * JOBS)
    trips, commands = work(redis)
    assert trips == JOBS / PER_CALL
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


def test_job_costs_as_many_commands_with_metrics_as_without(
    redis: Any, client: Client, server: Any, tmp_path: Path
):
    def drained(*options: str) -> int:
        noop.options(client=client).enqueue_many([()] * JOBS)
        redis.config_resetstat()
        drain(server.url, 1, *options)
        return work(redis)[1]

    drained()
    without, beside = [], []
    # The supervisor's part grows with the time that a drain takes, so the least of some drains counts.
    for _ in range(5):
        without.append(drained())
        beside.append(drained("--health", f"unix:{tmp_path}/h"))
        if abs(min(beside) - min(without)) <= METRICS:
            break
    assert abs(min(beside) - min(without)) <= METRICS
