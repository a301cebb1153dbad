"""Whatever arguments and keys a script is given: an error changed nothing, and the queue still works.

Programs in any language call the scripts, so each checks its arguments itself. The server has no way back from
a script's first write; therefore whatever a script can't use must be found before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from jobq.client.functions import scripts
from jobq.client.scripts import Script
from jobq.queue.admin import tick_values
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Lease
from tests import hostile
from tests.hostile import CORRUPT, Corruption, Raw

ENGINE = {script.name: script for script in scripts() if script.area == "queue"}
NOW = 1_700_000_000_000
CALLER = "fuzzfuzzfuzzfuzz"


class Call(NamedTuple):
    """A call that the script takes, on the queue as `alive` leaves it; extra_keys follow its bound keys."""

    args: tuple[Any, ...]
    extra_keys: tuple[str, ...] = ()


def _numbered(*rest: Any) -> tuple[Any, ...]:
    return (CALLER, 7, NOW + 5_000, *rest)


def calls(queue: Queue, held: Lease, dead_id: str) -> dict[str, Call]:
    """One good call of each script."""
    ending = ("held", held.token, "done", "", 0, "job\x1f1")
    return {
        "announce": Call(("signal", "import:1", "approved\x1ftrue")),
        "cancel": Call(_numbered("", "held", "ready1", "due1", "none")),
        "checkpoint": Call(("held", held.token, '{"row":7}')),
        "clear": Call(_numbered()),
        "close": Call((CALLER,)),
        "collect": Call((NOW + 10**7, 3, 100)),
        "content": Call(("ready", 0, 10, NOW)),
        "counts": Call(()),
        "dead": Call(("", 0, 10)),
        "dequeue": Call(_numbered(1_000, 3, 5)),
        "dequeue_plain": Call(_numbered(1_000, 5)),
        "enqueue_plain": Call((CALLER, 7, "new", "v")),
        "enqueue": Call(
            _numbered(
                5, "", 1, 1, "start", 50, 60, "", 1, "key", "new", "content", "acme", "held", "newer", "acme",
                "due1", "x", "",
            ),
            tuple(map(queue.result_key, ("new", "held", "due1"))),
        ),
        "edit": Call(_numbered("op-1", 60_000, "ready1", "", "new", "due1", "*", "newer")),
        "extend": Call((NOW + 5_000, 1_000, "held", held.token)),
        "finish": Call(
            _numbered(1_000, 3, 2, 1, *ending, 1, 60_000, "result"), (queue.result_key("held"),)
        ),
        "finish_plain": Call(_numbered(1_000, 2, *ending[:2], *ending[4:])),
        "flow_drop": Call(("drainer", "5-1", "7-1")),
        "flow_read": Call(("drainer", 1_000, 10, "")),
        "fsck": Call(("ready", 0, 10)),
        "hold": Call((NOW + 5_000, "acme", 60_000)),
        "lines": Call((NOW, 0, 10)),
        "pause": Call((1_000, NOW)),
        "progress": Call(("held", held.token, "half")),
        "purge": Call((dead_id,)),
        "release": Call(_numbered("held", held.token)),
        "repair": Call((NOW, "ready1", "held", "none")),
        "resume": Call(()),
        "retention": Call((10, 1_000, "1")),
        "seal": Call((1,)),
        "put_back": Call(_numbered("op-1", "waiting", "taken", "due2", "none")),
        "reschedule": Call(_numbered("due1", "", "", "ready1", "*", NOW + 9_000, "none", "", "")),
        "revive": Call(_numbered("op-1", 60_000, dead_id, NOW + 9_000)),
        "schedule": Call((NOW + 5_000, "resume", "nightly", "")),
        "schedules": Call((NOW, 10)),
        "set_event_level": Call(("all", 1_000)),
        "set_partitions": Call(("", "0,0,0;1,0,8")),
        "set_limits": Call((NOW + 5_000, "acme", 7, 3, 100, 60_000, 2, 9)),
        "status": Call(("held", NOW)),
        "take_out": Call(_numbered("op-1", 60_000, "waiting", "ready1", "", "key1", "*", "due1", "")),
        "why": Call(("key1", NOW)),
        "tick_partitioned": Call((
            NOW + 5_000, "nightly", NOW + 4_000, NOW + 1_000, NOW + 4_500, "cancel", 2, "nightly@2", "nightly@1", "1",
            "message",
        )),
        "ticks_sent": Call((10, "nightly", 17, "full")),
        "tick": Call((
            NOW + 5_000, "nightly", NOW + 4_000, NOW + 1_000, NOW + 4_500, "cancel", 2, "nightly@2", "tick", 70, 5,
            "ordered", "acme",
        )),
    }  # fmt: skip


@pytest.fixture
def alive(queue: Queue, at: Callable[[int], int], end: Any) -> tuple[Lease, str]:
    """A queue with something in every place: the held message, and the id of a dead message."""
    queue.admin.events_level("all")
    queue.enqueue_many(
        [(name, b"v") for name in ("dead1", "crashed", "again", "over", "held")], now=at(0)
    )
    [dead, crashed, again, over, held] = queue.dequeue(5, lease=60, now=at(0)).messages
    end(queue, dead, "dead", reason="why", now=at(1))
    end(queue, crashed, "crashed", reason="why", now=at(1))
    end(queue, again, "unknown", backoff=0.5, now=at(1))
    end(queue, over, "done", backoff=10, now=at(1))
    queue.progress("held", held.token, "a little")
    queue.enqueue(b"newer", mid="held", on_conflict="requeue", lease=70, now=at(2))
    queue.enqueue_many([(f"due{i}", b"v") for i in range(3)], delay=3_600, until=1, now=at(3))
    queue.enqueue_many([(f"ready{i}", b"v") for i in range(4)], now=at(3))
    queue.cancel("ready0", now=at(4))
    queue.enqueue_members([(f"~f.s.{i}", b"v") for i in range(3)], now=at(3))
    queue.cancel("~f.s.0", now=at(4))
    keyed_ones(queue, at)
    queue.enqueue(b"w", mid="ready3", on_conflict="replace", delay=60, now=at(4))
    queue.admin.schedule("add", "nightly", "{}", now=at(1_000))
    queue.admin.tick(
        tick_values("nightly", at(1_000) + 1, at(1_000), "nightly@1", b"tick", now=at(2_000))
    )
    queue.admin.schedule("pause", "paused", "{}", now=at(1_000))
    queue.enqueue(b"v", mid="taken", key="acme", now=at(5))
    bin_ = queue.admin.bin("op-1")
    bin_.take_out(("taken", ""), ("due2", ""), now=at(5))
    queue.client.command("RENAME", bin_.key, f"{queue.prefix}bin")
    return Lease("held", held.token), queue.admin.dead()[0].dead_id


def keyed_ones(queue: Queue, at: Callable[[int], int]) -> None:
    """Keys with waiting messages, running messages, and holds."""
    queue.rules(max=1_000, key_max=1, key_rate="1000/m")
    queue.enqueue_many([(f"key{i}", b"v", "ab"[i % 2]) for i in range(6)], now=at(3))
    queue.enqueue(b"v", mid="ordered", key="acme", ordered=True, now=at(3))
    queue.hold("b", 60, now=at(3))


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


@pytest.fixture
def good(queue: Queue, alive: tuple[Lease, str]) -> dict[str, hostile.Call]:
    """A good call of each script, with its keys."""
    return {
        name: hostile.Call((*_keys(queue, ENGINE[name]), *call.extra_keys), call.args)
        for name, call in calls(queue, *alive).items()
    }


def _keys(queue: Queue, script: Script) -> list[str]:
    own = [f"{queue.prefix}call:{CALLER}"] if "last_call" in script.keys else []
    return [*queue.scripts[script.name].keys, *own]


def _still_works(queue: Queue) -> None:
    queue.admin.resume()
    [taken] = [queue.enqueue(b"after all", mid="sane", on_conflict="replace")]
    assert taken.action in ("added", "updated")
    for _ in range(20):
        messages = queue.dequeue(100).messages
        if any(message.mid == "sane" for message in messages):
            return
        queue.finish([Ending(mid=m.mid, token=m.token) for m in messages])
    raise AssertionError("a sane message is never handed out")


def test_every_script_of_the_engine_has_a_good_call(raw: Raw, good: dict[str, hostile.Call]):
    assert set(good) == set(ENGINE)
    for name, call in good.items():
        assert hostile.takes(raw, ENGINE[name], call), name


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_script_changes_nothing_when_it_refuses_its_arguments_or_keys(
    queue: Queue, raw: Raw, good: dict[str, hostile.Call], name: str
):
    hostile.refuses_whole(raw, ENGINE[name], good[name], stays=True)
    _still_works(queue)


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_script_changes_nothing_when_it_refuses_a_key_of_another_type(
    queue: Queue, raw: Raw, good: dict[str, hostile.Call], name: str
):
    hostile.refuses_keys_of_another_type(raw, ENGINE[name], good[name])
    _still_works(queue)


FIELDS = (
    "locks", "tokens", "backoffs", "nattempts", "ncrashes", "nunknowns", "generations", "requeue", "options",
    "progress", "dead-messages", "last-dead", "bin",
)  # fmt: skip
SETTINGS = (
    "floor",
    "max_lease",
    "max_content",
    "maxlen",
    "fence",
    "deduped",
    "paused",
    "events",
    "all_since",
)


def _corruptions(queue: Queue, redis: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, value in product(FIELDS, CORRUPT):
        key = f"{queue.prefix}{name}"
        yield (
            f"{name}={value!r:.20}",
            lambda key=key, value=value: [
                redis.hset(key, field, value) for field in redis.hkeys(key)
            ],
        )
    for name, value in product(SETTINGS, CORRUPT):
        yield (
            f"meta {name}={value!r:.20}",
            lambda name=name, value=value: redis.hset(f"{queue.prefix}meta", name, value),
        )
    for name, value in product(("eoq-backoff?", "ndry-runs", f"call:{CALLER}"), CORRUPT):
        yield (
            f"{name}={value!r:.20}",
            lambda name=name, value=value: redis.set(f"{queue.prefix}{name}", value),
        )
    full = "18446744073709551615-18446744073709551615"
    yield "events, ids used up", lambda: redis.xadd(f"{queue.prefix}events", {"1": "x"}, id=full)
    yield "events, foreign", lambda: redis.xadd(f"{queue.prefix}events", {"\xff": "\xff"})
    for name, mid in product(("ready", "mid-circle"), (b"\xff", b"a\nb", b"x" * 70_000, b"")):
        yield (
            f"{name} {mid!r:.20}",
            lambda name=name, mid=mid: redis.lpush(f"{queue.prefix}{name}", mid),
        )
    for score in ("-inf", "inf", "0", "1.5"):
        yield (
            f"due at {score}",
            lambda score=score: redis.zadd(f"{queue.prefix}due", {b"\xff": score, "held": score}),
        )
    for name in ("left-ready", "left-circle", "done"):
        yield (
            name,
            lambda name=name: redis.sadd(
                f"{queue.prefix}{name}", b"\xff", "nowhere", "ready1", "held"
            ),
        )
    yield "dead", lambda: redis.zadd(f"{queue.prefix}dead", {b"\xff": "-inf", "no hash": 5, "#": 6})


@hostile.EVERY
def test_no_script_raises_after_a_write_when_stored_values_are_corrupt(
    queue: Queue, raw: Raw, redis: Any, good: dict[str, hostile.Call], every: int
):
    called = {ENGINE[name]: call for name, call in good.items()}
    hostile.raises_before_it_writes(raw, called, hostile.corruptions_of(redis), every)
    written = (Corruption(what, "", make) for what, make in _corruptions(queue, redis))
    hostile.raises_before_it_writes(raw, called, written, every)


def test_messages_are_handed_out_whatever_stands_beside_them(
    queue: Queue, alive: Any, raw: Raw, redis: Any
):
    whole = raw.state()
    for what, corrupt in _corruptions(queue, redis):
        corrupt()
        try:
            _still_works(queue)
        except AssertionError:
            pytest.fail(what)
        raw.put_back(whole)


def test_limits_are_kept_by_the_scripts_themselves(raw: Raw, good: dict[str, hostile.Call]):
    for name, place in {
        "content": 2,
        "dead": 2,
        "fsck": 2,
        "collect": 2,
        "dequeue": 5,
        "finish": 5,
    }.items():
        script, args = ENGINE[name], list(good[name].args)
        for limit in (1_001, 10**9, -1):
            args[place] = limit
            assert not raw(script, good[name].keys, args), (name, limit)


@pytest.mark.parametrize(("again", "more"), [("member", 1), ("next", 2)])
def test_enqueue_of_members_changes_nothing_when_it_is_refused(
    queue: Queue, raw: Raw, good: dict[str, hostile.Call], again: str, more: int
):
    args = _numbered(
        "", "", 0, 0, again, 50, 60, "", "", "key", "~f.s.1", "v", "k", "~f.s.7", "w", ""
    )
    keys = [f"{queue.prefix}{name}" for name in ("last-dead", "accepted:f.s")]
    names = [*_keys(queue, ENGINE["enqueue"]), *keys[:more]]
    call = hostile.Call(tuple(names), args)
    assert hostile.takes(raw, ENGINE["enqueue"], call)
    hostile.refuses_whole(raw, ENGINE["enqueue"], call, stays=True)
    hostile.refuses_keys_of_another_type(raw, ENGINE["enqueue"], call)
    _still_works(queue)
