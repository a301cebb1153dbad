"""Changes by others to a queue's keys: seen, set aside, repaired; and no other message is lost."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ConfigError, ScriptError
from jobq.queue import directory, keys
from jobq.queue.directory import queue_names, strange_queue_names
from jobq.queue.fsck import fsck, repair
from jobq.queue.presence import put_worker, workers
from jobq.queue.queue import Queue, enqueue_values
from jobq.queue.types import Ending

NO_MIDS = (b"\xff", b"\xff\xfe\xfd", b"a\nb", b"\x00", b"x" * 70_000, "é".encode() * 300)


def rules(queue: Queue) -> set[str]:
    return {violation.rule for violation in queue.admin.fsck()}


def repaired(queue: Queue) -> set[str]:
    """What is left after a repair."""
    list(repair(queue, queue.admin.fsck()))
    return rules(queue)


@pytest.mark.parametrize("bytes_", NO_MIDS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("stored", [True, False], ids=["with content", "without content"])
def test_bytes_that_are_no_mid_are_quarantined_when_they_stand_in_ready(
    queue: Queue, redis: Any, at: Any, bytes_: bytes, stored: bool
):
    queue.enqueue(b"good", mid="m", now=at(0))
    redis.lpush(f"{queue.prefix}ready", bytes_)
    if stored:
        redis.hset(f"{queue.prefix}messages", bytes_, "content")

    messages = queue.dequeue(10, now=at(1)).messages

    assert [message.mid for message in messages] == ["m"]
    assert queue.admin.counts().quarantined == 1
    assert redis.hvals(f"{queue.prefix}quarantine") == [b"content" * stored]
    assert rules(queue) == {"quarantined: not a mid"}
    assert repaired(queue) == set()
    assert queue.admin.counts().quarantined == 0


@pytest.mark.parametrize("place", ["mid-circle", "due"])
def test_bytes_that_are_no_mid_are_quarantined_when_they_stand_in_another_place(
    queue: Queue, redis: Any, at: Any, place: str
):
    queue.enqueue(b"good", mid="m", now=at(0))
    redis.hset(f"{queue.prefix}messages", b"\xff", "content")
    if place == "due":
        redis.zadd(f"{queue.prefix}due", {b"\xff": at(0)})
        redis.hset(f"{queue.prefix}backoffs", b"\xff", at(0))
    else:
        redis.rpush(f"{queue.prefix}mid-circle", b"\xff")
        redis.hset(f"{queue.prefix}locks", b"\xff", at(0))

    for moment in (1, 2, 3):
        queue.finish(
            [Ending(mid=m.mid, token=m.token) for m in queue.dequeue(10, now=at(moment)).messages],
            now=at(moment),
        )

    assert redis.hgetall(f"{queue.prefix}quarantine") == {b"\xff": b"content"}
    assert not redis.hexists(f"{queue.prefix}messages", b"\xff")


def test_quarantine_is_bounded_when_somebody_goes_on(queue: Queue, redis: Any, at: Any):
    pipe = redis.pipeline()
    for number in range(10_050):
        pipe.rpush(f"{queue.prefix}ready", b"\xff%d" % number)
    pipe.execute()

    while queue.dequeue(1_000, now=at(1)).poll_after_ms == 0:
        pass

    assert queue.admin.counts().quarantined == 10_000
    assert queue.admin.counts().ready == 0


def test_enqueue_leaves_nothing_when_ready_has_another_type(queue: Queue, redis: Any, at: Any):
    redis.set(f"{queue.prefix}ready", "somebody's")
    before = set(redis.keys(f"{queue.prefix}*"))

    with pytest.raises(ScriptError, match="WRONGTYPE"):
        queue.enqueue(b"v", mid="m", now=at(1))

    assert set(redis.keys(f"{queue.prefix}*")) == before


def test_key_of_another_type_is_named_and_moved_aside_by_a_repair(
    queue: Queue, redis: Any, at: Any
):
    queue.enqueue(b"v", mid="m", now=at(0))
    redis.delete(f"{queue.prefix}ready")
    redis.set(f"{queue.prefix}ready", "somebody's")
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        queue.dequeue(now=at(1))

    [violation] = queue.admin.fsck()
    assert (violation.rule, violation.mid) == ("key of another type: string", "ready")
    [(_, done)] = repair(queue, [violation])
    aside = done.removeprefix("renamed to ")
    assert redis.get(aside) == b"somebody's"
    assert rules(queue) == {"messages and places differ in number", "message in no place"}
    assert repaired(queue) == set()
    assert [message.mid for message in queue.dequeue(now=at(1)).messages] == ["m"]


def test_message_in_no_place_is_named_and_put_back(queue: Queue, redis: Any, at: Any):
    queue.enqueue_many([("ready", b""), ("held", b"")], now=at(0))
    redis.lrem(f"{queue.prefix}ready", 0, "held")
    redis.lrem(f"{queue.prefix}ready", 0, "ready")

    found = [v for v in queue.admin.fsck() if v.rule == "message in no place"]
    assert sorted(v.mid for v in found) == ["held", "ready"]
    assert repaired(queue) == set()
    assert sorted(m.mid for m in queue.dequeue(2, now=at(1)).messages) == ["held", "ready"]


def test_note_without_copy_is_named_and_taken_away(queue: Queue, redis: Any, at: Any):
    queue.enqueue_many([("m", b""), ("n", b"")], now=at(0))
    redis.sadd(f"{queue.prefix}left-ready", "nowhere")

    assert "left-ready: note without copy" in rules(queue)
    assert repaired(queue) == set()
    queue.enqueue(b"", mid="nowhere", now=at(1))
    assert queue.admin.counts().ready == 3


def test_cancel_leaves_no_note_when_the_copy_is_gone(queue: Queue, redis: Any, at: Any):
    queue.enqueue(b"", mid="m", now=at(0))
    redis.delete(f"{queue.prefix}ready")

    assert queue.cancel("m", now=at(1)) == ["cancelled"]
    assert queue.enqueue(b"fresh", mid="m", now=at(2)).action == "added"

    assert [message.content for message in queue.dequeue(now=at(3)).messages] == [b"fresh"]


def test_lock_that_somebody_took_away_costs_no_message(queue: Queue, redis: Any, at: Any):
    queue.enqueue(b"", mid="m", now=at(0))
    assert queue.dequeue(now=at(0)).messages
    redis.delete(f"{queue.prefix}locks", f"{queue.prefix}tokens")

    queue.admin.collect(now=at(1))

    [message] = queue.dequeue(now=at(2)).messages
    assert (message.mid, message.ncrashes) == ("m", 0)


def test_dead_are_read_and_purged_when_their_records_are_damaged(
    queue: Queue, redis: Any, at: Any, end: Any
):
    queue.enqueue(b"v", mid="m", now=at(0))
    [message] = queue.dequeue(now=at(0)).messages
    end(queue, message, "dead", reason="why", now=at(1))
    redis.zadd(f"{queue.prefix}dead", {"no#record": 1, b"\xff": 2})
    redis.hset(f"{queue.prefix}dead-messages", b"\xff", "rubbish")

    found = {one.dead_id: one for one in queue.admin.dead()}

    assert set(found) == {message.mid + "#" + message.generation, "no#record", "\\xff"}
    assert found["no#record"].attempts == found["\\xff"].attempts == -1
    redis.hset(f"{queue.prefix}dead-messages", "no#head", "rubbish")
    assert queue.admin.revive("no#record", "no#head") == ["nil", "damaged"]
    assert queue.admin.purge("no#record") == 1
    assert "dead: content of another shape" in rules(queue)
    assert repaired(queue) == set()
    assert [one.mid for one in queue.admin.dead()] == ["m"]


def test_broken_setting_costs_nobody_anything(queue: Queue, redis: Any, at: Any):
    for field in ("maxlen", "floor", "fence", "max_lease", "max_content", "deduped"):
        redis.hset(f"{queue.prefix}meta", field, "bogus")
    queue.enqueue(b"v", mid="m", now=at(0))

    [message] = queue.dequeue(now=at(1)).messages
    assert queue.finish([Ending(mid="m", token=message.token)], now=at(2)).replies == ["ok"]
    assert message.fence > 1
    assert repaired(queue) == set()


def test_stream_without_ids_left_costs_the_history_alone(queue: Queue, redis: Any, at: Any):
    full = "18446744073709551615-18446744073709551615"
    redis.xadd(f"{queue.prefix}events", {"1": "x"}, id=full)
    queue.enqueue(b"v", mid="m", now=at(0))

    [message] = queue.dequeue(now=at(1)).messages
    assert queue.finish([Ending(mid="m", token=message.token)], now=at(2)).replies == ["ok"]
    assert rules(queue) == {"events: their ids are used up"}
    assert repaired(queue) == set()


def test_directories_are_read_when_they_hold_what_is_no_name(queue: Queue, redis: Any, client: Any):
    queue.enqueue(b"v")
    redis.sadd("jobq:queues", b"\xff", "{x}", "")
    redis.hset("jobq:workers", mapping={b"\xff": "{}", "w": "rubbish", "v": "[1]"})

    assert queue_names(client) == ["low"]
    assert strange_queue_names(client) == [b"", b"{x}", b"\xff"]
    assert [(one.name, one.damaged) for one in workers(client)] == [
        ("\\xff", True), ("v", True), ("w", True),
    ]  # fmt: skip


def test_names_in_use_are_kept_when_the_list_of_queues_is_too_long(
    queue: Queue, redis: Any, client: Any, monkeypatch: Any
):
    monkeypatch.setattr(directory, "MAX_QUEUES", 3)
    for name in ("z-waits", "z-ran"):
        Queue(name, client).enqueue(b"v")
    [message] = Queue("z-ran", client).dequeue().messages
    Queue("z-ran", client).finish([Ending(mid=message.mid, token=message.token)])
    put_worker(client, "w", {"queues": ["z-served"]})
    redis.sadd("jobq:queues", "z-served", b"\xff", *(f"a{number}" for number in range(9)))

    listed = directory.listed_queues(client)
    assert listed.names == ["z-ran", "z-served", "z-waits"]
    assert (listed.strange, listed.left_out) == ([b"\xff"], 9)
    redis.srem("jobq:queues", *(f"a{number}" for number in range(9)))
    assert directory.listed_queues(client) == (["z-ran", "z-served", "z-waits"], [b"\xff"], 0)


def test_names_count_as_in_use_when_their_keys_may_not_be_looked_for(
    queue: Queue, redis: Any, client: Any, monkeypatch: Any
):
    monkeypatch.setattr(directory, "MAX_QUEUES", 3)
    redis.sadd("jobq:queues", *(f"a{number}" for number in range(9)))
    redis.execute_command("ACL", "SETUSER", "default", "-exists")
    try:
        assert directory.listed_queues(client) == (["a0", "a1", "a2"], [], 6)
    finally:
        redis.execute_command("ACL", "SETUSER", "default", "+exists")


def test_check_sees_thousands_of_lost_messages_without_asking_about_each(
    queue: Queue, redis: Any, at: Any, commands: Any
):
    queue.enqueue_many([(f"m{i}", b"") for i in range(3_000)], now=at(0))
    redis.delete(f"{queue.prefix}ready")
    found: list[Any] = []

    assert commands(lambda: found.extend(fsck(queue))) < 40_000
    assert [v.rule for v in found].count("message in no place") == 3_000
    assert repaired(queue) == set()
    assert queue.admin.counts().ready == 3_000


@pytest.mark.parametrize("cancelled", [1_000, 20_000])
def test_dequeues_do_not_grow_with_what_was_cancelled_at_the_head(
    queue: Queue, at: Any, cancelled: int
):
    queue.enqueue_many([(f"m{i}", b"") for i in range(cancelled + 1)], now=at(0))
    queue.cancel(*(f"m{i}" for i in range(cancelled)), now=at(1))

    calls = 1
    while not (messages := queue.dequeue(1, now=at(2)).messages):
        calls += 1

    assert [message.mid for message in messages] == [f"m{cancelled}"]
    assert calls <= cancelled / 1_000 + 1


def test_moment_before_1970_is_over_and_lengths_are_whole_numbers(queue: Queue, at: Any):
    queue.enqueue(b"v", mid="m", now=at(0))
    [message] = queue.dequeue(now=at(0)).messages
    assert (
        queue.enqueue(b"w", mid="m", on_conflict="requeue", at=-5_000, now=at(1)).action
        == "requeued"
    )
    queue.finish([Ending(mid="m", token=message.token)], now=at(2))
    assert [one.content for one in queue.dequeue(now=at(3)).messages] == [b"w"]
    for bad in (
        {"lease": 0.0001},
        {"lease": "soon"},
        {"lease": []},
        {"at": float("nan")},
        {"at": 1e12},
    ):
        with pytest.raises(ConfigError):
            queue.enqueue(b"v", **bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.dequeue(lease=0.0001)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["@", "@@5", "@-1", "@1e3", "@ 5", "@nan", "@3153600000001"])
def test_dedupe_from_now_on_is_refused_in_words_when_it_is_no_number(queue: Queue, given: str):
    with pytest.raises(ScriptError, match="dedupe_ms must be a whole number from 0"):
        queue.scripts["enqueue"].call(
            Caller(), enqueue_values() | {"dedupe_ms": given}, ["m", b"v"]
        )
    assert queue.admin.counts().messages == 0


def test_cancelled_mid_does_not_start_again_before_its_lock_is_over(queue: Queue, at: Any):
    queue.enqueue(b"old", mid="m", now=at(0))
    assert queue.dequeue(lease=1, now=at(0)).messages
    queue.cancel("m", now=at(10))

    assert queue.enqueue(b"new", mid="m", on_conflict="requeue", now=at(20)).action == "requeued"
    for moment in (30, 999):
        assert queue.dequeue(now=at(moment)).messages == []
    assert [message.content for message in queue.dequeue(now=at(1_000)).messages] == [b"new"]


@pytest.mark.parametrize("times", [3])
def test_update_under_an_expired_lock_counts_as_the_crash_that_it_was(
    queue: Queue, at: Any, times: int
):
    queue.enqueue(b"poison", mid="m", now=at(0))
    for number in range(times):
        [message] = queue.dequeue(lease=1, now=at(2_000 * number)).messages
        assert message.ncrashes == number
    queue.enqueue(b"cure", mid="m", on_conflict="replace", now=at(2_000 * times))

    [message] = queue.dequeue(now=at(2_000 * times)).messages

    assert (message.content, message.attempt, message.ncrashes) == (b"cure", 1, 0)
    [dead] = queue.admin.dead()
    assert (dead.content, dead.ncrashes, dead.reason) == (b"poison", times, "lock expired")


def test_pages_end_at_a_quarter_of_a_mebibyte(queue: Queue, at: Any, end: Any):
    queue.enqueue_many([(f"m{i}", bytes(100_000)) for i in range(10)], now=at(0))
    page = queue.admin.content("ready", 0, 1_000, now=at(1))
    assert len(page.entries) == 3
    assert [entry.mid for entry in queue.admin.iter_entries("ready")] == [
        f"m{i}" for i in range(10)
    ]
    for message in queue.dequeue(10, now=at(1)).messages:
        end(queue, message, "dead", now=at(2))
    assert len(queue.admin.dead(0, 1_000)) == 3
    assert len(list(queue.admin.iter_dead())) == 10


@pytest.mark.parametrize("place", ["ready", "circle", "due", "dead"])
def test_pages_end_soon_when_a_stranger_wrote_long_mids(
    queue: Queue, redis: Any, at: Any, place: Any
):
    long = {b"%03d" % number + bytes(50_000): number for number in range(120)}
    key = keys.key(queue.prefix, place)
    redis.zadd(key, long) if place in ("due", "dead") else redis.rpush(key, *long)

    found: list[Any] = []
    while page := (
        queue.admin.dead(len(found), 1_000)
        if place == "dead"
        else queue.admin.content(place, len(found), 1_000, now=at(1)).entries
    ):
        assert len(page) <= 6
        found += page
    names = [(one.dead_id if place == "dead" else one.mid)[:3] for one in found]
    assert sorted(names) == [f"{number:03}" for number in range(120)]


@pytest.mark.parametrize("count", [0, 1, 24, 25, 26, 50, 260])
def test_pages_have_every_message_once_whatever_their_number(
    queue: Queue, at: Any, end: Any, count: int
):
    mids = [f"m{number}" for number in range(count)]
    for first in range(0, count, 250):
        queue.enqueue_many([(mid, b"") for mid in mids[first : first + 250]], now=at(0))
    assert [
        entry.mid for entry in queue.admin.content("ready", 0, 1_000, now=at(1)).entries
    ] == mids
    for limit in (1, 24, 25, 26):
        assert len(queue.admin.content("ready", 0, limit, now=at(1)).entries) == min(limit, count)
    assert [entry.mid for entry in queue.admin.iter_entries("ready")] == mids
    assert queue.admin.content("ready", count, 100, now=at(1)).next_offset is None
    for message in queue.dequeue(260, now=at(1)).messages:
        end(queue, message, "dead", now=at(2))
    assert sorted(one.mid for one in queue.admin.iter_dead()) == sorted(mids)
    assert len(queue.admin.dead(0, 26)) == min(26, count)


def test_job_that_is_unknown_here_costs_no_attempt(queue: Queue, at: Any, end: Any):
    queue.enqueue(b"v", mid="m", now=at(0))
    for number in range(4):
        [message] = queue.dequeue(now=at(1_000 * number)).messages
        assert (message.attempt, message.unknowns) == (1, number)
        end(queue, message, "unknown", backoff=0.01, now=at(1_000 * number + 1))
    assert queue.status("m", now=at(5_000)).unknowns == 4

    [message] = queue.dequeue(now=at(5_000)).messages
    end(queue, message, "retry", now=at(5_001))
    [message] = queue.dequeue(now=at(5_002)).messages
    assert (message.attempt, message.unknowns) == (2, 0)


@pytest.mark.parametrize("what", ["options", "due", "paused"])
def test_queue_that_counts_as_plain_and_is_not_is_reported_and_repaired(
    queue: Queue, redis: Any, at: Any, what: str
):
    queue.dequeue(now=at(0))
    plain_until = redis.hget(f"{queue.prefix}meta", "plain_until")
    assert plain_until is not None
    match what:
        case "options":
            queue.enqueue(b"v", lease=60, now=at(0))
        case "due":
            queue.enqueue(b"v", delay=1, now=at(0))
        case _:
            queue.admin.pause()
    assert redis.hget(f"{queue.prefix}meta", "plain_until") != plain_until
    redis.hset(f"{queue.prefix}meta", "plain_until", plain_until)

    assert rules(queue) == {"meta: plain_until is of a queue that is not plain"}
    assert repaired(queue) == set()
    assert not redis.hexists(f"{queue.prefix}meta", "plain_until")
