"""Giving back, counting deliveries, and death by too many."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobq.errors import ConfigError, ScriptError


def contents(rows):
    return [one.content for one in rows]


def test_nack_goes_behind_all_that_wait_and_counts(rq):
    ids = rq.push("q", "a", "b")
    rq.pop(1, 0, "q")
    assert rq.nack("q", ids[0]) == [ids[0]]
    assert [(one.content, one.deliveries) for one in rq.pop(2, 0, "q")] == [(b"b", 1), (b"a", 2)]


def test_nack_to_the_front_keeps_the_order_given(rq):
    ids = rq.push("q", *"abc")
    rq.pop(2, 0, "q")
    assert rq.nack("q", *ids[:2], front=True) == ids[:2]
    assert contents(rq.pop(3, 0, "q")) == [b"a", b"b", b"c"]


def test_released_message_counts_no_delivery_and_is_first_again(rq):
    ids = rq.push("q", "a", "b")
    rq.pop(1, 0, "q", token="me")
    rq.release("q", ids[0], token="me")
    assert [(one.content, one.deliveries) for one in rq.pop(2, 0, "q")] == [(b"a", 1), (b"b", 1)]


def test_message_delivered_as_often_as_may_be_is_dead_when_it_is_given_back(rq, at):
    rq.configure("q", max_deliveries=2)
    [id] = rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    rq.nack("q", id, now=at(0))
    assert rq.pop(1, 0, "q", now=at(1))[0].deliveries == 2
    assert rq.nack("q", id, now=at(5)) == [id]
    assert rq.dead("q", now=at(8)) == [(id, b"a", at(5), 3, 2)]
    assert structs.astuple(rq.info("q"))[1:4] == (0, 0, 1)
    assert rq.ack("q", id) == [] == rq.pop(1, 0, "q")


def test_message_delivered_as_often_as_may_be_is_dead_when_it_comes_of_age(rq, at):
    rq.configure("q", max_deliveries=1)
    ids = rq.push("q", "a", "b", now=at(0))
    rq.pop(1, 0, "q", token="me", now=at(0))
    popped = rq.pop(5, 0, "q", recover_after=0.01, now=at(10))
    assert contents(popped) == [b"b"]
    assert [one.id for one in rq.dead("q")] == ids[:1]
    assert rq.ack("q", ids[0], token="me") == []


def test_recover_goes_on_past_those_that_die(rq, at):
    ids = rq.push("q", *map(str, range(30)), now=at(0))
    rq.pop(30, 0, "q", now=at(0))
    rq.nack("q", *ids[:25], now=at(0))
    rq.pop(25, 0, "q", now=at(0))
    rq.configure("q", max_deliveries=2)
    rq.extend("q", *ids[25:], now=at(0))
    recovered = rq.recover("q", 3, 10, now=at(10))
    assert contents(recovered) == [b"25", b"26", b"27"]
    assert [one.id for one in rq.dead("q")] == ids[:25]


def test_no_limit_means_never_dead(rq, at):
    rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    for late in range(1, 60):
        assert rq.recover("q", 1, 1, now=at(late))[0].deliveries == late + 1


def test_revived_message_waits_as_if_never_delivered(rq):
    rq.configure("q", max_deliveries=1)
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    rq.nack("q", id)
    assert rq.revive("q", id, id, "1-1") == [id]
    assert rq.dead("q") == []
    assert [(one.id, one.deliveries) for one in rq.pop(1, 0, "q")] == [(id, 1)]


def test_purged_message_is_gone(rq, redis):
    rq.configure("q", max_deliveries=1)
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    rq.nack("q", id)
    assert rq.purge("q", id) == [id]
    assert rq.purge("q", id) == [] == rq.revive("q", id)
    assert redis.keys("reliable:{q}:messages") == [] == redis.keys("reliable:{q}:unacked")


def test_dead_are_shown_in_the_order_of_their_deaths_page_by_page(rq, fcall, at):
    rq.configure("q", max_deliveries=1)
    ids = rq.push("q", *map(str, range(12)), now=at(0))
    rq.pop(12, 0, "q", now=at(0))
    rq.nack("q", *reversed(ids), now=at(1))
    assert [one.id for one in rq.dead("q", 0, 5)] == ids[::-1][:5]
    assert [one.id for one in rq.dead("q", -2, 5)] == [ids[1], ids[0]]
    assert len(fcall("inspect", ["q"], "DEAD", 0, 100)) == 12


@pytest.mark.parametrize("most", [-1, 1.5, "3", None, True])
def test_wrong_limit_is_refused(rq, most):
    with pytest.raises(ConfigError, match="max_deliveries"):
        rq.configure("q", max_deliveries=most)


def test_limit_is_told_and_lasts_until_the_queue_is_deleted(rq):
    rq.configure("q", max_deliveries=3)
    assert rq.info("q").max_deliveries == 3
    rq.push("q", "a")
    rq.clear("q")
    assert rq.info("q").max_deliveries == 3
    rq.delete("q")
    rq.push("q", "a")
    assert rq.info("q").max_deliveries == 0


def test_wrong_words_are_refused_by_every_script(fcall):
    for verb, args in {
        "configure": ("x",), "clear": ("all",), "info": ("some",), "rest": ("RECOVER",),
        "nack": ("FRONT", "FRONT", "1-1"), "extend": (), "revive": (), "purge": ("x",),
    }.items():  # fmt: skip
        with pytest.raises(Exception, match="usage: "):
            fcall(verb, ["q"], *args)


def test_clear_forgets_messages_wherever_they_are(rq, redis):
    rq.configure("q", max_deliveries=1)
    [dead] = rq.push("q", "dead")
    rq.pop(1, 0, "q")
    rq.nack("q", dead)
    rq.push("q", "pending", "waits")
    rq.pop(1, 0, "q", token="me")
    assert rq.clear("q") == 3
    assert structs.astuple(rq.info("q"))[1:5] == (0, 0, 0, 0)
    lasting = [key for key in redis.keys("reliable:*") if redis.ttl(key) == -1]
    assert lasting == [b"reliable:{q}:meta"]


def test_script_of_another_call_is_told(rq):
    with pytest.raises(ScriptError, match="usage"):
        rq._calls.ask("configure", ["q"], "-1")
