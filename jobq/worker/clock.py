"""The clock that supervisor and children share: it runs on while the machine sleeps."""

from __future__ import annotations

from jobq.client.clock import boot_ns

__all__ = ["boot_ns", "lease_and_margin"]


def lease_and_margin(lease_ms: int) -> tuple[int, int]:
    """In ns: a lease, and how long before its end a child must have stopped."""
    return lease_ms * 1_000_000, min(lease_ms * 100_000, 500_000_000)
