"""The record of an event: what is written is what is read, and what is not a record is told."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from freezegun import freeze_time
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import BadRecordError
from jobq.events import (
    ABSOLUTE,
    COLUMNS,
    LIMITS,
    Event,
    ago_ms,
    attempt_record,
    columns_of,
    decode,
    in_utc,
    trace_id,
)

#: What attempt_record calls two of the columns. The scripts add the key.
SAID = {"bytes": "nbytes", "enqueued_at": "enqueued"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=40)
RECORD = st.fixed_dictionaries({
    name: st.integers(0, LIMITS[name]) if name in LIMITS else texts for name in COLUMNS[3:] if name != "key"
})  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(["done", "retry"]), texts, st.integers(0, LIMITS["finished_at"]), RECORD)
def test_record_reads_as_it_was_written(kind, mid, at, columns):
    written = attempt_record(**{SAID.get(name, name): value for name, value in columns.items()})
    value = f"{kind}\x1f{mid}\x1f{at}\x1f{written}".encode()
    if columns["enqueued_at"] and columns["enqueued_at"] < ABSOLUTE:
        columns |= {"enqueued_at": at - columns["enqueued_at"]}
    assert decode(value) == Event(kind, mid, at, **columns)


NUMBERS = st.sampled_from(
    ["", "0", "7", "400", "999999999", "2147483647", "2147483648", str(ABSOLUTE), "9" * 14, "9" * 15, "9" * 16,
     "0" * 12, "\u0661", "\u00b2", "1_0", "-1", " 1", "x"]
)  # fmt: skip


@settings(deadline=None)
@given(
    st.tuples(*(NUMBERS if name in LIMITS else texts for name in COLUMNS)),
    st.integers(1, len(COLUMNS) + 1),
)
def test_fast_way_to_read_a_record_takes_what_the_slow_one_takes(fields, count):
    value = "\x1f".join((*fields, "more")[:count]).encode()
    try:
        found = {"mid": ""} | columns_of(value)
    except BadRecordError as error:
        with pytest.raises(BadRecordError, match=re.escape(str(error))):
            decode(value)
        return
    if 0 <= found.get("enqueued_at", -1) < ABSOLUTE:
        found["enqueued_at"] = found["finished_at"] - found["enqueued_at"]
    assert decode(value) == Event(**found)


def test_record_has_no_empty_columns_at_its_end():
    assert attempt_record("job", 1, 0, 0, 0, 0, "") == "job\x1f1\x1f\x1f0\x1f0\x1f0"
    assert attempt_record("job", 1, 0, 0, 0, 0, "w", nbytes=5).endswith("\x1fw\x1f\x1f\x1f5")


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1fb", "a\0b"])
def test_error_text_never_splits_a_record(text):
    assert attempt_record("job", 1, 0, 0, 0, 0, "w", text).endswith("\x1fw\x1fa b")


def test_enqueue_is_told_from_the_end_of_the_attempt_backwards():
    assert decode(b"done\x1fm\x1f1700000000900\x1fjob\x1f1\x1f400").enqueued_at == 1_700_000_000_500


@freeze_time("2026-11-21T12:00:00.900Z")
def test_time_since_enqueue_is_at_least_a_ms_and_nothing_where_it_is_unknown():
    now = 1_795_262_400_900
    assert [ago_ms(at) for at in (now - 400, now, now + 5_000, 0, 1)] == [400, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"done\x1fm\x1f5", Event("done", "m", 5)),
        (b"done\x1fm\x1f5\x1f", Event("done", "m", 5)),
        (b"cleared\x1f\x1f5", Event("cleared", "", 5)),
        (b"done\x1fm\x1f5\x1fj\x1f1\x1f2000000000000\x1f3\x1f2\x1f1\x1fw\x1f\x1f",
         Event("done", "m", 5, "j", 1, 2 * 10**12, 3, 2, 1, "w")),
    ],
)  # fmt: skip
def test_columns_missing_at_the_end_take_their_defaults(value, expected):
    assert decode(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no kind"),
        (b"\x1fm\x1f5", "no kind"),
        (b"done\x1fm", "no finished_at"),
        (b"done\x1fm\x1fsoon", "finished_at 'soon'"),
        (b"done\x1fm\x1f-5", "finished_at '-5'"),
        (b"done\x1fm\x1f 5", "finished_at ' 5'"),
        (b"done\x1fm\x1f1_000", "finished_at '1_000'"),
        ("done\x1fm\x1f٥".encode(), "finished_at '٥'"),
        (b"done\x1fm\x1f253402300800000", "0 to 253,402,300,799,999"),
        (b"done\x1fm\x1f5\x1fjob\x1f2147483648", "attempt '2147483648'"),
        (b"done\x1fm\x1f" + b"9" * 5_000, "finished_at '999"),
        (b"done\x1fm\xff\x1f5", "isn't UTF-8: invalid start byte at byte 6"),
        (b"done\x1fm\x1f5" + b"\x1f" * 14, "has 17 columns, but version 1 has 16"),
    ],
)
def test_what_is_no_record_is_told(value, reason):
    with pytest.raises(BadRecordError) as told:
        decode(value)
    assert reason in str(told.value)


def test_unknown_version_is_told_not_guessed():
    with pytest.raises(BadRecordError, match="version b'2' of event records is unknown"):
        decode(b"done\x1fm\x1f5", b"2")


@settings(deadline=None)
@given(st.binary(max_size=80), st.sampled_from([b"1", b"2", b""]))
def test_nothing_but_a_bad_record_escapes(value, version):
    with suppress(BadRecordError):
        assert columns_of(value, version)["kind"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ""),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"traceparent": f"cc-{TRACE}-00f067aa0ba902b7-01-later"}, TRACE),
        ({"sentry-trace": f"{TRACE}-00f067aa0ba902b7-1"}, TRACE),
        ({"sentry-trace": f"{TRACE}-00f067aa0ba902b7"}, TRACE),
        ({"traceparent": "broken", "sentry-trace": f"{TRACE}-00f067aa0ba902b7-0"}, TRACE),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01\n"}, ""),
    ],
)
def test_trace_id_comes_from_the_headers_of_the_call(headers, expected):
    assert trace_id(headers) == expected


@pytest.mark.parametrize(
    ("at_ms", "written"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_763_712_000_007, "2025-11-21T08:00:00.007Z")],
)
def test_moment_is_written_in_utc_to_the_millisecond(at_ms, written):
    assert in_utc(at_ms) == written
