"""The plan that `python -m bench.scale` makes of its figures: by the slopes, without what a start costs."""

from __future__ import annotations

from typing import Any

from bench.scale import REFRESH, STEPS, WEIGHTS, document


def lake(events: int) -> dict[str, Any]:
    """Every step takes ten seconds to start and 2 µs an event."""
    step = {"events": events, "engine": "spark", "cpu_s": 10 + events * 2e-6, "wall_s": 20.0}
    steps = {name: {**step, "python": 300 << 20, "java": 1 << 30} for name in STEPS}
    found = {"events": events, "steps": steps, "bytes": dict.fromkeys(WEIGHTS, 20.0)}
    return {**found, REFRESH: {"older": events, "cpu_s": 10 + events * 2e-6}}


def test_plan_leaves_out_what_a_start_costs():
    head = {"command": "python -m bench.scale", "date": "2026-11-23", "load at start": "0.10"}
    said = list(document({"heads": [head], "sizes": {"5": lake(5_000_000), "1": lake(1_000_000)}}))
    assert said[0] == "- command: `python -m bench.scale`"
    assert "|  | spark | 5.0 M | 20.0 | 2.00 | 300 MiB | 1,024 MiB |" in said
    assert "| CPU hours, check | 0.1 | 0.6 | 5.6 |" in said
    assert "| 5.0 M | 20.0 | 1.67 |" in said
    # Five steps of 2 µs, half of the cores idle: 20 s for each million.
    assert "| cores, 50% of them busy | 1 | 1 | 3 |" in said
    assert (
        "| files before and after compaction | 2,880, 15 | 10,000, 150 | 100,000, 1,491 |" in said
    )
