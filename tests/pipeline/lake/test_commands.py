"""`jobq lake …` as people call it: its output, its exit code, and the state after a full disk or a signal."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.cli import main
from jobq.jobs.codec import encode
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import upkeep
from jobq.pipeline.lake.ingest import StopRequest, rounds
from jobq.pipeline.lake.lake import LOOK_S, Lake, LakeBusyError, locked
from jobq.pipeline.lake.rollup import RollupTimer
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics import Topic
from tests.pipeline.lake.conftest import DAY, FOLDER, mids, rows

ROOT = Path(__file__).resolve().parents[3]
#: Mention of the default engine in the output.
RULE = " (auto: Spark from 1,000,000 rows, once started from 50,000)"


@pytest.fixture
def line(valkey, valkey_client, tmp_path, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """line("stats", "--json"): code, stdout and stderr of `jobq lake …`."""
    for name in [name for name in os.environ if name.startswith("JOBQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JOBQ_URL", valkey.url)
    monkeypatch.setenv("JOBQ_LAKE", str(tmp_path / FOLDER))

    def run(*args: str) -> tuple[int, str, str]:
        with CliRunner().isolation() as (out, err, _):
            code = main(["lake", *args])
        return code, out.getvalue().decode(), err.getvalue().decode()

    return run


def process(*args: str, **options: object) -> subprocess.Popen[str]:
    """`jobq lake …` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobq", "lake", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def test_ingest_tells_what_it_brought_and_then_that_nothing_is_new(line, write):
    write("low", 12)
    assert line("ingest", "--once", "--rollup", "0")[:2] == (
        0, f"12 events, 0 topic messages, 0 dead in 1 batch, in this process{RULE}\n",
    )  # fmt: skip
    assert line("ingest", "--once", "--rollup", "0")[:2] == (0, "nothing new\n")


def test_ingest_with_nothing_new_starts_no_jvm(line, write, monkeypatch):
    write("low", 12)
    line("ingest", "--rollup", "0")

    def started(*args: object, **options: object) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr("jobq.pipeline.engine._lake_session", started)
    monkeypatch.setattr("jobq.pipeline.lake.rollup.stale", lambda lake: {})
    assert line("ingest", "--once")[:2] == (0, "nothing new\n")


def test_exit_code_and_message_tell_what_was_dropped_unread(line, write, valkey_client):
    write("low", 12)
    line("ingest", "--rollup", "0")
    write("low", 1_250, first=13)
    key = offsets.events_key("jobq", "low")
    valkey_client.command("XTRIM", key, "MINID", f"{DAY + 1_247}-0")
    code, out, err = line("ingest", "--json", "--rollup", "0")
    assert (code, json.loads(out)["lost"]) == (1, {"low": 1_234})
    write("low", 1, first=2_000)
    assert line("ingest", "--rollup", "0")[0] == 0
    assert json.loads(line("stats", "--json")[1].splitlines()[0])["lost"] == {"low": 1_234}
    assert "note  events: low: 1,234 entries were dropped before they were read" in line("check")[1]
    assert not err


def test_loss_is_told_on_stderr(line, write, valkey_client):
    write("low", 2)
    line("ingest", "--rollup", "0")
    write("low", 4, first=3)
    valkey_client.command("XTRIM", offsets.events_key("jobq", "low"), "MINID", f"{DAY + 5}-0")
    code, _, err = line("ingest", "--rollup", "0")
    assert code == 1
    assert "events of low: 2 entries were dropped before they were read" in err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("ingest", "--once", "--every", "1s"), "not both"),
        (("ingest", "--every", "1ms"), "too short; use 100ms or more"),
        (("ingest", "--storage-option", "AWS_REGION"), "write --storage-option NAME=TEXT"),
        (("mark", "v1", "--at", "yesterday"), "is not a time"),
        (("mark", "v1", "--at", "9999-12-31T23:59-14:00"), "is not a time"),
        (("ingest", "--lake", ""), "use --lake PATH or set JOBQ_LAKE"),
    ],
)
def test_wrong_options_are_refused(line, monkeypatch, args, told):
    Lake.create()
    if args[1] == "--lake":
        monkeypatch.delenv("JOBQ_LAKE")
    code, _, err = line(*args)
    assert code == 2
    assert told in err


