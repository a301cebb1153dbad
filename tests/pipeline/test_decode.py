"""Entries to Arrow: the same as record by record, whatever the entries hold; none is dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import BadRecordError
from jobq.events import ABSOLUTE, COLUMNS, LIMITS, Event, attempt_record, columns_of
from jobq.events import decode as decode_one
from jobq.flows.identity import member_of
from jobq.pipeline.decode import FEW, BadEntry, columns, decode
from jobq.pipeline.schema import events_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GOOD = b"done\x1fm\x1f1000\x1fjob\x1f1\x1f400\x1f7500\x1f9\x1f8\x1fw\x1fBoom\x1ff\x1f5\x1ft"
SOON = 4_000_000_000_000  # Python's datetimes end before Arrow's do

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), max_size=8)
numbers = st.one_of(
    st.integers(0, 10**6).map(str),
    st.sampled_from(["", "-1", "-0", " 5", "5 ", "0x1f", "0X1F", "+5", "1e3", "1.0", "007", "٥", "\t5"]),
    st.integers(2**31 - 2, 2**31 + 1).map(str), st.integers(10**12 - 2, 10**12 + 1).map(str),
)  # fmt: skip
lines = st.tuples(
    *(numbers if name in LIMITS else texts for name in COLUMNS), st.integers(1, len(COLUMNS))
).map(lambda row: "\x1f".join(row[: row[-1]]).encode())
members = st.sampled_from(
    [
        "~f:1.r1.load.7",
        "~a.f:1.r1.load.7",
        "~f:1.r1.load",
        "~f.load.7",
        "~f:1.r1.lo ad.7",
        "f:1.load.7",
    ]
).map(lambda mid: GOOD.replace(b"\x1fm\x1f", b"\x1f%b\x1f" % mid.encode()))
values = st.one_of(st.just(GOOD), lines, members, st.binary(max_size=20))
entries = st.lists(
    st.tuples(st.sampled_from([b"1", b"1", b"1", b"2", b""]), values), max_size=3 * FEW
)


def moment(ms: int | None, less_us: int = 0) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(microseconds=1000 * ms - less_us)


def row(queue: str, entry: bytes, found: dict[str, Any]) -> dict[str, Any]:
    """The hand-computed row of one record in the view."""
    at, sequence = map(int, entry.split(b"-"))
    finished, enqueued, run_us = found["finished_at"], found.get("enqueued_at"), found.get("run_us")
    if enqueued is not None and enqueued < ABSOLUTE:
        enqueued = finished - enqueued
    waited = None
    if enqueued is not None and run_us is not None:
        waited = max(0, finished - run_us // 1000 - enqueued)
    shown: dict[str, Any] = {name: found.get(name) for name in COLUMNS} | {
        "queue": queue, "base_queue": queue, "attempt": found.get("attempt", 0), "finished_at": moment(finished),
        "enqueued_at": moment(enqueued), "wait_ms": waited, "entry_at": moment(at),
        "started_at": None if run_us is None else moment(finished, run_us),
        "entry_seq": sequence, "version": 1,
    }  # fmt: skip
    member = member_of(found.get("mid") or "")
    shown["flow"], shown["step"] = (member.flow, member.step) if member else (None, None)
    return {name: shown[name] for name in events_schema().names}


@settings(deadline=None)
@given(entries)
def test_batch_holds_what_each_record_says_and_the_rest_is_bad(found):
    ids = [b"%d-%d" % (1_700_000_000_000 + i // 3, i % 3) for i in range(len(found))]
    rows, bad = [], []
    for entry, (version, value) in zip(ids, found):
        try:
            rows.append(row("low", entry, columns_of(value, version)))
        except BadRecordError as error:
            bad.append(BadEntry(entry, version, value, str(error)))
    decoded = decode("low", ids, [version for version, _ in found], [value for _, value in found])
    assert decoded.batch.schema == events_schema()
    assert decoded.batch.to_pylist() == rows
    assert sorted(decoded.bad) == sorted(bad)


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({
            name: st.integers(0, 10**6) if name in LIMITS else texts for name in COLUMNS[3:] if name != "key"
        }),
        min_size=1,
        max_size=2 * FEW,
    )
)  # fmt: skip
def test_what_workers_write_is_read_as_the_event_it_was(written):
    records = [
        attempt_record(
            **{{"bytes": "nbytes", "enqueued_at": "enqueued"}.get(k, k): v for k, v in each.items()}
        )
        for each in written
    ]
    sent = [f"retry\x1fm\x1f{SOON}\x1f{record}".encode() for record in records]
    decoded = decode("low", [b"1-0"] * len(sent), [b"1"] * len(sent), sent)
    assert decoded.bad == []
    for shown, value in zip(decoded.batch.to_pylist(), sent, strict=True):
        event = decode_one(value)
        for name in Event.__struct_fields__:
            if not name.endswith("_at"):
                assert shown[name] == (getattr(event, name) or (None if shown[name] is None else 0))
        assert (shown["wait_ms"] or 0) == event.wait_ms
        assert shown["finished_at"] == moment(event.finished_at)


def test_one_bad_row_among_thousands_is_the_only_one_to_be_bad():
    sent = [GOOD] * 5_000
    sent[1234] = b"done\x1fm\x1fsoon"
    sent[2345] = GOOD.replace(b"Boom", b"Bo\nom")
    ids = [b"%d-0" % n for n in range(1, 5_001)]
    decoded = decode("low", ids, [b"1"] * 5_000, sent)
    assert [(one.id, one.value) for one in decoded.bad] == [(b"1235-0", b"done\x1fm\x1fsoon")]
    assert decoded.batch.num_rows == 4_999
    assert decoded.batch.to_pylist()[2344]["error"] == "Bo\nom"
    assert decoded.batch["entry_at"].to_pylist() == [
        moment(n) for n in range(1, 5_001) if n != 1235
    ]


def test_nothing_gives_a_batch_without_rows():
    decoded = decode("low", [], [], [])
    assert (decoded.batch.num_rows, decoded.bad) == (0, [])
    assert decoded.batch.schema == events_schema()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"253402300800000-0", "the time or sequence in entry id"),
        (b"1-2147483648", "the time or sequence in entry id"),
        (b"soon", "not the id of a stream's entry"),
    ],
)
def test_id_that_is_no_time_is_bad(text, reason):
    [bad] = decode("low", [b"1-0", text], [b"1", b"1"], [GOOD, GOOD]).bad
    assert bad.id == text
    assert reason in bad.reason


def test_entry_of_two_fields_is_bad_and_kept_whole(valkey_client):
    command = valkey_client.command
    command("XADD", "s", "1-0", "1", GOOD)
    command("XADD", "s", "2-0", "1", GOOD, "more", "x")
    ids, versions, found = columns(command("XRANGE", "s", "-", "+"))
    decoded = decode("low", ids, versions, found)
    assert decoded.batch.num_rows == 1
    [bad] = decoded.bad
    assert (bad.id, bad.version, bad.value) == (b"2-0", b"", b"1\x1f" + GOOD + b"\x1fmore\x1fx")


def test_stream_of_a_queue_decodes_without_remainder(valkey_queue):
    valkey_queue.admin.events_level("all")
    valkey_queue.enqueue_many([b"1", b"22"])
    for message in valkey_queue.dequeue(2).messages:
        valkey_queue.cancel(message.mid)
    valkey_queue.admin.clear()
    reply = valkey_queue.client.command("XRANGE", f"{valkey_queue.prefix}events", "-", "+")
    decoded = decode("low", *columns(reply))
    assert decoded.bad == []
    assert decoded.batch["kind"].to_pylist() == ["enqueued"] * 2 + ["cancelled"] * 2 + ["cleared"]
    assert decoded.batch["bytes"].to_pylist() == [1, 2, None, None, None]
    assert decoded.batch["run_us"].to_pylist() == [None] * 5
