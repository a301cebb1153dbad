"""A worker whose children die as they read certain messages: like a fault in a decoder, or too little memory."""

from __future__ import annotations

import os
import signal
from typing import Any

from jobq.jobs import executor
from jobq.queue import queue
from jobq.worker import child_exit as death
from tests.lifecycle.jobs_at_work import agated, gated, quick

__all__ = ["agated", "gated", "quick"]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _take(mid: str, *rest: Any) -> Any:
    if mid.startswith("deadly-to-take"):
        _die()
    return _message(mid, *rest)


def _decode(content: bytes) -> Any:
    if b"deadly-to-resolve" in content:
        _die()
    if b"fails-to-resolve" in content:
        raise AssertionError("a fault of jobq")
    return _read(content)


_message, queue.Message = queue.Message, _take  # type: ignore[assignment,misc]
_read, executor.decode = executor.decode, _decode
death.decode = _decode  # type: ignore[attr-defined]
