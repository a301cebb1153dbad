"""The time by two clocks: the server's and this machine's."""

from __future__ import annotations

import time

from jobq.client.connection import Client
from jobq.durations import DAY_MS


def clocks(client: Client) -> tuple[int, int]:
    """Return the earlier and the later of both, epoch ms."""
    seconds, _ = client.command("TIME")
    both = (int(seconds) * 1000, time.time_ns() // 1_000_000)
    return min(both), max(both)


def latest(client: Client) -> int:
    """Return the latest time that something in the past can have: a day after now, epoch ms."""
    return clocks(client)[1] + DAY_MS
