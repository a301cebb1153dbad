"""Whatever arguments and keys a script of RELIABLEQ is given: an error changed nothing, and messages are handed out."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.cli import main
from jobq.client.functions import scripts
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import places, prefix
from tests import hostile
from tests.hostile import Call, Raw

SCRIPTS = {script.name: script for script in scripts() if script.area == "reliable"}
NOW = 1_700_000_100_000


@pytest.fixture
def good(rq: ReliableQueue, at: Any, redis: Any) -> dict[str, Call]:
    """A good call of each script, on a queue with messages in every place, and a second queue."""
    rq.configure("q", max_deliveries=2)
    rq.push("q", *"abcdefgh", now=at(0))
    rq.push("r", "x", now=at(0))
    dead = [one.id for one in rq.pop(2, 0, "q", now=at(1)) or []]
    for n in (2, 3):
        rq.nack("q", *dead, now=at(n), front=True)
        rq.pop(2, 0, "q", now=at(n))
    once = [one.id for one in rq.pop(3, 0, "q", now=at(4)) or []]
    rq.nack("q", *once, now=at(4), front=True)
    held = [one.id for one in rq.pop(3, 0, "q", token="me", now=at(5)) or []]
    rq.extend("q", held[0], now=at(6))
    redis.lpop(f"{prefix('reliable', 'q')}tickets")
    own, numbered = (*places("reliable", "q"), f"{prefix('reliable', 'q')}call:fuzz"), (7, NOW)
    both = (*places("reliable", "q"), *places("reliable", "r"))
    assert rq.info("q").dead == 2
    return {
        "ack": Call(own, (*numbered, "TOKEN", "me", *held), (0,)),
        "clear": Call(own, (*numbered,), (0,)),
        "configure": Call(own[:8], (3,), (0,)),
        "extend": Call(own, (*numbered, "TOKEN", "me", *held), (0,)),
        "info": Call(own[:8], ("ALL",)),
        "inspect": Call(own[:8], ("PENDING", 0, 9, "NOW", NOW), (1, 2, 4)),
        "nack": Call(own, (*numbered, "TOKEN", "me", "FRONT", *held), (0,)),
        "pop": Call(
            (*both, own[8]), (*numbered, "COUNT", 9, "RECOVER", 5, "TOKEN", "t", "DELIVERIES"), (0, 3, 5)
        ),
        "purge": Call(own, (*numbered, dead[0]), (0,)),
        "push": Call(own, (*numbered, "new", "newer"), (0,)),
        "recover": Call(own, (*numbered, 9, 5, "TOKEN", "t"), (0, 2, 3)),
        "rest": Call(both, ("RECOVER", 5, "NOW", NOW), (1, 3)),
        "revive": Call(own, (*numbered, dead[1]), (0,)),
    }  # fmt: skip


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)


def test_messages_are_pushed_and_handed_out_whatever_stands_beside_them(raw, good, rq, redis):
    whole = raw.state()
    for one in list(hostile.corruptions_of(redis)):
        one.make()
        [sane] = rq.push("q", "after all")
        assert any(m.id == sane for _ in range(3) for m in rq.pop(9, 0, "q") or []), one.what
        rq.pending("q", 0, 9)
        rq.dead("q")
        rq.info("q")
        raw.put_back(whole)


def test_damage_of_a_queue_s_keys_is_told_and_removed_by_its_verbs(good, rq, redis, client, capsys):
    start = prefix("reliable", "q")
    redis.lpush(f"{start}undelivered", b"\xff", "no id")
    redis.zadd(f"{start}delivered", {b"\xfe": 1})
    redis.zadd(f"{start}dead", {b"\xfd": 1})
    for words in (("0", "20"), ("PENDING", "0", "20"), ("DEAD", "0", "20")):
        assert main(["reliable", "inspect", "q", *words, "--url", client.url]) == 0
        assert "\\xf" in capsys.readouterr().out
    got = rq.pop(20, 0, "q", recover_after=0.001) or []
    assert all(one.id.startswith("17") for one in got)
    assert not redis.lrange(f"{start}undelivered", 0, -1)
    assert redis.zscore(f"{start}delivered", b"\xfe") is None
    for name in ("messages", "meta", "tokens"):
        redis.delete(start + name)
        redis.rpush(start + name, "somebody else's")
    assert main(["reliable", "info", "q", "--url", client.url]) == 4
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert main(["reliable", "delete", "q", "--yes", "--url", client.url]) == 0
    assert not [key for key in redis.keys(f"{start}*") if b":call:" not in key]


def test_inspect_ends_a_page_at_256_kib_and_reads_on(rq, fcall):
    rq.push("big", *[b"x" * 100_000] * 9)
    assert len(fcall("inspect", ["big"], 0, 9)) == 3
    assert len(rq.inspect("big", 0, 9)) == 9
    assert len(rq.inspect("big", -7, 5)) == 5
    assert len(rq.inspect("big", -2, 5)) == 2
    assert len(rq.inspect("big", -20, 50)) == 9
    assert len(rq.inspect("big", 5, 100)) == 4
