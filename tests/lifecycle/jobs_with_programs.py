"""Jobs that leave something behind: programs, threads, tasks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from jobq import job
from tests.lifecycle.jobs_at_work import HERE, ajob, note

#: A program that starts another, and tells its id.
TREE = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""
POOL = ThreadPoolExecutor(1)


def _start_tree() -> list[int]:
    first = subprocess.Popen([sys.executable, "-S", "-c", TREE], stdout=subprocess.PIPE)
    assert first.stdout is not None
    return [first.pid, int(first.stdout.readline())]


@job(name="leaves_programs", **HERE)
def leaves_programs(ledger: str, name: str) -> None:
    """Ends before its programs do."""
    note(ledger, name, "end", programs=_start_tree())


@job(name="crashes_over_programs", queue="low", retries=0)
def crashes_over_programs(ledger: str, name: str, number: int) -> None:
    """Is ended by a signal, or exits by itself for 0, while its programs run, one of them below no other."""
    shell = "sleep 600 >/dev/null & echo $!"
    orphan = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True)
    note(ledger, name, "start", programs=[*_start_tree(), int(orphan.stdout)])
    if number:
        os.kill(os.getpid(), number)
    os._exit(0)


@job(name="waits_for_programs", queue="low", retries=0, hard_timeout=3.0)
def waits_for_programs(ledger: str, name: str) -> None:
    """Waits for its programs until it is killed."""
    note(ledger, name, "start", programs=_start_tree())
    time.sleep(600)


@job(name="leaves_threads", **HERE)
def leaves_threads(ledger: str, name: str) -> None:
    """Leaves a thread at work, and others for which no program would wait."""
    threading.Thread(target=threading.Event().wait, name="uploader").start()
    threading.Thread(target=threading.Event().wait, name="by-the-way", daemon=True).start()
    POOL.submit(int).result()
    note(ledger, name, "end")


@ajob(name="leaves_tasks", **HERE)
async def leaves_tasks(ledger: str, name: str) -> None:
    """Leaves a task at work."""
    leaves_tasks.task = asyncio.create_task(asyncio.sleep(600), name="mailer")  # type: ignore[attr-defined]
    note(ledger, name, "end")
