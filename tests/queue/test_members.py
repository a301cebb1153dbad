"""Messages of flows: whatever ends one is written to the queue's outbox by the script that ends it, once."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from jobq.errors import ConfigError, ScriptError
from jobq.queue import keys
from jobq.queue.admin import tick_values
from jobq.queue.fsck import repair
from jobq.queue.members import MAX_ENTRIES, OutboxRecord
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Enqueued

ROOT = [(f"~import:7.r1.rows.{i}", b"v") for i in range(8)]
MIDS = [mid for mid, _ in ROOT]


def records(queue: Queue) -> list[tuple[str, str]]:
    """Return the contents of the outbox: kinds and subjects."""
    return [
        (record.kind, record.subject) for entry in queue.flow_outbox() for record in entry.records
    ]


def counted(queue: Queue, redis: Any) -> int:
    return int(redis.hget(f"{queue.prefix}meta", "members") or -1)


def ends(queue: Queue, redis: Any, *kinds: str) -> None:
    """The outbox has these endings, meta counts the others, and the queue is sound."""
    assert Counter(kind for kind, _ in records(queue)) == Counter(kinds)
    assert queue.admin.fsck() == []


def test_an_ending_is_in_the_outbox_when_a_finish_returns_whatever_its_outcome(
    queue: Queue, redis: Any, at: Any
):
    queue.enqueue_members(ROOT, now=at(0))
    held = queue.dequeue(8, now=at(1)).messages
    outcomes = ("done", "done", "dead", "expired", "crashed", "retry", "snooze", "release")
    endings = [
        Ending(mid=one.mid, token=one.token, outcome=outcome, reason="why")
        for one, outcome in zip(held, outcomes, strict=True)
    ]
    endings[1] = Ending(mid=held[1].mid, token=held[1].token, result=b"r", result_ttl=60)
    queue.finish(endings, crash_limit=1, now=at(2))

    [entry] = queue.flow_outbox()
    assert entry.records == [
        OutboxRecord("dead", MIDS[2]), OutboxRecord("cancelled", MIDS[3]), OutboxRecord("dead", MIDS[4]),
        OutboxRecord("done", MIDS[0]), OutboxRecord("done+", MIDS[1]),
    ]  # fmt: skip
    assert counted(queue, redis) == 3
    assert queue.admin.fsck() == []
    again = queue.finish(endings, crash_limit=1, now=at(3)).replies
    assert set(again) == {"stale"}
    assert len(queue.flow_outbox()) == 1


def test_an_ending_is_in_the_outbox_when_nobody_finishes_it(queue: Queue, redis: Any, at: Any):
    queue.enqueue_members(ROOT, now=at(0))
    queue.dequeue(2, lease=1, now=at(1))
    queue.dequeue(1, lease=1, crash_limit=1, now=at(2_000))
    assert Counter(records(queue)) == {("dead", MIDS[0]): 1, ("dead", MIDS[1]): 1}
    queue.admin.collect(crash_limit=1, now=at(20_000))
    queue.cancel(MIDS[3], "none", now=at(20_001))
    [held] = queue.dequeue(now=at(20_002)).messages
    queue.cancel(held.mid, now=at(20_003))
    queue.admin.bin("op").take_out((MIDS[5], ""), (MIDS[6], ""), now=at(20_004))
    ends(queue, redis, *["dead"] * 3, *["cancelled"] * 4)
    assert counted(queue, redis) == 1

    queue.admin.bin("op").put_back("waiting", MIDS[5], now=at(20_005))
    assert counted(queue, redis) == 2
    assert queue.admin.fsck() == []


def test_a_dead_member_is_refused_until_a_person_revives_it(
    queue: Queue, redis: Any, at: Any, end: Any
):
    queue.enqueue_members(ROOT[:2], until=3_600, now=at(0))
    first, second = queue.dequeue(2, now=at(1)).messages
    end(queue, first, "dead", reason="why", now=at(2))
    end(queue, second, now=at(2))
    assert list(queue.enqueue_members(ROOT[:4], now=at(3))) == [
        Enqueued(MIDS[0], "exists", "dead"), Enqueued(MIDS[1], "exists", "done-with-backoff"),
        Enqueued(MIDS[2], "added"), Enqueued(MIDS[3], "added"),
    ]  # fmt: skip
    [dead] = queue.admin.dead()
    assert list(queue.enqueue_members(ROOT[:1], key="k", now=at(3))) == [
        Enqueued(MIDS[0], "exists", "dead")
    ]
    bin_ = queue.admin.bin("op")
    bin_.revive((dead.dead_id, None), now=at(4))
    assert counted(queue, redis) == 3
    assert queue.enqueue_members(ROOT[:1], now=at(5))[0].existing_status == "queued"
    bin_.put_back("revived", dead.dead_id, now=at(6))
    assert records(queue)[-1] == ("dead", MIDS[0])
    assert counted(queue, redis) == 2
    assert queue.admin.fsck() == []


def test_member_of_a_map_is_refused_when_it_was_accepted_for_the_same_flow(
    queue: Queue, redis: Any, at: Any, end: Any
):
    def words(rows: Any, now: int) -> list[str]:
        found = queue.enqueue_members(rows, in_order=True, now=at(now))
        return [one.existing_status or one.action for one in found]

    assert words(ROOT[:2], 0) == ["added"] * 2
    for held in queue.dequeue(2, now=at(1)).messages:
        end(queue, held, now=at(1))
    queue.admin.collect(now=at(2))
    assert queue.status(MIDS[0], now=at(2)).word == "nil"
    assert words(ROOT[1:4], 3) == ["accepted", "added", "added"]
    [key] = redis.keys("*accepted:*")
    assert key.decode() == f"{queue.prefix}accepted:import:7.r1.rows"
    again = [(mid.replace(".r1.", ".r2."), content) for mid, content in ROOT[:2]]
    assert words(again, 4) == ["added"] * 2  # of a later run of the flow
    assert 3_500_000 < redis.pttl(key) <= 3_600_000
    assert counted(queue, redis) == 4


def test_members_of_a_map_are_enqueued_again_when_their_caller_does_not_ask_what_was_accepted(
    queue: Queue, redis: Any, at: Any, end: Any
):
    """A drainer does so for members without a trace."""
    queue.enqueue_members(ROOT[:2], in_order=True, now=at(0))
    for held in queue.dequeue(2, now=at(1)).messages:
        end(queue, held, now=at(1))
    queue.admin.collect(now=at(2))
    assert [one.action for one in queue.enqueue_members(ROOT[:1], now=at(3))] == ["added"]
    found = queue.enqueue_members(ROOT[:3], in_order=True, now=at(4))
    assert [one.existing_status or one.action for one in found] == ["accepted"] * 2 + ["added"]
    assert queue.admin.fsck() == []


@pytest.mark.parametrize("mid", ["~import:7.r1.rows", "~import:7.r1.rows.", "~import:7.r1.rows.x"])
def test_members_of_a_map_are_refused_when_one_has_no_number(queue: Queue, redis: Any, mid: str):
    with pytest.raises(ScriptError, match="number behind a dot"):
        queue.enqueue_members([(mid, b"v"), (MIDS[0], b"v")], in_order=True)
    assert not redis.exists(f"{queue.prefix}messages")


def test_members_are_refused_from_anybody_but_flows(queue: Queue, at: Any):
    for refused in ({}, {"until": "done"}, {"until": "start", "on_conflict": "replace"}):
        with pytest.raises(ConfigError, match="are reserved for steps of flows"):
            queue.enqueue(b"v", mid="~x", **refused)
    with pytest.raises(ConfigError, match="are reserved for steps of flows"):
        queue.enqueue_many([("a", b"v"), ("~x", b"v")])
    with pytest.raises(ConfigError, match="begins with '~'"):
        queue.enqueue_members([("x", b"v")])
    with pytest.raises(ConfigError, match="can't have"):
        queue.enqueue_members(ROOT, on_conflict="replace")
    script = queue.scripts["enqueue"]
    plain = ["", "", "", 0, 0, "", "", "", "", "", ""]
    for number, rest in enumerate((["~x", b"v"], ["a ~b", b"v", "~x", b"v"]), 1):
        command = [*script.keys, f"{queue.prefix}call:me", "me", number, *plain, *rest]
        with pytest.raises(Exception, match="without ~ in front"):
            queue.client.command("EVAL", script.script.source, len(script.keys) + 1, *command)
    with pytest.raises(ScriptError, match="without ~ in front"):
        queue.admin.tick(tick_values("s", 1, 0, "~x", b"v", overlap="run", now=at(1)))
    assert queue.enqueue(b"v", mid="a ~b").action == "added"


def test_a_queue_with_members_is_not_cleared(queue: Queue, redis: Any, at: Any):
    queue.enqueue_members(ROOT, until=60, now=at(0))
    [held] = queue.dequeue(now=at(1)).messages
    with pytest.raises(
        ConfigError, match=r"8 unfinished messages of queue low; cancel these flows first"
    ):
        queue.admin.clear(now=at(2))
    queue.finish([Ending(mid=held.mid, token=held.token)], now=at(2))
    queue.cancel(*MIDS[1:], now=at(3))
    # What is done and only keeps its mid taken is no reason to wait.
    assert queue.admin.clear(now=at(4)) == 1
    assert len(records(queue)) == 8


def test_announcements_are_read_by_one_drainer_until_it_drops_them(queue: Queue, redis: Any):
    queue.announce("begin", "import:7")
    queue.announce("signal", "import:7", 'approved\x1f{"by": "ann"}')
    entries = queue.flow_outbox(drainer="A")
    assert [entry.records for entry in entries] == [
        [OutboxRecord("begin", "import:7")],
        [OutboxRecord("signal", "import:7", b'approved\x1f{"by": "ann"}')],
    ]
    assert queue.flow_outbox(drainer="B") == []
    assert queue.flow_outbox(drainer="A") == queue.flow_outbox() == entries
    assert queue.admin.flow_backlog() == (2, entries[0].since_ms)
    assert queue.flow_outbox_drop([entries[1].entry_id], "A") == 1
    assert queue.flow_outbox(drainer="B") == entries[:1]
    assert queue.flow_outbox(drainer="A") == []
    assert queue.flow_outbox_drop([entries[0].entry_id], "A") == 0
    queue.announce("look", "import:7")
    [look] = queue.flow_outbox(drainer="B")
    assert queue.flow_outbox_drop([look.entry_id]) == 0
    assert queue.flow_outbox(drainer="B") == []
    assert not redis.exists(f"{queue.prefix}flow-claim")


def test_an_announcement_wakes_a_child_whose_dequeue_says_that_entries_wait(
    queue: Queue, redis: Any
):
    assert not queue.dequeue().outbox
    assert queue.dequeue().poll_after_ms
    redis.delete(queue.wake_key)
    queue.announce("begin", "import:7")
    assert redis.llen(queue.wake_key) == 1
    for _ in range(3):
        assert queue.dequeue().outbox
    assert queue.admin.upkeep().outbox == 1
    [entry] = queue.flow_outbox()
    queue.flow_outbox_drop([entry.entry_id])
    assert not queue.dequeue().outbox
    assert queue.admin.upkeep().outbox == 0


def test_what_others_wrote_into_the_outbox_is_read_as_text_or_not_at_all(queue: Queue, redis: Any):
    outbox = keys.key(queue.prefix, "flow_outbox")
    redis.xadd(outbox, {"1": b"\xff\x1f\xfe\x1fa\x1fb\x1e\x1e"})
    redis.xadd(outbox, {"2": b"done\x1f~x"})
    redis.xadd(outbox, {"1": b"done\x1f~x", "2": b""})
    redis.xadd(outbox, {"1": b"x" * 3_000_000})
    [first, *others] = queue.flow_outbox()
    assert first.records == [
        OutboxRecord("\\xff", "\\xfe", b"a\x1fb"), OutboxRecord("", ""), OutboxRecord("", ""),
    ]  # fmt: skip
    assert [entry.records for entry in others] == [[], [], []]


def test_no_message_is_handed_out_while_too_much_waits_for_flows(queue: Queue, redis: Any):
    """Act as if three entries were too many."""

    def run(name: str, *args: Any) -> Any:
        script = queue.scripts[name]
        text = re.sub(rf"\b{MAX_ENTRIES}\b", "3", script.script.text)
        assert text != script.script.text
        names = [*script.keys, f"{queue.prefix}call:me"][: len(script.script.keys)]
        return redis.eval(text, len(names), *names, *args)

    queue.enqueue_members(ROOT)
    ids = [queue.announce("look", "f") for _ in range(4)]
    word, poll_after_ms, flags, *_ = run("dequeue", "me", 1, "", 1_000, 3, 5)
    assert (word, flags) == (b"handed", 3)
    assert poll_after_ms > 0
    redis.delete(queue.wake_key)
    assert run("flow_drop", "", ids[0]) == [1, 3]
    assert redis.llen(queue.wake_key) == 1
    assert len(run("dequeue", "me", 2, "", 1_000, 3, 8)) == 4 + 7 * 8


def test_fsck_counts_members_and_repair_puts_the_count_right(queue: Queue, redis: Any, at: Any):
    queue.enqueue_members(ROOT[:5], now=at(0))
    queue.enqueue_members(ROOT[5:7], delay=60, now=at(0))
    queue.enqueue_members(ROOT[7:], key="k", now=at(0))
    queue.dequeue(2, now=at(1))
    queue.cancel(MIDS[4], now=at(1))
    for wrong in ("3", "x"):
        redis.hset(f"{queue.prefix}meta", "members", wrong)
        found = queue.admin.fsck()
        assert any("members" in violation.rule for violation in found)
        list(repair(queue, found))
        assert counted(queue, redis) == 7
        assert queue.admin.fsck() == []
    # A content that is lost is the end of its message.
    before = len(records(queue))
    redis.hdel(f"{queue.prefix}messages", MIDS[2])
    list(repair(queue, queue.admin.fsck()))
    assert records(queue)[before:] == [("cancelled", MIDS[2])]
    assert counted(queue, redis) == 6
    assert queue.admin.fsck() == []


def test_a_queue_without_members_has_no_trace_of_them(queue: Queue, redis: Any, end: Any):
    queue.enqueue_many([b"v"] * 5)
    for message in queue.dequeue(5).messages:
        end(queue, message)
    queue.admin.collect()
    assert redis.hget(f"{queue.prefix}meta", "members") is None
    assert not redis.exists(keys.key(queue.prefix, "flow_outbox"))
