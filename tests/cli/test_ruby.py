"""`jobq ruby`, and the options of `jobq worker` for jobs pushed by Ruby."""

from __future__ import annotations

import json

import pytest

from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.queue import Queue

PLACE = RubyQueueName("sidekiq", "", "default")


def test_push_adds_a_sidekiq_job(cli, redis):
    ended = cli(
        "ruby", "push", "--sidekiq", "default", "HardWorker", "1", "x", '{"a": 2}', "--retry", "3"
    )
    [job] = map(json.loads, redis.lrange("queue:default", 0, -1))
    assert (job["class"], job["args"], job["retry"]) == ("HardWorker", [1, "x", {"a": 2}], 3)
    assert ended.out == f"{job['jid']} pushed to sidekiq queue:default\n"


def test_push_notes_ms_for_version_8(cli, redis):
    cli(
        "ruby",
        "push",
        "--sidekiq",
        "mail:low",
        "--sidekiq-namespace",
        "my:app",
        "HardWorker",
        "--version",
        "8",
        "--jid",
        "j",
    )
    job = json.loads(redis.lindex("my:app:queue:mail:low", 0))
    assert redis.smembers("my:app:queues") == {b"mail:low"}
    assert job["jid"] == "j"
    assert isinstance(job["enqueued_at"], int) and job["enqueued_at"] > 10**12


@pytest.mark.parametrize("when", [["--delay", "1h"], ["--at", "4000000000"]])
def test_push_schedules(cli, redis, when):
    ended = cli("ruby", "push", "--sidekiq", "default", "HardWorker", *when, "--json")
    [(job, at)] = redis.zrange("schedule", 0, -1, withscores=True)
    assert json.loads(job)["jid"] == ended.records[0]["jid"]
    assert at > redis.time()[0] + 3_500


@pytest.mark.parametrize("name", ["add", "MyApp.Worker", "App\\Jobs\\Mail", "Mail::Sender"])
def test_push_takes_the_names_of_other_languages(cli, redis, name):
    cli("ruby", "push", "--resque", "low", "--resque-namespace", "resque:GitHub", name, "7")
    [job] = redis.lrange("resque:GitHub:queue:low", 0, -1)
    assert json.loads(job) == {"class": name, "args": [7]}


def test_push_adds_a_resque_job(cli, redis):
    ended = cli("ruby", "push", "--resque", "low", "Archive", "7")
    assert redis.lrange("resque:queue:low", 0, -1) == [b'{"class":"Archive","args":[7]}']
    assert ended.out == "pushed to resque resque:queue:low\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["HardWorker"], "the queue is missing; use either --sidekiq QUEUE or --resque QUEUE"),
     (["HardWorker", "--sidekiq", "a", "--resque", "b"], "two queues were given"),
     (["HardWorker", "--resque", "low", "--delay", "5s"], "Resque has no --delay"),
     (["HardWorker", "--sidekiq", "low", "a=1"], "don't support keyword arguments: a"),
     (["hard worker", "--sidekiq", "low"], "is not a class name"),
     (["HardWorker", "--resque", "resque:low"], "write low, or add --resque-namespace resque")],
)  # fmt: skip
def test_push_that_makes_no_sense_is_refused(cli, redis, words, complaint):
    ended = cli("ruby", "push", *words)
    assert ended.code == 2
    assert complaint in ended.err
    assert not redis.keys()


def test_queues_shows_what_waits_and_what_is_taken(cli, redis, client):
    for n in range(3):
        cli("ruby", "push", "--sidekiq", "default", "HardWorker", str(n))
    cli("ruby", "push", "--resque", "low", "Archive")
    Claims(client, PLACE).take(2)
    assert cli("ruby", "queues", "--json").records == [
        {"system": "sidekiq", "queue": "default", "waiting": 1, "taken": 2, "held": 0},
        {"system": "resque", "queue": "low", "waiting": 1, "taken": 0, "held": 0},
    ]


@pytest.mark.parametrize(
    "broken", ["queue:default", "jobq:intake:{queue:default}:claims", "queues"]
)
def test_queues_names_what_cant_be_read_and_shows_the_rest(cli, redis, broken):
    redis.sadd("resque:queues", "low")
    if broken != "queues":
        redis.sadd("queues", "default")
    redis.set(broken, "of another type")
    ended = cli("ruby", "queues", "--json")
    assert [one["queue"] for one in ended.records] == ["low"]
    assert "WRONGTYPE" in ended.err
    assert ended.code


def test_queues_shows_what_jobq_holds_of_a_ruby_queue(cli, redis, client):
    redis.sadd("queues", "default", "no {queue} of jobq")
    held = Queue("default", client)
    held.enqueue_many([b"waits", b"runs"])
    held.enqueue(b"later", delay=60)
    held.dequeue()
    assert [(one["queue"], one["held"]) for one in cli("ruby", "queues", "--json").records] == [
        ("default", 3),
        ("no {queue} of jobq", 0),
    ]


@pytest.mark.parametrize("where", [["--sidekiq", "low"], ["--resque", "low"]])
def test_peek_shows_the_next_one_first(cli, where):
    for n in range(5):
        cli("ruby", "push", *where, "Archive", str(n))
    shown = cli("ruby", "peek", *where, "--offset", "1", "--limit", "3")
    assert [json.loads(line)["args"] for line in shown.out.splitlines()] == [[1], [2], [3]]


def test_peek_shows_nothing_raw(cli, redis):
    redis.rpush("resque:queue:low", b"\x1b[31m\xff")
    shown = cli("ruby", "peek", "--resque", "low").out
    assert "\x1b" not in shown and "31m" in shown


def test_claims_are_shown_and_given_back(cli, redis, client):
    redis.lpush("queue:default", "1", "2", "3")
    claim = Claims(client, PLACE).take(2)
    [shown] = cli("ruby", "claims", "--sidekiq", "default", "--json").records
    assert (shown["claim_id"], shown["njobs"], shown["returned"]) == (claim.claim_id, 2, False)
    assert cli("ruby", "claims", "--sidekiq", "default", "--give-back", "--yes").code == 0
    assert redis.lrange("queue:default", 0, -1) == [b"3", b"2", b"1"]
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


def test_workers_shows_those_with_a_sign_of_life(cli, redis):
    assert cli("ruby", "workers").code == 1
    redis.sadd("processes", "host:1:a", "host:2:gone", *"bcd")
    redis.hset("b", mapping={"info": "[]", "busy": 3})
    redis.hset("c", mapping={"info": '{"queues":5}', "busy": 3})
    redis.hset("d", mapping={"info": "{}", "busy": "many"})
    redis.hset("host:1:a", mapping={"info": json.dumps({"queues": ["default"]}), "busy": 3})
    redis.sadd("resque:workers", "host:7:low,high")
    assert cli("ruby", "workers", "--json").records == [
        {"system": "sidekiq", "worker": "host:1:a", "queues": "default", "busy": 3},
        {"system": "resque", "worker": "host:7:low,high", "queues": "low,high", "busy": 0},
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(["--ruby-job", "A=b"], "add --sidekiq or --resque"),
     (["--sidekiq", "{a}"], "can't be used"), (["--sidekiq", "a", "--ruby-job", "A"], "is not a mapping"),
     (["--sidekiq", "a", "--ruby-job", "A=no.such"], "A=no.such: no job 'no.such' here")],
)  # fmt: skip
def test_worker_refuses_an_intake_that_makes_no_sense(cli, options, complaint):
    ended = cli("worker", *options)
    assert ended.code == 2
    assert complaint in ended.err
