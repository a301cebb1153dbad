"""The monitor process, which reports the worker's state and its crashes even while the supervisor is busy.

The supervisor has one thread, so it forks the monitor before the children. The monitor reads the memory that the
worker's processes share. It also receives a datagram from the supervisor for each dead child and each crashed attempt.
The monitor runs only if there are listeners, and exits last. If it dies, the supervisor starts a new monitor.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import msgspec

from jobq.client.clock import boot_ns
from jobq.config import WorkerSettings
from jobq.errors import ConfigError
from jobq.jobs.crashes import ChildDeath, CrashReport, MonitorListener
from jobq.jobs.forks import flush
from jobq.worker import exit_codes, logger
from jobq.worker.counters import Counters, Labels
from jobq.worker.pool import BACKOFF_S, MAX_BACKOFF_S, PoolMember
from jobq.worker.process import reseed
from jobq.worker.recycle import resident_bytes
from jobq.worker.shared_state import NEVER, Phase
from jobq.worker.signals import die_with

#: How long the monitor may take to send the remaining reports.
LEAVE_S = 2.0
#: How often it checks that the supervisor lives, on systems whose kernel doesn't end it with the supervisor.
LOOK_S = 1.0
_IGNORED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGALRM, signal.SIGUSR1,
    signal.SIGUSR2,
)  # fmt: skip
_LARGEST = 1 << 16
_TRACE = ("traceparent", "tracestate", "sentry-trace")
_MAX_HEADER_LENGTH = 1024
_LOOP_AT, _SERVER_AT, _FLAGS, _PIDS = range(4)
_QUIET, _STOPPING, _FULL = 1, 2, 4


class PoolState:
    """Values that the supervisor writes for the monitor process, such as its last activity and the pids of children."""

    def __init__(self, count: int) -> None:
        self._words = memoryview(mmap.mmap(-1, 8 * (_PIDS + count))).cast("q")
        self.looped()

    def looped(self, quiet: bool = False, stopping: bool = False, full: bool = False) -> None:
        """Record a turn of the supervisor's loop. `full` means that the server's memory is full."""
        self._words[_LOOP_AT] = boot_ns()
        self._words[_FLAGS] = quiet * _QUIET + stopping * _STOPPING + full * _FULL

    def server_answered(self) -> None:
        self._words[_SERVER_AT] = boot_ns()

    def set_pid(self, index: int, pid: int) -> None:
        """Record the pid of the pool's child with this index; 0 if no child is running."""
        self._words[_PIDS + index] = pid

    def pid(self, index: int) -> int:
        """Return the pid of the pool's child with this index; 0 if no child is running."""
        return self._words[_PIDS + index]

    @property
    def loop_age_s(self) -> float:
        return max(0, boot_ns() - self._words[_LOOP_AT]) / 1e9

    @property
    def server_age_s(self) -> float:
        at = self._words[_SERVER_AT]
        return max(0, boot_ns() - at) / 1e9 if at else float("inf")

    @property
    def is_quiet(self) -> bool:
        return bool(self._words[_FLAGS] & _QUIET)

    @property
    def is_server_full(self) -> bool:
        """Return whether the server's memory was full when the worker last sent a heartbeat."""
        return bool(self._words[_FLAGS] & _FULL)

    @property
    def is_stopping(self) -> bool:
        return bool(self._words[_FLAGS] & _STOPPING)


class ChildView(NamedTuple):
    """The state of one living child.

    Attributes:
        rss: Bytes of resident memory.
        margin_s: Seconds until the earliest lease of its running messages expires; None if nothing runs.
    """

    place: int
    pid: int
    phase: Phase
    running: int
    rss: int
    margin_s: float | None


class PoolView:
    """A read-only view of the worker for its monitor process. Its methods never lock or wait."""

    def __init__(
        self, settings: WorkerSettings, slots: int, state: PoolState, members: Sequence[PoolMember],
        pages: Sequence[Counters],
    ) -> None:  # fmt: skip
        #: `slots` is the maximum number of concurrent jobs, and `pages` has the counters of all processes.
        self.settings, self.slots, self.state, self.pages = settings, slots, state, pages
        self._members = members

    def children(self) -> list[ChildView]:
        """Return the living children."""
        living = [(member, self.state.pid(member.index)) for member in self._members]
        return [self._child(member, pid) for member, pid in living if pid]

    def _child(self, member: PoolMember, pid: int) -> ChildView:
        slots = member.slots
        until = slots.deadline()
        margin_s = None if until == NEVER else (until - boot_ns()) / 1e9
        rss = resident_bytes(pid)
        return ChildView(member.index, pid, slots.phase, slots.nrunning, rss, margin_s)


