"""Erasing leaves nothing of a message in the folder, and it doesn't come back."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobq.errors import ConfigError
from jobq.jobs.codec import encode
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import dead_messages, erase, inspection, rollup, upkeep
from jobq.pipeline.lake.commit import BatchRecord, adopt, commit_files
from jobq.pipeline.lake.conditions import (
    Sought,
    has_argument,
    parsed_argument,
    parsed_conditions,
)
from jobq.pipeline.lake.erase import Erasable
from jobq.pipeline.lake.erasure import ErasureRequest
from jobq.pipeline.lake.files import INGESTED, live_files
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import JOB_RUNS, TABLES
from jobq.pipeline.lake.tombstones import NAMED
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics import Topic
from tests.pipeline.lake.conftest import rows

LOCAL = Engine("local")


def traces(folder: Path, *values: str) -> list[str]:
    """Files in which a value can still be read: in the bytes, or in the cells of a Parquet file."""
    wanted = [value.encode() for value in values]
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        text = path.read_bytes()
        if path.suffix == ".parquet":
            text += repr(pq.ParquetFile(path).read().to_pylist()).encode()
        found += [f"{path.name}: {value!r}" for value in wanted if value in text]
    return found


def folder(lake: Lake) -> Path:
    return Path(lake.store.uri)


def faults(lake: Lake) -> list[str]:
    return [one.text for one in inspection.check(lake) if one.level == "fail"]


MIDS = [f"mail-{number}-of-customer" for number in range(6)]


def bury(queue, number: int) -> None:
    """A message of this customer that dies, and whose event is on record."""
    arguments = {"customer": number, "to": f"c{number}@a.b"}
    queue.enqueue(
        encode("shop.mail", (f"street {number}",), arguments), mid=MIDS[number], key=f"key-{number}"
    )
    [message] = queue.dequeue(1).messages
    why = f"No such street {number}"
    queue.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason=why)])


def take_in(lake: Lake, client) -> None:
    work = Ingest(lake, client, LOCAL)
    work.events()
    work.topics()
    dead_messages.keep_dead(lake, client, ["low"])


@pytest.fixture
def customers(lake, valkey_client, valkey_queue):
    """Customers 0 to 3: each has a dead message, a message of a topic and an entry that isn't a record."""
    valkey_queue.admin.events_level("all")
    orders = Topic("orders", valkey_client)
    for number in range(4):
        bury(valkey_queue, number)
        content = {"order": {"customer": number, "to": f"c{number}@a.b"}}
        orders.append(json.dumps(content).encode(), key=f"key-{number}")
        odd = f"odd\x1f{MIDS[number]}\x1fentry"
        valkey_client.command("XADD", "jobq:{low}:events", "*", "9", odd)
        if number % 2:
            take_in(lake, valkey_client)
    upkeep.compact(lake, ["events"])
    return lake


CUSTOMER_1 = ErasureRequest.parsed(argument="customer=1")


def of_customer(number: int) -> tuple[str, ...]:
    return MIDS[number], f"key-{number}", f"c{number}@a.b", f"street {number}"


def finished(lake: Lake, engine: Engine = LOCAL) -> dict[str, int]:
    done = erase.finish(lake, engine)
    assert done is not None
    return done


@pytest.mark.parametrize("asked", ["arg", "where"])
def test_nothing_of_a_customer_is_left_in_any_file(asked, customers, valkey_client):
    request = ErasureRequest.parsed(
        **{"arg": {"argument": "customer=2"}, "where": {"where": "key = 'key-2'"}}[asked]
    )
    assert len(traces(folder(customers), *of_customer(2))) > 6
    before = {name: len(rows(customers, name)) for name in NAMED}

    found = erase.selected(customers, LOCAL, *request)
    # Contents of the quarantine that are no JSON.
    assert found.unsearched == ({"quarantine": 4} if asked == "arg" else {})
    counted = erase.counted(customers, LOCAL, found.names)
    erase.begin(customers, found.names, asked)
    assert faults(customers) == [
        "an erasure is unfinished; run 'jobq lake erase --resume'",
        *(f"{counted[name]:,} row{'s' * (counted[name] != 1)} should have been erased; run 'jobq lake erase --resume'"
          for name in NAMED if counted[name]),
    ]  # fmt: skip
    done = finished(customers)

    rest = {"job_runs": 0, "dead": 1, "topics": 1, "quarantine": 1, "audit": 0}
    assert done == counted == {"events": 2, **rest}
    assert traces(folder(customers), *of_customer(2)) == []
    assert {name: len(rows(customers, name)) + done[name] for name in NAMED} == before
    assert {row["mid"] for row in rows(customers)} == {MIDS[0], MIDS[1], MIDS[3]}
    assert faults(customers) == []
    assert [row["kind"] for row in rows(customers, "erased")].count("done") == 1

    # Nor does it come back: the remaining and the new contents of the server.
    bury(Queue("low", valkey_client), 2)
    bury(Queue("low", valkey_client), 4)
    take_in(customers, valkey_client)
    adopt(customers, valkey_client)
    take_in(customers, valkey_client)
    assert {row["mid"] for row in rows(customers)} == {MIDS[0], MIDS[1], MIDS[3], MIDS[4]}
    assert traces(folder(customers), MIDS[2], "c2@a.b") == []
    assert faults(customers) == []


