"""A place in the pool: one child after another, and the memory they share with the supervisor."""

from __future__ import annotations

import os
import signal
import time

from jobq.worker import shared_state as slots
from jobq.worker.process import Plan, live
from jobq.worker.shared_state import Slots
from jobq.worker.stacks import Stacks

BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
#: A child that lived so long, or ended a job, is no crash loop.
SETTLED_S = 5.0


class Member:
    """At most one living child."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.slots = Slots()
        self.stacks = Stacks()
        self.pid = 0
        self.killed_for = ""
        self.hard_slots: set[int] = set()
        self.late_since = 0
        self.due_at = 0.0
        self.done = False
        self._born_at = 0.0
        self._failures = 0

    def fork(self, plan: Plan, control: int = 0) -> None:
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
