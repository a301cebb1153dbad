"""Every key that a script touches is among its KEYS, under one hash tag.

The server itself checks: each call runs as a user who may touch the declared keys and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.scripts import folder, load
from jobq.errors import KeyFullError, ScriptError
from jobq.queue.admin import tick_values
from jobq.queue.bin import Bin
from jobq.queue.fsck import repair
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Violation
from tests.confined import Confined


@pytest.fixture
def confined(server, redis):
    client = Confined(server.url, redis)
    yield client
    client.close()


def lives_of_messages(queue: Queue, at: Any) -> None:
    """Every verb, and every branch that writes a key of its own."""
    now = at(0)
    plain(queue, now)
    queue.admin.events_level("all")
    queue.admin.retention(2)
    for cycle in range(3):
        many = [(f"m{i}", b"v") for i in range(12)]
        queue.enqueue_many(many, now=now, lease=5, on_conflict="replace", until="start")
        queue.enqueue(b"d", mid="d", delay=1, until=2, now=now, on_conflict="replace")
        messages = queue.dequeue(8, lease=1, crash_limit=2, now=now).messages
        held = {m.mid: m.token for m in messages}
        for mid in list(held)[:3]:
            queue.enqueue(b"newer", mid=mid, on_conflict="requeue", delay=cycle % 2, now=now)
        queue.extend(list(held.items()), 1, now=now)
        for mid, token in held.items():
            queue.progress(mid, token, "half")
            queue.checkpoint(mid, token, "7")
        outcomes = ["done", "retry", "dead", "crashed", "snooze", "release", "expired"]
        endings = [
            Ending(
                mid=mid, token=token, outcome=outcome, backoff=0.01, result=b"r", result_ttl=0.009
            )
            for (mid, token), outcome in zip(held.items(), outcomes, strict=False)
        ]
        queue.finish(endings, dequeue=4, lease=1, crash_limit=2, now=now)
        queue.release(list(held.items())[6:7], now=now)
        queue.cancel("m9", "m10", "d", *held, now=now)
        queue.admin.schedule("add", "s", "{}", now=now)
        for number, overlap in enumerate(("skip", "queue", "cancel", "allow")):
            last = queue.admin.schedules(1).ticks["s"].last_ms
            tick_ms = now + number + 1
            queue.admin.tick(
                tick_values("s", tick_ms, last, f"s@{tick_ms}", b"v", overlap=overlap, now=tick_ms)
            )
            queue.admin.tick(tick_values(
                "s", tick_ms + 50, tick_ms, f"s@{tick_ms + 50}", b"v", key="k" if number % 2 else None,
                overlap=overlap, now=tick_ms + 50))  # fmt: skip
        now += 2_000
        queue.enqueue(b"late", mid="m0", on_conflict="replace", delay=3, now=now)
        queue.admin.collect(crash_limit=2, now=now)
        queue.admin.pause()
        queue.dequeue(now=now)
        queue.admin.resume()
        for mid in ("m0", "d", "none"):
            queue.status(mid, now=now)
        queue.admin.counts()
        for place in ("ready", "due", "circle"):
            queue.admin.content(place, now=now)
        list(repair(queue, [*queue.admin.fsck(), Violation("as if", "m0", b"m0")]))
        ids = [dead.dead_id for dead in queue.admin.dead()]
        queue.admin.dead(mid="m2")
        (queue.admin.purge if cycle == 1 else queue.admin.revive)(*ids[1:])
        undone(queue, ids[:1], now)
        remembered(queue, now)
        queue.end_session("somebody")
    keys_of_messages(queue, now)
    queue.admin.content("lines", now=now)
    list(repair(queue, [*queue.admin.fsck(), Violation("as if", "k3", b"k3")]))
    queue.admin.collect(now=now + 100_000)
    queue.admin.purge(*(dead.dead_id for dead in queue.admin.dead()))
    queue.admin.clear(now=now)
    members(queue, now)
    queue.admin.clear(now=now)
    queue.scripts["seal"].run({"epoch": 2})
    queue.scripts["set_partitions"].run({"known": "", "map": "0,0,0;1,0,2"})
    last = queue.admin.schedules().ticks["s"].last_ms
    queue.scripts["tick_partitioned"].run({
        "now": last + 1, "name": "s", "tick_ms": last + 1, "after_ms": last, "due_ms": last + 1, "overlap": "allow",
        "missed": 0, "mid": "s@1", "before": "", "is_live": "", "message": b"v",
    })  # fmt: skip
    [name, number, *_] = queue.scripts["ticks_sent"].run({"limit": 1})
    queue.scripts["ticks_sent"].run({"limit": 1}, [name, number, "full"])


def plain(queue: Queue, now: int) -> None:
    """Calls that scripts for plain calls take."""
    queue.enqueue_many([b"v"] * 3, now=now)
    queue.enqueue(b"v")
    held = queue.dequeue(now=now).messages
    while held:
        endings = [Ending(mid=one.mid, token=one.token, record="job\x1f1") for one in held]
        handed = queue.finish(endings, dequeue=1, now=now).dequeued
        held = handed.messages if handed else []


def members(queue: Queue, now: int) -> None:
    """Messages of flows that end in each way, and announcements to flows."""
    mids = [f"~f.map.{i}" for i in range(8)]
    queue.enqueue_members([(mid, b"v") for mid in mids], until=1, now=now)
    held = queue.dequeue(5, now=now).messages
    for outcome, one in zip(("done", "dead", "crashed", "expired", "retry"), held, strict=True):
        ending = Ending(mid=one.mid, token=one.token, outcome=outcome, result=b"r", result_ttl=9)
        queue.finish([ending], crash_limit=1, now=now)
    queue.admin.bin("op").take_out((mids[5], ""), now=now)
    queue.cancel(*mids, now=now)
    queue.enqueue_members([(mid, b"v") for mid in mids], key="k", delay=1, now=now)
    for _ in range(2):
        queue.enqueue_members([(mid, b"v") for mid in mids[:3]], in_order=True, now=now)
    queue.admin.revive(*(dead.dead_id for dead in queue.admin.dead()), now=now)
    queue.announce("begin", "f")
    while entries := queue.flow_outbox(3, "somebody"):
        queue.flow_outbox_drop([entry.entry_id for entry in entries])
    queue.cancel(*mids, now=now)


def undone(queue: Queue, dead_ids: list[str], now: int) -> None:
    """Call the verbs of operators, and undo them."""
    queue.enqueue_many([("x1", b"v"), ("x2", b"v")], delay=5, now=now)
    queue.enqueue(b"v", mid="x3", key="C", ordered=True, now=now)
    queue.admin.run_now("x1", now=now)
    queue.admin.reschedule([("x1", "", now + 9)], now=now)
    bin_, mids = queue.admin.bin("op"), ("x1", "x2", "x3")
    for _ in range(2):
        bin_.take_out(*((mid, "*") for mid in mids), now=now)
        bin_.put_back("waiting", *mids, now=now)
    bin_.edit(*((mid, "*", b"new") for mid in mids), now=now)
    bin_.put_back("edited", *mids, now=now)
    bin_.take_out_dead(*dead_ids, now=now)
    bin_.put_back("dead", *dead_ids, now=now)
    bin_.revive(*((one, now + 5) for one in dead_ids), now=now)
    bin_.put_back("revived", *dead_ids, now=now)


def remembered(queue: Queue, now: int) -> None:
    """Cancels of messages whose ends are remembered."""
    content, mids = b'{"remember_ms":9,"job":"x"}', ["r1", "r2", "r3"]
    queue.enqueue_many([(mid, content) for mid in mids], now=now)
    assert Bin("low", queue.client, "op", None).take_out(("r1", "*"), now=now) == ["taken"]
    assert queue.cancel("r2", "none", "r3", now=now) == ["cancelled", "nil", "cancelled"]
    queue.admin.schedule("add", f"r{now}", "{}", now=now)
    for number, overlap in enumerate(("allow", "cancel"), 1):
        mid = f"r{now + number}"
        options: dict[str, Any] = {"overlap": overlap, "now": now + number}
        word, _ = queue.admin.tick(
            tick_values(f"r{now}", now + number, now + number - 1, mid, content, **options)
        )
    assert word == "replaced"
    assert len(queue.client.command("LRANGE", queue.result_key(f"r{now + 1}"), 0, -1)) == 1
    queue.cancel(mid)


def keys_of_messages(queue: Queue, now: int) -> None:
    """Keys with rules, with a rate, ordered; held, full, released, and one that crashed."""
    queue.admin.retention(1_000, "30d")
    queue.rules(max=50, key_max=2, key_rate="100/m", key_weight=2)
    queue.rule("A", max=3, waiting=5, weight=4)
    rows = [(f"k{i}", b"v", "AB"[i % 2]) for i in range(8)]
    queue.enqueue_many(rows, now=now, on_conflict="replace", until="start")
    queue.enqueue(b"v", mid="o", key="C", ordered=True, now=now, on_conflict="replace")
    with pytest.raises(KeyFullError):
        queue.enqueue_many([(f"{now}-{i}", b"v", "A") for i in range(9)], now=now)
    for outcome in ("hold", "crashed", "retry", "release"):
        held = queue.dequeue(8, now=now).messages
        queue.finish(
            [Ending(mid=m.mid, token=m.token, outcome=outcome, backoff=1) for m in held], now=now
        )
    queue.enqueue(b"w", mid="k0", key="B", on_conflict="replace", until="start", delay=1, now=now)
    queue.hold("A", 10, now=now)
    queue.why("k1", now=now)
    queue.admin.keys(now=now)
    queue.cancel("k1", "k2", now=now)


def test_scripts_touch_only_the_keys_they_declare(confined, at):
    lives_of_messages(Queue("low", confined), at)
    scripts = {path.stem for path in (folder() / "queue").glob("[a-z]*.lua")}
    assert scripts - confined.ran == set()
    assert all("{low}" in key for key in confined.declared)


def test_undeclared_key_would_have_been_refused(confined, redis):
    status = load("queue", "status")
    script = type(status).__new__(type(status))
    script.recorded = False
    script.name, script.source = "rogue", b"redis.call('SET', KEYS[1] .. 'x', 1)"
    script.sha = redis.script_load(script.source)
    with pytest.raises(Exception, match="key") as refused:
        confined.run(script, ["jobq:{low}:meta"], [])
    assert not isinstance(refused.value, ScriptError)


@pytest.mark.parametrize("path", sorted((folder() / "queue").glob("*.lua")), ids=lambda p: p.stem)
def test_script_builds_no_key_names_of_its_own(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        for call in line.split("redis.call(")[1:]:
            parts = [part.strip() for part in call.split(",")]
            assert ".." not in parts[1] if len(parts) > 1 else True, line
