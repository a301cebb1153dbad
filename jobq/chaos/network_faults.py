"""Strokes against the road between jobq and its server, by way of a proxy."""

from __future__ import annotations

import time

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


def blackhole(stage: Stage) -> None:
    """Nothing is delivered for longer than a lease; then all of it, late."""
    road = stage.road()
    with stage.fault("blackhole", cuts=True):
        try:
            road.swallow()
            time.sleep(stage.crew.lease_s * stage.random.uniform(1.2, 1.6))
        finally:
            road.deliver()


def timeout(stage: Stage) -> None:
    """Nothing is delivered for longer than clients wait for a reply; what they repeated arrives twice."""
    road = stage.road()
    with stage.fault("timeout", cuts=True):
        try:
            road.swallow()
            time.sleep(ServerSettings().socket_timeout_s + stage.random.uniform(0.5, 1.5))
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
