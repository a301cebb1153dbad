"""A message source: a process of its own beside the children, which feeds the worker's queues.

It starts before them, is told to be quiet when the worker drains, and leaves last, so that who watches it from
elsewhere sees the worker to its end. One that dies is started again, like a child; what it does has to bear that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from jobq.client.clock import boot_ns
from jobq.config import WorkerSettings
from jobq.jobs.forks import flush
from jobq.worker import exit_codes, logger
from jobq.worker import shared_state as slots
from jobq.worker.pool import BACKOFF_S, LONGEST_BACKOFF_S, SETTLED_S, PoolMember
from jobq.worker.process import reseed
from jobq.worker.signals import die_with


class SourceControl:
    """What a source knows of its worker, and is told by it."""

    def __init__(
        self, settings: WorkerSettings, members: Sequence[PoolMember], supervisor: int
    ) -> None:
        self.name, self.burst, self.processes = settings.name, settings.burst, settings.processes
        self.supervisor = supervisor
        self._queues = [name for name, _ in settings.queues]
        self._members = members
        self._stopping = self._quiet = False
        self.woken, self._filled = os.pipe()
        for end in (self.woken, self._filled):
            os.set_blocking(end, False)

    def stopping(self) -> bool:
        """Whether to leave now; so too once the supervisor is gone."""
        return self._stopping or os.getppid() != self.supervisor

    def quiet(self) -> bool:
        """Whether to feed nothing more."""
        return self._quiet

    def running(self) -> list[tuple[int, str, str, int]]:
        """Per job that runs: the child's place in the pool, queue, mid, ms since that child last began one."""
        return [job for member in self._members for job in self._running(member)]

    def _running(self, member: PoolMember) -> list[tuple[int, str, str, int]]:
        ran_ms = (boot_ns() - member.slots.words[slots.STARTED_AT]) // 10**6
        try:
            return [
                (member.index, self._queues[held.queue], held.mid, ran_ms)
                for held in member.slots.held()
                if held.state == slots.RUNNING
            ]
        except (UnicodeDecodeError, IndexError):
            return []  # read while the child wrote, since its lock isn't shared with this process

    def drain(self) -> None:
        """Empty `woken`."""
        try:
            while os.read(self.woken, 4096):
                pass
        except BlockingIOError:
            pass

    def listen(self) -> None:
        """In the source's process: TERM stops, USR1 quiets, USR2 ends that; the rest is the supervisor's."""
        signal.set_wakeup_fd(self._filled, warn_on_full_buffer=False)
        for number in (
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGTSTP,
            signal.SIGTTIN,
            signal.SIGALRM,
        ):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._hear)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _hear(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self._stopping = True
        else:
            self._quiet = number == signal.SIGUSR1


Source = Callable[[SourceControl], object]


class Feeder:
    """The process of one source; without one, it does nothing and is always done."""

    def __init__(
        self, source: Source | None, settings: WorkerSettings, members: Sequence[PoolMember]
    ) -> None:
        self._source, self._settings, self._members = source, settings, members
        self.pid = 0
        self.done = source is None
        self._quiet = self._stopped = False
        self._due_at = self._born_at = 0.0
        self._failures = 0

    def look_after(self) -> None:
        """Reap it, and start it where it should run and doesn't."""
        if self.pid and self._reaped():
            self.pid = 0
        if self.pid or self.done or time.monotonic() < self._due_at or self._source is None:
            return
        self._born_at = time.monotonic()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _live(
                    self._source, SourceControl(self._settings, self._members, parent), self._quiet
                )
        except OSError as error:
            self._due_at = time.monotonic() + LONGEST_BACKOFF_S
            logger.error("no process can be forked for the message source: %s", error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def quiet(self, quiet: bool) -> None:
        """Feed nothing more, or go on."""
        self._quiet = quiet
        self._send(signal.SIGUSR1 if quiet else signal.SIGUSR2)

    def stop(self) -> None:
        """Have it leave; said again, nothing more."""
        self.done = True
        if not self._stopped:
            self._stopped = True
            self._send(signal.SIGTERM)

    def kill(self) -> None:
        """At once."""
        self.done = True
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def _reaped(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return False
        code = os.waitstatus_to_exitcode(status)
        if code == exit_codes.OK:
            self.done = True
        elif not self.done:
            settled = time.monotonic() - self._born_at > SETTLED_S
            self._failures = 0 if settled else self._failures + 1
            wait_s = min(LONGEST_BACKOFF_S, BACKOFF_S * 2**self._failures)
            self._due_at = time.monotonic() + wait_s
            logger.warning(
                "the message source %d left with %d; another in %.1f s", pid, code, wait_s
            )
        return True


def _live(source: Source, watch: SourceControl, quiet: bool) -> NoReturn:
    code = exit_codes.FAILED
    try:
        die_with(watch.supervisor)
        reseed()
        watch.listen()
        if quiet:
            os.kill(os.getpid(), signal.SIGUSR1)
        source(watch)
        code = exit_codes.OK
    except BaseException:
        logger.exception("the message source fails")
    finally:
        try:
            flush()
        finally:
            os._exit(code)
