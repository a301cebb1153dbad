"""The members of a pool. Each has a current child, and memory that the child and the supervisor share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from jobq.jobs import admission
from jobq.worker.child import PoolPlan
from jobq.worker.counters import Counters
from jobq.worker.holdings import SharedHoldings
from jobq.worker.process import StackFile, child_main
from jobq.worker.programs import end_programs
from jobq.worker.shared_state import Phase, SharedSlots

BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
#: A child with a longer run time than this, or with an ended job, is not part of a crash loop.
SETTLED_S = 5.0
#: How long a child gets to write its stacks.
STACKS_WITHIN_S = 0.5


class PoolMember:
    """A member of the pool: the current child, and memory that the child and the supervisor share."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.slots = SharedSlots()
        self.holdings = SharedHoldings()
        self.stacks = StackFile()
        #: Counters of its children; None if metrics are off.
        self.counters: Counters | None = None
        self.pid = 0
        self.killed_for = ""
        self.hard_slots: set[int] = set()
        self.late_since = self.looked_for = 0
        self.due_at = 0.0
        self.done = False
        self._started_at = 0.0
        self._failures = 0

    def fork(self, plan: PoolPlan, control: int = 0) -> None:
        """Fork a child. `control` contains the first requests to the child.

        The calling process must be single-threaded. Raises OSError.
        """
        self.slots.reset(control)
        self.holdings.reset()
        self.stacks.clear()
        self.killed_for, self.hard_slots = "", set()
        self.late_since = self.looked_for = 0
        self.done = False
        self._started_at = time.monotonic()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                if plan.hooks.keeper is not None:
                    self.holdings.lease_s = plan.settings.lease_s
                    admission.holdings.table = self.holdings
                child_main(plan._replace(counters=self.counters), self.slots, parent, self.stacks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def exited(self, crashed: bool) -> None:
        """Record the child's exit, and set the time `due_at` of the next fork."""
        useful = self.slots.nfinished or time.monotonic() - self._started_at > SETTLED_S
        self._failures = self._failures + 1 if crashed and not useful else int(crashed)
        self.pid = 0
        wait_s = BACKOFF_S * 2 ** (self._failures - 2) if self._failures > 1 else 0.0
        self.due_at = time.monotonic() + min(MAX_BACKOFF_S, wait_s)

    @property
    def is_booting(self) -> bool:
        return bool(self.pid) and self.slots.phase == Phase.BOOTING

    def ask(self, control: int) -> None:
        """Send requests to the child, and wake it so that it reads them."""
        self.slots.ask(control)
        self.notify()

    def ask_no_more(self, control: int) -> None:
        self.slots.ask_no_more(control)
        self.notify()

    def notify(self) -> None:
        self._send(signal.SIGUSR2)

    def kill(self, why: str) -> None:
        """Kill the child and the programs that its running jobs started."""
        self.killed_for = self.killed_for or why
        self._end_programs()
        self._send(signal.SIGKILL)

    def has_exited(self) -> bool:
        """Return whether the child has exited. If so, and it wasn't killed, also end the programs of its running jobs.

        The caller must still reap the child.
        """
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if not self.pid or os.waitid(os.P_PID, self.pid, options) is None:
            return False
        if not self.killed_for:
            self._end_programs()
        return True

    def _end_programs(self) -> None:
        if self.pid and (began_at := self.slots.began_at()):
            end_programs(self.pid, began_at)

    def _send(self, number: int) -> None:
        # A child that isn't reaped keeps its pid, so this hits no other process.
        if self.pid:
            os.kill(self.pid, number)


class StackDump:
    """A dump of the stacks of some children, which write them while the supervisor continues its work."""

    def __init__(self, members: Sequence[PoolMember]) -> None:
        self._files = {member.pid: member.stacks for member in members if member.pid}
        self._sizes = [0]
        self._deadline = time.monotonic() + STACKS_WITHIN_S
        for pid, stacks in self._files.items():
            stacks.clear()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTTIN)

    def is_over(self) -> bool:
        """Return whether all stacks are complete or the time for the dump is over."""
        sizes = [stacks.size() for stacks in self._files.values()]
        written = all(sizes) and sizes == self._sizes
        self._sizes = sizes
        return written or time.monotonic() >= self._deadline

    def texts(self) -> dict[int, str]:
        """Return each child's stacks by its pid. The stacks of a stopped or slow child may be missing or incomplete."""
        return {pid: stacks.text() or "(it doesn't answer)" for pid, stacks in self._files.items()}
