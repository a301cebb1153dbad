"""Options of the data source: what is refused, and how it is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from jobq.errors import ConfigError, UnavailableError
from jobq.pipeline.reading.request import READ, STREAM, requested
from jobq.pipeline.schema import VIEWS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"veiw": "events"}, "option 'veiw' is unknown; did you mean 'view'"),
        ({"maxRowPerTrigger": "5"}, "did you mean 'maxRowsPerTrigger'"),
        ({"view": "event"}, "view 'event' is unknown; did you mean 'events'"),
        ({"columns": "mid,jobb"}, "column of view 'events' 'jobb' is unknown; did you mean 'job'"),
        ({"mode": "strict"}, "mode = 'strict' is unknown"),
        ({"columns": "_corrupt_record"}, "_corrupt_record"),
    ],
)  # fmt: skip
def test_load_refuses_what_it_does_not_know(source, options, message):
    with pytest.raises(ConfigError, match=message):
        source(**options).schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"since": "yesterday"}, "since='yesterday' is not a time"),
        ({"until": "2026-13-01"}, "is not a time"),
        ({"partitions": "many"}, "partitions='many' is invalid"),
        ({"partitions": "-1"}, "use a whole number of at least"),
        ({"failOnDataLoss": "maybe"}, "use true or false"),
        ({"since": "2026-01-01", "startingOffsets": "latest"}, "use either since or startingOffsets"),
        ({"until": "2026-01-01", "endingOffsets": "latest"}, "use either until or endingOffsets"),
        ({"maxRowsPerTrigger": "5"}, "doesn't apply to reads"),
        ({"view": "queues", "since": "2026-01-01"}, "doesn't apply to view 'queues', only to events, dead, topic"),
        ({"topics": "orders"}, "doesn't apply to view 'events', only to topic"),
        ({"url": "redis//x"}, "must begin with one of"),
        ({"namespace": "a b"}, "namespace"),
    ],
)  # fmt: skip
def test_read_refuses_what_it_can_not_use(source, options, message):
    one = source(**options)
    with pytest.raises(ConfigError, match=message):
        one.reader(one.schema())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "queues"}, "view 'queues' can't be streamed; use one of events, topic"),
        (
            {"since": "2026-01-01", "startingOffsets": "latest"},
            "use either since or startingOffsets",
        ),
        ({"endingOffsets": "latest"}, "doesn't apply to streams"),
        (
            {"view": "topic", "trimOnCommit": "true"},
            "doesn't apply to view 'topic', only to events",
        ),
        ({"maxRowsPerTrigger": "0"}, "use a whole number of at least 1"),
    ],
)
def test_stream_refuses_what_it_can_not_use(source, options, message):
    one = source(**options)
    with pytest.raises(ConfigError, match=message):
        one.streamReader(one.schema())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger='many' is invalid"),
        ({"maxRowsPerTrigger": "0"}, "use a whole number of at least 1"),
        ({"trimOnCommit": "perhaps"}, "use true or false"),
        ({"since": "soon"}, "option since='soon' is not a time"),
        ({"failOnDataLoss": "maybe"}, "use true or false"),
        ({"since": "2026-11-21", "startingOffsets": "latest"}, "use either since or"),
        (
            {"view": "topic", "trimOnCommit": "true"},
            "doesn't apply to view 'topic', only to events",
        ),
        ({"view": "queues", "since": "2026-11-21"}, "doesn't apply to view 'queues', only to"),
    ],
)
def test_schema_refuses_what_neither_a_read_nor_a_stream_can_use(source, options, message):
    """Spark asks for it in load(); a stream's reader is made in start()."""
    with pytest.raises(ConfigError, match=message):
        source(**options).schema()


@pytest.mark.parametrize("text", ['{"low": 5}', "{", '{"hihg": "1-0"}', "soon", '{"low": "x-y"}'])
def test_offsets_that_can_not_be_read_are_refused(load, events, text):
    events("low", 1)
    with pytest.raises(ConfigError):
        load(startingOffsets=text)


def test_options_are_taken_in_any_case(load, events):
    events("low", 3)
    assert len(load(VIEW="Events", QUEUES="low", STARTINGOFFSETS="Earliest").rows()) == 3


def test_schema_of_the_users_own_chooses_columns(source, events):
    events("low", 1)
    one = source()
    wanted = StructType([StructField("mid", StringType()), StructField("attempt", IntegerType())])
    reader = one.reader(wanted)
    [batch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.to_pylist() == [{"mid": "m0", "attempt": 1}]


def test_schema_of_the_users_own_is_refused_when_a_type_is_another(source):
    wanted = StructType([StructField("attempt", LongType())])
    with pytest.raises(ConfigError, match="'attempt' of view 'events' is int32, not bigint"):
        source().reader(wanted)


def test_schema_of_the_users_own_is_refused_when_a_column_is_unknown(source):
    wanted = StructType([StructField("mids", StringType())])
    with pytest.raises(ConfigError, match="did you mean 'mid'"):
        source().reader(wanted)


def test_password_is_in_no_text_of_a_request():
    request = requested({"url": "redis://user:sesame@localhost:1/0"})
    assert "sesame" not in repr(request)


def test_server_that_is_away_is_told_without_the_password(source, monkeypatch):
    monkeypatch.setenv("JOBQ_PATIENCE", "0.05")
    one = source(url="redis://user:sesame@127.0.0.1:1/0")
    with pytest.raises(
        UnavailableError, match=r"no connection to redis://\*\*\*@127.0.0.1:1"
    ) as told:
        one.reader(one.schema()).partitions()
    assert "sesame" not in str(told.value)


def test_server_is_the_one_of_the_environment_when_no_option_names_it(
    source, events, monkeypatch, valkey
):
    events("low", 2)
    monkeypatch.setenv("JOBQ_URL", valkey.url)
    one = source(url="")
    reader = one.reader(one.schema())
    monkeypatch.delenv("JOBQ_URL")
    # An executor has none of the driver's environment.
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 2


def test_every_view_can_be_read():
    assert set(READ) == set(VIEWS) >= set(STREAM)


def test_page_names_every_option():
    page = (Path(__file__).parents[3] / "docs" / "data" / "source.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert {name for names in (*READ.values(), *STREAM.values()) for name in names} <= named
