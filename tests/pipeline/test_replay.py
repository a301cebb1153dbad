"""Archived messages put back: in order, each once, however often a replay is run, and wherever it is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from jobq.cli import main
from jobq.errors import LakeError, PipelineError
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import ArchivedRows, TimeSpan
from jobq.pipeline.replay import (
    ORIGIN,
    ArchivedMessage,
    Pace,
    TopicReplay,
    archived_messages,
    batches,
    newest_deaths,
)
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics import Record, Topic
from tests.lifecycle.conftest import ROOT

SINCE = ("--since", "1h")


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


@pytest.fixture
def jobq(valkey_client, lake, tmp_path, monkeypatch):
    """jobq("lake", "replay", …): a command line on the test's server and lake; its code, records and remarks."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        env = {"JOBQ_URL": valkey_client.url, "JOBQ_LAKE": lake, "JOBQ_JSON": None}
        with CliRunner().isolation(env=env) as (out, err, _):
            code = main([*args, "--json"])
        return (
            code,
            [json.loads(line) for line in out.getvalue().splitlines()],
            err.getvalue().decode(),
        )

    return run


@pytest.fixture
def ingest(jobq):
    def run():
        code, _, err = jobq("lake", "ingest", "--once", "--engine", "local", "--rollup", "0")
        assert code == 0, err

    return run


@pytest.fixture
def replay(jobq):
    def run(*args):
        code, records, err = jobq("lake", "replay", *args)
        assert code == 0, err
        return records[-1]

    return run


def numbered(client, name, count, first=0):
    """A topic with so many numbered messages."""
    topic = Topic(name, client)
    topic.append_many([Record(b"%d" % n, key=f"k{n}") for n in range(first, first + count)])
    return topic


def contents(topic):
    return [int(one.content) for one in topic.read()]


def run_all(queue, outcome="done"):
    found = []
    while held := queue.dequeue(100).messages:
        queue.finish([Ending(mid=m.mid, token=m.token, outcome=outcome, reason="no") for m in held])
        found += held
    return found


@pytest.mark.parametrize("target", ["--to-queue", "--to-topic"])
def test_older_messages_are_never_left_out_unsaid_when_newer_ones_were_replayed(
    valkey_client, ingest, replay, jobq, target
):
    topic = numbered(valkey_client, "orders", 10)
    first_half = list(topic.read())[-1].at
    while valkey_client.command("TIME")[0] <= b"%d" % (first_half // 1000):
        pass  # --since is to tell the halves apart
    numbered(valkey_client, "orders", 10, first=10)
    ingest()
    middle = datetime.fromtimestamp(first_half / 1000 + 0.001, UTC).isoformat()
    newer, older = ("--since", middle), ("--since", "1h", "--until", middle)
    assert replay("--topic", "orders", *newer, target, "again")["sent"] == 10
    code, _, err = jobq("lake", "replay", "--topic", "orders", *SINCE, target, "again")
    assert code != 0
    assert "began with message 11" in err
    assert "--id" in err
    assert replay("--topic", "orders", *newer, target, "again")["behind"] == 10
    assert replay("--topic", "orders", *older, target, "again", "--id", "older")["sent"] == 10


def test_messages_beyond_retention_come_back_whole_and_in_order(valkey_client, ingest, replay):
    topic = Topic("orders", valkey_client)
    topic.append_many(
        [
            Record(b"a\x00\xff", "k", {"trace": "t"}),
            b"b",
            Record(None, "k"),
            *[b"%d" % n for n in range(2_500)],
        ]
    )
    before = list(topic.read())
    ingest()
    topic.trim(10**6)
    assert list(topic.read(out_of_range="earliest")) == []
    told = replay("--topic", "orders", *SINCE, "--to-topic", "again")
    assert (told["sent"], told["behind"]) == (2_503, 0)
    after = list(Topic("again", valkey_client).read())
    assert [(m.content, m.key) for m in after] == [(m.content, m.key) for m in before]
    assert after[0].headers == {
        "trace": "t",
        ORIGIN: "orders/1",
        "jobq-origin-at": str(before[0].at),
    }


def test_run_again_it_sends_only_what_is_new(valkey_client, ingest, replay, jobq):
    numbered(valkey_client, "orders", 30)
    ingest()
    assert replay("--topic", "orders", *SINCE, "--to-topic", "again")["sent"] == 30
    numbered(valkey_client, "orders", 5, first=30)
    ingest()
    told = replay("--topic", "orders", *SINCE, "--to-topic", "again")
    assert (told["sent"], told["behind"], told["first"]) == (5, 30, 31)
    again = Topic("again", valkey_client)
    assert contents(again) == list(range(35))
    assert replay("--topic", "orders", *SINCE, "--to-topic", "again", "--id", "twice")["sent"] == 35
    assert contents(again) == list(range(35)) * 2


def test_back_into_its_own_topic_a_copy_isnt_copied(valkey_client, ingest, replay):
    topic = numbered(valkey_client, "orders", 10)
    ingest()
    assert replay("--topic", "orders", *SINCE, "--to-topic", "orders")["sent"] == 10
    ingest()
    told = replay("--topic", "orders", *SINCE, "--to-topic", "orders")
    assert (told["sent"], told["exists"]) == (0, 10)
    assert contents(topic) == list(range(10)) * 2


def killed_under_way(command, env, progress, redis, seed):
    """Run it again and again, and kill it soon after it has come some way further."""
    chance, places = random.Random(seed), []
    for threshold in (1, 400, 900, 1_300):
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL)
        while progress() < threshold:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.08))  # any moment is right
        process.kill()
        assert process.wait() == -signal.SIGKILL
        places.append(progress())
        # The right to be the only writer ends by itself after a while; here it is removed immediately.
        for key in redis.scan_iter("*.lock"):
            redis.delete(key)
    assert places[-1] < 2_000, "none was killed under way"


