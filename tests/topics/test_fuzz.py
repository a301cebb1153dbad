"""Whatever arguments and keys a script of topics is given: an error changed nothing, and other topics go on."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.functions import scripts
from jobq.topics import RedismqTopic, Topic
from jobq.topics.keys import key
from tests import hostile
from tests.hostile import Call, Raw

SCRIPTS = {script.name: script for script in scripts() if script.area == "topic"}
CALLER, NOW = "fuzzfuzzfuzzfuzz", 1_700_000_100_000
START = "jobq:{orders}:topic:"


@pytest.fixture
def good(topic: Topic, at: Any, client: Any) -> dict[str, Call]:
    """A good call of each script, on a topic in the midst of a compaction, with limits and a group that holds some."""
    # At NOW the first five are too old.
    topic.set_limits(max_age=99.995, compact=True)
    for i in range(12):
        topic.append(b"x" * 10 * i, key=f"k{i % 3}", headers={"a": "b"}, now=at(i))
    binding = topic._binding
    binding.run("compact", {"now": at(20), "begin": 1, "limit": 12})
    binding.run("compact", {"now": at(20), "begin": 0, "limit": 12})
    binding.run("compact", {"now": at(20), "begin": 0, "limit": 2})
    topic.group("g").subscribe(now=at(20))
    readers = [topic.reader("g") for _ in range(3)]
    first, second, _ = [reader.poll(2, now=at(21 + n)) for n, reader in enumerate(readers)]
    redismq = RedismqTopic("r", client)
    redismq.append_many([b"a", b"b", b"c"])
    redismq.reader("gr").poll(1)
    numbered = (CALLER, 7)
    read = [f"r:messages:{i}" for i in range(2, 5)]
    args = {
        "append": ((*numbered, NOW, "mkh", "x", "k1", "{}", "m", "y"), (1, 2)),
        "commit": ((*numbered, first.token, 1), (1, 3)),
        "compact": ((NOW, 1, 5), (0, 2)),
        "describe": ((NOW,), (0,)),
        "extend": ((NOW, first.token, 1_000), (0, 2)),
        "find": ((at(5),), (0,)),
        "lag": ((NOW,), (0,)),
        "limits": ((1_000, 0, 0, 1, 5), (0, 1, 2, 4)),
        "poll": ((*numbered, NOW, "token", 2, 1_000, second.token), (1, 2, 4, 5)),
        "read": ((1, 9, 5), (0, 1, 2)),
        "seek": ((NOW, "index", 2), (0, 2)),
        "steer": (("1", "error"), ()),
        "subscribe": ((NOW, "new", "time", at(3), "latest"), (0, 3)),
        "trim": ((NOW, 3), (0, 1)),
        "unsubscribe": (("g",), ()),
    }  # fmt: skip
    calls = {
        name: Call(
            tuple(
                key(START, one, "new" if name == "subscribe" else "g", CALLER)
                for one in SCRIPTS[name].keys
            ),
            given,
            numbers,
        )
        for name, (given, numbers) in args.items()
    }
    call = f"r:call:{CALLER}"
    return {
        **calls,
        "redismq_append": Call(
            ("r:nextIndex", call, "r:messages:4", "r:messages:5"), (*numbered, 3, 1_000, "d"), (1, 2, 3)
        ),
        "redismq_poll": Call(
            ("r:nextIndex", "r:gr:nextIndex", call, *read), (*numbered, 1, 2, "latest"), (1, 2, 3)
        ),
    }  # fmt: skip


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)


@pytest.mark.parametrize("cursor", [12, 0], ids=["at the end", "out of range"])
def test_poll_raises_before_it_writes_wherever_its_group_is(raw, good, redis, cursor):
    """At the end it takes a stretch over whose lease has ended."""
    call = good["poll"]._replace(args=(*good["poll"].args[:6], ""))
    redis.hset(key(START, "group", "g"), mapping={"cursor": cursor, "skipped": 1})
    redis.delete(key(START, "leases", "g"))
    if cursor == 0:
        redis.hset(key(START, "meta"), "first", 6)
    else:
        for name in ("leases", "held"):
            redis.zadd(key(START, name, "g"), {b"gone": 1})
    hostile.raises_before_it_writes(raw, {SCRIPTS["poll"]: call}, hostile.corruptions_of(redis))


def test_other_topics_go_on_whatever_stands_beside_them(raw, good, redis, client):
    whole = raw.state()
    for one in list(hostile.corruptions_of(redis)):
        one.make()
        sane = Topic("sane", client)
        sane.append(b"after all")
        assert sane.reader("g").poll().messages[0].content == b"after all", one.what
        raw.put_back(whole)
