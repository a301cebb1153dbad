"""No job is lost and none is taken twice, whoever dies between taking, delivering and settling."""

from __future__ import annotations

import json

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ScriptError, ServerFullError
from jobq.jobs.registry import Registry
from jobq.jobs.registry import job as declare
from jobq.protocols.ruby.claims import ClaimedMessage, Claims
from jobq.protocols.ruby.job_format import read_job
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.partitioning import partition
from jobq.queue.types import Ending
from tests.protocols.ruby.conftest import PLACE

LOW = RubyQueueName("resque", "resque", "low")


def expire(redis, claims: Claims) -> None:
    """Let the lease of every claim be over."""
    for waiting in claims.waiting():
        redis.zadd(claims._claims, {waiting.claim_id: 0})


def left(redis) -> list[bytes]:
    """What claims keep until they are settled."""
    return redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


def test_jobs_arrive_in_their_order_and_leave_nothing_behind(redis, line, default, pushed, run_all):
    for jid in "abc":
        pushed(jid)
    assert line().carry(greedy=False) == 3
    assert run_all(default) == ["a", "b", "c"]
    assert not redis.exists("queue:default")
    assert not left(redis)


def test_job_runs_once_when_its_holder_died_after_delivering_it(
    redis, client, line, default, pushed, run_all
):
    pushed("a")
    claims = Claims(client, PLACE)
    claim = claims.take()
    enqueue_as(default, claim)  # and dies before it settles
    assert run_all(default) == ["a"]
    while default.status("a").word != "nil":
        default.admin.collect()
    expire(redis, claims)
    assert line().carry(greedy=False) == 1
    assert run_all(default) == []
    assert not left(redis)


def test_job_runs_once_when_a_holder_comes_back_after_its_claim_was_delivered(
    redis, client, line, default, pushed, run_all
):
    pushed("a")
    claims = Claims(client, PLACE)
    paused = claims.take()
    expire(redis, claims)
    line().carry(greedy=False)
    assert run_all(default) == ["a"]
    while default.status("a").word != "nil":
        default.admin.collect()
    claims.deliver(paused, [ClaimedMessage(0, "a", b"{}")], default, never)
    assert run_all(default) == []


def test_one_of_two_rescuers_gets_a_claim(redis, client, pushed):
    pushed("a")
    claims = Claims(client, PLACE)
    claims.take()
    expire(redis, claims)
    assert [bool(claims.rescue()), bool(claims.rescue())] == [True, False]


def test_call_that_is_repeated_takes_nothing_more(client, redis, pushed, monkeypatch):
    pushed("a")
    monkeypatch.setattr(
        "jobq.protocols.ruby.claims.secrets.token_urlsafe", lambda _: "sixteen_letters_"
    )
    claims = Claims(client, PLACE)
    first = claims.take()
    pushed("b")
    assert claims.take() == first
    assert redis.llen("queue:default") == 1


def test_call_that_is_repeated_takes_nothing_when_its_claim_was_delivered_by_another(
    redis, client, line, default, pushed, run_all, monkeypatch
):
    pushed("a")
    monkeypatch.setattr(
        "jobq.protocols.ruby.claims.secrets.token_urlsafe", lambda _: "sixteen_letters_"
    )
    slow = Claims(client, PLACE)
    slow.take()
    monkeypatch.undo()
    expire(redis, slow)
    assert line().carry(greedy=False) == 1
    pushed("b")
    # What it took now would go by the number of a call that was made, and be settled unseen.
    repeated = repeat(slow, "sixteen_letters_", monkeypatch)
    slow.deliver(repeated, messages_of(repeated), default, never)
    assert run_all(default) == ["a"]
    assert line().carry(greedy=False) == 1
    assert run_all(default) == ["b"]


def test_equal_jobs_of_resque_run_each(redis, line, client, run_all):
    redis.rpush("resque:queue:low", *[b'{"class":"Archive","args":[1]}'] * 5)
    one = line(LOW)
    one.carry(greedy=False)
    assert len(set(run_all(one.queue))) == 5


def test_resque_job_keeps_its_mid_when_its_claim_is_rescued(redis, line, client, run_all):
    redis.rpush("resque:queue:low", b'{"class":"Archive","args":[1]}')
    claims = Claims(client, LOW)
    claim = claims.take()
    expire(redis, claims)
    one = line(LOW)
    one.carry(greedy=False)
    assert run_all(one.queue) == [f"{claim.claim_id}.0"]


def test_jid_that_comes_again_runs_again_when_the_first_is_done(line, default, pushed, run_all):
    for _ in range(2):
        pushed("a")
        line().carry(greedy=False)
        assert run_all(default) == ["a"]


