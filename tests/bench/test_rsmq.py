"""`python -m bench.rsmq`: every row sends, receives and deletes what it counts, and the page has every row."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from bench import rsmq as bench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "interop" / "rsmq.md"
CYCLES = 20


@pytest.fixture
def rows(client, monkeypatch):
    """Rows by name, of batches that are small."""
    monkeypatch.setattr(bench, "BATCH", CYCLES)
    with asyncio.Runner() as runner:
        yield bench.ours(client) | bench.ours_async(client, runner)


def test_every_row_deletes_what_it_sent(rows, redis):
    for name, cycles in rows.items():
        queue = "async" if name.startswith("AsyncRsmq") else "bench"
        sent = int(redis.hget(f"rsmq:{queue}:Q", "totalsent") or 0)
        assert cycles(CYCLES) > 0, name
        assert int(redis.hget(f"rsmq:{queue}:Q", "totalsent")) == sent + CYCLES, name
        assert redis.zcard(f"rsmq:{queue}") == 0, name


def test_page_has_every_row(rows):
    speed = PAGE.read_text().partition("## Speed")[2]
    figures = re.findall(r"^\| .* \| [\d,]+ \| [\d.]+ \| [\d,]+ \|$", speed, re.MULTILINE)
    assert len(figures) == len(rows) + len(("Node, 1 in flight", "Node, 100 in flight"))
    assert sum("`AsyncRsmq`" in row for row in figures) == 3
