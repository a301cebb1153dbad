"""A place in the pool: one child after another, and the memory they share with the supervisor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

from jobq.worker import shared_state as slots
from jobq.worker.process import PoolPlan, StackFile, live
from jobq.worker.shared_state import SharedSlots

BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
#: A child that lived so long, or ended a job, is no crash loop.
SETTLED_S = 5.0
#: How long a child gets to write its stacks, and how often the supervisor looks.
STACKS_WITHIN_S, LOOK_EVERY_S = 0.5, 0.01


class PoolMember:
    """At most one living child."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.slots = SharedSlots()
        self.stacks = StackFile()
        self.pid = 0
        self.killed_for = ""
        self.hard_slots: set[int] = set()
        self.late_since = 0
        self.due_at = 0.0
        self.done = False
        self._born_at = 0.0
        self._failures = 0

    def fork(self, plan: PoolPlan, control: int = 0) -> None:
        """Bear a child that is told `control`. The caller is single-threaded. OSError: no process to be had."""
        self.slots.reset()
        self.stacks.clear()
        self.slots.words[slots.CONTROL] = control
        self.killed_for, self.hard_slots, self.late_since = "", set(), 0
        self.done = False
        self._born_at = time.monotonic()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                live(plan, self.slots, parent, self.stacks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def died(self, crashed: bool) -> None:
        """Note a death; `due_at` says when the next child may be born."""
        useful = self.slots.words[slots.FINISHED] or time.monotonic() - self._born_at > SETTLED_S
        self._failures = self._failures + 1 if crashed and not useful else int(crashed)
        self.pid = 0
        wait_s = BACKOFF_S * 2 ** (self._failures - 2) if self._failures > 1 else 0.0
        self.due_at = time.monotonic() + min(LONGEST_BACKOFF_S, wait_s)

    @property
    def booting(self) -> bool:
        """Whether its child hasn't begun to work."""
        return bool(self.pid) and self.slots.words[slots.STATE] == slots.BOOTING

    def tell(self, control: int) -> None:
        """Add to what the child is told, and see that it hears."""
        self.slots.words[slots.CONTROL] |= control
        self.send(signal.SIGUSR2)

    def untell(self, control: int) -> None:
        """Take back what it was told."""
        self.slots.words[slots.CONTROL] &= ~control
        self.send(signal.SIGUSR2)

    def kill(self, why: str) -> None:
        """At once."""
        self.killed_for = self.killed_for or why
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """A signal, if there is a child. One not yet reaped keeps its pid, so no stranger is hit."""
        if self.pid:
            os.kill(self.pid, number)


def seen_together(by_pid: Mapping[int, StackFile]) -> dict[int, str]:
    """The stacks of these children. One that is stopped, or slow, has none or a part of them."""
    for pid, stacks in by_pid.items():
        stacks.clear()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTTIN)
    deadline, before = time.monotonic() + STACKS_WITHIN_S, [0]
    while time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        sizes = [stacks.size() for stacks in by_pid.values()]
        if all(sizes) and sizes == before:
            break
        before = sizes
    return {pid: stacks.text() or "(it doesn't answer)" for pid, stacks in by_pid.items()}