def test_a_mid_of_one_queue_is_erased_there_alone(lake, write, ingest):
    write("low", 3)
    write("high", 3)
    ingest.events()
    erase.begin(lake, [Erasable("mid", "low", "m2"), Erasable("mid", None, "m3")], "mid")
    assert finished(lake)["events"] == 3
    left = sorted((row["queue"], row["mid"]) for row in rows(lake))
    assert left == [("high", "m1"), ("high", "m2"), ("low", "m1")]


@pytest.mark.parametrize("step", [0, 2, 4, 7, 11])
def test_an_erasure_that_is_killed_at_any_step_is_finished_by_the_next(
    customers, monkeypatch, step
):
    """The steps: commits of the tables, their vacuums, their logs, and the last row of the table `erased`."""
    chosen = erase.selected(customers, LOCAL, *CUSTOMER_1).names
    erase.begin(customers, chosen, "arg customer")
    steps = iter(range(step))

    class Killed(BaseException):
        pass

    def dying(function):
        def step_of(*args, **words):
            if next(steps, None) is None:
                raise Killed
            return function(*args, **words)

        return step_of

    with monkeypatch.context() as patch:
        for name in ("commit_files", "_purge", "_append"):
            patch.setattr(erase, name, dying(getattr(erase, name)))
        with pytest.raises(Killed):
            erase.finish(customers, LOCAL)
    # No step was half done: a row is there or erased, and the counts agree.
    assert all("--resume" in fault for fault in faults(customers)) and faults(customers)
    finished(customers)
    assert traces(folder(customers), *of_customer(1)) == []
    assert faults(customers) == []
    assert erase.pending(customers) == {}


def test_rollups_are_computed_again_from_the_events_that_are_left(customers):
    days = {one.dt for one in live_files(customers.table("events"))}
    version = customers.table("events").version()
    for name in ("rollup_hourly", "job_runs"):
        made = BatchRecord(
            batch=1, rows=0, facts={"days": dict.fromkeys(days, 99), "version": version}
        )
        commit_files(customers, name, customers.made(name), [], made)
    kept = folder(customers) / "job_runs" / "_open" / "events.parquet"
    kept.parent.mkdir()
    kept.write_text(MIDS[0])
    erase.begin(customers, [Erasable("mid", "low", MIDS[0])], "mid")
    finished(customers)
    assert rollup.stale(customers).keys() == rollup.stale(customers, JOB_RUNS).keys() == days
    assert traces(folder(customers), MIDS[0]) == []


def test_large_files_are_rewritten_row_group_by_row_group(customers, monkeypatch):
    monkeypatch.setattr("jobq.pipeline.lake.files.INGESTED", INGESTED._replace(group=2))
    monkeypatch.setattr("jobq.pipeline.lake.erase.UNIT_BYTES", 1)
    monkeypatch.setattr("jobq.pipeline.lake.erase.UNITS", 1)
    erase.begin(customers, [Erasable("mid", None, mid) for mid in MIDS[:3]], "mid")
    assert finished(customers)["events"] == 6
    assert {row["mid"] for row in rows(customers)} == {MIDS[3]}
    assert faults(customers) == []


