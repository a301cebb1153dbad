"""Strokes against the road between jobq and its server, by way of a proxy."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobq.chaos.crew import children_of
from jobq.chaos.proxy import BOTH
from jobq.chaos.stage import Stage
from jobq.config import ServerSettings


def lost_reply(stage: Stage) -> None:
    """The server runs an EVALSHA, its reply is lost with the connection."""
    road = stage.road()
    before = road.lost
    with stage.fault("lost-reply"):
        road.lose_reply(stage.random.randint(1, 8))
        deadline = time.monotonic() + 1
        while road.lost == before and time.monotonic() < deadline:
            time.sleep(0.005)


def reset(stage: Stage) -> None:
    """RST to every connection."""
    with stage.fault("reset"):
        stage.road().cut()


def tear(stage: Stage) -> None:
    """Some bytes of a request or a reply, then RST."""
    road = stage.road()
    before = road.torn
    with stage.fault("tear"):
        road.tear(stage.random.randint(1, 100))
        deadline = time.monotonic() + 1
        while road.torn == before and time.monotonic() < deadline:
            time.sleep(0.005)


def blackhole(stage: Stage) -> None:
    """Nothing is delivered for longer than a lease; then all of it, late."""
    _withhold(stage, "blackhole", stage.crew.lease_s * stage.random.uniform(1.2, 1.6))


def timeout(stage: Stage) -> None:
    """Nothing is delivered for longer than clients wait for a reply; what they repeated arrives twice."""
    seconds = ServerSettings().socket_timeout_s + stage.random.uniform(0.5, 1.5)
    _withhold(stage, "timeout", seconds)


def one_way(stage: Stage) -> None:
    """Requests arrive and replies don't, or the other way round, for longer than a lease; then all of it, late."""
    way = stage.random.choice(BOTH)
    _withhold(stage, "one-way", stage.crew.lease_s * stage.random.uniform(1.2, 1.6), [way])


def half_open(stage: Stage) -> None:
    """Connections die without a word; new ones work."""
    road = stage.road()
    with stage.fault("half-open", cuts=True):
        try:
            road.forsake()
            time.sleep(ServerSettings().socket_timeout_s + stage.random.uniform(0.5, 1.5))
        finally:
            road.disown()


def partition(stage: Stage) -> None:
    """Every other worker is cut off for more than two leases; then all that was on its way arrives."""
    road, crew = stage.side_road(), stage.crew
    pids = [pid for worker in crew.aside for pid in (worker.pid, *children_of(worker.pid))]
    with stage.fault("partition", pids, cuts=True):
        try:
            road.swallow()
            time.sleep(crew.lease_s * stage.random.uniform(2.0, 2.3))
        finally:
            road.deliver()


def latency(stage: Stage) -> None:
    """Up to 30 ms per KB each way, for a while."""
    road = stage.road()
    with stage.fault("latency"):
        try:
            road.latency_s = 0.03
            time.sleep(stage.random.uniform(0.5, 1.5))
        finally:
            road.latency_s = 0.0


def slow(stage: Stage) -> None:
    """Up to 200 ms per KB each way, and 64 KB/s at most, for a while."""
    road = stage.road()
    with stage.fault("slow"):
        try:
            road.latency_s, road.bytes_per_s = 0.2, 64 * 1024.0
            time.sleep(stage.random.uniform(0.5, 1.5))
        finally:
            road.latency_s = road.bytes_per_s = 0.0


def _withhold(stage: Stage, name: str, seconds: float, ways: Sequence[str] = BOTH) -> None:
    road = stage.road()
    with stage.fault(name, cuts=True):
        try:
            road.swallow(ways)
            time.sleep(seconds)
        finally:
            road.deliver()
