"""Facts about the machine: its hardware, whether it is idle, and the share of other processes."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.server import OVER_TCP, VALKEY, redis_binary

#: Of all cores together: more than this, taken by others, and a figure is marked.
BUSY_SHARE = 0.05
PATIENCE_S = 30.0
SAMPLE_S = 0.5
_SUBREAPER = 36


def adopt_orphans() -> None:
    """Adopt orphaned processes, so that their CPU counts as this process's. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def bury_orphans() -> None:
    """Reap adopted processes that have ended."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, 0)


class Watch:
    """Measure the share of all cores used by other processes since its creation."""

    def __init__(self) -> None:
        self._began = _spent()

    def others(self) -> float:
        """Return the share, 0 to 1."""
        whole, busy, own = (now - was for now, was in zip(_spent(), self._began, strict=True))
        return max(0.0, min(1.0, (busy - own) / whole)) if whole > 0 else 0.0


def _spent() -> tuple[float, float, float]:
    """CPU seconds so far: of all cores with idle time, of all without it, of ours, dead ones included."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return 0.0, 0.0, 0.0
    user, nice, system, idle, waiting, *interrupts_and_stolen = map(int, first.split()[1:9])
    ticks = os.sysconf("SC_CLK_TCK")
    busy = user + nice + system + sum(interrupts_and_stolen)
    own = os.times()
    spent = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])
    return (busy + idle + waiting) / ticks, busy / ticks, spent


def wait_until_idle(patience_s: float = PATIENCE_S) -> float:
    """Wait until other processes are idle; return their last share of the CPU."""
    deadline = time.monotonic() + patience_s
    while True:
        watch = Watch()
        time.sleep(SAMPLE_S)
        share = watch.others()
        if share <= BUSY_SHARE or time.monotonic() > deadline:
            return share


def described(module: str = "bench") -> dict[str, str]:
    """Machine, versions, load, and the command that `module` was started by, as strings."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    node = _asked("node", "--version").removeprefix("v") or "none"
    return {
        "machine": f"{os.cpu_count()} cores of {_processor()}, server included; "
        f"{platform.system()} {platform.release().split('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, "
        f"redis-py {version('redis')}, hiredis {version('hiredis')}",
        "node": node,
        "ruby": (_asked("ruby", "--version").split() or ["", "none"])[1],
        "server": f"{versioned(VALKEY)}, {way_to_server()}",
        "memory measured on": versioned(redis_binary()),
        "load at start": load,
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
    }


def way_to_server() -> str:
    """Return how the measured systems reach their server."""
    return "over TCP" if OVER_TCP in os.environ else "on a unix socket"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return "an " + line.split(":", 1)[1].strip()
    return platform.machine()


def versioned(binary: str) -> str:
    """A server with its version."""
    words = _asked(binary, "--version").split()
    number = next((word[2:] for word in words if word.startswith("v=")), "?")
    return f"{'Valkey' if binary == VALKEY else 'Redis'} {number}"


def _asked(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
