"""The test of a sceptic: workers and web processes call a provider with a limit while they and the server are killed.

Two judges look at the calls: the first uses the time of the grant, the second the time of the call. `make chaos`
makes 50,000 calls.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobq.chaos.servers import OwnServer
from jobq.chaos.workers import children_of, signalled, wait_until
from jobq.queue.queue import Queue
from tests.chaos.jobs_at_a_limit import MARGIN_S, MAX_COUNT, SPAN_MS

from .conftest import JOBS, SEED

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.chaos.jobs_at_a_limit"
LONG = JOBS > 1_000
CALLS, WORKERS, WEB = (25 * JOBS, 4, 4) if LONG else (JOBS, 1, 2)
DEADLINE_S = 1_500.0
BATCH = 250


def over(times: Iterable[float]) -> list[float]:
    """Return the processes with too many calls in a span."""
    ordered = sorted(times)
    pairs = zip(ordered, ordered[MAX_COUNT:], strict=False)
    return [later for first, later in pairs if later - first < SPAN_MS]


def test_judge_finds_a_call_too_many() -> None:
    assert over([*range(MAX_COUNT), SPAN_MS]) == []
    assert over([*range(MAX_COUNT), SPAN_MS - 1]) == [SPAN_MS - 1]


@contextmanager
def running(server: OwnServer, calls: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The workers; they and web processes end with the context."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    env = {**kept, "CALLS": str(calls), "JOBQ_URL": server.url, "WEB_PROCESSES": str(WEB)}
    worker = [sys.executable, "-m", "jobq", "worker", "--queues", "low", "--import", MODULE]
    worker += ["--processes", "2", "--log-level", "error"]
    commands = [worker] * WORKERS + [[sys.executable, "-m", MODULE]] * WEB
    started = [subprocess.Popen(one, cwd=ROOT, env=env) for one in commands]
    try:
        yield started[:WORKERS]
    finally:
        for process in started:
            process.kill()
            process.wait()


def counted(queue: Queue) -> tuple[Counter[str], Counter[str]]:
    """Events by kind, and crashes by mid."""
    kinds, crashes = Counter[str](), Counter[str]()
    last = "-"
    while page := queue.client.command(
        "XRANGE", f"{queue.prefix}events", last, "+", "COUNT", 5_000
    ):
        for _, fields in page:
            kind, mid, *_ = fields[1].decode().split("\x1f")
            kinds[kind] += 1
            crashes[mid] += kind in ("crashed", "recovered")
        last = f"({page[-1][0].decode()}"
    return kinds, crashes


@pytest.mark.timeout(1_800 if LONG else 600)
def test_no_span_has_a_call_too_many_while_processes_and_the_server_are_killed(
    own: OwnServer, folder: Path
) -> None:
    client, chance, path = own.client("jobq"), random.Random(SEED), folder / "calls"
    path.touch()
    queue = Queue("low", client)
    queue.admin.events_maxlen(1_000_000)
    content = json.dumps({"v": 1, "job": f"{MODULE}.limited", "args": []}).encode()
    for start in range(0, CALLS, BATCH):
        queue.enqueue_many([content] * min(BATCH, CALLS - start))
    with running(own, path) as workers:
        wait_until(lambda: path.stat().st_size > 0, "nothing starts", DEADLINE_S)
        own.restart()
        deadline = time.monotonic() + DEADLINE_S
        while left := queue.admin.counts().messages:
            assert time.monotonic() < deadline, f"{left} calls are left"
            children = children_of(chance.choice(workers).pid)
            if children and left > CALLS / 10:
                signalled(chance.choice(children), signal.SIGKILL)
            time.sleep(chance.uniform(0.3, 1.0))
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    judged(queue, calls)


def judged(queue: Queue, calls: list[dict[str, Any]]) -> None:
    """Run both checks, and measure their duration."""
    jobs = Counter(one["mid"] for one in calls if one["mid"])
    kinds, crashes = counted(queue)
    late = [one for one in calls if one["called"] - one["granted"] > MARGIN_S * 1000]
    in_time = [one["called"] for one in calls if one["called"] - one["granted"] <= MARGIN_S * 1000]
    assert over(one["granted"] for one in calls) == []
    # A process suspended between its start and its call is counted separately: no limit can hold it.
    assert over(in_time) == [], f"{len(late)} of {len(calls)} were late"
    assert len(jobs) == CALLS
    assert queue.admin.dead() == []
    for one in calls:
        assert one["attempt"] <= 1 + crashes[one["mid"]], one
    starts = sorted(one["granted"] for one in calls)
    # The last tenth waits for its turns alone.
    busy = starts[: len(starts) * 9 // 10]
    used = len(busy) / (busy[-1] - busy[0]) * (SPAN_MS + MARGIN_S * 1000) / MAX_COUNT
    handed = (kinds["done"] + kinds["snoozed"]) / CALLS
    print(
        f"{len(calls)} calls, {len(late)} late, {sum(crashes.values())} crashes; {used:.0%} of the rate, "
        f"{handed:.2f} hand-outs a job"
    )
    if LONG:
        assert used >= 0.9
        assert handed <= 2.3
