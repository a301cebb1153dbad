"""Workers enqueue the ticks of the schedules that their modules declare."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from typing import Any

import pytest

from jobq import Queue
from jobq.queue.partitioning import partition

from .conftest import until

MODULE = "tests.lifecycle.jobs_on_schedule"


@pytest.mark.one_server
@pytest.mark.parametrize("partitions", [0, 2])
def test_workers_share_the_ticks_and_go_on_when_one_is_killed(
    start: Any, queue: Queue, tmp_path: Any, partitions: int
):
    if partitions:
        partition(queue.client, "low", partitions)
    ledger = tmp_path / "ticks"
    ledger.touch()
    env = {"LEDGER": str(ledger)}
    silent, *workers = (
        start(*options, "--processes", "1", module=MODULE, env=env)
        for options in (["--no-cron"], [], [])
    )
    until(lambda: len(ledger.read_text().splitlines()) >= 2, "no tick ran")
    os.kill(workers[0].pid, signal.SIGKILL)
    until(lambda: len(ledger.read_text().splitlines()) >= 4, "no tick ran after a kill")
    assert workers[1].stop() == 0
    assert silent.stop() == 0

    lines = [line.split() for line in ledger.read_text().splitlines()]
    ticks = sorted(datetime.fromisoformat(tick) for _, tick, _ in lines)
    assert {text for text, _, _ in lines} == {"x"}
    # A run whose worker was killed is repeated; no other tick runs twice, and none is left out.
    assert len(ticks) - len(set(ticks)) <= 1
    every = timedelta(seconds=1)
    assert (max(ticks) - min(ticks)) // every + 1 - len(set(ticks)) <= 1
    log = [entry for entry in queue.admin.schedules(1_000).log if entry.outcome == "enqueued"]
    assert len({entry.tick_ms for entry in log}) == len(log)
