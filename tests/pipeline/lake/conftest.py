"""Lakes in a folder, events in streams, and the ingested part of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.events import attempt_record
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.files import live_files, rows_of_files
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, from_lake
from jobq.queue import directory

#: 2026-11-21 00:00 UTC, epoch ms.
DAY = 1_795_219_200_000
#: Spark takes such a path for a pattern where it may.
FOLDER = "lake [1] {ä,b}"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake.create(str(tmp_path / FOLDER))


@pytest.fixture
def ingest(lake: Lake, valkey_client: Client) -> Ingest:
    """An ingest in this process."""
    return Ingest(lake, valkey_client, Engine("local"))


@pytest.fixture
def write(valkey_client: Client) -> Callable[..., None]:
    """write("low", 3): so many events of finished attempts, a ms apart, starting at the day's begin."""

    def events(queue: str, count: int, first: int = 1, at: int = DAY) -> None:
        directory.register_queues(valkey_client, [queue])
        key = offsets.events_key(valkey_client.namespace, queue)
        for number in range(first, first + count):
            run = attempt_record("app.resize", 1, at + number - 50, 20_000, 9_000, 80_000, "host:1")
            value = f"done\x1fm{number}\x1f{at + number}\x1f{run}"
            valkey_client.command("XADD", key, f"{at + number}-0", "1", value)

    return events


def rows(lake: Lake, name: str = "events") -> list[dict[str, Any]]:
    """A table's rows as reading gives them, without Spark."""
    found = rows_of_files(lake.below(name), live_files(lake.table(name)))
    return [
        row
        for stored in found
        for row in (from_lake(stored) if name == EVENTS.name else stored).to_pylist()
    ]


def mids(lake: Lake, queue: str = "") -> Counter[str]:
    """How often each mid has an event in the lake, of one queue or of all."""
    return Counter(row["mid"] for row in rows(lake) if queue in ("", row["queue"]))


def batches(ingest: Ingest) -> Iterator[Any]:
    """Batches of events until there is no more."""
    while True:
        batch = ingest.events()
        yield batch
        if not batch.more:
            return
