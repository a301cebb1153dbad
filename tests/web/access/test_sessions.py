"""Section 11.6: sessions in Redis. Their cookies are tested with the login."""

from __future__ import annotations

import pytest

from jobq.errors import ServerFullError
from jobq.web.access.sessions import ID_LENGTH, IDLE_S, MAX_S, Sessions

HOUR = 3600.0


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sessions(client, clock):
    return Sessions(client, clock)


def test_the_server_keeps_only_the_hash_of_an_id(sessions, redis):
    first, second = (sessions.start("anna", "password", "m") for _ in range(2))
    assert first != second and len(first) == len(second) == ID_LENGTH
    keys = redis.keys("*")
    assert len(keys) == 2 and all(key.startswith(b"jobq:web:session:") for key in keys)
    stored = b"".join([*keys, *(redis.get(key) for key in keys)])
    assert first.encode() not in stored and second.encode() not in stored
    found = sessions.find(first)
    assert (found.name, found.via, found.mark) == ("anna", "password", "m")


def test_a_session_ends_after_eight_hours_without_a_request(sessions, redis, clock):
    session_id = sessions.start("anna", "password", "m")
    [key] = redis.keys("*")
    assert IDLE_S * 1000 - 60_000 < redis.pttl(key) <= IDLE_S * 1000
    redis.pexpire(key, 5_000)
    clock.now += 61
    assert sessions.find(session_id)
    assert redis.pttl(key) > IDLE_S * 1000 - 60_000
    redis.pexpire(key, 5_000)
    clock.now += 59
    assert sessions.find(session_id)
    assert redis.pttl(key) <= 5_000, "moved once a minute at most"


def test_a_session_ends_a_day_after_the_login_however_much_it_is_used(sessions, redis, clock):
    session_id = sessions.start("anna", "password", "m")
    [key] = redis.keys("*")
    clock.now += MAX_S - HOUR
    assert sessions.find(session_id)
    assert redis.pttl(key) <= HOUR * 1000
    clock.now += HOUR
    assert sessions.find(session_id) is None


def test_an_ended_session_stays_ended_in_every_process(sessions, redis, client, clock):
    other = Sessions(client, clock)
    session_id = sessions.start("anna", "password", "m")
    assert other.find(session_id)
    sessions.end(session_id)
    clock.now += 61
    assert other.find(session_id) is None and sessions.find(session_id) is None
    assert redis.keys("*") == []


@pytest.mark.parametrize("text", ["", "x", "x" * 44, "*" * 43, "\udcff" * 43, "é" * 43])
def test_ids_that_were_never_given_find_nothing(sessions, redis, text):
    assert sessions.find(text) is None
    sessions.end(text)
    assert redis.keys("*") == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"\xff", b'{"name":"a"}',
     b'{"name":"a","via":"link","mark":"","started_at":"x"}',
     b'{"name":"a","via":"link","mark":"","started_at":1e300}',
     b'{"name":"a","via":"link","mark":"","started_at":-1e300}'],
)  # fmt: skip
def test_a_damaged_record_is_no_session(sessions, redis, raw):
    session_id = sessions.start("anna", "password", "m")
    [key] = redis.keys("*")
    redis.set(key, raw)
    assert sessions.find(session_id) is None


def test_a_full_server_still_lets_people_in(sessions, redis, client, clock):
    """Memory is full: now of all times somebody has to look."""
    known = sessions.start("anna", "password", "m")
    redis.config_set("maxmemory", 1)
    assert sessions.find(known)
    with pytest.raises(ServerFullError):
        client.command("SET", "x", 1)
    session_id = sessions.start("bob", "password", "m")
    assert sessions.find(session_id).name == "bob"
    clock.now += IDLE_S
    assert sessions.find(session_id) is None
    session_id = sessions.start("bob", "password", "m")
    sessions.end(session_id)
    assert sessions.find(session_id) is None
