"""Marks: named moments, such as deploys, that reports compare before and after."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from jobq.errors import ConfigError
from jobq.pipeline.lake.commit import commit
from jobq.pipeline.lake.files import Writer
from jobq.pipeline.lake.live import live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.tables import MARKS


def mark(lake: Lake, name: str, at: datetime | None = None) -> datetime:
    """Note that `name` happened, now or at a time; that time."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError(f"mark {name!r} has no use; take 1 to 200 printable characters")
    at = at or datetime.now(UTC)
    writer = Writer(lake.below(MARKS.name), MARKS)
    writer.add(pa.Table.from_pylist([{"name": name, "at": at}], MARKS.schema()))
    commit(lake, MARKS.name, lake.made(MARKS.name), [file.action() for file in writer.finish()])
    return at


def marks(lake: Lake) -> list[tuple[str, datetime]]:
    """All of them, oldest first; of a name used again the newest is what reports take."""
    rows = [
        (row["name"], row["at"])
        for found in tables(lake.below(MARKS.name), live(lake.table(MARKS.name)))
        for row in found.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row[1], row[0]))
