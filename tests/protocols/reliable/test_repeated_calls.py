"""A call whose reply was lost is sent again by the client: it takes effect once, and is answered alike."""

from __future__ import annotations

import pytest
from redis import exceptions as redis_errors

from jobq.client import connection
from jobq.errors import ScriptError
from jobq.protocols.reliable.calls import ReliableCalls
from jobq.protocols.reliable.keys import places


@pytest.fixture
def lose(monkeypatch):
    """lose(): the next script's reply is lost on the way, after it took effect."""
    exchange, left = connection.exchange, []

    def losing(wire, command, asking=False):
        reply = exchange(wire, command, asking)
        if left and b"EVALSHA" in command:
            left.pop()
            wire.disconnect()
            raise redis_errors.ConnectionError("cut")
        return reply

    monkeypatch.setattr(connection, "exchange", losing)
    yield lambda: left.append(1)
    assert not left


def before_repetition(monkeypatch, do):
    """Between a lost reply and the repeated call."""
    prepare = connection.Client._prepare

    def prepared(client, following, node, error):
        if isinstance(error, redis_errors.ConnectionError):
            do()
        return prepare(client, following, node, error)

    monkeypatch.setattr(connection.Client, "_prepare", prepared)


def test_push_is_not_doubled(rq, lose):
    lose()
    ids = rq.push("q", "a", "b")
    assert [one.id for one in rq.inspect("q", 0, 9)] == ids


def test_pop_answers_the_same_messages(rq, lose):
    rq.push("high", "a")
    rq.push("low", b"\x00\xff", "c")
    lose()
    popped = rq.pop(2, 0, "high", "low", token="me")
    assert [(one.key, one.content, one.deliveries) for one in popped] == [
        ("high", b"a", 1),
        ("low", b"\x00\xff", 1),
    ]
    assert rq.info("low").undelivered == 1


def test_pop_of_nothing_stays_nothing_when_a_push_came_between(rq, lose, redis, monkeypatch):
    number = []
    before_repetition(monkeypatch, lambda: number or number.append(rq.push("q", "a")))
    lose()
    assert rq.pop(1, 0, "q") == []
    assert len(number) == 1
    assert rq.length("q") == 1


def test_repeated_pop_leaves_out_what_somebody_else_was_given_since(rq, client):
    calls = ReliableCalls(client, "reliable")
    rq.push("q", "a", "b")
    first = calls.change("pop", ["q"], "COUNT", 2)
    rq.recover("q", 1, 0)
    caller = calls._callers._spare[0]
    caller.number -= 1
    assert calls.change("pop", ["q"], "COUNT", 2) == first[1:]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_ids_are_answered_again(rq, lose, verb):
    ids = rq.push("q", "a", "b")
    rq.pop(2, 0, "q")
    lose()
    assert getattr(rq, verb)("q", *ids) == ids
    if verb == "nack":
        assert [one.deliveries for one in rq.pop(2, 0, "q")] == [2, 2]


def test_recover_counts_once(rq, lose):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    lose()
    [recovered] = rq.recover("q", 1, 0)
    assert (recovered.id, recovered.deliveries) == (id, 2)
    assert rq.pending("q", 0, 1)[0].deliveries == 2


@pytest.mark.parametrize("verb", ["revive", "purge"])
def test_dead_are_answered_again(rq, lose, verb):
    rq.configure("q", max_deliveries=1)
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    rq.nack("q", id)
    lose()
    assert getattr(rq, verb)("q", id) == [id]


@pytest.mark.parametrize(
    "verb", ["push", "pop", "ack", "nack", "extend", "recover", "revive", "purge", "clear"]
)
def test_call_that_was_overtaken_by_the_next_is_refused_and_changes_nothing(client, facts, verb):
    calls = ReliableCalls(client, "reliable")
    args = {"push": ("a",), "pop": (), "clear": (), "recover": (1, 0)}
    ids = calls.change("push", ["q"], "x", "y")
    calls.change("pop", ["q"])
    calls._callers._spare[0].number -= 2
    before = facts()
    with pytest.raises(ScriptError, match="no older than the last"):
        calls.change(verb, ["q"], *args.get(verb, (ids[0],)))
    assert facts() == before


@pytest.mark.parametrize("verb", ["clear", "delete"])
def test_what_was_pushed_since_is_not_cleared_too(rq, lose, monkeypatch, verb):
    rq.push("q", "a", "b")
    since = []
    before_repetition(monkeypatch, lambda: since or since.append(rq.push("q", "since")))
    lose()
    assert getattr(rq, verb)("q") == 2
    assert len(since) == 1 and rq.length("q") == 1


@pytest.mark.parametrize("first", [("x", ""), ("", ""), (1, "soon"), (1, "-5"), (1, "nan"), ()])
@pytest.mark.parametrize(
    "verb", ["push", "pop", "ack", "nack", "extend", "recover", "revive", "purge", "clear"]
)
def test_call_without_a_number_or_with_a_wrong_time_changes_nothing(
    fcall, redis, facts, verb, first
):
    """By a client that declares the ninth key and sends something else."""
    [id] = fcall("push", ["q"], "a")
    before = facts()
    args = {"push": ("a",), "pop": (), "clear": (), "recover": (1, 0)}.get(verb, (id,))
    keys = [*places("reliable", "q"), "reliable:{q}:call:x"]
    with pytest.raises(redis_errors.ResponseError, match="a call has a number"):
        redis.execute_command(
            "FCALL", f"reliable_{verb}", 9, *keys, *first, *(args if first else ())
        )
    assert facts() == before


def test_threads_never_share_a_caller_in_flight(client):
    calls = ReliableCalls(client, "reliable")
    first, second = calls._callers.take(), calls._callers.take()
    assert first.id != second.id
