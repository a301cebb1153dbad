"""One table per view, from which every schema comes."""

from __future__ import annotations

import pytest

from jobq.events import COLUMNS
from jobq.pipeline.schema import (
    DERIVED,
    EVENT_COLUMNS,
    QUEUE_COLUMNS,
    TOPIC_COLUMNS,
    VIEWS,
    arrow_schema,
    ddl,
    events_schema,
    markdown,
    stored,
    struct,
)
from jobq.queue.types import Counts
from jobq.topics.messages import TopicMessage

views = pytest.mark.parametrize("view", VIEWS)


@pytest.mark.spark
@views
def test_arrow_schema_is_what_spark_makes_of_the_spark_schema(view):
    """Anything else and Spark refuses the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert to_arrow_schema(struct(VIEWS[view]), timezone="UTC").equals(arrow_schema(VIEWS[view]))


@views
def test_names_are_each_used_once(view):
    names = [column.name for column in VIEWS[view]]
    assert len(set(names)) == len(names)


@views
def test_table_for_the_documents_has_a_row_per_column(view):
    lines = markdown(VIEWS[view]).splitlines()
    assert len(lines) == len(VIEWS[view]) + 2
    assert all(line.count("|") == 4 for line in lines)


@views
def test_ddl_and_struct_are_the_same_to_spark(view, spark):
    frame = spark.createDataFrame([], ddl(VIEWS[view]))
    assert frame.schema == struct(VIEWS[view])


def test_every_column_of_the_record_is_a_column_of_the_view():
    assert set(COLUMNS) <= {column.name for column in EVENT_COLUMNS}


def test_view_of_topics_has_what_a_message_has():
    assert {column.name for column in TOPIC_COLUMNS} == {"topic", *TopicMessage.__struct_fields__}


def test_view_of_queues_has_every_count():
    # Each partition has a row of its own.
    counts = set(Counts._fields) - {"served_partitions", "paused_partitions"}
    assert counts <= {column.name for column in QUEUE_COLUMNS}


def test_lake_stores_all_but_what_follows_from_the_rest():
    left_out = set(events_schema().names) - {column.name for column in stored(EVENT_COLUMNS)}
    assert left_out == set(DERIVED) == {"base_queue", "started_at", "wait_ms", "flow", "step"}


def test_derived_columns_computed_in_sql_equal_the_decoded_ones(spark):
    from jobq.pipeline.decode import decode

    sent = [
        b"done\x1fm\x1f1000\x1fjob\x1f1\x1f600\x1f7500",
        b"done\x1fm\x1f1000\x1fjob\x1f1\x1f1000000001000\x1f1",
        b"done\x1fm\x1f1000\x1fjob\x1f1\x1f\x1f999",
        b"enqueued\x1fm\x1f1000",
        b"done\x1f~import:a+b@1.k3x9q2.rows-2.17\x1f1000",
        b"done\x1f~no.step\x1f1000",
        b"done\x1f~a:b.r1.c.-1\x1f1000",
        b"done\x1f~" + b"f" * 65 + b".s.1\x1f1000",
        b"paused\x1f\x1f1000",
    ]
    batch = decode("low", [b"1-0"] * len(sent), [b"1"] * len(sent), sent).batch
    frame = spark.createDataFrame(batch.to_pandas(), struct(EVENT_COLUMNS))
    rows = frame.selectExpr(
        "run_us IS NULL AS idle", "started_at", "wait_ms",
        f"{DERIVED['started_at']} AS s", f"{DERIVED['wait_ms']} AS w", "flow", "step",
        f"{DERIVED['flow']} AS f", f"{DERIVED['step']} AS p",
    ).collect()  # fmt: skip
    assert [(row.s, row.w) for row in rows] == [(row.started_at, row.wait_ms) for row in rows]
    assert [row.w for row in rows[:4]] == [593, 0, None, None]
    assert [(row.f, row.p) for row in rows] == [(row.flow, row.step) for row in rows]
    named = [None] * 4 + [("import:a+b@1", "rows-2")] + [None] * 4
    assert [row.f and (row.f, row.p) for row in rows] == named