def test_nothing_is_taken_while_the_queue_is_paused_or_has_a_backlog(redis, line, default, pushed):
    one = line(backlog=2)
    for jid in "abcd":
        pushed(jid)
    default.admin.pause()
    assert one.carry(greedy=False) == 0 and one.full
    default.admin.resume()
    assert one.carry(greedy=False) == 2 and not one.full
    assert one.carry(greedy=False) == 0 and one.full
    assert redis.llen("queue:default") == 2


def test_a_claim_is_bounded_in_jobs_and_bytes(client, redis):
    claims = Claims(client, PLACE)
    redis.lpush("queue:default", *[b"x"] * 250)
    assert len(claims.take(100).jobs) == 100
    redis.delete("queue:default")
    redis.lpush("queue:default", *[b"x" * 400_000] * 9)
    assert len(claims.take(100).jobs) == 3


def test_claim_of_much_content_is_delivered_in_one_call_which_may_be_repeated(
    redis, client, line, default, run_all
):
    # Short where Ruby wrote it: 1e15 becomes 1000000000000000.0, and tags travel twice.
    tags = ",".join(["1e15"] * 25_000)
    for jid in "abcdefg":
        redis.lpush("queue:default", f'{{"class":"A","args":[],"jid":"{jid}","tags":[{tags}]}}')
    claims = Claims(client, PLACE)
    claim = claims.take()
    arrivals = read_all(claim)
    assert sum(len(one.content) for one in arrivals) > 4 * 1024 * 1024
    contents = messages_of(claim)
    expire(redis, claims)
    rescued = claims.rescue()
    claims.deliver(claim, contents, default, never)
    assert run_all(default) == list("abcdefg")
    claims.deliver(rescued, contents, default, never)
    assert run_all(default) == []
    assert not left(redis)


def test_jobs_wait_in_their_claim_while_the_servers_memory_is_full(
    redis, line, default, pushed, run_all
):
    for jid in "ab":
        pushed(jid)
    one = line()
    redis.config_set("maxmemory", 1)
    with pytest.raises(ServerFullError):
        one.carry(greedy=False)
    redis.config_set("maxmemory", 0)
    pushed("c")
    assert one.carry(greedy=False) == 3
    assert run_all(default) == ["a", "b", "c"]


@pytest.fixture
def keyed(monkeypatch):
    """Declare HardWorker with its first argument as the key, in order."""
    registry = Registry()
    declare(name="HardWorker", registry=registry, key="customer", ordered=True)(
        lambda customer: None
    )
    monkeypatch.setattr("jobq.protocols.ruby.intake.default_registry", registry)


def waiting(queue, key):
    """How many messages of a key wait."""
    return sum(row.waiting for row in queue.admin.iter_keys() if row.key == key)


def test_jobs_of_a_full_line_wait_in_their_claim_and_others_pass(
    redis, client, keyed, line, default, pushed, monkeypatch, caplog
):
    monkeypatch.setattr("jobq.protocols.ruby.intake.PARKED_S", 0.0)
    default.rules(key_waiting=3)
    for number in range(8):
        pushed(f"a{number}", ["acme"])
        pushed(f"b{number}", [f"bob{number % 3}"])
    pushed("other", [], **{"class": "Other"})
    one = line()
    assert one.carry(greedy=True) == 12 and one.full
    assert (waiting(default, "acme"), default.admin.counts().ready) == (3, 12)
    [claim] = Claims(client, PLACE).waiting()
    assert claim.njobs == 5
    # Later jobs of that key don't overtake, and others do.
    pushed("a8", ["acme"])
    pushed("c0", ["carol"])
    assert one.carry(greedy=True) == 1
    seen = []
    while messages := default.dequeue(1).messages:
        seen += [message.mid for message in messages]
        default.finish([Ending(mid=message.mid, token=message.token) for message in messages])
        one.carry(greedy=True)
        assert waiting(default, "acme") <= 3
    assert [mid for mid in seen if mid.startswith("a")] == [f"a{number}" for number in range(9)]
    assert len(seen) == len(set(seen)) == 19
    assert not left(redis) and not one.parked
    assert len([one for one in caplog.records if "are waiting in claims" in one.getMessage()]) == 1


def test_jobs_of_a_full_line_wait_and_others_pass_once_when_the_queue_is_partitioned(
    redis, client, keyed, line, default, pushed, run_all, monkeypatch
):
    monkeypatch.setattr("jobq.protocols.ruby.intake.PARKED_S", 0.0)
    default.rules(key_waiting=1)
    partition(client, "default", 3)
    taken = json.dumps({"job": "Other", "args": ["bob0"]}).encode()
    default.enqueue(taken, mid="b0", key="bob0", ordered=True)
    default.rules(key_waiting=2)
    for number in range(4):
        pushed(f"a{number}", ["acme"])
        pushed(f"b{number}", [f"bob{number}"])
    one = line()

    assert one.carry(greedy=True) == 6
    assert one.full
    ran = []
    while some := [mid for place in default.partitions() for mid in run_all(place)]:
        ran += some
        one.carry(greedy=True)

    waited = ["a0", "a1", "a2", "a3"]
    assert [mid for mid in ran if mid in waited] == waited
    assert {"b0", "b1", "b2", "b3"} < {*ran}
    assert len(ran) == 9  # Ruby's b0 has another mid
    assert not left(redis)


