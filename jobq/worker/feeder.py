"""A message source: a separate process of the worker that enqueues messages into the worker's queues.

The source starts before the children, stops enqueueing when the worker drains, and exits last. So systems that
monitor the source see the worker as running until its end. If the source dies, the supervisor starts it again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from jobq.config import WorkerSettings
from jobq.jobs.forks import flush
from jobq.worker import exit_codes, logger
from jobq.worker.pool import BACKOFF_S, MAX_BACKOFF_S, SETTLED_S, PoolMember
from jobq.worker.process import reseed
from jobq.worker.signals import die_with


class QueuePipe:
    """A pipe between a worker and its message source. Each line is JSON with a queue's name and a number."""

    def __init__(self, *, waits: bool) -> None:
        """Open the pipe. A write to the full pipe waits if `waits` is true; otherwise, it raises BlockingIOError."""
        self._output, self._input = os.pipe()
        os.set_blocking(self._output, False)
        os.set_blocking(self._input, waits)
        self._unread = b""

    def write(self, numbers: Mapping[str, int]) -> None:
        """Write one line for each queue. If the pipe has no room for a line, no part of the line is written."""
        for name, number in numbers.items():
            os.write(self._input, msgspec.json.encode({name: number}) + b"\n")

    def read(self) -> dict[str, int]:
        """Read new lines from the pipe. Return a dict from queue name to number."""
        with suppress(BlockingIOError):
            while part := os.read(self._output, 65_536):
                self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        queues: dict[str, int] = {}
        for line in lines:
            queues |= msgspec.json.decode(line, type=dict[str, int])
        return queues


class SourceControl:
    """The connection from a message source to its worker: facts about the worker, and requests to the worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        members: Sequence[PoolMember],
        supervisor: int,
        asked: QueuePipe,
        served: QueuePipe,
    ) -> None:
        self.name, self.burst, self.processes = settings.name, settings.burst, settings.processes
        self.supervisor = supervisor
        names = [name for name, _ in settings.queues]
        #: The queues by the numbers that the supervisor and its children use.
        self._queues = dict(enumerate(names))
        self._wanted = set(names)
        self._members, self._asked, self._served = members, asked, served
        self._stopping = self._quiet = False
        self.woken, self._filled = os.pipe()
        for end in (self.woken, self._filled):
            os.set_blocking(end, False)

    def stopping(self) -> bool:
        """Return whether the source must exit now, because the supervisor is gone or has requested the exit."""
        return self._stopping or os.getppid() != self.supervisor

    def quiet(self) -> bool:
        """Return whether the worker has asked the source not to enqueue."""
        return self._quiet

    def running(self) -> list[tuple[int, str, str, int]]:
        """Return the running jobs as tuples of child index, queue, mid, and ms since that child last started a job."""
        self._queues |= {number: name for name, number in self._served.read().items()}
        return [job for member in self._members for job in self._running(member)]

    def _running(self, member: PoolMember) -> list[tuple[int, str, str, int]]:
        ran_ms = member.slots.ran_ns() // 10**6
        try:
            return [
                (member.index, self._queues[held.queue], held.mid, ran_ms)
                for held in member.slots.running()
            ]
        except (UnicodeDecodeError, KeyError):
            return []  # read while the child wrote, since its lock isn't shared with this process

    def serve(self, queues: Mapping[str, int]) -> None:
        """Ask the worker to also serve these queues, given with their weights."""
        new = {name: weight for name, weight in queues.items() if name not in self._wanted}
        if new:
            self._wanted |= new.keys()
            self._asked.write(new)

    def drain(self) -> None:
        try:
            while os.read(self.woken, 4096):
                pass
        except BlockingIOError:
            pass

    def handle_signals(self) -> None:
        """Make SIGTERM stop the message source, SIGUSR1 pause it and SIGUSR2 resume it.

        The supervisor handles all other signals.
        """
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
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self._stopping = True
        else:
            self._quiet = number == signal.SIGUSR1


Source = Callable[[SourceControl], object]


class Feeder:
    """Runs a message source in a separate process. Without a source, the methods do nothing."""

    def __init__(
        self, source: Source | None, settings: WorkerSettings, members: Sequence[PoolMember]
    ) -> None:
        self._source, self._settings, self._members = source, settings, members
        #: The source's requests, and later queues of the worker.
        self._pipes = (QueuePipe(waits=True), QueuePipe(waits=False)) if source else None
        self.pid = 0
        self.done = source is None
        self._quiet = self._stopped = False
        self._due_at = self._started_at = 0.0
        self._failures = 0

    def look_after(self) -> None:
        if self.pid and self._reaped():
            self.pid = 0
        if (
            self.pid
            or self.done
            or time.monotonic() < self._due_at
            or not (self._source and self._pipes)
        ):
            return
        self._started_at = time.monotonic()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                control = SourceControl(self._settings, self._members, parent, *self._pipes)
                _source_main(self._source, control, self._quiet)
        except OSError as error:
            self._due_at = time.monotonic() + MAX_BACKOFF_S
            logger.error("can't fork a process for the message source: %s", error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wanted(self) -> dict[str, int]:
        """Return the queues that the source has requested since the last call, with their weights."""
        return self._pipes[0].read() if self._pipes else {}

    def serves(self, settings: WorkerSettings, numbers: Mapping[str, int]) -> None:
        """Inform the source that the worker now serves these queues. `numbers` maps the queues to their indexes."""
        self._settings = settings
        if self._pipes:
            # The supervisor never waits for a source. A source that doesn't read only shows fewer running jobs.
            with suppress(BlockingIOError):
                self._pipes[1].write(numbers)

    def quiet(self, quiet: bool) -> None:
        """Pause the message source if `quiet` is true; otherwise, resume it."""
        self._quiet = quiet
        self._send(signal.SIGUSR1 if quiet else signal.SIGUSR2)

    def stop(self) -> None:
        """Ask the process to exit. Later calls do nothing."""
        self.done = True
        if not self._stopped:
            self._stopped = True
            self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the process immediately."""
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
            settled = time.monotonic() - self._started_at > SETTLED_S
            self._failures = 0 if settled else self._failures + 1
            wait_s = min(MAX_BACKOFF_S, BACKOFF_S * 2**self._failures)
            self._due_at = time.monotonic() + wait_s
            logger.warning(
                "message source %d exited with %d; restarting it in %.1f s", pid, code, wait_s
            )
        return True


def _source_main(source: Source, control: SourceControl, quiet: bool) -> NoReturn:
    code = exit_codes.FAILED
    try:
        die_with(control.supervisor)
        reseed()
        control.handle_signals()
        if quiet:
            os.kill(os.getpid(), signal.SIGUSR1)
        source(control)
        code = exit_codes.OK
    except BaseException:
        logger.exception("the message source failed")
    finally:
        try:
            flush()
        finally:
            os._exit(code)
