"""A message's own lock length beside the worker's lease."""

from __future__ import annotations

import pytest

from tests.lifecycle.conftest import until


@pytest.mark.parametrize("lock_ms", [1, 3_600_000])
def test_message_with_locks_of_its_own_runs_once(queue, start, send, ledger, lock_ms):
    start("--processes", "2", "--lease", "2s")
    send("gated", "a", lock_ms=lock_ms)
    until(lambda: ledger.lines("start"))
    first = queue.status("a").lock_at
    if lock_ms == 1:
        until(lambda: queue.status("a").lock_at > first + 3_000)
    ledger.gate("a").touch()
    until(lambda: queue.status("a").word != "locked")
    assert len(ledger.lines("start")) == 1
