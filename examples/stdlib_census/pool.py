"""Start the demo's worker from the command line, watch the worker, and kill one child process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import ledger

from jobq import Queue

HERE = Path(__file__).parent
STOP_S = 5.0
STUCK_S = 30.0


class Kill(NamedTuple):
    """A child killed in the middle of a job."""

    pid: int
    path: str
    at: float


@contextmanager
def worker(
    queue: Queue, module: str, processes: int, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `jobq worker` for the queue, with the jobs of a module in this folder, and stop the worker at the end."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--import", module, "--queues", queue.name,
        "--processes", str(processes), "--log-level", "warning",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    client = queue.client
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "JOBQ_URL": client.url,
        "JOBQ_NAMESPACE": client.namespace,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=env, cwd=HERE, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def watched(
    process: subprocess.Popen[bytes], queue: Queue, total: int, label: str,
    also: Callable[[int], None] = lambda ended: None,
) -> str:  # fmt: skip
    """Show progress until `total` jobs have ended. Return an error text, or '' on success.

    also: Called repeatedly with the number of ended jobs.
    """
    seen, moved_at = 0, time.monotonic()
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        while seen < total:
            counts = queue.admin.counts()
            ended = total - (counts.messages - counts.done - counts.deduped)
            if ended > seen:
                bar.update(ended - seen)
                seen, moved_at = ended, time.monotonic()
            elif process.poll() is not None:
                return f"the worker left with exit code {process.returncode}"
            elif time.monotonic() - moved_at > STUCK_S:
                return f"the worker ended no job for {STUCK_S:g} s"
            also(seen)
            time.sleep(0.02)
    return ""


def last_words(trouble: str, log: Path) -> str:
    """Return the error text, and the end of the worker's log."""
    tail = log.read_text(errors="replace")[-2000:]
    return f"\n{trouble}; its log, {log}, ends:\n{tail}"


def kill_a_busy_child(folder: Path) -> Kill | None:
    """Kill a child that is running a job, and return the `Kill`. Return None if no child was running a job."""
    for pid in ledger.pids(folder):
        try:
            # A stopped child can't end its job before the kill.
            stop(pid)
            path = ledger.unfinished(folder, pid)
            if path is not None:
                os.kill(pid, signal.SIGKILL)
                return Kill(pid, path, time.monotonic())
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue
    return None


def stop(pid: int) -> None:
    """Send STOP to a process, and wait until the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S
    while (letter := state(pid)) != "T":
        if letter in ("", "Z"):
            raise ProcessLookupError(f"process {pid} is gone")
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't stop")
        time.sleep(0.001)


def state(pid: int) -> str:
    """Return the state letter that `ps` shows, or '' if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return ""
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return asked.stdout.strip()[:1]


def ran_again_after(kill: Kill, folder: Path) -> float | None:
    """Return the seconds from the kill to the next start of the job, or None if the job never ran again."""
    later = [
        line.at for line in ledger.read(folder) if line.word == "start" and line.path == kill.path
    ]
    later = [at for at in later if at > kill.at]
    return min(later) - kill.at if later else None


def held(kill: Kill, log: Path) -> str:
    """Return the messages that the killed child held, from the supervisor's log."""
    match = re.search(rf"child {kill.pid} was killed.*?held (.*)", log.read_text(errors="replace"))
    return match[1] if match else "1 running"
