"""Unique jobs: in each burst, one run kills its process; each whole run appends a line to the ledger."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from jobq import job
from jobq.jobs import retry

HERE = {"queue": "low", "retry": retry.fixed(0.05), "unique": ["burst"]}


def work(ledger: str, burst: str, number: int) -> None:
    """The first run of a burst ends its process in the middle of the work."""
    try:
        Path(ledger).with_name(f"killed-{burst}").touch(exist_ok=False)
    except FileExistsError:
        with open(ledger, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"word": "end", "name": burst, "number": number}) + "\n")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@job(name="unique", **HERE, until="start", on_conflict="replace")
def unique(ledger: str, burst: str, number: int) -> None:
    work(ledger, burst, number)


@job(name="debounced", **HERE, debounce="50ms", debounce_max="2s")
def debounced(ledger: str, burst: str, number: int) -> None:
    work(ledger, burst, number)


@job(name="throttled", **HERE, throttle="1h")
def throttled(ledger: str, burst: str, number: int) -> None:
    work(ledger, burst, number)
