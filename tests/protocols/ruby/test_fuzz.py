"""Whatever arguments and keys the scripts of Resque and Sidekiq are given, an error changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.functions import scripts
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.lists import push
from jobq.protocols.ruby.scheduled import promote
from tests import hostile
from tests.hostile import Call, Raw
from tests.protocols.ruby.conftest import PLACE

SCRIPTS = {script.name: script for script in scripts() if script.area == "ruby"}
NOW = 1_700_000_000_000
LIST, SCHEDULE = PLACE.list_key, PLACE.key("schedule")
CLAIMS, TAKEN, FRESH, LAST_CALL, PUSHED = (
    f"jobq:intake:{{{LIST}}}:{name}"
    for name in ("claims", "taken:held", "taken:fresh", "call:fuzz", "pushed:fuzz")
)
DUE = b'{"class":"A","args":[],"jid":"due","queue":"default"}'
GOOD = {
    "claim": Call(
        (LIST, CLAIMS, FRESH, LAST_CALL), ("", "fresh", 3, 15_000, 2, 1_000_000, "RIGHT"), (0, 2, 3, 4, 5)
    ),
    "due": Call((SCHEDULE,), (NOW, 10), (0, 1)),
    "promote": Call((SCHEDULE, LIST, PLACE.key("queues")), (DUE, DUE, "default")),
    "push": Call((LIST, PUSHED), ("LEFT", "job 1", "job 2")),
    "rescue": Call((CLAIMS,), (NOW, 15_000), (0, 1)),
    "return": Call((LIST, CLAIMS, TAKEN), ("held", "RIGHT")),
    "settle": Call((CLAIMS, TAKEN), ("held",)),
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
    return Raw(redis)


def test_every_script_has_a_good_call(raw):
    assert set(GOOD) == set(SCRIPTS)
    for name, call in GOOD.items():
        assert hostile.takes(raw, SCRIPTS[name], call), name


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_changes_nothing_when_it_refuses_its_arguments_or_keys(raw, name):
    hostile.refuses_whole(raw, SCRIPTS[name], GOOD[name])
    hostile.refuses_what_is_no_number(raw, SCRIPTS[name], GOOD[name])
    hostile.refuses_keys_of_another_type(raw, SCRIPTS[name], GOOD[name])


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_takes_no_key_of_another_type(raw, redis, name):
    for key in GOOD[name].keys:
        there = redis.exists(key)
        taken = [
            kind
            for kind in hostile.of_another_type(redis, key)
            if hostile.takes(raw, SCRIPTS[name], GOOD[name])
        ]
        # Of a key that isn't there one type is the right one.
        assert len(taken) == 1 - there, f"{name} takes a {taken} for {key}"


def test_no_script_raises_after_a_write_when_stored_values_are_corrupt(raw, redis):
    calls = {SCRIPTS[name]: call for name, call in GOOD.items()}
    hostile.raises_before_it_writes(raw, calls, hostile.corruptions_of(redis))


def test_jobs_are_taken_and_moved_whatever_stands_beside_them(raw, redis, client):
    whole = raw.state()
    for one in list(hostile.corruptions_of(redis)):
        one.make()
        push(client, PLACE, [b"sane"])
        promote(client, PLACE.namespace)
        assert b"sane" in Claims(client, PLACE).take(1_000).jobs, one.what
        raw.put_back(whole)


def test_claim_that_no_intake_can_have_made_keeps_no_other_from_being_rescued(raw, redis, client):
    redis.zadd(CLAIMS, {b"\xff": "-inf", "": 1, "no id": 2, "x" * 65: 3})
    claims = Claims(client, PLACE)
    assert [one.claim_id for one in claims.waiting()] == ["held"]
    assert claims.rescue() == ("held", [b"taken 1", b"taken 2"])
    assert redis.zrange(CLAIMS, 0, -1) == [b"held"]
