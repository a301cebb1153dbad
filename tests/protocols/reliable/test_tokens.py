"""Fences: who names a token that isn't the holder's changes nothing."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError


@pytest.fixture
def held(rq, at):
    """The id of a message that `me` holds."""
    [id] = rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", token="me", now=at(0))
    return id


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_another_token_changes_nothing_and_the_holders_does(rq, facts, held, verb):
    before = facts()
    assert getattr(rq, verb)("q", held, token="somebody") == []
    assert facts() == before
    assert getattr(rq, verb)("q", held, token="me") == [held]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_without_a_token_anybody_may(rq, held, verb):
    assert getattr(rq, verb)("q", held) == [held]


def test_token_is_refused_for_a_message_that_was_popped_without_one(rq):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    assert rq.ack("q", id, token="me") == []


@pytest.mark.parametrize("token", ["", "other"])
def test_recover_takes_the_message_from_its_holder(rq, at, held, token):
    rq.recover("q", 1, 10, token=token, now=at(10))
    assert rq.ack("q", held, token="me") == []
    assert rq.ack("q", held, token=token) == [held]


def test_pop_that_recovers_takes_the_message_from_its_holder(rq, at, held):
    rq.pop(1, 0, "q", recover_after=0.01, token="other", now=at(10))
    assert rq.ack("q", held, token="me") == []


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_given_back_message_has_no_holder(rq, held, verb):
    getattr(rq, verb)("q", held, token="me")
    rq.pop(1, 0, "q")
    assert rq.ack("q", held, token="me") == []


def test_tokens_of_one_call_are_checked_one_by_one(rq):
    ids = rq.push("q", "a", "b", "c")
    for token in ("one", "two", "one"):
        rq.pop(1, 0, "q", token=token)
    assert rq.ack("q", *ids, token="one") == [ids[0], ids[2]]
    assert rq.info("q").delivered == 1


def test_tokens_are_forgotten_with_their_messages(rq, redis, held):
    assert redis.hgetall("reliable:{q}:tokens") == {held.encode(): b"me"}
    rq.ack("q", held)
    assert not redis.exists("reliable:{q}:tokens")


def test_extend_keeps_a_message_from_being_recovered(rq, at, held):
    assert rq.extend("q", held, token="me", now=at(90)) == [held]
    assert rq.recover("q", 1, 100, now=at(189)) == []
    assert [one.deliveries for one in rq.recover("q", 1, 100, now=at(190))] == [2]


def test_extend_of_what_is_not_delivered_does_nothing(rq):
    [id] = rq.push("q", "a")
    assert rq.extend("q", id) == [] == rq.ack("q", id) == rq.nack("q", id)
    assert rq.length("q") == 1


@pytest.mark.parametrize("bad", [-1, float("inf"), True, "soon"])
def test_time_to_recover_after_that_is_none_is_refused(rq, bad):
    with pytest.raises(ConfigError, match=f"{bad!r}"):
        rq.pop(1, 0, "q", recover_after=bad)
