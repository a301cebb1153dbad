"""Jobs with limits."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from jobq import ConcurrencyLimit, RateLimit, current, job

FOLDER = Path(os.environ.get("LIMITS_FOLDER", "."))
ONE, TWO = ConcurrencyLimit("one", 1), ConcurrencyLimit("two", 2)
HOURLY, EVERY, SHORT = (
    RateLimit("hourly", "1/h"),
    RateLimit("every", "1000/h"),
    RateLimit("short", "3/s"),
)


def note(text: str) -> None:
    """Add a line, whole whatever other processes write."""
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{text}\n")


@job(queue="low", limits=[ONE])
def stays(until: str) -> None:
    """Run until a file is there."""
    note("stays")
    while not (FOLDER / until).exists():
        time.sleep(0.01)


@job(queue="low", limits=[ONE])
def dies() -> None:
    """Kill this child."""
    if current().attempt == 1:
        note("dies")
        os.kill(os.getpid(), 9)
    note("lives")


if os.environ.get("LIFECYCLE_LOOP") == "yes":

    @job(queue="low", limits=[TWO, EVERY])
    async def waits() -> None:
        """Run concurrently with another job."""
        note(f"begins {current().attempt}")
        await asyncio.sleep(0.02)
        note("ends")


@job(queue="low", limits=[HOURLY, EVERY, ONE])
def hourly() -> None:
    """Run once an hour."""
    note(f"hourly {current().attempt}")


@job(queue="low", limits=[SHORT])
def short() -> None:
    """Run thrice a second."""
    note(f"short {current().attempt}")


@job(queue="low")
def asks_inside(until: str) -> None:
    """Take a slot in the midst of a job."""
    with TWO.slot(timeout=60) as slot:
        note(f"inside {slot.lost}")
        while not (FOLDER / until).exists():
            time.sleep(0.01)
        note(f"still {slot.lost}")
