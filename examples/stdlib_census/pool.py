"""The worker of the demo: started through the public command line, watched, and bereft of a child."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import ledger

HERE = Path(__file__).parent
STOP_S = 5.0


class Kill(NamedTuple):
    """A child that was killed in the middle of a job."""

    pid: int
    path: str
    at: float


@contextmanager
def worker(
    url: str, namespace: str, processes: int, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`jobq worker`, ended in any case."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--import", "census_jobs", "--queues", "census",
        "--processes", str(processes), "--log-level", "warning",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, "JOBQ_URL": url, "JOBQ_NAMESPACE": namespace}
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


def kill_a_busy_child(folder: Path) -> Kill | None:
    """Kill one that is in the middle of a job; None when none was caught in one."""
    for pid in ledger.pids(folder):
        try:
            # Stopped, it can't end the job between the look and the kill.
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
    """Stop a process, and return when it has: another processor may run on with it for a moment."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S
    while (found := state(pid)) != "T":
        if found in ("", "Z"):
            raise ProcessLookupError(f"process {pid} is gone")
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't stop")
        time.sleep(0.001)


def state(pid: int) -> str:
    """One letter, as `ps` has it; none when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return ""
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return asked.stdout.strip()[:1]


def ran_again_after(kill: Kill, folder: Path) -> float | None:
    """Seconds from the kill until somebody began that file again."""
    later = [
        line.at for line in ledger.read(folder) if line.word == "start" and line.path == kill.path
    ]
    later = [at for at in later if at > kill.at]
    return min(later) - kill.at if later else None


def held(kill: Kill, log: Path) -> str:
    """What the supervisor says that the child held."""
    found = re.search(rf"child {kill.pid} was killed.*?held (.*)", log.read_text(errors="replace"))
    return found[1] if found else "1 running"
