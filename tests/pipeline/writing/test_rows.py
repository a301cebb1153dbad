"""A row's call: the codec's bytes, plain values by type, and rejected rows."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)  # fmt: skip

from jobq.config import CodecSettings, ServerSettings
from jobq.errors import BadRecordError, ConfigError
from jobq.jobs.codec import decode, encode
from jobq.jobs.signing import Seal
from jobq.pipeline.writing.rows import Rows
from jobq.pipeline.writing.settings import write_settings
from tests.pipeline.writing.table import batches_of, schema_of

MICRO = timedelta(microseconds=1)


def messages(schema, rows, partition=0, **options):
    settings = write_settings({"job": "app.send", **options}, schema)
    made = Rows(settings, schema, settings.load_id, partition)
    return [message for batch in batches_of(schema, rows) for message in made.messages(batch)]


def call(schema, row, **options):
    [message] = messages(schema, [row], **options)
    return decode(message.content)


def test_content_is_what_the_codec_makes():
    schema = schema_of(path="string", width="long", ratio="double", big="boolean", note="string")
    [message] = messages(schema, [("/é.jpg", 2**62, 0.1, True, None)])
    told = decode(message.content)
    kwargs = {"path": "/é.jpg", "width": 2**62, "ratio": 0.1, "big": True, "note": None}
    assert message.content == encode("app.send", (), kwargs, told.enqueued_at)
    assert told.enqueued_at > 1_700_000_000_000


def test_columns_become_plain_values_by_the_documented_rule():
    inner = StructType().add("at", TimestampType()).add("n", LongType())
    schema = schema_of(
        day="date", at="timestamp", local="timestamp_ntz", price=DecimalType(12, 4), took=DayTimeIntervalType(),
        list=ArrayType(DecimalType(3, 1)), map=MapType(StringType(), TimestampType()), struct=inner,
    )  # fmt: skip
    at = datetime(2026, 11, 21, 10, 0, 0, 1, tzinfo=UTC)
    row = (
        date(2026, 11, 21), at, datetime(2026, 11, 21, 10), Decimal("12.5000"), timedelta(seconds=90.5),
        [Decimal("1.5"), None], {"a": at}, {"at": at, "n": 3},
    )  # fmt: skip
    assert call(schema, row).kwargs == {
        "day": "2026-11-21",
        "at": "2026-11-21T10:00:00.000001+00:00",
        "local": "2026-11-21T10:00:00",
        "price": "12.5000",
        "took": 90.5,
        "list": ["1.5", None],
        "map": {"a": "2026-11-21T10:00:00.000001+00:00"},
        "struct": {"at": "2026-11-21T10:00:00.000001+00:00", "n": 3},
    }
    assert all(value is None for value in call(schema, (None,) * 8).kwargs.values())


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "1970-01-01T00:00:00+00:00"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00+00:00"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999+00:00"),
        # 0001-01-01 in Berlin, and the last second of 9999 in New York: in UTC they have no year that Python knows.
        (-62_135_596_800_000_000 - 3_208_000_000, "0001-01-01T23:05:32+23:59"),
        (253_402_300_799_000_000 + 5 * 3_600_000_000, "9999-12-31T05:00:59-23:59"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_timestamp_is_the_same_text_in_any_session_zone(micros, text, zone):
    inner = StructType().add("at", TimestampType())
    schema = schema_of(at="timestamp", list=ArrayType(inner), map=MapType(StringType(), inner))
    at = pa.array([micros], pa.int64()).cast(pa.timestamp("us", zone))
    struct = pa.StructArray.from_arrays([at], ["at"])
    one = pa.array([0, 1], pa.int32())
    columns = [
        at, pa.ListArray.from_arrays(one, struct), pa.MapArray.from_arrays(one, pa.array(["k"]), struct),
    ]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(columns, schema.names)
    settings = write_settings({"job": "app.send"}, schema)
    (message,) = Rows(settings, schema, "", 0).messages(batch)
    told = decode(message.content).kwargs
    assert told == {"at": text, "list": [{"at": text}], "map": {"k": {"at": text}}}
    assert datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC) == micros * MICRO


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_delay_column_takes_the_ends_of_the_calendar(zone):
    schema = schema_of(at="timestamp")
    at = pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999]).cast(pa.timestamp("us", zone))
    settings = write_settings({"job": "app.send", "delayColumn": "at"}, schema)
    rows = Rows(settings, schema, "", 0).messages(pa.RecordBatch.from_arrays([at], ["at"]))
    assert [message.when for message in rows] == ["a0", "a253402300800000"]


def test_equal_rows_have_equal_ids_whatever_the_order_of_a_map():
    schema = schema_of(map=MapType(StringType(), LongType()))
    one, other = (
        messages(schema, [(value,)]) for value in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    )
    assert one[0].mid == other[0].mid


@pytest.mark.parametrize(
    ("value", "text"),
    [("0E-18", "0.000000000000000000"), ("1E-18", "0.000000000000000001"), ("-12.50", "-12.500000000000000000")],
)  # fmt: skip
def test_decimal_is_plain_digits(value, text):
    schema = schema_of(price=DecimalType(38, 18))
    assert call(schema, (Decimal(value),)).kwargs == {"price": text}


@pytest.mark.parametrize(
    ("kind", "value", "args"),
    [
        ("string", '[1,"a",null]', [1, "a", None]),
        (ArrayType(LongType()), [1, 2], [1, 2]),
        (StructType().add("a", "long").add("b", "string"), {"a": 1, "b": "x"}, [1, "x"]),
        ("string", None, []),
    ],
)
def test_arguments_come_from_json_an_array_or_a_struct(kind, value, args):
    told = call(schema_of(args=kind, name="string"), (value, "n"), argsColumn="args")
    assert (told.args, told.kwargs) == (args, {"name": "n"})


def test_kwargs_are_the_columns_named_else_all_that_serve_nothing_else():
    schema = schema_of(id="string", queue="string", path="string")
    options = {"idColumn": "id", "queueColumn": "queue"}
    assert call(schema, ("a", "q", "p"), **options).kwargs == {"path": "p"}
    named = call(schema, ("a", "q", "p"), **options, kwargsColumns="path,id")
    assert named.kwargs == {"path": "p", "id": "a"}
    assert call(schema, ("a", "q", "p"), **options, kwargsColumns="").kwargs == {}


def test_queue_id_and_time_come_from_columns():
    schema = schema_of(id="long", queue="string", at="timestamp")
    options = {"idColumn": "id", "queueColumn": "queue", "delayColumn": "at", "queue": "rest"}
    at = datetime(2026, 11, 21, tzinfo=UTC)
    rows = messages(schema, [(7, "low", at), (-1, None, None)], **options, delay="5s")
    first = ("low", f"a{at.timestamp() * 1000:.0f}", "7")
    assert [row[:3] for row in rows] == [first, ("rest", "d5000", "-1")]
    seconds = schema_of(wait="double")
    [row] = messages(seconds, [(0.25,)], delayColumn="wait")
    assert (row.when, row.queue) == ("d250", "default")


def test_ids_are_the_same_in_any_order_and_tell_equal_rows_load_and_partition_apart():
    schema = schema_of(name="string", n="long")
    rows = [("a", 1), ("b", 1), ("a", 1), ("a", 1)]
    mids = {message.mid for message in messages(schema, rows)}
    assert len(mids) == 4
    assert {message.mid for message in messages(schema, rows[::-1])} == mids
    assert not mids & {message.mid for message in messages(schema, rows, loadId="other")}
    assert not mids & {message.mid for message in messages(schema, rows, partition=1)}
    assert not mids & {message.mid for message in messages(schema, rows, delay="1s")}
    # Part of the contract: another version makes the same ids.
    call = b'default\0\0{"job":"app.send","kwargs":{"name":"b","n":1}}'
    digest = hashlib.blake2b(b"0:0:" + call, digest_size=12).digest()
    assert base64.urlsafe_b64encode(digest)[:14].decode().replace("-", "_") in mids


def test_calls_are_sealed_for_their_queue_and_id():
    schema = schema_of(name="string")
    settings = write_settings({"job": "app.send"}, schema)
    codec = CodecSettings(keys=(("k", b"s" * 32),))
    object.__setattr__(settings, "server", ServerSettings(codec=codec))
    [message] = Rows(settings, schema, "", 0).messages(batches_of(schema, [("a",)])[0])
    opened = Seal(codec).open("default", message.mid, message.content)
    assert decode(opened).kwargs == {"name": "a"}
    assert "ssss" not in repr(settings) and "ssss" not in repr(settings.server)


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "mid ''"), ("x" * 129, "1-128 printable"), ("a\nb", "printable"), (None, "is null")],
)
def test_bad_id_is_refused_with_its_row(value, said):
    schema = schema_of(id="string")
    with pytest.raises(BadRecordError, match=f"row 2 of partition 0.*{said}"):
        messages(schema, [("fine",), (value,)], idColumn="id")


@pytest.mark.parametrize(
    ("columns", "row", "options", "said"),
    [
        ({"ratio": "double"}, (float("nan"),), {}, "argument 'ratio' of app.send is nan"),
        ({"queue": "string"}, ("a b",), {"queueColumn": "queue"}, "queue 'a b' can't be used"),
        ({"args": "string"}, ('{"a":1}',), {"argsColumn": "args"}, "JSON array"),
        ({"args": "string"}, ("[1",), {"argsColumn": "args"}, "not JSON"),
        ({"wait": "long"}, (-1,), {"delayColumn": "wait"}, "delay of -1 seconds"),
        ({"wait": "double"}, (float("inf"),), {"delayColumn": "wait"}, "delay of inf"),
        ({"text": "string"}, ("x" * 300_000,), {}, "bytes; at most 262,144 are allowed"),
    ],
)  # fmt: skip
def test_bad_value_is_refused_with_its_row(columns, row, options, said):
    with pytest.raises(BadRecordError, match=f"row 1 of partition 0.*{said}"):
        messages(schema_of(**columns), [row], **options)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"a": "string"}, {"job": "no such job"}, "job name 'no such job' can't be used"),
        ({"a": BinaryType()}, {}, "column 'a' is of type binary; use base64"),
        ({"a": ArrayType(BinaryType())}, {}, r"column 'a'\[\] is of type binary"),
        ({"a": MapType(LongType(), StringType())}, {}, "map without string keys"),
        ({"a": StructType().add("b", "binary")}, {}, "column 'a'.b is of type binary"),
        ({"id": "double"}, {"idColumn": "id"}, "idColumn: column 'id' is of type double; use a string"),
        ({"id": "string"}, {"idColumn": "ids"}, "idColumn: column 'ids' is unknown; did you mean 'id'"),
        ({"q": "long"}, {"queueColumn": "q"}, "use a string"),
        ({"d": "date"}, {"delayColumn": "d"}, "number of seconds, or a timestamp"),
        ({"a": "long"}, {"argsColumn": "a"}, "use an array, a struct"),
        ({"a": "string"}, {"kwargsColumns": "a,c"}, "kwargsColumns: column 'c' is unknown"),
        ({"a": "string"}, {"quue": "low"}, "option 'quue' is unknown; did you mean 'queue'"),
        ({"a": "string"}, {"commit": "atomic"}, "option 'commit' is unknown"),
        ({"a": "string"}, {"batch": "0"}, "batch='0' is invalid"),
        ({"a": "string"}, {"batch": "5000"}, "batch=5000 is out of range; it must be between 1 and 1000"),
        ({"a": "string"}, {"dedupeFor": "soon"}, "not a duration"),
        ({"a": "string"}, {"queue": "{a}"}, "queue '{a}' can't be used"),
        ({"a": "string"}, {"idColumn": "a", "loadId": "x"}, "contradict each other"),
    ],
)  # fmt: skip
def test_bad_option_or_column_is_refused_on_the_driver(columns, options, said):
    with pytest.raises(ConfigError, match=said):
        write_settings({"job": "app.send", **options}, schema_of(**columns))


def test_missing_job_is_named():
    with pytest.raises(ConfigError, match="option 'job' is missing"):
        write_settings({}, schema_of(a="string"))


def test_column_that_is_there_twice_is_refused():
    with pytest.raises(ConfigError, match="column 'a' exists twice"):
        write_settings({"job": "j"}, StructType().add("a", "string").add("a", "long"))


def test_key_column_gives_each_row_its_key_and_another_id():
    schema = schema_of(path="string", customer="long")
    rows = [("/a", 7), ("/a", 8), ("/a", None), ("/a", 7)]
    made = messages(schema, rows, keyColumn="customer")
    assert [message.key for message in made] == ["7", "8", "", "7"]
    assert len({message.mid for message in made}) == 4
    assert decode(made[0].content).kwargs == {"path": "/a"}
    assert decode(
        messages(schema, rows, keyColumn="customer", kwargsColumns="customer")[0].content
    ).kwargs == {"customer": 7}
    with pytest.raises(BadRecordError, match="row 1 of partition 0: key='' can't be used"):
        messages(schema_of(path="string", customer="string"), [("/a", "")], keyColumn="customer")
    with pytest.raises(ConfigError, match="also set keyColumn"):
        messages(schema, rows, ordered="true")
