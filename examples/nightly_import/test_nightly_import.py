"""Test that the flow waits for approval before it publishes."""

from __future__ import annotations

from typing import Any

import pytest

from examples.nightly_import import nightly_import as example


def test_sum_is_published_once_a_person_approves(
    jobq: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = example.nightly("2026-11-23", 10).start()
    jobq.drain()
    jobq.assert_step(run, "load", "done", members=10)
    jobq.assert_step(run, "publish", "waiting")
    run.signal("approved", "ann")
    jobq.drain()
    jobq.assert_flow(run, "done")
    assert "published 135, approved by ann" in capsys.readouterr().out
