"""Every key that a script touches is among its KEYS, under one hash tag.

The server itself checks: each call runs as a user who may touch the declared keys and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.scripts import folder, load
from jobq.errors import ScriptError
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
    queue.admin.events_level("all")
    queue.admin.retention(2)
    now = at(0)
    for cycle in range(3):
        many = [(f"m{i}", b"v") for i in range(12)]
        queue.enqueue_many(many, now=now, lease=5, can_requeue=True, can_update=True)
        queue.enqueue(b"d", mid="d", delay=1, dedupe=2, now=now, can_update=True)
        messages = queue.dequeue(8, lease=1, crash_limit=2, now=now).messages
        held = {m.mid: m.token for m in messages}
        for mid in list(held)[:3]:
            queue.enqueue(b"newer", mid=mid, can_requeue=True, delay=cycle % 2, now=now)
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
            queue.admin.tick("s", tick_ms, last, f"s@{tick_ms}", b"v", overlap=overlap, now=tick_ms)
        now += 2_000
        queue.enqueue(b"late", mid="m0", can_update=True, delay=3, now=now)
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
        (queue.admin.purge if cycle == 1 else queue.admin.revive)(*ids)
        queue.close_caller("somebody")
    queue.admin.purge(*(dead.dead_id for dead in queue.admin.dead()))
    queue.admin.clear(now=now)


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
