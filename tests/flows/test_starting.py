"""Starting a flow, where no worker is there to take it on."""

from __future__ import annotations

from typing import Any

import pytest

from jobq import Flow
from jobq.flows import starting
from tests.lifecycle.jobs_in_flows import load


def test_a_started_flow_waits_longer_for_a_worker_than_an_hour(
    client: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    """Also where the starter can't take the begin to it: much may lie before it in the outbox."""
    monkeypatch.setattr(starting, "drain_soon", lambda *_: None)
    flow = Flow("import", "7", client=client)
    flow.step(load, 1)
    run = flow.start()
    assert run.status().state == "open"
    lives = {key: redis.pttl(key) for key in redis.keys("jobq:flow:*")}
    assert lives and min(lives.values()) > 300 * 86_400_000, lives