class Monitor:
    """Controls the monitor process from the supervisor. Without listeners, its methods do nothing."""

    def __init__(
        self, listeners: Sequence[MonitorListener], settings: WorkerSettings, members: Sequence[PoolMember],
        jobs: Sequence[str], slots: int,
    ) -> None:  # fmt: skip
        self._listeners = listeners
        self.pid = 0
        self._due_at, self._failures = 0.0, 0
        self._outbox: socket.socket | None = None
        self.state = PoolState(len(members))
        labels = Labels.of([name for name, _ in settings.queues], jobs)
        #: The supervisor's own counters; None if metrics are off.
        self.counters = Counters(labels) if listeners else None
        pages = []
        if self.counters is not None:
            pages.append(self.counters)
            for member in members:
                member.counters = Counters(labels)
                pages.append(member.counters)
        self._pool = PoolView(settings, slots, self.state, members, pages)

    def start(self, alive_write: int) -> None:
        """Fork the monitor, which closes the descriptor `alive_write`. Raises ConfigError if a listener can't start."""
        if self._listeners:
            for listener in self._listeners:
                listener.open()
            self._fork(alive_write)

    def look_after(self, alive_write: int) -> None:
        if not self._listeners or (self.pid and not os.waitpid(self.pid, os.WNOHANG)[0]):
            return
        if self.pid:
            self.pid = 0
            self._due_at = time.monotonic() + min(MAX_BACKOFF_S, BACKOFF_S * 2**self._failures)
            self._failures += 1
            logger.warning("the monitor process died; restarting it")
        if time.monotonic() < self._due_at:
            return
        try:
            for listener in self._listeners:
                listener.open()
            self._fork(alive_write)
        except (ConfigError, OSError) as error:
            self._due_at = time.monotonic() + MAX_BACKOFF_S
            logger.error("the monitor process can't start: %s", error)

    def _fork(self, alive_write: int) -> None:
        if self._outbox is not None:
            self._outbox.close()
        self._outbox, inbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outbox.setblocking(False)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                os.close(alive_write)
                self._outbox.close()
                _monitor_main(self._listeners, self._pool, inbox, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        inbox.close()
        for listener in self._listeners:
            listener.close()

    def tell(self, report: ChildDeath | CrashReport) -> None:
        """Send a report to the monitor process. If that isn't possible now, log that the report is lost."""
        if self._outbox is None:
            return
        data = msgspec.json.encode(report)
        if len(data) > _LARGEST and isinstance(report, CrashReport):
            # Headers may fill a whole message. Listeners need only the trace.
            headers = {
                name: value
                for name, value in report.headers.items()
                if name in _TRACE and len(value) <= _MAX_HEADER_LENGTH
            }
            data = msgspec.json.encode(msgspec.structs.replace(report, headers=headers))
        try:
            self._outbox.send(data)
        except OSError as error:
            logger.warning("could not pass on the report of a crash: %s", error)

    def leave(self) -> None:
        """Let the monitor process send all reports and end. If this takes longer than two seconds, kill it."""
        if not self.pid or self._outbox is None:
            return
        try:
            self._outbox.send(b"")
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + LEAVE_S
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() >= until:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        self.pid = 0
        self._outbox.close()


def _monitor_main(
    listeners: Sequence[MonitorListener], pool: PoolView, inbox: socket.socket, parent: int
) -> NoReturn:
    code = exit_codes.FAILED
    try:
        die_with(parent)
        reseed()
        signal.set_wakeup_fd(-1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for listener in listeners:
            listener.start(pool)
        _receive(listeners, inbox, parent)
        for listener in listeners:
            _notify(listener.stop)
        code = exit_codes.OK
    except BaseException:
        logger.exception("the monitor process failed")
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _receive(listeners: Sequence[MonitorListener], inbox: socket.socket, parent: int) -> None:
    decode = msgspec.json.Decoder(ChildDeath | CrashReport).decode
    while os.getppid() == parent:
        if not select.select([inbox], [], [], LOOK_S)[0]:
            continue
        data = inbox.recv(_LARGEST)
        if not data:
            return
        report = decode(data)
        for listener in listeners:
            if isinstance(report, ChildDeath):
                _notify(listener.died, report)
            else:
                _notify(listener.crashed, report)


def _notify(call: object, *arguments: object) -> None:
    """Call a listener. If it raises an error, log the error, so that other listeners are still called."""
    assert callable(call)
    try:
        call(*arguments)
    except Exception:
        logger.exception("a listener of the monitor process failed")
