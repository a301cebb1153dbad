"""The loop of the intake: each queue has its turn, a fault of one delays no other, and it ends when asked."""

from __future__ import annotations

import contextlib
import json
import threading
import tracemalloc
from dataclasses import replace
from functools import partial

import pytest

from jobq.client.connection import connect
from jobq.config import CodecSettings, ServerSettings
from jobq.errors import CodecError, ConfigError
from jobq.jobs.codec import decode, read_refusal
from jobq.jobs.registry import Registry
from jobq.jobs.registry import job as declare
from jobq.jobs.signing import opened, seal_of
from jobq.protocols.ruby.intake import Intake
from jobq.protocols.ruby.job_format import origin, read_job
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.lists import ListWaiter
from jobq.protocols.ruby.queue_records import usable_queues
from jobq.protocols.ruby.retries import RubyJobCounts
from jobq.protocols.ruby.settings import IntakeSettings, expanded, parse_names, parse_queue_names
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.protocols.ruby.conftest import PLACE

LOW = RubyQueueName("resque", "resque", "low")


@pytest.fixture
def intake(client, fed_worker):
    """intake(ruby_queue, …): one that ends once there is nothing left."""

    def make(*ruby_queues, **changes):
        settings = IntakeSettings(ruby_queues=ruby_queues or (PLACE,), **changes)
        return Intake(client, client, settings, fed_worker, RubyJobCounts())

    return make


def test_burst_ends_when_all_is_taken_in_and_has_run(
    client, default, fed_worker, intake, pushed, run_all
):
    for number in range(230):
        pushed(str(number))
    running = threading.Thread(target=intake().take_jobs)
    running.start()
    ran = []
    while running.is_alive():
        ran += run_all(default)
    running.join()
    assert sorted(map(int, ran)) == list(range(230))


def test_every_queue_has_its_turn(redis, client, intake):
    for number in range(150):
        redis.lpush("queue:default", b'{"class":"A","args":[]}')
        redis.rpush("resque:queue:low", b'{"class":"A","args":[%d]}' % number)
    one = intake(PLACE, LOW)
    one._round()
    assert redis.llen("queue:default") == redis.llen("resque:queue:low") == 50


def test_trouble_with_one_queue_holds_no_other_up(redis, client, intake, caplog):
    redis.set("queue:default", "no list")
    redis.rpush("resque:queue:low", b'{"class":"A","args":[]}')
    one = intake(PLACE, LOW)
    one._round()
    assert Queue("low", client).admin.counts().ready == 1
    assert "sidekiq queue:default: failed, and will be tried again" in caplog.text


DEEP = b"[" * 600 + b"]" * 600
WRAPPED = (
    b'{"class":"Sidekiq::ActiveJob::Wrapper","args":[{"job_class":"B","arguments":%b}],"jid":"%b"}'
)
HOSTILE = (
    WRAPPED % (DEEP, b"deep"), b'{"class":"A","args":' + DEEP + b"}", b"[" * 100_000, b"", b"\xff", b"null",
    WRAPPED % (b'[{"_aj_ruby2_keywords":1,"_aj_globalid":"x"}]', b"kw"), b'{"class":"A","args":[1e999]}',
    b'{"class":"A","args":[],"x":' + b"9" * 5_000 + b"}", b'{"class":"A","args":["\\ud800"]}',
    b'{"job":"HardWorker","args":["never"]}', b'{"job":"HardWorker","args":["never"],"class":7}',
)  # fmt: skip


def test_no_job_keeps_those_that_were_claimed_with_it_from_running(
    redis, client, default, intake, pushed, run_all
):
    for number, job in enumerate(HOSTILE):
        redis.lpush("queue:default", job)
        pushed(f"beside {number}")
    intake()._round()
    assert redis.llen("queue:default") == 0
    messages = default.dequeue(100).messages
    mids = {message.mid for message in messages}
    assert mids >= {f"beside {number}" for number in range(len(HOSTILE))}
    for message in messages:
        if not message.mid.startswith("beside"):
            with contextlib.suppress(CodecError):
                assert "never" not in decode(message.content).args
    assert not redis.exists("jobq:intake:{queue:default}:claims")


def test_job_that_is_too_long_to_be_read_costs_little_memory_and_is_kept(
    redis, default, intake, pushed, run_all, caplog
):
    long = b'{"class":"A","args":[' + b"[]," * 4_000_000 + b"0]}"
    redis.lpush("queue:default", long)
    pushed("after")
    tracemalloc.start()
    one = intake()
    one._round()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one._round()
    assert run_all(default) == ["after"]
    assert redis.zrange("dead", 0, -1) == [long]
    assert "the job has 12,000,024 bytes; at most 8,388,608 are allowed" in caplog.text
    assert peak < 6 * len(long)


