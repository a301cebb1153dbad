"""What died here is shown to Ruby once, and stays gone when a person deletes it there."""

from __future__ import annotations

import json

import pytest

from jobq.errors import ScriptError
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry
from jobq.protocols.ruby import dead_jobs as dead_jobs_module
from jobq.protocols.ruby.dead_jobs import DeadJobs
from jobq.protocols.ruby.job_format import read_back
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.partitioning import partition
from jobq.queue.partitions import map_key
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.protocols.ruby.conftest import PLACE


@pytest.fixture
def die(line, pushed):
    """die("jid", retry=1): a Ruby job that is dead here."""

    def kill(jid, now=None, reason="ValueError: no (attempt 1 of 1)\n\nTraceback", **fields):
        pushed(jid, **fields)
        one = line()
        one.carry(greedy=True)
        [message] = one.queue.dequeue().messages
        ending = Ending(mid=jid, token=message.token, outcome="dead", reason=reason)
        one.queue.finish([ending], now=now)

    return kill


def test_dead_are_shown_with_what_sidekiq_notes(redis, client, default, die):
    die("a", args=[1], retry=3, retry_count=0, failed_at=5.5)
    assert DeadJobs(client, [default]).fill() == 1
    [(shown, score)] = redis.zrange("dead", 0, -1, withscores=True)
    job = json.loads(shown)
    assert (job["class"], job["args"], job["jid"]) == ("HardWorker", [1], "a")
    assert (job["error_class"], job["error_message"]) == ("ValueError", "no (attempt 1 of 1)")
    assert (job["retry_count"], job["failed_at"]) == (1, 5.5)
    assert job["retried_at"] == score == default.admin.dead()[0].died_at / 1000


def test_times_are_in_ms_when_the_job_notes_ms(redis, client, default, die):
    die("a", created_at=1_500_000_000_000)
    DeadJobs(client, [default]).fill()
    job = json.loads(redis.zrange("dead", 0, -1)[0])
    assert job["failed_at"] == default.admin.dead()[0].died_at


@pytest.mark.parametrize("fields", [{"dead": False}, {"retry": False}])
def test_job_that_wants_no_grave_gets_none(redis, client, default, die, fields):
    die("a", **fields)
    DeadJobs(client, [default]).fill()
    assert not redis.exists("dead")
    assert len(default.admin.dead()) == 1


def test_dead_of_all_partitions_are_shown_once(redis, client, default, line, pushed):
    partition(client, "default", 3)
    jids = [f"j{number}" for number in range(9)]
    for jid in jids:
        pushed(jid)
    line().carry(greedy=True)
    for place in default.partitions():
        for one in place.dequeue(9).messages:
            place.finish([Ending(mid=one.mid, token=one.token, outcome="dead", reason="E: no")])

    assert [DeadJobs(client, [default]).fill() for _ in range(2)] == [9, 0]
    assert sorted(json.loads(job)["jid"] for job in redis.zrange("dead", 0, -1)) == jids


def test_dead_of_other_partitions_are_shown_when_one_is_damaged(redis, client, default):
    partition(client, "default", 3)
    content = json.dumps({"job": "own", "args": []}).encode()
    damaged, *others = default.partitions()
    for place in others:
        place.enqueue(content, mid=place.name)
        [message] = place.dequeue().messages
        place.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason="E: no")])
    redis.set(f"{damaged.prefix}dead", "no sorted set")

    with pytest.raises(ScriptError):
        DeadJobs(client, [default]).fill()

    assert all(redis.exists(f"{place.prefix}shown-to-ruby") for place in others)


def test_dead_of_other_queues_are_shown_when_the_map_of_one_is_damaged(redis, client, default, die):
    die("a")
    redis.set(map_key(client, "low"), "no hash")

    with pytest.raises(ScriptError):
        DeadJobs(client, [Queue("low", client), default]).fill()

    assert [json.loads(job)["jid"] for job in redis.zrange("dead", 0, -1)] == ["a"]


def test_job_that_is_deleted_there_isnt_shown_again(redis, client, default, die):
    die("a")
    DeadJobs(client, [default]).fill()
    redis.delete("dead")
    die("b")
    assert DeadJobs(client, [default]).fill() == 1
    assert [json.loads(job)["jid"] for job in redis.zrange("dead", 0, -1)] == ["b"]


