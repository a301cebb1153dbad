"""What time it is, where the server's clock and this machine's may disagree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobq.client.connection import Client

DAY_MS = 86_400_000


def clocks(client: Client) -> tuple[int, int]:
    """The earlier and the later of both, epoch ms."""
    seconds, _ = client.command("TIME")
    both = (int(seconds) * 1000, time.time_ns() // 1_000_000)
    return min(both), max(both)


def latest(client: Client) -> int:
    """The last moment that something which has happened can tell: a day after now."""
    return clocks(client)[1] + DAY_MS
