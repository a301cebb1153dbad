"""The clock that supervisor and children share: it runs on while the machine sleeps."""

from __future__ import annotations

from jobq.engine.clock import boot_ns

__all__ = ["boot_ns"]
