"""The commit protocol while tasks are lost, run twice, and the driver dies at any of its steps."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.pipeline.lake import commit, inspection, upkeep
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS
from tests.pipeline.lake.conftest import DAY, mids
from tests.pipeline.lake.lossy_engine import DriverKilledError, LossyEngine

SEEDS = range(40) if os.environ.get("JOBQ_PIPELINE") == "soak" else range(1)
DAY_MS = 86_400_000
NOW = datetime.fromtimestamp((DAY + 20 * 3_600_000) / 1000, UTC)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[LossyEngine], None]:
    """The driver of this engine may die before and after each step of a commit, and before it trims the streams.

    The steps: write the offsets, commit, delete the offsets that are too old.
    """

    def make(engine: LossyEngine) -> None:
        steps = [(commit, name) for name in ("_stored", "_write_transaction", "remove_files")]
        for owner, name in (*steps, (Ingest, "_drop")):
            real = getattr(owner, name)

            def risky(*given: Any, real: Callable[..., Any] = real) -> Any:
                engine.step()
                result = real(*given)
                engine.step()
                return result

            monkeypatch.setattr(owner, name, risky)

    return make


def repeated(engine: LossyEngine, step: Callable[[], Any]) -> Any:
    """Run a step of a driver, and start it again as often as it dies."""
    while True:
        try:
            return step()
        except DriverKilledError:
            continue


@pytest.mark.parametrize("seed", SEEDS)
def test_each_event_is_committed_once_whatever_tasks_and_drivers_do(
    lake: Lake, valkey_client: Client, write, dying, seed
):
    engine = LossyEngine(random.Random(seed), chance=0.06)
    dying(engine)
    write("low", 600)
    write("high", 300, first=50_000)
    write("old", 60, first=10_000, at=DAY - DAY_MS)
    options = IngestOptions(max_rows=500, partition_entries=6, trim=True)
    read = 0
    more = True
    while more:
        # Each time a new process, which knows only the lake.
        more = repeated(engine, lambda: Ingest(lake, valkey_client, engine, options).events().more)
        repeated(engine, lambda: upkeep.compact(lake, ["events"], engine=engine))
        repeated(engine, lambda: upkeep.expire(lake, 12 * 3600, now=NOW))
        read += 1
        write("low", 50, first=20_000 + 50 * read, at=DAY + 3_600_000 * read)
        more = more or read < 4
    repeated(engine, lambda: Ingest(lake, valkey_client, engine, options).events())
    repeated(engine, lambda: upkeep.expire(lake, 12 * 3600, now=NOW))

    found = mids(lake)
    assert engine.ntasks > 200 and engine.nlost and engine.ntwins and engine.ndeaths
    assert set(found.values()) == {1}
    assert len(found) == 900 + 50 * read
    state = commit.state_of(lake, EVENTS)
    assert (state.rows, state.expired) == (960 + 50 * read, 60)
    engine.chance = 0.0
    findings = [one for one in inspection.check(lake, engine) if one.level != "ok"]
    # Lost tasks leave files that no commit names.
    assert all(one.level == "note" and "files in no commit" in one.text for one in findings)
    # Files of lost tasks, of twins and of dead drivers count for nothing.
    upkeep.vacuum(lake, 0)
    folder = Path(lake.store.uri, "events")
    offsets = {str(path.relative_to(folder)) for path in folder.glob("_offsets/*")}
    record = commit.record_of(lake.table("events"), EVENTS.app)
    assert offsets == set(record.offsets) and len(offsets) == min(state.batch, commit.KEPT)
    left = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }
    assert left == {one.path for one in live_files(lake.table("events"))}