def test_unforeseen_trouble_with_one_queue_holds_no_other_up(
    redis, client, intake, caplog, monkeypatch
):
    redis.lpush("queue:default", b'{"class":"A","args":[]}')
    redis.rpush("resque:queue:low", b'{"class":"A","args":[]}')
    one = intake(PLACE, LOW)

    def broken(claim, stopped):
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(one.lines[0], "_deliver", broken)
    one._round()
    assert Queue("low", client).admin.counts().ready == 1
    assert "ZeroDivisionError: unforeseen" in caplog.text


def test_nothing_is_taken_while_quiet(redis, fed_worker, intake, pushed, monkeypatch):
    pushed("a")
    fed_worker.is_quiet = True
    one = intake()
    monkeypatch.setattr(one, "_pause", lambda seconds: None)
    one._round()
    assert redis.llen("queue:default") == 1


def test_sleep_ends_when_a_list_gets_a_job_and_leaves_it_there(redis, client, fed_worker, pushed):
    sleep = ListWaiter(client, [PLACE, LOW])
    woken = threading.Thread(target=sleep.wait, args=(60, [fed_worker.woken]))
    woken.start()
    while len([c for c in redis.client_list() if c["cmd"] == "blmove"]) < 2:
        pass
    job = pushed("a")
    woken.join(120)
    assert not woken.is_alive()
    assert redis.lrange("queue:default", 0, -1) == [job]
    sleep.close()


def test_sleep_outlives_its_connections(redis, client, fed_worker, pushed):
    sleep = ListWaiter(client, [PLACE])
    sleep.wait(0.01, [fed_worker.woken])
    redis.client_kill_filter(_type="normal", skipme=True)
    sleep.wait(0.01, [fed_worker.woken])
    pushed("a")
    sleep.wait(60, [fed_worker.woken])
    sleep.close()


def test_calls_are_sealed_where_the_queue_asks_for_it(server, redis, fed_worker, pushed):
    codec = CodecSettings(keys=(("k", b"x" * 32),))
    client = connect(settings=ServerSettings(url=server.url, codec=codec))
    for jid in ("a", "b"):
        pushed(jid)
    redis.lpush("queue:default", b"{bad")
    settings = IntakeSettings(ruby_queues=(PLACE,))
    Intake(client, client, settings, fed_worker, RubyJobCounts())._round()
    for message in Queue("default", client).dequeue(3).messages:
        call = json.loads(opened(seal_of(client), "default", message.mid, message.content))
        assert call.get("raw") == "{bad" or call["job"] == "HardWorker"
        with pytest.raises(CodecError):
            opened(seal_of(client), "default", "another", message.content)
    client.close()


def test_job_that_comes_again_byte_for_byte_is_sealed_as_another_call(
    server, pushed, redis, fed_worker
):
    """Workers refuse a sealed call that was done, when somebody puts the same bytes back."""
    codec = CodecSettings(keys=(("k", b"x" * 32),))
    client = connect(settings=ServerSettings(url=server.url, codec=codec))
    sealed = set()
    for _ in range(2):
        pushed("a")
        Intake(
            client, client, IntakeSettings(ruby_queues=(PLACE,)), fed_worker, RubyJobCounts()
        )._round()
        queue = Queue("default", client)
        [message] = queue.dequeue().messages
        sealed.add(message.content)
        queue.finish([Ending(mid="a", token=message.token)])
    assert len(sealed) == 2
    client.close()


def test_job_that_is_too_long_once_sealed_is_kept_with_the_dead_and_holds_nobody_up(
    server, redis, fed_worker, pushed, run_all
):
    codec = CodecSettings(keys=(("k", b"x" * 32),))
    client = connect(settings=ServerSettings(url=server.url, codec=codec))
    short = len(read_job(PLACE, pushed("long", [""]), "", {}).content)
    redis.delete("queue:default")
    long = pushed("long", ["x" * (1024 * 1024 - short)])
    pushed("after")
    Intake(
        client, client, IntakeSettings(ruby_queues=(PLACE,)), fed_worker, RubyJobCounts()
    )._round()
    assert run_all(Queue("default", client)) == ["after"]
    [kept] = redis.zrange("dead", 0, -1)
    assert kept.startswith(long[:-1])
    noted = json.loads(kept)
    assert noted["error_class"] == "jobq.errors.CodecError"
    assert "bytes; at most 1,048,576 are allowed" in noted["error_message"]
    client.close()


