"""Whatever arguments and keys the scripts of Resque and Sidekiq are given, an error changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.compat.resque.claims import Claims
from jobq.compat.resque.due import promote
from jobq.compat.resque.places import Place
from jobq.compat.resque.pushing import push
from jobq.engine.functions import scripts
from jobq.engine.queue import Queue
from tests.engine.test_fuzz import Call, Raw, _of_another_type, _put_back, _spoilt

RUBY = {script.name: script for script in scripts() if script.area == "resque"}
NOW = 1_700_000_000_000
#: All its keys have a tag, so `Raw` sees them.
PLACE = Place("sidekiq", "{app}", "default")
LIST, SCHEDULE = PLACE.list_key, PLACE.key("schedule")
CLAIMS, TAKEN, FRESH, LAST_CALL, PUSHED = (
    f"jobq:intake:{LIST}:{name}"
    for name in ("claims", "taken:held", "taken:fresh", "call:fuzz", "pushed:fuzz")
)
DUE = b'{"class":"A","args":[],"jid":"due","queue":"default"}'
GOOD = {
    "ruby_claim": Call(("", "fresh", 3, 15_000, 2, 1_000_000, "RIGHT"), (LIST, CLAIMS, FRESH, LAST_CALL)),
    "ruby_due": Call((NOW, 10), (SCHEDULE,)),
    "ruby_promote": Call((DUE, DUE, "default"), (SCHEDULE, LIST, PLACE.key("queues"))),
    "ruby_push": Call(("LEFT", "job 1", "job 2"), (LIST, PUSHED)),
    "ruby_rescue": Call((NOW, 15_000), (CLAIMS,)),
    "ruby_return": Call(("held", "RIGHT"), (LIST, CLAIMS, TAKEN)),
    "ruby_settle": Call(("held",), (CLAIMS, TAKEN)),
}  # fmt: skip


@pytest.fixture
def raw(redis: Any, client: Any) -> Raw:
    """Calls of another program, beside a list, a schedule and a claim that nobody settles."""
    redis.lpush(LIST, *[f"waits {number}" for number in range(5)])
    redis.zadd(SCHEDULE, {DUE: NOW / 1000 - 5, b"late": NOW})
    redis.sadd(PLACE.key("queues"), "default")
    redis.rpush(TAKEN, "taken 1", "taken 2")
    redis.zadd(CLAIMS, {"held": NOW - 5})
    redis.set(LAST_CALL, "2")
    return Raw(redis, Queue("default", client))


def _still_works(redis: Any, client: Any) -> None:
    redis.delete(LIST)
    claims = Claims(client, PLACE)
    push(client, PLACE, [b"sane"])
    promote(client, PLACE.namespace)
    taken = claims.take(1_000)
    assert b"sane" in taken.jobs
    claims.give_back(taken.claim_id)
    assert redis.llen(LIST) == len(taken.jobs)


def test_every_script_has_a_good_call(raw: Raw):
    assert set(GOOD) == set(RUBY)
    for name, call in GOOD.items():
        assert raw(RUBY[name], [*call.extra_keys], call.args), name


@pytest.mark.parametrize("name", sorted(RUBY))
def test_script_changes_nothing_when_it_refuses_an_argument(
    raw: Raw, redis: Any, client: Any, name: str
):
    call = GOOD[name]
    nrefused = 0
    whole = {key: redis.dump(key) for key in redis.keys("*")}
    for args in _spoilt(call.args):
        before = raw.state()
        if raw(RUBY[name], [*call.extra_keys], args):
            _put_back(redis, whole)
        else:
            nrefused += 1
            assert raw.state() == before, f"{name}{args!r:.300} was refused and changed something"
    assert nrefused
    _still_works(redis, client)


@pytest.mark.parametrize("name", sorted(RUBY))
def test_script_changes_nothing_when_keys_are_missing_or_too_many(raw: Raw, name: str):
    call = GOOD[name]
    keys = [*call.extra_keys]
    for some in ([], keys[1:], keys[:-1], [*keys, f"{LIST}:more"]):
        if some == keys:
            continue
        before = raw.state()
        assert not raw(RUBY[name], some, call.args)
        assert raw.state() == before


@pytest.mark.parametrize("name", sorted(RUBY))
def test_script_changes_nothing_when_a_key_is_of_another_type(
    raw: Raw, redis: Any, client: Any, name: str
):
    call = GOOD[name]
    whole = {key: redis.dump(key) for key in redis.keys("*")}
    for key in call.extra_keys:
        nrefused = 0
        for _ in _of_another_type(redis, key):
            before = raw.state()
            if raw(RUBY[name], [*call.extra_keys], call.args):
                _put_back(redis, whole)
            else:
                nrefused += 1
                assert raw.state() == before, f"{name} changed something where {key} is no such key"
        # A key that isn't there yet is once of the right type.
        assert nrefused == 5, f"{name} takes a key of another type for {key}"
    _put_back(redis, whole)
    _still_works(redis, client)


def test_claim_that_no_intake_can_have_made_keeps_no_other_from_being_rescued(
    raw: Raw, redis: Any, client: Any
):
    redis.zadd(CLAIMS, {b"\xff": "-inf", "": 1, "no id": 2, "x" * 65: 3})
    claims = Claims(client, PLACE)
    assert [one.claim_id for one in claims.waiting()] == ["held"]
    assert claims.rescue() == ("held", [b"taken 1", b"taken 2"])
    assert redis.zrange(CLAIMS, 0, -1) == [b"held"]
