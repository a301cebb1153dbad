"""Clocks that step: the server's clock, and clients' clocks, which mustn't matter.

Debian's Redis hangs before its first line under libfaketime, and Python's `sleep` fails under it. Both get
a clock of their own by a library of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.chaos.producers import QUEUE
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.servers import OwnServer
from jobq.chaos.workers import wait_until
from jobq.events import decode
from jobq.queue.queue import Queue
from tests.conftest import binary
from tests.tools import compiled, libfaketime

from . import skewed
from .conftest import JOBS, SEED, broken, handed_over

ROOT = Path(__file__).resolve().parents[2]
HOUR = 3600


class Clocked(OwnServer):
    """A server whose clock can be set."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._clock = folder / "clock"
        self.set(0)
        if kind == "valkey":
            env = {
                "LD_PRELOAD": libfaketime() or "", "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        else:
            shim = compiled(Path(__file__).with_name("clock.c"), folder)
            env = {"LD_PRELOAD": shim, "CLOCK_FILE": str(self._clock)}
        super().__init__(folder, binary(kind) or "", env=env)

    def set(self, seconds: int) -> None:
        """Set the clock this far from the real time."""
        self.seconds = seconds
        written = self._clock.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        os.replace(written, self._clock)


@pytest.fixture
def clocked(folder: Path, request: pytest.FixtureRequest) -> Iterator[Clocked]:
    server = Clocked(request.param, folder)
    yield server
    server.close()


def step(setup: RoundSetup) -> None:
    """To an hour ahead, then to an hour behind, and so on."""
    place, queue = setup.server, Queue(QUEUE, setup.client)
    assert isinstance(place, Clocked)
    before, told = place.seconds, jumps(queue)
    with setup.injected("clock-step", cuts=True):
        place.set(HOUR if before <= 0 else -HOUR)
        if place.seconds < before:
            wait_until(
                lambda: jumps(queue) == told + 1, "no event of a clock that stepped back", 100
            )


def jumps(queue: Queue) -> int:
    """Return how many steps back the queue has recorded."""
    entries = queue.client.command("XRANGE", f"{queue.prefix}events", "-", "+")
    return sum(decode(fields[1]).kind == "clock_jump" for _, fields in entries)


@pytest.mark.parametrize(
    "clocked",
    [
        pytest.param("valkey", marks=pytest.mark.needs("libfaketime")),
        pytest.param("redis", marks=pytest.mark.needs("gcc", "redis-server")),
    ],
    indirect=True,
)
def test_steps_of_the_servers_clock_lose_nothing_and_accept_nothing_stale(clocked, folder):
    fault = Fault("clock-step", "an hour forward or two back", step)
    verdict = run_round(clocked, RoundPlan(fault, JOBS, SEED), folder)
    # By its clock every lease is over: others get running messages, until their worker notices.
    assert broken(verdict, "concurrent") == {}
    assert handed_over(folder).issuperset(verdict.broken["concurrent"])
    assert verdict.attempts == verdict.acknowledged == JOBS
    assert verdict.duplicates <= verdict.hit
    assert verdict.faults > 1


@pytest.mark.needs("gcc")
def test_clocks_of_clients_have_no_effect_at_all(own, folder):
    """Producers ten minutes behind, workers by turns ten minutes ahead and behind; children are killed."""
    at_play = folder / "round"
    at_play.mkdir()
    shim = compiled(Path(__file__).with_name("clock.c"), folder)
    env = {**os.environ, "LD_PRELOAD": shim, "CLOCK_FILE": skewed.clock(folder, -600)}
    command = [sys.executable, "-m", "tests.chaos.skewed", own.url, str(at_play), str(JOBS)]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert [round(seconds / 60) for seconds in told["clocks"]] == [-10, 10, -10]
    assert told["broken"] == {}
    assert told["attempts"] == JOBS
    assert told["duplicates"] <= told["hit"]
    assert told["faults"]