def test_executors_erase_the_same(customers, spark):
    asked = ErasureRequest.parsed(argument="customer=3")
    chosen = erase.selected(customers, Engine("spark", session=lambda: spark), *asked)
    assert chosen == erase.selected(customers, LOCAL, *asked)
    erase.begin(customers, chosen.names, "arg customer")
    done = finished(customers, Engine("spark", session=lambda: spark))
    assert done == {"events": 2, "job_runs": 0, "dead": 1, "topics": 1, "quarantine": 1, "audit": 0}
    assert traces(folder(customers), *of_customer(3)) == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("key = 'a'", [("key", ("a",), False)]),
        ("Key='it''s' AND job != 'b'", [("key", ("it's",), False), ("job", ("b",), True)]),
        ("attempt in (1, 2) and key in ('x')", [("attempt", ("1", "2"), False), ("key", ("x",), False)]),
        ("key = 'a' or job = 'b'", None), ("key like 'a%'", None), ("key = a", None),
    ],
)  # fmt: skip
def test_conditions_are_read_or_refused(text, meant):
    if meant is None:
        with pytest.raises(ConfigError, match="can't be read"):
            parsed_conditions(text)
        return
    assert list(map(tuple, parsed_conditions(text))) == meant


@pytest.mark.parametrize("text", ["", "mid = '\udcff'"])
def test_bytes_that_are_no_text_are_refused(text):
    with pytest.raises(ConfigError, match="use non-empty UTF-8 text"):
        parsed_conditions(text)


def test_every_column_can_be_asked_for_or_is_refused(lake):
    for name, (_, queue, _) in NAMED.items():
        for column in TABLES[name].columns:
            conditions = parsed_conditions(f"{column.name} in ('x', '1')")
            if column.type == "map":
                with pytest.raises(ConfigError, match="it contains maps"):
                    erase.selected(lake, LOCAL, (), Sought(None, conditions, None))
            elif column.type == "timestamp":
                with pytest.raises(ConfigError, match=f"--where {column.name}='x' is not a time"):
                    erase.selected(lake, LOCAL, (), Sought(None, conditions, None))
            else:
                none = TABLES[name].schema().empty_table()
                assert len(Sought(None, conditions, None).mask(none, queue)[0]) == 0


def test_time_is_found_however_a_condition_writes_it():
    at = datetime(2026, 11, 21, 10, 0, 0, 1, tzinfo=UTC)
    rows = pa.table(
        {"queue": ["low"] * 3, "at": pa.array([at, at.replace(microsecond=2), None], pa.timestamp("us", "UTC"))}
    )  # fmt: skip
    for text in ("2026-11-21T10:00:00.000001Z", "2026-11-21 11:00:00.000001+01:00"):
        for sign, meant in (("=", [True, False, False]), ("!=", [False, True, False])):
            sought = Sought(None, parsed_conditions(f"at {sign} '{text}'"), None)
            assert sought.mask(rows, "queue")[0].to_pylist() == meant


def test_a_call_as_deep_as_can_be_decoded_is_searched():
    """Deeper ones count as contents that can't be searched."""
    deep = [50 * 2**n for n in range(16)]
    answers = [
        has_argument(
            b'["a",' + b"[" * depth + b'{"customer":7}' + b"]" * depth + b"]",
            parsed_argument("customer=7"),
        )
        for depth in deep
    ]
    assert answers == sorted(answers, key=lambda one: one is None)
    assert answers[0] is True and answers[-1] is None


def test_an_erasure_that_began_meanwhile_is_not_called_done_before_its_rows_are_gone(
    customers, monkeypatch
):
    erase.begin(customers, [Erasable("mid", "low", MIDS[0])], "mid")
    again, stopped = erase._rewritten, threading.Event()

    def rewritten(*args):
        if args[4] is nullcontext and not stopped.is_set():
            erase.begin(customers, [Erasable("mid", "low", MIDS[1])], "mid")
            stopped.set()
        return again(*args)

    monkeypatch.setattr(erase, "_rewritten", rewritten)
    assert erase.finish(customers, LOCAL, enough=stopped.is_set) is None
    assert len(erase.pending(customers)) == 2
    finished(customers)
    assert traces(folder(customers), MIDS[0], MIDS[1]) == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (encode("a", (7,), {}), False), (encode("a", (), {"customer": 7}), True),
        (encode("a", (), {"customer": "7"}), True), (encode("a", ({"x": [{"customer": 7}]},), {}), True),
        (encode("a", (), {"customer": 70}), False),
        (b"jobq-s1 k " + b"0" * 64 + b"\n" + encode("a", (), {"customer": 7}), True),
        (b"jobq-e1 k\n\x00\x01", None), (b"\x1f\x8b\x08zipped", None), (b"7", None), (b'{"customer":7}', True),
    ],
)  # fmt: skip
def test_an_argument_is_found_in_calls_and_json_at_any_depth(content, found):
    assert has_argument(content, parsed_argument("customer=7")) is found
    if found is not None:
        assert has_argument(encode("a", (5, 7)), parsed_argument("1=7")) is True
