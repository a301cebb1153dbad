"""A limit counts starts: what it allows, what it answers, what it takes back."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from jobq import RateLimit
from jobq.client.connection import connect
from jobq.client.steps import drive
from jobq.config import ServerSettings
from jobq.errors import ConfigError, LimitedError, UnavailableError


def test_takes_the_rate_at_once_and_no_more_in_any_span(client, at):
    limit = RateLimit("stripe", "3/m")
    assert [bool(limit.try_acquire(now=at(i))) for i in (0, 10, 20, 30)] == [
        True,
        True,
        True,
        False,
    ]
    assert not limit.try_acquire(now=at(60_000))
    assert limit.try_acquire(now=at(60_001))
    assert not limit.try_acquire(now=at(60_002))
    refused = limit.try_acquire(now=at(60_005))
    assert refused.retry_after == pytest.approx(0.006)
    assert "no Grant" in repr(refused)


def test_margin_makes_the_span_longer(client, at):
    limit = RateLimit("card", "1/s", margin=0.5)
    assert limit.try_acquire(now=at(0))
    assert not limit.try_acquire(now=at(1_500))
    assert limit.try_acquire(now=at(1_501))


def test_high_rate_gives_a_twentieth_at_once_and_the_rest_evenly(client, at):
    limit = RateLimit("gpt", "200000/m")
    assert limit.try_acquire(10_000, now=at(0))
    assert not limit.try_acquire(1_000, now=at(300))
    assert limit.try_acquire(1_000, now=at(320))
    with pytest.raises(
        ConfigError,
        match="cost=10001 is more than 200000/m can ever allow; it must be at most 10000",
    ):
        limit.try_acquire(10_001, now=at(400))


@pytest.mark.parametrize("rate", ["100/m", "200000/m"])
def test_settling_gives_back_what_was_not_used(client, at, rate):
    limit = RateLimit("gpt", rate)
    most = 100 if rate == "100/m" else 10_000
    grant = limit.try_acquire(most, now=at(0))
    assert not limit.try_acquire(most // 2, now=at(1))
    grant.adjust(used=most // 2)
    assert limit.try_acquire(most // 2, now=at(2))
    assert not limit.try_acquire(most // 2, now=at(3))
    with pytest.raises(ConfigError, match="used=-1 is out of range"):
        grant.adjust(used=-1)


def test_settling_after_the_limit_was_idle_changes_nothing(client, at):
    limit = RateLimit("gpt", "200000/m")
    grant = limit.try_acquire(10_000, now=at(0))
    assert limit.try_acquire(10_000, now=at(60_000))
    grant.adjust(used=0)
    assert not limit.try_acquire(1_000, now=at(60_001))


def test_a_hold_refuses_everything_before_its_end(client, redis):
    limit = RateLimit("stripe", "100/m")
    limit.hold("10m")
    limit.hold(1)
    refused = limit.try_acquire()
    assert not refused
    assert 500 < refused.retry_after <= 600
    with pytest.raises(LimitedError, match="stripe is held; try again in") as caught:
        limit.acquire(timeout=5)
    assert caught.value.retry_after > 500
    limit.hold(0)
    assert limit.try_acquire()


def test_wait_raises_at_once_when_its_turn_comes_too_late(client):
    limit = RateLimit("stripe", "2/h")
    assert limit.acquire(timeout=1)
    assert limit.acquire()
    with pytest.raises(LimitedError, match="stripe allows 2 an hour; try again in") as caught:
        limit.acquire(timeout=5)
    assert caught.value.retry_after > 3_000


def test_waiting_callers_are_given_turns_one_after_the_other(client, redis):
    limit = RateLimit("stripe", "10/m")
    assert limit.try_acquire(10)

    def turn() -> float:
        drive(limit._acquire_steps(1, 3_600.0), limit.calls._call)
        return float(redis.hget("jobq:limit:{stripe}:state", "advice"))

    turns = [turn() for _ in range(4)]
    assert not limit.try_acquire()  # one that doesn't wait moves no turn
    with pytest.raises(LimitedError):
        limit.acquire(timeout=1)
    turns.append(turn())
    assert [after - before for before, after in pairwise(turns)] == pytest.approx([5_700] * 4)


def test_wait_sleeps_until_its_turn(client):
    limit = RateLimit("fast", "5/s")
    assert all(limit.acquire(timeout=60) for _ in range(7))


def test_asyncio_takes_waits_holds_and_settles(client):
    limit = RateLimit("fast", "5/s")

    async def use() -> list[bool]:
        grants = await asyncio.gather(*(limit.aacquire(timeout=60) for _ in range(7)))
        await grants[0].aadjust(used=0)
        await limit.ahold("10m")
        with pytest.raises(LimitedError):
            await limit.aacquire(timeout=0)
        return [bool(one) for one in grants] + [bool(await limit.atry_acquire())]

    assert asyncio.run(use()) == [True] * 7 + [False]


def test_the_server_wins_over_the_program_and_that_is_logged_once(client, at, caplog):
    limit = RateLimit("stripe", "1/m")
    limit.calls.perform(limit.calls.run_steps("set", {"most": 3, "span_ms": 60_000}))
    with caplog.at_level(logging.WARNING, "jobq.limits"):
        assert [bool(limit.try_acquire(now=at(i))) for i in range(4)] == [True, True, True, False]
    [record] = caplog.records
    assert "the rate 3/m set on the server overrides 1/m" in record.getMessage()
    limit.calls.perform(limit.calls.run_steps("set", {"most": "", "span_ms": ""}))
    assert not limit.try_acquire(now=at(30_000))


@pytest.mark.parametrize(("before", "after"), [("5/m", "20000/m"), ("20000/m", "5/m")])
def test_a_rate_kept_in_the_other_way_lets_the_last_starts_run_out(client, at, before, after):
    assert RateLimit("x", before).try_acquire(5, now=at(0))
    assert not RateLimit("x", after).try_acquire(now=at(60_000))
    assert RateLimit("x", after).try_acquire(now=at(60_001))


@pytest.mark.parametrize("rate", ["5/m", "20000/m"])
def test_the_clock_may_step_back(client, at, rate):
    """A little: the newest start stands in for it. Far: what was before is forgotten."""
    limit = RateLimit("x", rate)
    cost = 5 if rate == "5/m" else 1_000
    assert limit.try_acquire(cost, now=at(100_000))
    assert not limit.try_acquire(cost, now=at(50_000))
    assert limit.try_acquire(cost, now=at(30_000))


def test_a_hold_ends_though_the_clock_stepped_back(client, redis):
    limit = RateLimit("x", "5/m")
    limit.hold(30)
    redis.hincrby("jobq:limit:{x}:state", "hold", 10**7)
    assert limit.try_acquire().retry_after <= 30


def test_a_call_sent_twice_counts_once(client, at):
    limit = RateLimit("stripe", "2/m")
    steps = limit._acquire_steps(1, 0.0, at(0))
    request = next(steps)
    while request.state.script is None:  # the list of limits
        request = steps.send(limit.calls._call(request))
    for _ in range(3):
        reply = client.perform(request.key, request.state.again())
    with pytest.raises(StopIteration) as end:
        steps.send(reply)
    assert end.value.value
    assert [bool(limit.try_acquire(now=at(1))) for _ in range(2)] == [True, False]


def test_nothing_is_left_once_a_limit_was_idle(client, redis, at):
    for name, rate in (("a", "5/s"), ("b", "20000/s")):
        limit = RateLimit(name, rate)
        limit.try_acquire()
        limit.acquire(timeout=5)
        limit.hold(1)
    assert all(0 < redis.pttl(key) <= 600_000 for key in redis.keys("jobq:limit:*"))
    assert redis.hkeys("jobq:limits") == [b"a", b"b"]


def test_without_a_server_a_start_is_an_error_unless_the_call_says_otherwise(tmp_path):
    away = connect(settings=ServerSettings(url=f"unix://{tmp_path}/none", patience_s=0.05))
    limit = RateLimit("x", "5/m", client=away)
    with pytest.raises(UnavailableError):
        limit.try_acquire()
    grant = limit.try_acquire(fail_open=True)
    assert grant
    assert not grant.counted
    grant.adjust(used=0)  # nothing to take back
    assert asyncio.run(limit.atry_acquire(fail_open=True))
    assert limit.acquire(fail_open=True)
    away.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: RateLimit("x", "100"),
            "rate='100' is not a rate; write '100/m', '5/s' or '1000/h'",
        ),
        (lambda: RateLimit("{x}", "1/m"), "limit '{x}' can't be used"),
        (lambda: RateLimit("x", "1/s", margin=2), "margin=2 is out of range"),
        (
            lambda: RateLimit("x", "1/s").try_acquire(0),
            "cost=0 is out of range; it must be a whole number of at least 1",
        ),
        (lambda: RateLimit("x", "1/s").try_acquire(1.5), "cost=1.5 is out of range"),
        (
            lambda: RateLimit("x", "100/m").try_acquire(300),
            "cost=300 is more than 100/m can ever allow",
        ),
        (lambda: RateLimit("x", "1/s").hold(-1), "hold=-1 is out of range"),
        (lambda: RateLimit("x", "1/s").hold("soon"), "hold='soon' is not a duration"),
    ],
)
def test_bad_input_is_refused_in_words(client, make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)
