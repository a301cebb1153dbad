"""The lock length of a message, if it differs from the worker's lease."""

from __future__ import annotations

import pytest

from tests.lifecycle.conftest import until


@pytest.mark.parametrize("lease", ["1ms", "1h"])
def test_message_with_locks_of_its_own_runs_once(queue, start, send, ledger, lease):
    start("--processes", "2", "--lease", "5s")
    send("gated", "a", lease=lease)
    until(lambda: ledger.lines("start"))
    first = queue.status("a").lock_expires_at
    if lease == "1ms":
        until(lambda: queue.status("a").lock_expires_at > first + 6_000)
    ledger.gate("a").touch()
    until(lambda: queue.status("a").word != "locked")
    assert len(ledger.lines("start")) == 1
