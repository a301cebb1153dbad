"""Runs a command that may not outlive its starter: `python -m jobq.pipeline.tether UNTIL worker --burst …`.

The tether is stdin. When it ends, because the starter let go or was killed, the worker is told to hurry: what
runs is stopped and given back, and after GRACE_S it is killed. The worker dies with this process by the
kernel's hand where that can, so no way to kill the starter, or this, leaves one behind.

UNTIL is an epoch second after which the worker drains, 0 for none. What the worker writes goes on to stderr; at
its end one JSON line on stdout says how that was.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import deque
from typing import Any

from jobq.worker.tie import die_with

GRACE_S = 10.0
#: Two signals that come before a busy machine lets the worker hear the first are one. Said again after so long:
#: a worker that heard both has stopped or killed what runs by then.
AGAIN_S = 2.5
POLL_S = 0.1
#: Held back so long: how a worker that can't start explains itself is told by the driver, once.
HELD_BACK_S = 3.0
TAIL_LINES = 60


class Tether:
    """One worker and what holds it."""

    def __init__(self, args: list[str], until: float) -> None:
        self._began = time.monotonic()
        self._until = until
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._held: list[bytes] = []
        self._told = 0
        self._kill_at = self._again_at = 0.0
        self._said, said = os.pipe()
        self.pid = _started(args, said)
        os.close(said)

    def run(self) -> dict[str, Any]:
        """Until the worker has ended; how it did."""
        watched = [0, self._said]
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            ready = select.select(watched, [], [], POLL_S)[0]
            if self._said in ready and not self._relay():
                watched.remove(self._said)
                time.sleep(POLL_S / 10)
            if 0 in ready and not os.read(0, 4096):
                watched.remove(0)
                self._kill_at = time.monotonic() + GRACE_S
            self._tell()
        while select.select([self._said], [], [], 0)[0] and self._relay():
            pass
        code = os.waitstatus_to_exitcode(status)
        if not code:
            self._let_out()
        return {
            "code": code, "seconds": round(time.monotonic() - self._began, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3), "rss_kib": usage.ru_maxrss,
            "said": b"".join(self._tail).decode("utf-8", "replace"),
        }  # fmt: skip

    def _tell(self) -> None:
        """Drain when it is time; hurry, then kill, when nobody holds the tether."""
        now = time.monotonic()
        over = bool(self._until) and time.time() >= self._until
        wanted = 2 if self._kill_at else int(over)
        if self._kill_at and now >= self._kill_at:
            os.kill(self.pid, signal.SIGKILL)
        elif self._told < wanted or (wanted == 2 and now >= self._again_at):
            self._told += 1
            self._again_at = now + AGAIN_S
            os.kill(self.pid, signal.SIGTERM)

    def _relay(self) -> bool:
        written = os.read(self._said, 65536)
        self._tail.extend(written.splitlines(keepends=True))
        self._held.append(written)
        if time.monotonic() - self._began > HELD_BACK_S:
            self._let_out()
        return bool(written)

    def _let_out(self) -> None:
        try:
            while self._held:
                os.write(2, self._held.pop(0))
        except OSError:
            self._held.clear()  # who would have read it is gone


def _started(args: list[str], said: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, standard in ((null, 0), (said, 1), (said, 2)):
            os.dup2(number, standard)
        # The kernel's promise outlives exec.
        die_with(parent)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "jobq", *args])
    finally:
        os._exit(127)


if __name__ == "__main__":
    ended = Tether(sys.argv[2:], float(sys.argv[1])).run()
    try:
        os.write(1, json.dumps(ended).encode())
    except BrokenPipeError:
        pass  # the starter is gone