@pytest.mark.parametrize("target", ["topic", "queue"])
def test_killed_at_any_moment_each_message_gets_there_once(
    valkey_client, valkey_redis, ingest, replay, lake, target
):
    numbered(valkey_client, "orders", 2_000)
    ingest()
    args = ("--topic", "orders", *SINCE, f"--to-{target}", "again", "--rate", "200")
    env = {**os.environ, "JOBQ_URL": valkey_client.url, "JOBQ_LAKE": lake}
    topic, queue, done = Topic("again", valkey_client), Queue("again", valkey_client), []

    def progress():
        if target == "topic":
            return topic.describe().last
        done.extend(run_all(queue))
        return len(done)

    command = [sys.executable, "-m", "jobq", "lake", "replay", *args]
    killed_under_way(command, env, progress, valkey_redis, seed=5)
    replay(*args[:-2])
    progress()
    found = contents(topic) if target == "topic" else [int(one.content) for one in done]
    assert found == list(range(2_000))


def test_second_writer_is_kept_out(valkey_client):
    options = {"source": "orders", "replay": "", "remember_s": 60.0}
    one, two = (TopicReplay(valkey_client, "again", **options) for _ in range(2))
    message = [ArchivedMessage(1, 0, None, b"x", {})]
    with one:
        assert one.send(message) == 1
        two._token = "another"
        with pytest.raises(PipelineError, match="took over"):
            two.send([ArchivedMessage(2, 0, None, b"y", {})])
    with two:
        assert two.reached() == 1
        with pytest.raises(PipelineError, match="already sent these messages"):
            two.send([ArchivedMessage(0, 0, None, b"z", {})])
    assert [m.content for m in Topic("again", valkey_client).read()] == [b"x"]


def test_note_of_how_far_it_is_outlives_the_calls(valkey_client, valkey_redis):
    target = TopicReplay(valkey_client, "again", "orders", "", remember_s=86_400)
    with target:
        target.send([ArchivedMessage(7, 0, None, b"x", {})])
        assert target.reached() == 7
    [note] = list(valkey_redis.scan_iter("jobq:{again}:topic:call:*"))
    assert valkey_redis.pttl(note) > 80_000_000


def test_queue_refuses_what_it_had_also_when_that_is_done_or_dead(
    valkey_client, valkey_redis, ingest, replay
):
    numbered(valkey_client, "orders", 6)
    ingest()
    queue = Queue("low", valkey_client)
    args = ("--topic", "orders", *SINCE, "--to-queue", "low")
    assert replay(*args)["sent"] == 6
    [first, second] = queue.dequeue(2).messages
    queue.finish([Ending(mid=first.mid, token=first.token)])
    queue.finish([Ending(mid=second.mid, token=second.token, outcome="dead", reason="no")])
    assert first.mid == "replay:orders:1"
    assert replay(*args)["behind"] == 6
    # As if it had been killed between the call and its note.
    for key in valkey_redis.scan_iter("jobq:{low}:replay:*"):
        valkey_redis.delete(key)
    assert replay(*args)["sent"] == 0
    assert [int(one.content) for one in run_all(queue)] == [2, 3, 4, 5]
    assert replay(*args, "--id", "more")["sent"] == 6


