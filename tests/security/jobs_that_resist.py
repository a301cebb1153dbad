"""Jobs that won't be stopped; the first argument is a file to write a line to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobq import job

HARD = {"queue": "low", "retries": 0, "hard_timeout": 2.0}


def note(file: str, text: str) -> None:
    """One line more."""
    with Path(file).open("a") as lines:
        lines.write(f"{text}\n")


def forever() -> None:
    """Past every exception."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


@job(name="catches", **HARD)
def catches(file: str) -> None:
    """Stops for no exception."""
    note(file, "start")
    forever()


@job(name="blocks", **HARD)
def blocks(file: str) -> None:
    """Hears no signal that can be blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    note(file, "start")
    forever()


@job(name="leaves", **HARD)
def leaves(file: str) -> None:
    """Is in its supervisor's process group and ignores what can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, os.getpgid(os.getppid()))
    note(file, "start")
    forever()


@job(name="exits", queue="low", retries=0)
def exits(file: str) -> None:
    """Tears its child down."""
    note(file, "start")
    os._exit(0)


@job(name="looks", queue="low")
def looks(file: str) -> None:
    """Notes which open files a program that a job starts has."""
    command = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"
    ran = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    note(file, ran.stdout.strip())