def test_upkeep_prints_what_it_did(line, write):
    for first in (1, 11):
        write("low", 10, first=first)
        line("ingest", "--rollup", "0")
    code, out, _ = line("compact", "--no-rollups", "--json")
    assert (code, json.loads(out)["files_before"], json.loads(out)["files"]) == (0, 2, 1)
    assert line("vacuum", "--older-than", "0s")[1] == "events: 2 files deleted, in this process\n"
    assert line("mark", "v2", "--at", "2026-11-20T14:05Z")[1] == "v2 at 2026-11-20T14:05:00+00:00\n"
    assert line("expire", "--older-than", "0s", "--no-rollups", "--yes", "--json")[0] == 0
    assert line("check")[0] == 0


def test_check_ends_with_1_when_a_file_is_missing(line, write, lake):
    write("low", 3)
    line("ingest", "--rollup", "0")
    next((Path(lake.store.uri) / "events").rglob("*.parquet")).unlink()
    code, out, _ = line("check")
    assert code == 1
    assert "fail  events:" in out


def test_second_ingest_is_refused_while_the_first_has_the_lake(line, lake):
    with locked(lake):
        code, _, err = line("ingest", "--once")
    assert code == 1
    assert f"another process (pid {os.getpid()}) is working on the lake" in err


def test_term_ends_a_staying_ingest_after_its_round(line, write, lake):
    write("low", 5)
    with process("ingest", "--every", "1h", "--rollup", "0") as staying:
        assert staying.stdout is not None
        assert staying.stdout.readline().startswith("5 events")
        staying.send_signal(signal.SIGTERM)
        _, err = staying.communicate(timeout=600)
    assert (staying.returncode, err) == (0, "")
    assert sum(mids(lake).values()) == 5


DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "events": (lambda redis: redis.set("jobq:{bad}:events", "x"), "events of queue bad"),
    "dead": (lambda redis: redis.set("jobq:{bad}:dead", "x"), "dead of queue bad"),
    "topic": (lambda redis: redis.set("jobq:{bad}:topic:log", "x"), "topic bad"),
    "names": (lambda redis: redis.sadd("jobq:queues", b"\xff", b"{}", "x" * 9_000), ""),
    "topic names": (lambda redis: redis.sadd("jobq:topics", b"\xff", b"{}"), ""),
    "topics": (lambda redis: redis.set("jobq:topics", "x"), "the list of topics"),
    "dead id": (lambda redis: redis.zadd("jobq:{bad}:dead", {b"\xff": 1}), ""),
    "dead record": (lambda redis: redis.zadd("jobq:{bad}:dead", {"m#1": 1})
                    and redis.hset("jobq:{bad}:dead-messages", "m#1", b"a\x1fb\x1fc\x1fd\x1f\xff"), ""),
    "dead for ever": (lambda redis: redis.zadd("jobq:{bad}:dead", {"m#1": float("inf")}), ""),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_one_queue_or_topic_costs_a_line_and_the_others_are_ingested(
    line, write, lake, valkey_client, valkey_redis, damage
):
    write("good", 5)
    for name in ("bad", "fine"):
        Topic(name, valkey_client).append(b"x")
    valkey_redis.sadd("jobq:queues", "bad")
    damaged, told = DAMAGES[damage]
    if told:
        valkey_redis.delete("jobq:topics" if damage == "topics" else "jobq:{bad}:topic:log")
    assert damaged(valkey_redis)
    for _ in range(2):
        code, _, err = line("ingest", "--once", "--engine", "local", "--rollup", "0")
        assert (code == 0, err.count("\n")) == (not told, int(bool(told)))
        assert err.startswith(f"jobq: {told}: " if told else "")
    assert sum(mids(lake).values()) == 5
    assert damage == "topics" or "fine" in {row["topic"] for row in rows(lake, "topics")}
    code, out, _ = line("stats", "--backlog", "--json")
    assert (code == 0, '"queue": "good"' in out) == (damage != "events", True)


def test_small_lake_is_ingested_without_a_jvm(lake, ingest, write):
    def session() -> None:
        raise AssertionError("Spark was started")

    write("low", 5)
    ingest.events()
    for engine in (Engine("auto", session=session, spark_rows=6), Engine("local", session=session)):
        RollupTimer(lake, 1e-6, pytest.fail).refresh(engine, lambda: False)
    told: list[str] = []
    RollupTimer(lake, 1e-6, told.append).refresh(Engine("spark", session=session), lambda: False)
    assert told[0].endswith("Spark was started")