def test_job_that_dies_in_the_moment_of_the_last_is_shown_too(redis, client, default, die):
    soon = redis.time()[0] * 1000 + 30_000
    for jid in ("a", "b", "c"):
        die(jid, now=soon)
        assert DeadJobs(client, [default]).fill() == 1
    assert redis.zcard("dead") == 3


def test_hundreds_are_shown_in_one_go(redis, client, default, die):
    for number in range(230):
        die(str(number))
    assert DeadJobs(client, [default]).fill() == 230
    assert redis.zcard("dead") == 230
    assert DeadJobs(client, [default]).fill() == 0


@pytest.mark.parametrize("gone", [5, 150])
def test_none_is_missed_when_others_take_dead_away_between_two_pages(
    redis, client, default, die, gone, monkeypatch
):
    for number in range(330):
        die(str(number))
    real, looks = default.admin.dead, []

    def dead(*args, **options):
        page = real(*args, **options)
        looks.append(page)
        if len(looks) == 2:
            default.admin.purge(*(died.dead_id for died in real(0, gone)))
        return page

    monkeypatch.setattr(default.admin, "dead", dead)
    DeadJobs(client, [default]).fill()
    shown = {json.loads(job)["jid"] for job in redis.zrange("dead", 0, -1)}
    assert shown >= {str(number) for number in range(330 - gone)}


def test_each_is_shown_once_when_others_die_between_two_pages(
    redis, client, default, die, monkeypatch
):
    for number in range(150):
        die(str(number))
    real, looks = default.admin.dead, []

    def dead(*args, **options):
        page = real(*args, **options)
        looks.append(page)
        if len(looks) == 1:
            for number in range(150, 155):
                die(str(number))
        return page

    monkeypatch.setattr(default.admin, "dead", dead)
    dead_jobs = DeadJobs(client, [default])
    assert dead_jobs.fill() == 150
    assert dead_jobs.fill() == 5
    assert redis.zcard("dead") == 155


UNREADABLE = {
    b"{bad": "not JSON",
    b'{"class":"A","args":{}}': "the args of A are not a list",
    b'{"job":"own","args":[]}': "the job has no class",
    b'{"class":"A","args":[18446744073709551616],"jid":"j"}': "an int outside 64 bits",
    b'{"class":"A","args":[' + b"[" * 70 + b"]" * 70 + b"]}": "nests deeper than 64 levels",
    b'{"class":"A","args":[' + b"[" * 600 + b"]" * 600 + b"]}": "Ruby's own limit",
    b"\xff\xfe": "not JSON",
}


@pytest.fixture
def refused(redis, line, default):
    """refused(raw, …): jobs that no call can be made of are dead here, as a worker ends them."""

    def kill(*raws, ruby_queue=PLACE):
        for raw in raws:
            redis.lpush(ruby_queue.list_key, raw)
        one = line(ruby_queue)
        one.carry(greedy=True)
        executor = Executor(Registry())
        for message in one.queue.dequeue(100).messages:
            one.queue.finish([executor.resolve(one.queue.name, message)])
        return one.queue

    return kill


def test_unreadable_jobs_are_shown_with_the_true_reason(redis, client, default, refused):
    refused(*UNREADABLE)
    assert len(default.admin.dead()) == len(UNREADABLE)
    for _ in range(2):  # what is shown twice is shown once
        assert DeadJobs(client, [default]).fill() == len(UNREADABLE)
        redis.delete("jobq:{default}:shown-to-ruby")
    shown = [json.loads(job) for job in redis.zrange("dead", 0, -1)]
    assert len(shown) == len(UNREADABLE)
    for raw, why in UNREADABLE.items():
        text = raw.decode("utf-8", "backslashreplace")
        [job] = [
            one for one in shown
            if one["args"] == [text] or (raw.startswith(b'{"class"') and raw[:-1] in _dump(one))
        ]  # fmt: skip
        assert why in job["error_message"]
        assert job["error_class"] == "jobq.errors.CodecError"
    assert all(
        why in " ".join(died.reason for died in default.admin.dead()) for why in UNREADABLE.values()
    )


def _dump(job):
    return json.dumps(job, separators=(",", ":")).encode()


def test_unreadable_job_of_resque_is_in_its_failed_list_with_the_true_reason(
    redis, client, refused
):
    queue = refused(b"{bad", ruby_queue=RubyQueueName("resque", "resque", "low"))
    DeadJobs(client, [queue]).fill()
    [failed] = map(json.loads, redis.lrange("resque:failed", 0, -1))
    assert failed["payload"] == {"class": "(unreadable job)", "args": ["{bad"]}
    assert "not JSON" in failed["error"]
    assert failed["queue"] == "low"


