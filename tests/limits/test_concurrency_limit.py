"""Slots count what is in use: leases, renewals, waits."""

from __future__ import annotations

import asyncio
import os

import pytest

from jobq import ConcurrencyLimit
from jobq.errors import ConfigError, LimitedError
from jobq.limits.renewal import Renewals, renewals
from tests.waiting import until

DEADLINE_S = 120
HOLDERS = "jobq:limit:{erp}:holders"


def test_no_more_are_in_use_than_there_are_slots(client, redis):
    erp = ConcurrencyLimit("erp", 2)
    with erp.slot(), erp.slot() as second:
        assert not second.lost
        assert redis.zcard(HOLDERS) == 2
        with pytest.raises(
            LimitedError, match="erp has 2 slots, all in use; the first lease ends in"
        ) as caught:
            erp.slot(timeout=0.1).__enter__()
        assert 0 < caught.value.retry_after <= 15
    assert redis.zcard(HOLDERS) == 0
    with erp.slot(timeout=0):
        assert redis.zcard(HOLDERS) == 1


def test_one_who_waits_gets_what_another_gives_back(client, redis):
    erp = ConcurrencyLimit("erp", 1)

    async def use(n: int) -> int:
        async with erp.slot(timeout=60):
            assert redis.zcard(HOLDERS) == 1
            await asyncio.sleep(0)
        return n

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*map(use, range(4)))

    assert asyncio.run(all_of_them()) == [0, 1, 2, 3]


def test_a_hold_gives_no_slot_and_takes_none_away(client, redis):
    erp = ConcurrencyLimit("erp", 5)
    with erp.slot() as held:
        erp.hold(600)
        with pytest.raises(LimitedError, match="erp is held"):
            erp.slot(timeout=0).__enter__()
        erp.calls.perform(held.renew_steps())
        assert not held.lost
    asyncio.run(erp.ahold(0))
    with erp.slot(timeout=0):
        pass


def test_a_lease_is_renewed_while_it_is_used_and_ends_with_its_process(client, redis):
    erp = ConcurrencyLimit("erp", 1, lease=1)
    with erp.slot():
        before = redis.zrange(HOLDERS, 0, 0, withscores=True)[0][1]
        until(lambda: redis.zrange(HOLDERS, 0, 0, withscores=True)[0][1] > before + 200)
    pid = os.fork()
    if pid == 0:
        erp.slot(timeout=60).__enter__()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert redis.zcard(HOLDERS) == 1
    with erp.slot(timeout=DEADLINE_S):
        assert redis.zcard(HOLDERS) == 1


def test_a_slot_whose_lease_ended_is_lost_once_another_has_it(client, redis):
    erp = ConcurrencyLimit("erp", 1, lease="1h")  # no thread renews it in between
    with erp.slot() as held:
        redis.delete(HOLDERS)
        erp.calls.perform(held.renew_steps())
        assert not held.lost  # there was room: it is taken again
        redis.delete(HOLDERS)
        with erp.slot(timeout=0):
            erp.calls.perform(held.renew_steps())
            assert held.lost
    assert redis.zcard(HOLDERS) == 0


@pytest.mark.one_server
@pytest.mark.parametrize("verb", ["try_steps", "renew_steps"])
def test_a_slot_is_held_from_before_the_call_when_its_reply_takes_long(client, monkeypatch, verb):
    clock = [10**15]
    monkeypatch.setattr("jobq.limits.concurrency_limit.boot_ns", lambda: clock[0])
    with ConcurrencyLimit("erp", 2, lease=15).slot() as held:
        run_steps, asked_at = held.calls.run_steps, clock[0] + 10**9

        def slow(*args):
            reply = yield from run_steps(*args)
            clock[0] += 10 * 10**9
            return reply

        clock[0] = asked_at
        monkeypatch.setattr(held.calls, "run_steps", slow)
        held.calls.perform(getattr(held, verb)())
        clock[0] = asked_at + 15 * 10**9 - 1
        assert not held.lost
        clock[0] += 1
        assert held.lost
        monkeypatch.setattr(held.calls, "run_steps", run_steps)


def test_a_fork_neither_renews_nor_gives_back_what_its_parent_holds(client, redis):
    erp = ConcurrencyLimit("erp", 1)
    with erp.slot() as held:
        pid = os.fork()
        if pid == 0:
            held.leave()
            os._exit(len(renewals._due) if renewals._pid == os.getpid() else 0)
        assert os.waitpid(pid, 0)[1] == 0
        assert redis.zcard(HOLDERS) == 1


def test_the_thread_ends_when_nothing_is_held(client, monkeypatch):
    monkeypatch.setattr("jobq.limits.renewal.IDLE_S", 0.01)
    own, erp = Renewals(), ConcurrencyLimit("erp", 1, lease=1)
    for _ in range(2):
        held = erp.slot()
        own.add(held)
        thread = own._thread
        assert thread is not None
        until(lambda held=held: redis_has(client, held.token))
        own.remove(held)
        until(lambda thread=thread: not thread.is_alive())
        assert own._thread is None
        client.command("DEL", HOLDERS)


class BrokenSlot:
    """Its renewal fails with an error that nobody foresaw."""

    lease_s = 0.1

    def __init__(self):
        self.nasked = 0

    @property
    def calls(self):
        self.nasked += 1
        raise ValueError("broken")


def test_slots_are_renewed_when_the_renewal_of_another_fails(client, redis):
    own, broken = Renewals(), BrokenSlot()
    own.add(broken)
    until(lambda: broken.nasked > 1)
    with ConcurrencyLimit("erp", 1, lease=1).slot() as held:
        own.add(held)
        before = redis.zscore(HOLDERS, held.token)
        until(lambda: redis.zscore(HOLDERS, held.token) > before)
        own.remove(held)
    own.remove(broken)


def redis_has(client, token):
    return client.command("ZSCORE", HOLDERS, token) is not None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: ConcurrencyLimit("x", 0),
            "max_slots=0 is out of range; it must be a whole number from 1 to 1,000,000,000",
        ),
        (lambda: ConcurrencyLimit("a b", 1), "limit 'a b' can't be used"),
        (
            lambda: ConcurrencyLimit("x", 1, lease=0.1),
            "lease=0.1 is out of range; it must be between 1 second and 1 day",
        ),
    ],
)
def test_bad_input_is_refused_in_words(client, make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


def test_a_slot_is_entered_once(client):
    with (
        ConcurrencyLimit("x", 2).slot() as held,
        pytest.raises(ConfigError, match="is already in use"),
    ):
        held.__enter__()
