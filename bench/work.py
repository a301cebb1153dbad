"""Jobs for cases that measure only jobq."""

from __future__ import annotations

import os
import time

from jobq import Retry, current, job


@job(queue="bench")
def noop(number: int = 0) -> None:
    """Do nothing, so that only jobq's costs remain."""


@job(queue="bench")
def spin(number: int = 0) -> None:
    """One millisecond of this thread's CPU, however busy the machine is."""
    until = time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < until:
        pass


@job(queue="bench", retries=5)
def twice() -> None:
    """Ask for an immediate retry, the first time."""
    if current().attempt == 1:
        raise Retry(after=0)


@job(queue="bench")
def due(due_at_ms: float, ledger: str) -> None:
    """Write how many ms after its time this message runs, by the clock that server and worker share."""
    _write(ledger, time.time() * 1000 - due_at_ms)


@job(queue="bench", retries=5)
def again(after_ms: float, ledger: str, marks: str) -> None:
    """Ask for a retry once; then write how many ms after asking it runs."""
    try:
        with open(marks, encoding="ascii") as asked:
            _write(ledger, time.time() * 1000 - float(asked.read()))
    except FileNotFoundError:
        with open(marks, "w", encoding="ascii") as asked:
            asked.write(f"{time.time() * 1000}")
        raise Retry(after=after_ms / 1000) from None


def _write(ledger: str, value: float) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{value:.3f}\n".encode())
    os.close(descriptor)
