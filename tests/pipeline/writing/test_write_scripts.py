"""stage, publish and deliver: a call whose reply was lost is made again and changes nothing."""

from __future__ import annotations

import pytest

from jobq.client.functions import load_library
from jobq.client.scripts import load
from jobq.errors import LockLost
from jobq.pipeline.writing.outlet import Outlet, Staged, packed
from jobq.pipeline.writing.rows import Message
from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.pipeline.writing.table import Write, schema_of

MESSAGES = [Message("low", "", f"m{n}", b"{}" * n) for n in range(5)]
LATER = [Message("low", "d60000", f"l{n}", b"\xff") for n in range(3)]


def call(client, name, *args):
    """A script of the pipeline as `low`'s; the reply as text."""
    script, prefix = load("pipeline", name), keys.prefix(client.namespace, "low")
    names = [
        f"{prefix}staged:run" if key == "staged" else keys.key(prefix, key, "caller")
        for key in script.keys
    ]
    return [part.decode() for part in client.run(script, names, args)]


def test_deliver_repeats_its_reply_and_refuses_an_older_call(client):
    queue, batch = Queue("low", client), packed([*MESSAGES, *LATER])
    assert call(client, "deliver", "caller", 2, "", 1000, batch) == ["ok", "8", "0"]
    assert call(client, "deliver", "caller", 2, "", 1000, batch) == ["ok", "8", "0"]
    assert call(client, "deliver", "caller", 3, "", 1000, batch) == ["ok", "0", "8"]
    assert call(client, "deliver", "caller", 2, "", 1000, batch) == ["closed"]
    counts = queue.counts()
    assert (counts.ready, counts.delayed) == (5, 3)
    assert [entry.content for entry in queue.content("due").entries] == [b"\xff"] * 3


def test_event_is_the_one_that_enqueue_writes(client, redis):
    queue = Queue("low", client)
    queue.events_level("all")
    queue.enqueue(b"abc", mid="m1")
    call(client, "deliver", "caller", 1, "", "", packed([Message("low", "", "m2", b"abc")]))
    one, two = (fields[b"1"].split(b"\x1f") for _, fields in redis.xrange("jobq:{low}:events"))
    assert (one[1], two[1]) == (b"m1", b"m2")
    assert (one[0], one[3:]) == (two[0], two[3:])


def test_mid_that_comes_twice_in_a_batch_keeps_its_first_time_and_content(client):
    twice = [Message("low", when, "m", content) for when, content in (("", b"1"), ("d60000", b"2"))]
    assert call(client, "deliver", "caller", 1, "", "", packed(twice)) == ["ok", "1", "1"]
    queue = Queue("low", client)
    assert [entry.content for entry in queue.content("ready").entries] == [b"1"]
    assert queue.fsck() == []


def test_publish_takes_each_batch_once_and_tells_what_is_lost(client, redis):
    assert call(client, "stage", "a", "", "a.0", packed(MESSAGES), 60_000) == ["ok", "a"]
    assert call(client, "stage", "a", "", "a.0", packed(MESSAGES), 60_000) == ["ok", "a"]
    assert call(client, "stage", "b", "", "b.0", packed(LATER), 60_000) == ["ok", "a"]
    assert call(client, "stage", "b", "other", "b.1", packed(LATER), 60_000) == ["lost"]
    assert sorted(redis.hkeys("jobq:{low}:staged:run")) == [b"a.0", b"b.0", b"born"]
    assert call(client, "publish", "caller", 1, "", 1000, "other", "a.0", 60_000) == ["lost"]
    for _ in range(2):
        assert call(client, "publish", "caller", 2, "", 1000, "a", "a.0", 60_000) == [
            "ok",
            "5",
            "0",
        ]
    assert call(client, "publish", "caller", 3, "", 1000, "a", "a.0", 60_000) == ["lost"]
    assert call(client, "publish", "caller", 2, "", 1000, "a", "b.0", 60_000) == ["ok", "5", "0"]
    assert sorted(redis.hkeys("jobq:{low}:staged:run")) == [b"b.0", b"born"]
    assert Queue("low", client).counts().messages == 5


def test_older_call_is_told_as_refused_and_not_as_a_stage_that_is_gone(client):
    outlet = Outlet(client, "low", 1000)
    outlet.enqueue(MESSAGES)
    outlet.enqueue(LATER)
    outlet._caller.number = 0
    with pytest.raises(LockLost, match="queue 'low' refused caller"):
        outlet.enqueue(MESSAGES)
    assert (outlet.nadded, Queue("low", client).counts().messages) == (8, 8)


@pytest.mark.parametrize("script", ["stage", "publish", "deliver"])
def test_full_server_refuses_the_call_whole(client, redis, script):
    call(client, "stage", "a", "", "a.0", packed(MESSAGES), 60_000)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    outlet = Outlet(client, "low", 1000)
    redis.config_set("maxmemory", 1)
    asked = {
        "stage": lambda: outlet.stage("run", Staged("low", "a", "a", 1, 5), LATER),
        "publish": lambda: outlet.publish("run", Staged("low", "a", "a", 1, 5), 0),
        "deliver": lambda: outlet.enqueue(LATER),
    }[script]
    with pytest.raises(Exception, match="memory limit"):
        asked()
    redis.config_set("maxmemory", 0)
    after = {key: redis.dump(key) for key in redis.keys("*")}
    assert {**after, b"jobq:queues": None} == {**before, b"jobq:queues": None}


def test_writes_work_by_functions_alone(client, server, monkeypatch):
    load_library(client)
    client.command("SCRIPT", "FLUSH")
    monkeypatch.setenv("JOBQ_FUNCTIONS", "1")
    schema = schema_of(id="long", wait="double")
    options = {"job": "j", "queue": "low", "idColumn": "id", "delayColumn": "wait"}
    for commit in ("atomic", "idempotent"):
        Write(server.url, schema, **options, commit=commit).save([(n, None) for n in range(10)])
    assert Queue("low", client).counts().ready == 10
    client.command("FUNCTION", "FLUSH")
