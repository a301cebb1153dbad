"""The tables that `python -m bench.fleet` computes from its slopes."""

from __future__ import annotations

import pytest

from bench.fleet import PARTS, _fitted, document

SLOPES = {
    "µs of server CPU per message, in batches": 10.0, "µs of server CPU per message, one by one": 70.0,
    "bytes per waiting message": 150.0, "bytes per event in a stream": 100.0,
    "idle host: round trips per second": 2.0, "idle host: commands per second": 5.0,
    "idle host: µs in commands per second": 60.0, "idle host: connections": 9.0,
    "idle host: bytes per connection": 2_000.0, "idle host: bytes in the list of workers": 400.0,
    "µs per round trip of a PING": 20.0, "idle host on 3 nodes, 1 queue: connections": 17.0,
    "a dashboard's reading: µs of server CPU per worker": 1.0, "a dashboard's reading: bytes per worker": 350.0,
    "a dashboard's reading: µs of CPU of the dashboard per worker": 20.0,
    "µs of CPU of the ingest per event": 2.5,
    "thousands of instructions per message, 1 partition on 1 node": 100.0,
    "thousands of instructions per message, 8 partitions on 3 nodes": 105.0,
}  # fmt: skip


def test_fitted_slope_leaves_out_what_does_not_grow() -> None:
    assert _fitted({1: 12.0, 2: 21.0, 4: 39.0}) == pytest.approx(9.0)


def test_tables_multiply_the_slopes() -> None:
    head = {"command": "python -m bench.fleet", "date": "2026-11-28", "load at start": "0.10"}
    said = list(document({"heads": [head], "parts": {next(iter(PARTS)): SLOPES}}))
    assert "| messages per second, in batches | 70,000 | 210,000 | 700,000 | 2,100,000 |" in said
    split = "messages per second of one queue with partitions on all servers, in batches"
    assert f"| {split} | 67,000 | 200,000 | 670,000 | 2,000,000 |" in said
    assert "| messages per second, one by one | 10,000 | 30,000 | 100,000 | 300,000 |" in said
    assert "| connections | 90 | 900 | 9,000 |" in said
    assert "| connections, 3 nodes, 1 queue | 170 | 1,700 | 17,000 |" in said
    # 60 µs in commands, and two round trips of 20 µs.
    assert "| share of the server's core | 0.1% | 1.0% | 10.0% |" in said
    assert "| servers, 70% busy, for 1,000,000 messages per second, in batches | 15 |" in said
    assert "| idle hosts until the default maxclients of 10,000 | 1,111 |" in said