@pytest.mark.spark
@pytest.mark.parametrize(
    "error", [RuntimeError("no room\n\tat java"), ConnectionRefusedError("gone")]
)
def test_rollup_that_fails_is_told_and_tried_again_by_a_staying_ingest(lake, ingest, write, error):
    """Whatever Spark raises: events go on."""
    sessions: list[str] = []

    def session() -> None:
        sessions.append("made")
        raise error

    write("low", 5)
    told: list[str] = []
    due = RollupTimer(lake, 1e-6, told.append)
    spark = Engine("spark", session=session)
    ending = StopRequest()
    found_rounds = rounds(
        ingest, 0.001, lambda batch: None, ending, lambda found: due.refresh(spark, ending)
    )
    for number in (1, 2, 3):
        next(found_rounds)
        assert (len(sessions), len(told)) == (number, number)
    ending.set()
    assert told[0].endswith(f"{type(error).__name__}: {error.args[0].splitlines()[0]}")
    assert sum(mids(lake).values()) == 5


@pytest.mark.spark
def test_compaction_ends_with_1_and_a_line_when_spark_fails_in_the_rollups(
    line, write, monkeypatch
):
    from pyspark.errors import PySparkException

    def fails(*args: object, **options: object) -> None:
        raise PySparkException("[NO_ROOM] on the device")

    monkeypatch.setattr("jobq.pipeline.engine._lake_session", fails)
    write("low", 5)
    line("ingest", "--once", "--rollup", "0")
    code, out, err = line("compact")
    assert (code, "5 rows, 1 file to 1" in out) == (1, True)
    assert err == (
        "jobq: the days were compacted, but job_runs and rollup_hourly were not updated: PySparkException: "
        "[NO_ROOM] on the device\n"
    )


def test_overrun_that_is_near_ends_a_single_round_with_1_and_a_line(
    line, write, lake, valkey_client
):
    write("low", 10)
    line("ingest", "--once", "--rollup", "0")
    Queue("low", valkey_client).admin.events_maxlen(100)
    write("low", 60, first=11)
    code, _, err = line("ingest", "--once", "--rollup", "0")
    assert (code, "queue low will drop unread events in " in err) == (1, True)
    assert "60 events are unread, and it keeps 100" in err
    assert line("ingest", "--once", "--rollup", "0")[0] == 0
    write("low", 60, first=71)
    assert list(json.loads(line("ingest", "--rollup", "0", "--json")[1])["overruns"]) == ["low"]


def test_lake_is_compacted_between_the_rounds_of_a_staying_ingest(line, write, lake):
    write("low", 5)
    with process("ingest", "--every", "1h", "--rollup", "0") as staying:
        assert staying.stdout is not None
        assert staying.stdout.readline().startswith("5 events")
        code, out, _ = line("compact", "--no-rollups", "--wait", "0s")
        staying.send_signal(signal.SIGTERM)
    assert (code, staying.returncode) == (0, 0)
    assert "5 rows, 1 file to 1" in out


def test_others_get_at_the_lake_between_two_days_of_a_compaction(line, write, lake, monkeypatch):
    for queue, at in (("a", DAY - 86_400_000), ("b", DAY)):
        write(queue, 5, at=at)
    line("ingest", "--rollup", "0")
    found, plain = [], upkeep.rewritten

    def alone(*args):
        with pytest.raises(LakeBusyError), locked(lake):
            pass
        return plain(*args)

    def between(session, one, engine):
        with locked(lake):
            found.append(one.dt)

    monkeypatch.setattr(upkeep, "rewritten", alone)
    monkeypatch.setattr("jobq.cli.lake._say_compacted", between)
    assert line("compact", "--no-rollups", "--wait", "0s")[0] == 0
    assert len(found) == 2


