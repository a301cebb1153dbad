"""Other engines read a lake by the SQL that `jobq lake ddl` prints, or as a Delta table: the same rows as jobq."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.errors import ConfigError, PipelineError
from jobq.pipeline.lake.ddl import VIEW, statements
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import EVENTS
from jobq.pipeline.report.engines import LocalEngine
from jobq.pipeline.schema import EVENT_COLUMNS
from jobq.topics import Topic
from tests import tools
from tests.pipeline.lake.conftest import DAY, rows

pq = tools.library("pyarrow.parquet")
DAY_MS = 86_400_000


@pytest.fixture
def lake(tmp_path):
    """A folder whose name has nothing that Polars takes for a pattern or an escape."""
    return Lake.create(str(tmp_path / "history"))


@pytest.fixture
def lake_of_all(lake, ingest, write, valkey_client):
    """Two days of events, with a message of a flow and an enqueue, and a topic."""
    write("low", 5)
    write("high", 4, at=DAY + DAY_MS)
    key = "jobq:{low}:events"
    member = f"enqueued\x1f~f:1.r1.rows.0\x1f{DAY + 70}"
    valkey_client.command("XADD", key, f"{DAY + 71}-0", "1", member)
    Topic("orders", valkey_client).append(b"{}", key="it's")
    ingest.events()
    ingest.topics()
    return lake


def in_order(found):
    return sorted(found, key=lambda row: (row["queue"], row["mid"]))


def test_duckdb_reads_all_columns_by_the_printed_sql(lake_of_all):
    duckdb = tools.library("duckdb")
    with duckdb.connect() as database:
        # The extension `delta` has to be downloaded; without replaced files, it reads the same.
        database.execute(
            "CREATE MACRO delta_scan(place) AS TABLE SELECT * FROM "
            "read_parquet(place || '/*/*.parquet', hive_partitioning = true)"
        )
        database.execute("SET TimeZone = 'UTC'")
        for text in statements(lake_of_all, "duckdb"):
            if not text.startswith(("INSTALL", "LOAD")):
                database.execute(text)
        names = ", ".join(f'"{column.name}"' for column in EVENT_COLUMNS)
        found = database.sql(f"SELECT {names} FROM jobq.{VIEW}").to_arrow_table().to_pylist()
        topics = database.execute('SELECT topic, "key" FROM jobq.topics').fetchall()
    assert topics == [("orders", "it's")]
    expected = [
        {name: value for name, value in row.items() if name != "dt"} for row in rows(lake_of_all)
    ]
    assert len(expected) == 10
    assert in_order(found) == in_order(expected)


def test_polars_and_pandas_read_the_delta_tables(lake_of_all):
    polars = tools.library("polars")
    for name, count in (("events", 10), ("topics", 1)):
        table = lake_of_all.table(name)
        assert table is not None
        assert len(table.to_pandas()) == count
        assert polars.scan_delta(table).select(polars.len()).collect().item() == count


def test_spark_reads_the_lake_by_its_data_source_and_parses_the_printed_sql(lake_of_all, spark):
    for name, count in (("events", 10), ("topics", 1)):
        reader = spark.read.format("jobq_lake").option("path", lake_of_all.store.uri)
        assert reader.option("table", name).load().count() == count
    parser = spark._jsparkSession.sessionState().sqlParser()
    for engine in ("spark", "databricks"):
        for text in statements(lake_of_all, engine):
            parser.parsePlan(text)


def test_statements_name_the_tables_that_are_there(lake_of_all):
    for engine in ("spark", "databricks", "duckdb", "trino"):
        texts = list(statements(lake_of_all, engine, "history"))
        assert sum("/events'" in text or "/topics'" in text for text in texts) == 2
        assert texts[-1].startswith(f"CREATE OR REPLACE VIEW history.{VIEW} AS SELECT ")
        assert not any("job_runs" in text for text in texts)


def test_what_an_engine_cannot_read_is_refused():
    lake = Lake(LakeStore("/srv/lake"))
    with pytest.raises(ConfigError, match="needs a lake in S3"):
        list(statements(lake, "snowflake"))
    with pytest.raises(ConfigError, match="schema 'a;b' can't be used"):
        list(statements(lake, "trino", "a;b"))


def test_files_of_a_bucket_are_read_as_those_of_a_folder(lake_of_all):
    tools.library("duckdb")
    events = LakeStore(f"file://{lake_of_all.below('events').uri}")
    paths = [one.path for one in live_files(lake_of_all.table("events"))]
    found = []
    for store in (lake_of_all.below("events"), events):
        engine = LocalEngine(lake_of_all.store)
        engine.open_files("stored", store, EVENTS, paths)
        found.append(engine.rows("SELECT * FROM stored ORDER BY queue, mid"))
        engine.open_files("stored", store, EVENTS, [])
        assert engine.rows("SELECT * FROM stored") == []
    assert found[0] == found[1] and len(found[0]) == 10
    assert {row["dt"].isoformat() for row in found[0]} == {"2026-11-21", "2026-11-22"}


def test_files_from_before_a_column_have_nulls_in_it(lake_of_all):
    tools.library("duckdb")
    store = lake_of_all.below("events")
    [first, *others] = [one.path for one in live_files(lake_of_all.table("events"))]
    path = Path(store.uri, first)
    # Read as one file, not as a folder of a partitioned table.
    kept = pq.ParquetFile(path).read().drop_columns(["worker"])
    pq.write_table(kept, path)
    engine = LocalEngine(lake_of_all.store)
    for paths in ([first], [first, *others]):
        engine.open_files("stored", store, EVENTS, paths)
        [row] = engine.rows(
            "SELECT count_if(worker IS NULL) AS without, count(*) AS all_rows FROM stored"
        )
        assert row["without"] >= kept.num_rows and row["all_rows"] >= row["without"]


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM read_text('/etc/hostname')", "INSTALL httpfs", "ATTACH '/tmp/x.db'"],
)
def test_statements_reach_no_file_outside_the_lake(lake_of_all, statement):
    tools.library("duckdb")
    with pytest.raises(PipelineError, match="disabled"):
        LocalEngine(lake_of_all.store).rows(statement)
