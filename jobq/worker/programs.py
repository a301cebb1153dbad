"""Kills programs started by a child's jobs when the child is killed. Reaps orphans that the supervisor adopts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from jobq.worker import logger


class Process(NamedTuple):
    """A running process; `started` is in clock ticks since the boot."""

    parent: int
    group: int
    started: int
    name: str


def reap_orphans(ours: Collection[int]) -> None:
    """Reap ended processes that the supervisor has adopted.

    The first process of a container adopts each process whose parent has exited. `ours` has the ids of the supervisor's
    other processes, which must not be reaped here.
    """
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in ours:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def lead_group() -> None:
    """Make this child the leader of a process group, so that programs started by its jobs can be killed as a group.

    Only the foreground group may read from a terminal. So a child whose stdin is a terminal, for a debugger, doesn't
    lead a group.
    """
    if not os.isatty(0):
        with suppress(OSError):
            os.setpgid(0, 0)


def end_programs(child: int, since: int) -> None:
    """Kill programs that a child's running jobs have started. The first of these jobs started at `since` (boot_ns).

    This kills the child's descendants and the members of its process group that started at `since` or later. The child
    may have exited, but must not be reaped yet. Without /proc, no programs are killed.
    """
    if not os.path.exists(f"/proc/{child}/stat"):
        return
    if child != os.getpid():
        _send(child, signal.SIGSTOP)  # so that it doesn't start other programs
    earliest = since * os.sysconf("SC_CLK_TCK") // 10**9 - 1
    ended: dict[int, Process] = {}
    while below := _below(child, running_processes(), earliest, ended):
        for pid in below:
            _send(pid, signal.SIGSTOP)
        ended |= below
    for pid in ended:
        _send(pid, signal.SIGKILL)
    if ended:
        names = ", ".join(f"{process.name} ({pid})" for pid, process in ended.items())
        logger.warning(
            "child %d ended, so the programs started by its jobs were killed: %s", child, names
        )


def _below(
    child: int, running: dict[int, Process], earliest: int, known: Collection[int]
) -> dict[int, Process]:
    parents = {child, *known}
    return {
        pid: process
        for pid, process in running.items()
        if (process.parent in parents or process.group == child)
        and process.started >= earliest
        and pid not in parents
    }


def running_processes() -> dict[int, Process]:
    """Return all processes by id, except zombies.

    Without /proc, use `ps`; start times are then 0.
    """
    if not os.path.exists("/proc/self/stat"):
        return _named_by_ps()
    running = {}
    for pid in os.listdir("/proc"):
        if not pid.isdecimal():
            continue
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, rest = file.read().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if fields[0] != "Z":
            name = ascii(head.partition("(")[2]).strip("'\"")
            running[int(pid)] = Process(int(fields[1]), int(fields[2]), int(fields[19]), name)
    return running


def _named_by_ps() -> dict[int, Process]:
    columns = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,comm="]
    listed = subprocess.run(columns, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=4) for line in listed.splitlines()]
    return {
        int(pid): Process(int(parent), int(group), 0, name)
        for pid, parent, group, state, name in rows
        if not state.startswith("Z")
    }


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