def test_lists_may_be_on_another_server(server, redis, client, fed_worker, pushed, run_all):
    pushed("a")
    elsewhere = connect(settings=replace(client.settings, url=f"{server.url}?db=1"))
    queue = Queue("default", elsewhere)
    Intake(
        elsewhere, client, IntakeSettings(ruby_queues=(PLACE,)), fed_worker, RubyJobCounts()
    )._round()
    assert run_all(queue) == ["a"]
    assert not redis.keys("jobq:{default}*")
    elsewhere.close()


def test_queues_are_read_with_the_namespace_and_the_weights_that_are_given():
    assert parse_queue_names("sidekiq", ["default, mail:low,5", "default", "5"]) == {
        PLACE: 1, RubyQueueName("sidekiq", "", "mail:low"): 5, RubyQueueName("sidekiq", "", "5"): 1,
    }  # fmt: skip
    assert parse_queue_names("sidekiq", ["app:low"], "my:app") == {
        RubyQueueName("sidekiq", "my:app", "app:low"): 1
    }
    # Resque has no weights.
    assert parse_queue_names("resque", ["low,5"], "resque:GitHub") == {
        RubyQueueName("resque", "resque:GitHub", "low"): 1,
        RubyQueueName("resque", "resque:GitHub", "5"): 1,
    }
    assert list(parse_queue_names("resque", ["low"], "")) == [RubyQueueName("resque", "", "low")]
    assert list(parse_queue_names("resque", ["low"])) == [LOW]


@pytest.mark.parametrize("text", ["a b", "{a}", "default,0", "default,1001"])
def test_queue_that_no_queue_can_be_is_refused(text):
    with pytest.raises(ConfigError):
        parse_queue_names("sidekiq", [text])


def test_queue_with_the_name_of_a_partition_is_left_to_ruby(redis, client):
    low = parse_queue_names("sidekiq", ["low/3"])
    with pytest.raises(ConfigError, match="belongs to a partition of jobq"):
        IntakeSettings(ruby_queues=tuple(low))
    redis.sadd("queues", "low", "low/3")
    found = usable_queues(client, RubyQueueName("sidekiq", "", ""))
    assert [each.queue for each in found] == ["low"]


def test_namespace_within_the_name_of_a_queue_is_refused_unless_one_is_given():
    with pytest.raises(ConfigError, match="write low, or add --resque-namespace resque"):
        parse_queue_names("resque", ["resque:low"])
    assert list(parse_queue_names("resque", ["resque:low"], "resque")) == [
        RubyQueueName("resque", "resque", "resque:low")
    ]
    with pytest.raises(ConfigError, match="namespace 'n s' can't be used"):
        parse_queue_names("resque", ["low"], "n s")


def test_pattern_names_all_queues_that_are_there(redis, client):
    redis.sadd("resque:queues", "low", "high", "mail_in", "mail_out", "a b", b"\xff")
    redis.sadd("queues", "default")

    def chosen(system, *texts):
        return [
            one.queue
            for one in expanded(parse_queue_names(system, texts), partial(usable_queues, client))
        ]

    assert chosen("resque", "*") == ["high", "low", "mail_in", "mail_out"]
    assert chosen("resque", "low,*,!mail_o*") == ["low", "high", "mail_in"]
    assert chosen("resque", "mail_*", "high") == ["mail_in", "mail_out", "high"]
    assert chosen("sidekiq", "*,7") == ["default"]
    assert chosen("resque", "nothing*") == []
    redis.sadd("resque:queues", *[f"q{number}" for number in range(200)])
    with pytest.raises(ConfigError, match="204 Ruby queues match, but a worker serves at most 200"):
        chosen("resque", "*")


def test_queue_that_matches_a_pattern_later_is_taken_from(redis, client, fed_worker):
    redis.sadd("resque:queues", "low", "slow_b")
    texts = parse_queue_names("resque", ["*", "!slow_*"])
    settings = IntakeSettings(ruby_queues=(), patterns=texts, ruby_dead=True)
    one = Intake(client, client, settings, fed_worker, RubyJobCounts())
    for _ in range(2):
        one._match()
    redis.sadd("resque:queues", "new", "slow_a")
    redis.rpush("resque:queue:new", b'{"class":"A","args":[]}')
    for _ in range(2):
        one._match()
    assert fed_worker.asked == [{"low": 1}, {"new": 1}]
    assert one._round() is False
    assert Queue("new", client).admin.counts().ready == 1
    [shown] = redis.smembers("resque:workers")
    assert shown.endswith(b":low,new")
    assert {str(dead_jobs) for dead_jobs in one._dead_jobs} == {"low", "new"}
    one._leave()


