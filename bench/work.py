"""The jobs that the measurements run."""

from __future__ import annotations

import os
import time

from jobq import job


@job(queue="bench")
def noop() -> None:
    """Nothing: what is left is jobq's own cost."""


@job(queue="bench")
def picked_up(sent_ns: int, ledger: str) -> None:
    """Write how long this message waited, by the clock that all processes of a machine share."""
    waited_ns = time.monotonic_ns() - sent_ns
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{waited_ns}\n".encode())
    os.close(descriptor)
