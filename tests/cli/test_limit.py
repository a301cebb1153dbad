"""Tests of `jobq limit`."""

from __future__ import annotations

import pytest

from jobq import ConcurrencyLimit, RateLimit


def test_list_says_what_is_used_held_and_set(cli, client):
    assert "no limits yet" in cli("limit", "list").err
    stripe, erp = RateLimit("stripe", "3/m", margin=0.5), ConcurrencyLimit("erp", 2)
    assert stripe.try_acquire(2)
    with erp.slot():
        assert cli("limit", "set", "erp", "5").out == "erp: 5, overriding the limit in code\n"
        assert cli("limit", "hold", "stripe", "1h").out == "stripe: held for 3600 s\n"
        shown = cli("limit", "list").out
        first, second = cli("limit", "list", "--json").records
    assert "set here; in code: 2; in use by" in shown
    assert (first["limit"], first["rule"], first["set_here"], first["used"]) == (
        "erp",
        "5",
        True,
        1,
    )
    assert first["holders"][0]["who"] and 0 < first["holders"][0]["left_ms"] <= 15_000
    assert (second["rule"], second["program"], second["used"]) == ("3/m", "3/m+500", 2)
    assert 3_000_000 < second["held_ms"] <= 3_600_000


def test_what_is_set_wins_until_it_is_unset(cli, client):
    assert cli("limit", "set", "stripe", "1/h").code == 0
    stripe = RateLimit("stripe", "100/m")
    assert [bool(stripe.try_acquire()) for _ in range(2)] == [True, False]
    assert cli("limit", "unset", "stripe").code == 0
    assert stripe.try_acquire()
    assert cli("limit", "unset", "stripe").code == 1
    assert cli("limit", "hold", "stripe", "1h").code == 0
    assert not stripe.try_acquire()
    assert cli("limit", "hold", "stripe", "0").out == "stripe: not held\n"
    assert stripe.try_acquire()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "stripe", "often"], "rate='often' is not a rate; write '100/m'"),
        (["set", "stripe", "0"], "max_slots=0 is out of range"),
        (
            ["set", "stripe", "50"],
            "'50' doesn't fit limit stripe, which programs declare as '100/m'",
        ),
        (["set", "{x}", "1/m"], "limit '{x}' can't be used"),
        (["hold", "stripe", "31d"], "is out of range; it must be between 0 seconds and 30 days"),
    ],
)
def test_bad_words_are_refused(cli, client, words, says):
    RateLimit("stripe", "100/m").try_acquire()
    refused = cli("limit", *words)
    assert refused.code == 2
    assert says in refused.err


def test_limit_that_cannot_be_read_hides_no_other(cli, client, redis):
    RateLimit("stripe", "100/m").try_acquire()
    said = {"typed": "5/s 1", "early": "5/s+-7 1", "square": "² ²", "long": "9" * 5_000}
    redis.hset("jobq:limits", mapping=said)
    redis.set("jobq:limit:{typed}:ring", "x")
    rules = {one["limit"]: one["rule"] for one in cli("limit", "list", "--json").records}
    assert rules == {"stripe": "100/m", **dict.fromkeys(said, "damaged")}