def test_parked_jobs_are_given_back_without_those_that_were_enqueued(
    redis, client, keyed, line, default, pushed
):
    default.rules(key_waiting=1)
    jobs = [pushed(f"a{number}", ["acme"]) for number in range(3)]
    line().carry(greedy=True)
    claims = Claims(client, PLACE)
    [claim] = claims.waiting()
    assert claims.give_back(claim.claim_id) == 2
    assert redis.lrange("queue:default", 0, -1) == jobs[:0:-1]


def test_parked_claim_that_another_intake_settled_is_forgotten(
    redis, client, keyed, line, default, pushed, run_all, monkeypatch
):
    monkeypatch.setattr("jobq.protocols.ruby.intake.PARKED_S", 0.0)
    default.rules(key_waiting=1)
    for number in range(2):
        pushed(f"a{number}", ["acme"])
    first, second = line(), line()
    first.carry(greedy=True)
    assert run_all(default) == ["a0"]
    expire(redis, Claims(client, PLACE))
    second.carry(greedy=True)
    assert run_all(default) == ["a1"]
    assert first.carry(greedy=True) == 0 and not first.parked
    assert run_all(default) == []


def test_duplicate_jid_of_a_full_line_waits_for_room(
    redis, client, keyed, line, default, pushed, run_all, monkeypatch
):
    monkeypatch.setattr("jobq.protocols.ruby.intake.PARKED_S", 0.0)
    default.rules(key_waiting=1)
    pushed("same", ["acme"])
    one = line()
    one.carry(greedy=True)
    # Another call under the same jid, for which the line has no room.
    redis.lpush("queue:default", b'{"class":"HardWorker","args":["acme"],"jid":"same","x":1}')
    redis.lpush("queue:default", b'{"class":"HardWorker","args":["bob"],"jid":"same"}')
    one.carry(greedy=True)
    ran = run_all(default)
    one.carry(greedy=True)
    ran += run_all(default)
    assert len(ran) == 2 and "same" in ran
    assert not left(redis)


def test_key_that_is_no_list_is_refused_and_left_alone(redis, line):
    redis.set("queue:default", "something else")
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        line().carry(greedy=False)
    assert redis.get("queue:default") == b"something else"


@pytest.mark.parametrize("ruby_queue", [PLACE, LOW], ids=str)
def test_given_back_jobs_are_the_first_in_line_again(redis, client, ruby_queue):
    claims = Claims(client, ruby_queue)
    jobs = [b"1", b"2", b"3"]
    push = redis.lpush if ruby_queue.newest == "LEFT" else redis.rpush
    push(ruby_queue.list_key, *jobs)
    claim = claims.take(2)
    assert claim.jobs == [b"1", b"2"]
    assert claims.waiting()[0].njobs == 2
    assert claims.give_back(claim.claim_id) == 2
    assert claims.take(10).jobs == jobs


def test_every_key_of_a_claim_is_in_the_slot_of_its_list(client):
    from redis.crc import key_slot

    for ruby_queue in (
        PLACE,
        LOW,
        RubyQueueName("sidekiq", "{app}", "default"),
        RubyQueueName("sidekiq", "app", "a:b"),
    ):
        claims = Claims(client, ruby_queue)
        keys = (ruby_queue.list_key, claims._claims, claims._taken("x"), claims._last_call)
        assert len({key_slot(key.encode()) for key in keys}) == 1


def repeat(claims, claim_id, monkeypatch):
    """The last call of `take`, as a client repeats it whose reply was lost."""
    claims._caller.number -= 1
    with monkeypatch.context() as same:
        same.setattr("jobq.protocols.ruby.claims.secrets.token_urlsafe", lambda _: claim_id)
        return claims.take()


def never(message: ClaimedMessage) -> None:
    """No jid of these tests is shared."""
    raise AssertionError(message)


def messages_of(claim) -> list[ClaimedMessage]:
    """What its jobs become."""
    return [
        ClaimedMessage(place, one.mid, one.content) for place, one in enumerate(read_all(claim))
    ]


def read_all(claim):
    """The messages of its jobs."""
    return [read_job(PLACE, raw, "x", {}) for raw in claim.jobs]


def enqueue_as(queue, claim) -> None:
    """Deliver a claim and go no further."""
    caller = Caller()
    caller.id = claim.claim_id
    contents = [(a.mid, a.content) for a in read_all(claim)]
    queue.enqueue_many(contents, caller=caller)