def test_compaction_that_waits_for_its_next_day_ends_when_the_end_is_said(
    line, write, lake, monkeypatch
):
    for queue, at in (("a", DAY - 86_400_000), ("b", DAY)):
        write(queue, 5, at=at)
    line("ingest", "--rollup", "0")
    said = []

    def sleep(seconds):
        if seconds == LOOK_S and not said:
            said.append(seconds)
            signal.raise_signal(signal.SIGINT)

    with ExitStack() as other:
        monkeypatch.setattr(
            "jobq.cli.lake._say_compacted", lambda *_: other.enter_context(locked(lake))
        )
        monkeypatch.setattr(
            "jobq.pipeline.lake.lake.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        )
        code, _, err = line("compact", "--wait", "0s")
    assert (code, err, len(said)) == (0, "", 1)


def test_compaction_leaves_a_day_alone_that_another_has_compacted_before_its_turn(
    line, write, lake
):
    write("low", 5)
    line("ingest", "--rollup", "0")

    @contextmanager
    def overtaken():
        upkeep.compact(lake)
        yield

    assert upkeep.compact(lake, alone=overtaken) == []


def test_compaction_is_refused_while_another_has_the_lake(line, write, lake):
    write("low", 5)
    line("ingest", "--rollup", "0")
    with locked(lake):
        code, _, err = line("compact", "--no-rollups", "--wait", "0s")
    assert code == 1
    assert "is working on the lake" in err


def test_later_rounds_wait_for_the_lake_until_the_end_is_said(ingest, write, lake):
    class Ending(StopRequest):
        left = 1_000_000

        def __call__(self) -> bool:
            self.left -= 1
            return self.left < 0

        def wait(self, seconds: float) -> bool:
            return False

    ending = Ending()
    found = rounds(ingest, 1.0, lambda batch: None, ending, lambda done: None)
    write("low", 5)
    assert next(found).events == 5
    ending.left = 3
    with locked(lake):
        assert list(found) == []
    assert ending.left == -1


def test_full_disk_is_told_and_leaves_nothing_half_done(line, write, lake):
    write("low", 6_000)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))

    with process("ingest", "--once", "--rollup", "0", preexec_fn=small_files) as ended:
        _, err = ended.communicate(timeout=600)
    assert ended.returncode == 1
    assert f"no room left for the lake at {lake.store.uri}/events" in err
    assert "this batch was not committed" in err
    assert rows(lake) == []
    assert not list((Path(lake.store.uri) / "events").rglob("*.parquet"))
    assert line("ingest", "--rollup", "0")[1].startswith("6,000 events")
    assert set(mids(lake).values()) == {1}


def test_full_disk_while_compacting_changes_nothing(line, write, lake):
    for first in (1, 1_001):
        write("low", 1_000, first=first)
        line("ingest", "--rollup", "0")
    before = sorted(Path(lake.store.uri).rglob("*.parquet"))

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))

    with process("compact", "--no-rollups", preexec_fn=small_files) as ended:
        _, err = ended.communicate(timeout=100)
    assert ended.returncode == 1
    assert "no room left for the lake" in err
    assert sorted(Path(lake.store.uri).rglob("*.parquet")) == before
    assert line("compact", "--no-rollups")[0] == 0
    assert mids(lake) == {f"m{number}": 1 for number in range(1, 2_001)}


def test_server_away_is_told(line, lake, monkeypatch):
    monkeypatch.setenv("JOBQ_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("JOBQ_PATIENCE", "100ms")
    code, _, err = line("ingest", "--once")
    assert code == 3
    assert "no connection to" in err


def test_erase_says_what_it_selects_and_erases_it_after_a_yes(line, write, tmp_path):
    write("low", 3)
    line("ingest", "--once", "--rollup", "0s")
    code, out, _ = line("erase", "--where", "job = 'app.resize' and queue = 'low'", "--dry-run")
    assert (code, out) == (0, "3 selected: rows: 3 of events\n")
    assert line("erase", "--mid", "m2", "--yes")[:2] == (
        0, f"1 selected: rows: 1 of events\nerased in this process{RULE}: 1 of events\n",
    )  # fmt: skip
    assert line("erase", "--arg", "customer=7", "--yes")[:2] == (1, "0 selected: rows: none\n")
    assert line("erase", "--resume")[:2] == (0, f"erased in this process{RULE}: no rows\n")
    assert mids(Lake.open(str(tmp_path / FOLDER))) == {"m1": 1, "m3": 1}
    assert line("check")[0] == 0
    code, _, error = line("erase", "--mid", "m1", "--where", "key = 'a'")
    assert code == 2 and "one of --mid, --where, --arg and --resume" in error
    code, _, error = line("erase", "--where", "customer = '7'", "--yes")
    assert code == 2 and "column 'customer' can't be in a condition" in error
    for words in (["--mid", ""], ["--mid", "\udcff"], ["--mid", "m1", "--queue", "\udcff"]):
        code, _, error = line("erase", *words, "--live", "--yes")
        assert code == 2 and "use non-empty UTF-8 text" in error


def test_erase_live_does_not_stop_at_mids_that_no_message_can_have(
    line, valkey_client, valkey_queue, valkey_redis
):
    valkey_queue.enqueue(encode("shop.mail", (), {"customer": 7}), mid="m1")
    [message] = valkey_queue.dequeue(1).messages
    valkey_queue.finish([Ending(mid="m1", token=message.token, outcome="dead", reason="no")])
    [first] = valkey_queue.admin.dead()
    # A mid that is the dead id of another message.
    valkey_queue.enqueue(encode("shop.mail", (), {"customer": 7}), mid=first.dead_id)
    [message] = valkey_queue.dequeue(1).messages
    valkey_queue.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason="no")])
    words = ("--mid", "tab\tinside", "--mid", first.dead_id, "--live", "--yes")

    line("ingest", "--once", "--rollup", "0s")
    code, out, error = line("erase", *words)

    assert (code, error) == (0, "")
    assert "erased on the server: dead: 1, events: 1" in out
    assert [one.dead_id for one in valkey_queue.admin.dead()] == [first.dead_id]


