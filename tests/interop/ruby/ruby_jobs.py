"""Jobs under Ruby's names; the first two arguments are the ledger and a name, as in hard_worker.rb."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from jobq import current, job
from jobq.jobs import retry


def note(ledger: str, name: str, word: str) -> None:
    """One happening."""
    context = current()
    line = {
        "word": word, "name": name, "by": "jobq", "mid": context.mid, "attempt": context.attempt,
        "queue": context.queue, "headers": dict(context.headers),
    }  # fmt: skip
    with open(ledger, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write((json.dumps(line) + "\n").encode())


def gate(ledger: str, name: str) -> Path:
    """What gated jobs wait for and broken ones look at."""
    return Path(ledger).with_name(f"{name}.gate")


@job(name="HardWorker", retry=retry.fixed(0.05))
def hard_worker(ledger: str, name: str, doing: str = "run", *rest: object) -> None:
    """Runs, fails until its gate is there, waits for its gate, or kills its child."""
    if doing == "wait":
        note(ledger, name, "start")
        while not gate(ledger, name).exists():
            time.sleep(0.005)
    elif doing == "crash":
        note(ledger, name, "crash")
        os.kill(os.getpid(), 9)
    elif doing == "fail" and not gate(ledger, name).exists():
        note(ledger, name, "fail")
        raise ValueError(f"{name} isn't ready")
    note(ledger, name, "end")


@job(name="mail.welcome")
def welcome(ledger: str, name: str, *, locale: str = "en") -> None:
    """For the names that a table maps, and for ActiveJob's keyword arguments."""
    note(ledger, name, f"end {locale}")