def test_queue_that_matches_a_pattern_later_has_the_partitions_that_its_jobs_declare(
    redis, client, fed_worker, intake, monkeypatch
):
    registry = Registry()
    declare(name="HardWorker", registry=registry, queue="new", partitions=3)(print)
    monkeypatch.setattr("jobq.protocols.ruby.intake.default_registry", registry)
    taking = intake(PLACE, patterns={RubyQueueName("sidekiq", "", "*"): 1})
    redis.sadd("queues", "new")
    redis.lpush("queue:new", '{"class":"HardWorker","args":[],"jid":"a"}')
    taking._match()
    taking.lines[-1].carry(greedy=True)

    assert read_map(client, "new").newest.size == 3
    assert Queue("new", client).place_of("a").name.startswith("new/")


def test_new_queues_beyond_the_limit_are_told_once_and_others_go_on(
    redis, client, fed_worker, caplog
):
    settings = IntakeSettings(ruby_queues=(LOW,), patterns=parse_queue_names("resque", ["*"]))
    one = Intake(client, client, settings, fed_worker, RubyJobCounts())
    redis.sadd("resque:queues", *[f"q{number}" for number in range(200)])
    for _ in range(2):
        one._match()
    assert fed_worker.asked == []
    [told] = [
        each.getMessage() for each in caplog.records if "can't be served" in each.getMessage()
    ]
    assert "201 Ruby queues match" in told


@pytest.mark.parametrize("namespace", ["", "resque:GitHub", "a:b:c"])
@pytest.mark.parametrize("queue", ["low", "mail:low"])
def test_message_says_where_its_job_came_from(namespace, queue):
    place = RubyQueueName("resque", namespace, queue)
    content = read_job(place, b'{"class":"A","args":[]}', "m", {}).content
    assert origin(decode(content).headers) == (place, {"class": "A"})


def test_job_of_a_batch_runs_with_a_warning(default, line, pushed, run_all, caplog):
    pushed("a", bid="b-1")
    pushed("b", bid="b-1")
    line().carry(greedy=True)
    assert run_all(default) == ["a", "b"]
    said = [one.getMessage() for one in caplog.records if "b-1" in one.getMessage()]
    assert said == [
        "sidekiq queue:default: a: class HardWorker will run, but its batch b-1 won't be notified: only Sidekiq Pro "
        "does that"
    ]


@pytest.mark.parametrize("texts", [["A"], ["=b"], ["A="], ["A=b c"], ["A=b", "A=c"]])
def test_mapping_that_says_nothing_or_two_things_is_refused(texts):
    with pytest.raises(ConfigError):
        parse_names(texts)


def test_job_has_the_key_that_the_job_of_its_class_declares(
    redis, default, line, pushed, monkeypatch
):
    registry = Registry()
    declared = declare(name="HardWorker", registry=registry, key="customer", ordered=True)
    declared(lambda customer, count=1: None)
    monkeypatch.setattr("jobq.protocols.ruby.intake.default_registry", registry)
    pushed("a1", ["acme", 1])
    pushed("b1", ["bob"])
    pushed("plain", [], **{"class": "Other"})
    pushed("none", [None])
    pushed("broken", [["no", "key"]])
    pushed("a2", ["acme", 2])
    line().carry(greedy=True)
    assert {row.key: (row.waiting, row.oldest) for row in default.admin.iter_keys()} == {
        "acme": (2, "a1"),
        "bob": (1, "b1"),
    }
    messages = {}
    while handed := default.dequeue(10).messages:
        messages |= {one.mid: one for one in handed}
    assert set(messages) == {"a1", "b1", "plain", "none", "broken"}
    refused = read_refusal(messages["broken"].content)
    assert "key=['no', 'key'] of HardWorker can't be used" in refused.why
    pushed("a1", ["acme", 9])
    line().carry(greedy=True)
    assert [(row.key, row.waiting) for row in default.admin.iter_keys() if row.waiting] == [
        ("acme", 2)
    ]
    assert default.admin.fsck() == []