def test_all_are_shown_when_each_fills_a_page(redis, client, default, die):
    for number in range(5):
        die(str(number), args=["x" * 300_000])
    assert DeadJobs(client, [default]).fill() == 5
    assert redis.zcard("dead") == 5


@pytest.mark.parametrize("noted", [b"bogus", b"[]", b"[1e999,[]]", b'{"a":1,"b":2}', b"\xff"])
def test_what_was_shown_is_shown_again_when_nobody_can_read_up_to_when(
    redis, client, default, die, noted
):
    die("a")
    redis.set("jobq:{default}:shown-to-ruby", noted)
    assert DeadJobs(client, [default]).fill() == 1


@pytest.mark.parametrize(
    "fields",
    [{"created_at": "x"}, {"created_at": True}, {"enqueued_at": {}}, {"tags": {"a": 1}}, {"queue": 5},
     {"encrypt": True}, {"error_backtrace": 5}, {"created_at": 2**60}],
    ids=str,
)  # fmt: skip
def test_job_that_rubys_api_cant_show_is_one_that_it_can_and_comes_back_whole(
    redis, client, default, line, die, fields
):
    die("j", **fields)
    DeadJobs(client, [default]).fill()
    [shown] = redis.zrange("dead", 0, -1)
    job = json.loads(shown)
    assert (job["class"], job["jid"], job["error_class"]) == ("(unreadable job)", "j", "ValueError")
    redis.lpush("queue:default", shown)
    line().carry(greedy=True)
    [message] = default.dequeue().messages
    _, again = read_back(message.content)
    assert (message.mid, again["class"]) == ("j", "HardWorker")
    assert again.items() >= fields.items()


@pytest.mark.parametrize(
    "fields",
    [{"created_at": None, "tags": None}, {"error_backtrace": "eJw="}, {"display_class": "Shown"},
     {"class": "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", "wrapped": "ActionMailer::MailDeliveryJob",
      "args": [{"job_class": "ActionMailer::MailDeliveryJob", "arguments": ["M", "welcome", "now", {"args": []}]}]}],
    ids=str,
)  # fmt: skip
def test_job_that_rubys_api_can_show_is_shown_as_it_was(redis, client, default, die, fields):
    die("j", **fields)
    DeadJobs(client, [default]).fill()
    [job] = map(json.loads, redis.zrange("dead", 0, -1))
    assert job.items() >= fields.items()


def test_dead_that_cant_be_shown_keeps_no_other_from_it(
    redis, client, default, die, monkeypatch, caplog
):
    for jid in ("a", "broken", "c"):
        die(jid)
    real = dead_jobs_module.show_dead

    def show_dead(ruby, ruby_queue, fields, died):
        if died.mid == "broken":
            raise ZeroDivisionError
        return real(ruby, ruby_queue, fields, died)

    monkeypatch.setattr(dead_jobs_module, "show_dead", show_dead)
    DeadJobs(client, [default]).fill()
    assert {json.loads(job)["jid"] for job in redis.zrange("dead", 0, -1)} == {"a", "c"}
    assert "could not add broken to Ruby's dead jobs" in caplog.text


def test_dead_of_jobqs_own_are_left_out(redis, client, default):
    default.enqueue(b'{"job":"own"}', mid="m")
    [message] = default.dequeue().messages
    default.finish([Ending(mid="m", token=message.token, outcome="dead", reason="x")])
    DeadJobs(client, [default]).fill()
    assert not redis.exists("dead")


def test_failed_list_of_resque_gets_each_once(redis, client, line):
    redis.rpush("resque:queue:low", b'{"class":"Archive","args":[1]}')
    one = line(RubyQueueName("resque", "resque", "low"))
    one.carry(greedy=True)
    [message] = one.queue.dequeue().messages
    reason = "ValueError: no (attempt 6 of 6)\n\nTraceback:\n  line"
    one.queue.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason=reason)])
    for _ in range(2):
        DeadJobs(client, [Queue("low", client)]).fill()
        redis.delete("jobq:{low}:shown-to-ruby")
    [failed] = map(json.loads, redis.lrange("resque:failed", 0, -1))
    assert (failed["exception"], failed["error"]) == ("ValueError", "no (attempt 6 of 6)")
    assert failed["payload"] == {"class": "Archive", "args": [1]}
    assert failed["backtrace"] == ["Traceback:", "line"]
