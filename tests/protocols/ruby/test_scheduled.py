"""What Sidekiq scheduled or retries is in its list when due, whole, once, and never nowhere."""

from __future__ import annotations

import json
import re
import time

import pytest

from jobq.errors import ScriptError
from jobq.protocols.ruby import scheduled
from jobq.protocols.ruby.scheduled import promote


def later(redis, name="schedule", at=1.0, **fields) -> bytes:
    job = json.dumps({"class": "A", "args": [1.10], "jid": "j", "queue": "default", **fields})
    redis.zadd(name, {job: at})
    return job.encode()


@pytest.mark.parametrize("name", ["schedule", "retry"])
def test_due_job_moves_to_its_list_and_queue_is_known(redis, client, name):
    later(redis, name)
    promote(client, "")
    [moved] = redis.lrange("queue:default", 0, -1)
    assert json.loads(moved)["jid"] == "j"
    assert redis.smembers("queues") == {b"default"}
    assert not redis.exists(name)


def test_job_stays_byte_for_byte_but_for_its_time_of_enqueueing(redis, client):
    job = later(redis, created_at=1.5)
    before = time.time()
    promote(client, "")
    moved = redis.lindex("queue:default", 0)
    stamp = json.loads(moved)["enqueued_at"]
    assert before - 1 < stamp < time.time() + 1
    assert moved.startswith(b'{"enqueued_at":') and moved.endswith(job[1:])


def test_time_of_enqueueing_is_in_ms_when_the_job_notes_ms(redis, client):
    later(redis, created_at=1_500_000_000_000)
    promote(client, "")
    assert json.loads(redis.lindex("queue:default", 0))["enqueued_at"] > 1_500_000_000_000


def test_retry_keeps_what_it_notes(redis, client):
    job = later(redis, "retry", enqueued_at=5.5, retry_count=2)
    promote(client, "")
    assert redis.lindex("queue:default", 0) == job


def test_job_that_isnt_due_stays_and_says_when_to_ask_again(redis, client):
    at = redis.time()[0] + 100
    later(redis, at=at)
    assert 40 < promote(client, "") <= 101
    assert redis.zcard("schedule") == 1
    assert promote(client, "elsewhere") == float("inf")


def test_more_than_a_hundred_go_in_turns(redis, client):
    redis.zadd("schedule", {json.dumps({"queue": "default", "jid": str(n)}): n for n in range(150)})
    assert promote(client, "") == 0
    assert redis.llen("queue:default") == 100
    assert promote(client, "") == float("inf")
    newest_first = [json.loads(job)["jid"] for job in redis.lrange("queue:default", 0, -1)]
    assert newest_first == [str(n) for n in range(149, -1, -1)]


@pytest.mark.parametrize(
    "broken", [b"{bad", b"[]", b'{"class":"A","args":[]}', b'{"queue":""}', b"\xff"]
)
def test_job_that_cant_be_moved_is_among_sidekiqs_dead(redis, client, broken):
    redis.zadd("schedule", {broken: 1})
    promote(client, "")
    [shown] = map(json.loads, redis.zrange("dead", 0, -1))
    assert shown["error_class"] == "jobq.errors.CodecError"
    assert re.search("not JSON|not a JSON object|has no queue", shown["error_message"])
    if shown["class"] != "A":
        assert (shown["class"], shown["args"]) == (
            "(unreadable job)", [broken.decode("utf-8", "backslashreplace")],
        )  # fmt: skip
    assert not redis.exists("schedule")


def test_job_whose_queue_is_no_list_keeps_none_that_is_due_later_from_being_moved(redis, client):
    redis.set("queue:broken", "of another type")
    redis.zadd("schedule", {'{"class":"A","args":[],"queue":"broken"}': 1})
    job = later(redis, enqueued_at=5.5)
    promote(client, "")
    assert redis.lrange("queue:default", 0, -1) == [job]
    [shown] = map(json.loads, redis.zrange("dead", 0, -1))
    assert shown["error_message"] == "the key queue:broken of its queue is not a list"
    assert not redis.exists("schedule")


def test_no_job_is_given_up_when_the_server_refuses_to_move_it_for_another_reason(redis, client):
    redis.set("queues", "of another type")
    job = later(redis)
    with pytest.raises(ScriptError):
        promote(client, "")
    assert redis.zrange("schedule", 0, -1) == [job]
    assert not redis.exists("dead")


def test_job_that_sidekiqs_poller_took_first_isnt_moved_again(redis, client, monkeypatch):
    job = later(redis)
    real = client.run

    def run(script, keys, args, by=None):
        if script.name == "promote":
            redis.zrem("schedule", job)
        return real(script, keys, args, by)

    monkeypatch.setattr(client, "run", run)
    promote(client, "")
    assert not redis.exists("queue:default")


def test_sets_of_a_namespace_are_those_after_its_name(redis, client):
    later(redis, "app:schedule")
    promote(client, "app")
    assert redis.llen("app:queue:default") == 1


@pytest.mark.one_server
def test_due_job_whose_list_refuses_it_holds_back_no_other(redis, client, monkeypatch):
    later(redis, jid="first", at=1.0, queue="denied")
    later(redis, jid="second", at=2.0)
    later(redis, "retry", jid="third", at=1.0)
    move = scheduled._move

    def denied(client, ruby_queue, *rest):
        if ruby_queue.queue == "denied":
            raise ScriptError("NOPERM")
        move(client, ruby_queue, *rest)

    monkeypatch.setattr(scheduled, "_move", denied)
    with pytest.raises(ScriptError, match="NOPERM"):
        promote(client, "")
    jids = {json.loads(job)["jid"] for job in redis.lrange("queue:default", 0, -1)}
    assert jids == {"second", "third"}
    assert redis.zcard("schedule") == 1