def test_message_becomes_a_call_as_asked(valkey_client, ingest, replay, jobq):
    Topic("orders", valkey_client).append_many([b'{"id": 1}', b"\xff"])
    ingest()
    to = ("--topic", "orders", *SINCE, "--to-queue", "low", "--job", "app.bill")
    code, _, err = jobq("lake", "replay", *to)
    assert code == 1
    assert "message 2 of topic 'orders'" in err
    assert "--as base64" in err
    assert Queue("low", valkey_client).admin.counts().messages == 0
    assert replay(*to, "--as", "base64")["sent"] == 2
    found = [json.loads(one.content) for one in run_all(Queue("low", valkey_client))]
    assert found == [
        {"job": "app.bill", "args": ["eyJpZCI6IDF9"]},
        {"job": "app.bill", "args": ["/w=="]},
    ]


def test_dead_messages_come_back_once_each_death(valkey_client, ingest, replay, jobq):
    queue = Queue("low", valkey_client)
    queue.enqueue_many([("a", b"1"), ("b", b"2"), ("c", b"3")])
    run_all(queue, "dead")
    ingest()
    queue.admin.purge(queue.admin.dead(mid="a")[0].dead_id)
    queue.enqueue(b"newer", mid="c")
    args = ("--dead", "--queue", "low", *SINCE)
    assert replay(*args, "--dry-run") == {"queue": "low", "dead": 3, "bytes": 3}
    told = replay(*args)
    assert (told["sent"], told["exists"]) == (2, 1), "c lives with newer content"
    assert (told["refused"], told["dedupe_s"]) == (["c"], 600)
    assert [one.mid for one in queue.admin.dead()] == ["c"], "b left the dead"
    found = {one.mid: one.content for one in run_all(queue, "dead")}
    assert found == {"a": b"1", "b": b"2", "c": b"newer"}
    assert replay(*args)["behind"] == 3
    ingest()
    assert replay(*args)["sent"] == 3, "each died once more since"


def test_replay_of_dead_messages_says_what_the_queue_refused(valkey_client, ingest, jobq):
    queue = Queue("low", valkey_client)
    queue.enqueue(b"1", mid="a")
    run_all(queue, "dead")
    ingest()
    queue.admin.purge(queue.admin.dead(mid="a")[0].dead_id)
    queue.enqueue(b"2", mid="a")
    code, [told], err = jobq("lake", "replay", "--dead", "--queue", "low", *SINCE)
    assert (code, told["sent"], told["refused"]) == (1, 0, ["a"])
    code, _, err = jobq("lake", "replay", "--dead", "--queue", "lov", *SINCE)
    assert (code, "queue 'lov' is unknown; did you mean 'low'?" in err) == (2, True)


def test_dead_messages_of_all_partitions_come_back_to_their_queue(valkey_client, ingest, replay):
    queue = Queue("low", valkey_client)
    partition(valkey_client, "low", 2)
    queue.enqueue_many([(f"m{number}", b"1") for number in range(8)])
    parts = {place.name: run_all(place, "dead") for place in queue.partitions()}
    assert all(parts.values())
    ingest()
    partition(valkey_client, "low", 3)
    args = ("--dead", "--queue", "low", *SINCE)
    assert replay(*args, "--dry-run") == {"queue": "low", "dead": 8, "bytes": 8}
    assert replay(*args)["sent"] == 8
    assert queue.admin.dead() == []
    assert replay(*args)["behind"] == 8


def test_topic_named_dead_and_the_dead_are_two_replays(valkey_client, ingest, replay):
    queue = Queue("low", valkey_client)
    queue.enqueue(b"1", mid="a")
    run_all(queue, "dead")
    numbered(valkey_client, "dead", 3)
    ingest()
    assert replay("--topic", "dead", *SINCE, "--to-queue", "low")["sent"] == 3
    assert replay("--dead", "--queue", "low", *SINCE)["sent"] == 1


def test_dead_that_died_again_after_a_killed_replay_stay_dead(
    valkey_client, valkey_redis, ingest, replay
):
    queue = Queue("low", valkey_client)
    queue.enqueue(b"1", mid="a")
    run_all(queue, "dead")
    ingest()
    args = ("--dead", "--queue", "low", *SINCE)
    assert replay(*args)["sent"] == 1
    time.sleep(0.002)
    run_all(queue, "dead")
    for key in valkey_redis.scan_iter("jobq:{low}:replay:*"):
        valkey_redis.delete(key)
    assert replay(*args)["sent"] == 0


