"""A lake without events in the range is answered without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from jobq.cli import main
from jobq.errors import PipelineError
from jobq.pipeline.lake import upkeep
from jobq.pipeline.lake.commit import IngestState, commit_batch
from jobq.pipeline.lake.files import write_rows
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, to_lake
from jobq.pipeline.report.run import check_range
from jobq.pipeline.schema import EVENT_COLUMNS, events_schema
from tests.pipeline.report.rows import ASKED, NOON, event

DAY = timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An empty lake; no session can be started."""

    def started(*args: object, **options: object) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr("jobq.pipeline.sessions.session", started)
    return Lake.create(str(tmp_path / "lake"))


def test_empty_lake_is_answered_without_spark(lake, capsys):
    for command in (["report", "all"], ["lake", "audit"]):
        assert main([*command, "--lake", lake.store.uri, "--since", "7d"]) != 0
    err = capsys.readouterr().err
    assert "no events have been recorded yet" in err
    assert "the lake has no enqueue events" in err


def test_range_without_events_names_the_days_that_have_some(lake):
    names = [column.name for column in EVENT_COLUMNS]
    events = [dict(zip(names, one, strict=True)) for one in (event(), event(end=-86_400))]
    [batch] = pa.Table.from_pylist(events, events_schema()).to_batches()
    files = write_rows(lake.below("events"), EVENTS, to_lake(batch))
    commit_batch(lake, EVENTS, files, IngestState().following({}, len(events), {}))
    assert check_range(lake, ASKED) == ""
    asked = replace(ASKED, since=NOON + 3 * DAY, until=NOON + 4 * DAY)
    with pytest.raises(
        PipelineError, match="there are events from 2026-11-19 to 2026-11-20: widen"
    ):
        check_range(lake, asked)
    asked = replace(ASKED, since=NOON - DAY)
    upkeep.expire(lake, 0, now=NOON)
    assert "events before 2026-11-20 have expired" in check_range(lake, asked)
    with pytest.raises(PipelineError, match="they expired before a refresh"):
        check_range(lake, replace(asked, until=NOON - DAY / 2 - timedelta(hours=1)))
