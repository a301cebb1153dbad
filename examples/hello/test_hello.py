"""Test that the job runs and returns its result."""

from __future__ import annotations

from typing import Any

from examples.hello.hello import greet


def test_greeting_comes_back(jobq: Any) -> None:
    receipt = greet.enqueue("world")
    jobq.assert_enqueued(greet, args=("world",), count=1)
    jobq.drain()
    assert receipt.result(timeout=10) == "Hello, world!"


def test_greeting_is_safe_to_run_again(jobq: Any) -> None:
    jobq.rehearse(greet, "world", before=lambda: None, observe=lambda: None)
