"""The made-up history: the same however it is read, and what reports need to be interesting."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from bench.history import JOBS, QUEUES, entries, events, fill
from jobq.pipeline.decode import columns, decode
from jobq.pipeline.schema import events_schema


@pytest.fixture(scope="module")
def table():
    return events(2_000, traces=True)


def test_history_is_the_same_for_the_same_seed(table):
    assert events(2_000, traces=True).equals(table)
    assert not events(2_000, traces=True, seed=2).equals(table)


def test_history_has_every_queue_and_job_and_kinds_that_add_up(table):
    assert table.schema == events_schema()
    assert set(table["queue"].to_pylist()) == set(QUEUES)
    assert set(table["job"].to_pylist()) <= {None, *JOBS}
    count = {one["values"]: one["counts"] for one in table["kind"].value_counts().to_pylist()}
    assert count["enqueued"] == 2_000 == count["done"] + count["dead"]
    assert count["retry"] > 50 and count["dead"] > 0
    names = (table[name].to_pylist() for name in ("queue", "entry_at", "entry_seq"))
    assert len(set(zip(*names, strict=True))) == len(table)


def test_entries_decode_to_the_rows_they_were_made_of(table):
    for queue in QUEUES:
        rows = table.filter(pc.equal(table["queue"], queue)).combine_chunks().to_batches()[0]
        ids, values = zip(*((a.encode(), b.encode()) for a, b in entries(rows)), strict=True)
        decoded = decode(queue, ids, [b"1"] * len(ids), values)
        assert decoded.bad == []
        assert decoded.batch.equals(rows)


def test_streams_hold_all_of_it_in_order(table, client):
    assert fill(client, table) == len(table)
    found = 0
    for queue in QUEUES:
        reply = client.command("XRANGE", f"jobq:{{{queue}}}:events", "-", "+")
        found += decode(queue, *columns(reply)).batch.num_rows
    assert found == len(table)
