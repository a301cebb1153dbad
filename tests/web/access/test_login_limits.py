"""Section 11.7: failed logins are counted by address and by name, in Redis."""

from __future__ import annotations

import pytest

from jobq.web.access.login_limits import (
    PER_ADDRESS,
    PER_NAME,
    PER_PROXY,
    WINDOW_MS,
    LoginLimits,
    block_of,
)


@pytest.fixture
def limits(client):
    return LoginLimits(client)


def test_five_failures_from_an_address_are_enough(limits, redis, client):
    for _ in range(PER_ADDRESS):
        assert limits.refused_for_s("192.0.2.1", "anna") == 0
    for name in ("anna", "bob", ""):
        assert 890 < limits.refused_for_s("192.0.2.1", name) <= 900
    assert limits.refused_for_s("192.0.2.2", "anna") == 0
    assert LoginLimits(client).refused_for_s("192.0.2.1", "anna") > 0, "other processes know"
    assert all(0 < redis.pttl(key) <= WINDOW_MS for key in redis.keys("*"))


def test_an_address_that_stands_for_many_browsers_may_fail_more_often(limits):
    for number in range(PER_PROXY):
        assert limits.refused_for_s("10.0.0.1", f"user{number}", PER_PROXY) == 0
    assert limits.refused_for_s("10.0.0.1", "anna", PER_PROXY) > 0


def test_ten_failures_under_a_name_are_enough(limits):
    for number in range(PER_NAME):
        assert limits.refused_for_s(f"192.0.2.{number}", "anna") == 0
    assert limits.refused_for_s("198.51.100.1", "anna") > 0
    assert limits.refused_for_s("198.51.100.1", "bob") == 0


def test_an_address_over_its_limit_locks_no_name(limits):
    for _ in range(PER_ADDRESS + 2 * PER_NAME):
        limits.refused_for_s("192.0.2.1", "anna")
    assert limits.refused_for_s("192.0.2.2", "anna") == 0


def test_only_failures_count(limits, redis):
    for _ in range(3 * PER_NAME):
        assert limits.refused_for_s("192.0.2.1", "anna") == 0
        limits.succeeded("192.0.2.1", "anna")
    assert redis.keys("*") == []


def test_a_count_ends_with_its_window(limits, redis):
    for _ in range(PER_ADDRESS + 1):
        limits.refused_for_s("192.0.2.1", "anna")
    for key in redis.keys("*"):
        redis.persist(key)
    assert limits.refused_for_s("192.0.2.1", "anna") == 900, "a count without an end gets one"
    for key in redis.keys("*:a:*"):
        assert redis.pttl(key) > 0
        redis.delete(key)
    assert limits.refused_for_s("192.0.2.1", "anna") == 0


def test_the_counts_hold_no_names_and_fit_hostile_ones(limits, redis):
    limits.refused_for_s("192.0.2.1\r\nX: y", "anna\x00\ud800" * 1_000)
    assert all(b"anna" not in key and len(key) < 100 for key in redis.keys("*"))


def test_failures_are_counted_here_while_the_server_is_full(limits, redis):
    redis.config_set("maxmemory", 1)
    waits = [limits.refused_for_s("192.0.2.1", "anna") for _ in range(PER_ADDRESS + 1)]
    assert waits[:-1] == [0.0] * PER_ADDRESS and waits[-1] > 0
    limits.succeeded("192.0.2.1", "anna")


@pytest.mark.parametrize(
    ("address", "block"),
    [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:0db8:0000:0000"),
     ("2001:db8:0:0:ffff::2", "2001:0db8:0000:0000"), ("unix", "unix"), ("", "")],
)  # fmt: skip
def test_a_subscriber_of_ipv6_is_one_address(address, block):
    assert block_of(address) == block