def test_erase_live_leaves_nothing_of_a_message_on_the_server(
    line, tmp_path, valkey_client, valkey_queue, valkey_redis
):
    line("ingest", "--once", "--rollup", "0s")
    valkey_queue.admin.events_level("all")
    Topic("orders", valkey_client).append(b'{"customer": 7}')
    waits, ends, stays = "waits-of-seven", "ends-of-seven", "stays-of-eight"
    for mid, customer in ((ends, 7), (waits, 7), (stays, 8)):
        valkey_queue.enqueue(encode("shop.mail", (), {"customer": customer}), mid=mid)
    [message] = valkey_queue.dequeue(1).messages
    assert message.mid == ends
    valkey_queue.finish([Ending(mid=ends, token=message.token, outcome="dead", reason="no such 7")])
    valkey_redis.lpush(valkey_queue.result_key(ends), b"7")

    code, out, error = line("erase", "--arg", "customer=7", "--live", "--yes")

    assert (code, out, error) == (
        0,
        "3 selected: rows: 3 of events, 1 of dead, 1 of topics\n"
        "erased on the server: messages: 1, dead: 1, results: 1, events: 4\n"
        f"erased in this process{RULE}: 3 of events, 1 of dead, 1 of topics\n",
        "messages of topics stay in their logs until retention or 'jobq topic retention --before' drops them "
        "(1 left)\n",
    )
    # The mid of a cancelled message is in the list of ready ones until a worker passes it.
    assert [one.mid for one in valkey_queue.dequeue(2).messages] == [stays]
    for key in valkey_redis.scan_iter("jobq:{low}:*"):
        kind = valkey_redis.type(key)
        text = repr(valkey_redis.dump(key) if kind != b"stream" else valkey_redis.xrange(key))
        assert ends not in text and waits not in text, key
    # The stream's accounts are in order: nothing counts as lost.
    valkey_queue.cancel(stays)
    assert line("ingest", "--once", "--rollup", "0s")[0] == 0
    assert line("check")[0] == 0
    assert mids(Lake.open(str(tmp_path / FOLDER))) == {stays: 2}


def test_commands_reach_the_queue_of_a_source(line, valkey_client, valkey_queue):
    valkey_queue.admin.events_level("all")
    for mid in ("erased", "again"):
        valkey_queue.enqueue(b"content", mid=mid)
        [message] = valkey_queue.dequeue(1).messages
        dead = Ending(mid=mid, token=message.token, outcome="dead", reason="no")
        valkey_queue.finish([dead])
    assert line("ingest", "--once", "--rollup", "0s", "--source", "eu")[0] == 0
    code, out, _ = line("stats", "--backlog", "--json", "--source", "eu")
    assert code == 0 and '"queue": "low"' in out and '"backlog": 0' in out
    chosen = ("--where", "mid = 'erased'", "--live", "--yes")
    code, out, _ = line("erase", *chosen, "--queue", "{eu}low", "--source", "eu")
    assert code == 0 and "erased on the server: dead: 1, " in out
    assert [one.mid for one in valkey_queue.admin.dead()] == ["again"]
    code, out, _ = line("replay", "--dead", "--queue", "{eu}low", "--since", "1d")
    assert (code, out.split(" sent")[0]) == (0, "dead messages of {eu}low: 1")
    assert valkey_queue.status("again").word == "queued"
    assert line("check")[0] == 0
    code, _, error = line("replay", "--dead", "--queue", "low", "--since", "1d")
    assert code == 2 and "{eu}low" in error