def test_dry_run_tells_what_there_is_and_what_is_missing(valkey_client, ingest, jobq):
    topic = numbered(valkey_client, "orders", 4)
    ingest()
    numbered(valkey_client, "orders", 4, first=4)
    topic.trim(7)
    jobq("lake", "ingest", "--once", "--engine", "local", "--rollup", "0")
    code, [told], _ = jobq(
        "lake", "replay", "--topic", "orders", *SINCE, "--to-topic", "x", "--dry-run"
    )
    assert code == 0
    assert (told["messages"], told["first"], told["last"], told["bytes"], told["missing"]) == (
        6,
        1,
        8,
        6,
        2,
    )
    assert Topic("x", valkey_client).describe().last == 0
    code, _, err = jobq("lake", "replay", "--topic", "order", *SINCE, "--to-topic", "x")
    assert (code, "topic 'order' is unknown; did you mean 'orders'?" in err) == (2, True)
    past = ("--since", "2020-01-01T00:00Z", "--until", "2020-01-02T00:00Z")
    code, [told], _ = jobq("lake", "replay", "--topic", "orders", *past, "--to-topic", "x")
    assert (code, told["messages"]) == (1, 0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "nothing to replay; use either --topic NAME, or --dead"),
        (("--topic", "t", "--dead"), "--topic and --dead can't be combined"),
        (("--topic", "t"), "needs one target, not none; use"),
        (("--topic", "t", "--to-topic", "x", "--to-queue", "y"), "needs one target, not 2; use"),
        (("--dead",), "use --queue NAME"),
        (("--topic", "t", "--to-topic", "x", "--job", "j"), "--job 'j' works only with --to-queue"),
        (("--topic", "t", "--to-topic", "x", "--until", "2h"), "is not after --since"),
        (("--topic", "t", "--to-topic", "x", "--since", "soon"), "'soon' is not a time"),
    ],
)
def test_wrong_command_lines_are_told(jobq, lake, args, says):
    Lake.create(lake)
    code, _, err = jobq("lake", "replay", *SINCE, *args)
    assert code == 2
    assert says in err


def test_folder_that_is_no_lake_is_told(jobq):
    code, _, err = jobq("lake", "replay", "--topic", "t", *SINCE, "--to-topic", "x")
    assert code == 1
    assert "is not a lake" in err


def test_topic_that_was_begun_anew_is_refused():
    row = {"topic": "t", "index": 1, "at": 0, "key": None, "content": b"", "headers": None}
    with pytest.raises(LakeError, match="deleted and recreated"):
        list(archived_messages([{**row, "index": 2}, row]))


def test_calls_hold_so_many_messages_and_so_many_bytes():
    big = [ArchivedMessage(n, 0, None, b"x" * 1_500_000, {}) for n in range(1, 6)]
    assert [len(batch) for batch in batches(big, 1_000)] == [2, 2, 1]
    small = [ArchivedMessage(n, 0, None, b"", {}) for n in range(1, 6)]
    assert [len(batch) for batch in batches(small, 2)] == [2, 2, 1]
    assert Pace(100).most(1_000) == 25
    assert Pace(1).most(1_000) == 1


def test_newest_death_of_a_mid_counts():
    rows = [
        {"dead_id": f"a#{n}", "mid": "a", "died_at": n * 1_000, "content": b"%d" % n}
        for n in (2, 3, 1)
    ]
    assert [one.dead_id for one in newest_deaths(rows)] == ["a#3"]


def test_spark_reads_what_this_process_reads_and_in_its_order(spark, valkey_client, ingest, lake):
    numbered(valkey_client, "orders", 300)
    numbered(valkey_client, "others", 10)
    ingest()
    numbered(valkey_client, "orders", 300, first=300)
    ingest()
    archive = ArchivedRows(Lake.open(lake), "topics", "topic", "orders", ("index",), TimeSpan())
    here = list(archived_messages(archive.rows()))
    assert [one.index for one in here] == list(range(1, 601))
    assert list(archived_messages(archive.rows(lambda: spark))) == here
    for sized, nbytes in (False, 0), (True, sum(len(str(n)) for n in range(600))):
        told = archive.summary(sized=sized)
        assert told == archive.summary(lambda: spark, sized=sized)
        assert (told.rows, told.nbytes, told.first, told.last) == (600, nbytes, 1, 600)
    assert archive.is_big("spark")
    assert not archive.is_big("auto")
