"""The script behind schedules: a tick is enqueued once, whoever asks, and however clocks behave."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobq.errors import ScriptError
from jobq.events import decode
from jobq.queue.admin import tick_values
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Ticked, TickState

MINUTE = 60_000


@pytest.fixture
def begun(queue: Queue, at: Any) -> Queue:
    """A queue with a schedule, which starts at 0."""
    queue.admin.schedule("add", "s", "{}", now=at(0))
    return queue


def tick(queue: Queue, at: Any, minute: int, after: int, **more: Any) -> Ticked:
    """Ask for the tick of a minute, when that is over unless more says when."""
    more.setdefault("now", at(minute * MINUTE))
    return queue.admin.tick(
        tick_values("s", at(minute * MINUTE), at(after * MINUTE), f"s@{minute}", b"call", **more)
    )


def log(queue: Queue) -> list[tuple[int, str, int]]:
    return [(one.late_ms, one.outcome, one.missed) for one in queue.admin.schedules(100).log]


def test_tick_is_enqueued_once_when_many_ask(begun: Queue, at: Any):
    assert tick(begun, at, 1, 0) == ("enqueued", "s@1")
    for _ in range(3):
        assert tick(begun, at, 1, 0) == ("exists", str(at(MINUTE)))
    # Even after the message is done and collected, when its mid is free again.
    [message] = begun.dequeue(1, now=at(MINUTE)).messages
    begun.finish([Ending(mid=message.mid, token=message.token)], now=at(MINUTE))
    begun.admin.collect(now=at(MINUTE))
    assert tick(begun, at, 1, 0).outcome == "exists"
    assert message.content == b"call"


def test_tick_before_the_last_one_is_refused(begun: Queue, at: Any):
    tick(begun, at, 3, 0, missed=2)

    assert tick(begun, at, 2, 3, now=at(4 * MINUTE)).outcome == "exists"
    assert log(begun) == [(0, "enqueued", 2)]


def test_caller_whose_clock_is_ahead_is_told_the_time(begun: Queue, at: Any):
    now = at(MINUTE) - 1

    assert tick(begun, at, 1, 0, now=now) == ("early", str(now))
    assert tick(begun, at, 1, 0, due_ms=at(MINUTE) + 5).outcome == "early"
    assert tick(begun, at, 1, 0, due_ms=at(MINUTE) + 5, now=at(MINUTE) + 7).outcome == "enqueued"
    assert log(begun) == [(2, "enqueued", 0)]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_name_that_no_schedule_can_have_is_refused(begun: Queue, at: Any, facts: Any, name: str):
    before = facts()
    with pytest.raises(ScriptError, match="name"):
        begun.admin.tick(tick_values(name, at(MINUTE), 0, "m", b"call", now=at(MINUTE)))
    assert facts() == before


def test_unknown_schedule_starts_now(queue: Queue, at: Any):
    assert tick(queue, at, 5, 0, now=at(9 * MINUTE)) == ("new", str(at(9 * MINUTE)))
    assert tick(queue, at, 9, 9).outcome == "exists"
    assert tick(queue, at, 10, 9).outcome == "enqueued"


def test_ticks_go_on_when_the_clock_has_stepped_back(begun: Queue, at: Any):
    year = 365 * 24 * 60
    tick(begun, at, year, 0)

    # A minute is waited for, more isn't.
    assert tick(begun, at, year - 1, year, now=at((year - 1) * MINUTE)).outcome == "exists"
    assert tick(begun, at, 7, year) == ("clock", str(at(7 * MINUTE)))
    assert tick(begun, at, 7, 7).outcome == "exists"
    assert tick(begun, at, 8, 7, overlap="allow").outcome == "enqueued"
    assert [outcome for _, outcome, _ in log(begun)] == ["enqueued", "clock", "enqueued"]


@pytest.mark.parametrize(
    ("overlap", "state", "outcome", "mid"),
    [
        ("skip", "ready", "skipped", "s@1"),
        ("skip", "running", "skipped", "s@1"),
        ("skip", "done", "enqueued", "s@2"),
        ("skip", "dead", "enqueued", "s@2"),
        ("queue", "ready", "waits", "s@1"),
        ("queue", "running", "waits", "s@1"),
        ("queue", "done", "enqueued", "s@2"),
        ("cancel", "ready", "replaced", "s@2"),
        ("cancel", "running", "replaced", "s@1"),
        ("cancel", "done", "enqueued", "s@2"),
        ("allow", "ready", "enqueued", "s@2"),
        ("allow", "running", "enqueued", "s@2"),
    ],
)
def test_overlap_is_judged_by_the_run_before(
    begun: Queue, at: Any, end: Any, overlap: str, state: str, outcome: str, mid: str
):
    tick(begun, at, 1, 0)
    if state != "ready":
        [message] = begun.dequeue(1, lease=3_600, now=at(MINUTE)).messages
        if state != "running":
            end(begun, message, state, now=at(MINUTE))

    assert tick(begun, at, 2, 1, overlap=overlap) == (outcome, mid)

    # An accepted tick runs, once: after the run before, unless that is allowed to go on.
    handed = begun.dequeue(5, now=at(2 * MINUTE)).messages
    live_beside = state == "running" and overlap in ("skip", "queue", "cancel")
    expected = {"allow": 2 if state == "ready" else 1}.get(overlap, 0 if live_beside else 1)
    assert len(handed) == expected
    if live_beside and overlap != "skip":
        if overlap == "queue":
            end(begun, message, now=at(3 * MINUTE))
        [later] = begun.dequeue(5, now=at(63 * MINUTE)).messages
        assert (later.mid, later.attempt) == ("s@1", 1)
        assert begun.extend([(message.mid, message.token)], now=at(63 * MINUTE)) == [False]


def test_missed_tick_is_logged_and_runs_nothing(begun: Queue, at: Any):
    assert tick(begun, at, 30, 0, overlap="miss", missed=29, now=at(60 * MINUTE)) == ("missed", "")
    assert begun.admin.counts().messages == 0
    assert log(begun) == [(30 * MINUTE, "missed", 29)]


def test_run_now_leaves_the_ticks_alone(begun: Queue, at: Any):
    tick(begun, at, 1, 0)

    assert tick(begun, at, 5, 0, overlap="run").outcome == "enqueued"
    assert begun.admin.schedules().ticks["s"] == TickState(at(MINUTE), False, "s@5")


def test_paused_schedule_has_no_ticks_and_makes_up_for_none(begun: Queue, at: Any):
    assert begun.admin.schedule("pause", "s", now=at(0)) == ("paused", "")
    assert begun.admin.schedule("pause", "s", now=at(0)) == ("same", "")
    assert tick(begun, at, 1, 0).outcome == "paused"
    assert begun.admin.schedule("resume", "s", now=at(5 * MINUTE)) == ("resumed", "")
    assert begun.admin.schedules().ticks["s"].last_ms == at(5 * MINUTE)
    assert tick(begun, at, 6, 5).outcome == "enqueued"
    assert begun.admin.schedule("pause", "other") == ("unknown", "")


def test_name_that_code_declares_can_not_be_added(begun: Queue, at: Any):
    admin = begun.admin
    assert admin.schedule("declare", "code", '{"in": "app.jobs"}', now=at(0))[0] == "declared"
    assert admin.schedule("declare", "code", '{"in": "app.jobs"}', now=at(0))[0] == "same"
    assert admin.schedule("add", "code", "{}", now=at(0)) == ("taken", '{"in": "app.jobs"}')
    assert admin.schedule("remove", "s") == ("removed", "")
    assert list(admin.schedules().definitions) == ["code"]


def test_content_that_is_too_long_is_refused(begun: Queue, at: Any):
    with pytest.raises(ScriptError, match="1 MiB at most"):
        begun.admin.tick(tick_values("s", at(1), at(0), "m", bytes(1_048_577), now=at(2)))


def test_log_keeps_a_thousand_ticks(begun: Queue, at: Any, redis: Any):
    for minute in range(1, 1_006):
        tick(begun, at, minute, minute - 1, overlap="miss")
    redis.lpush(f"{begun.prefix}tick-log", b"\xff")

    assert redis.llen(f"{begun.prefix}tick-log") == 1_001
    assert len(begun.admin.schedules(1_000).log) == 999


def test_ticks_of_a_key_wait_in_its_line_unless_that_is_full(begun: Queue, at: Any):
    begun.rules(key_max=1, key_waiting=2)
    for minute in range(1, 5):
        outcome, mid = tick(
            begun, at, minute, minute - 1, key="acme", overlap="allow", ordered=True
        )
        assert (outcome, mid) == (("full", "") if minute > 2 else ("enqueued", f"s@{minute}"))
    [row] = begun.admin.iter_keys()
    [message] = begun.dequeue(5, now=at(5 * MINUTE)).messages
    waits = begun.why("s@2", now=at(5 * MINUTE))

    assert (row.key, row.waiting) == ("acme", 2)
    assert (message.mid, waits.key, waits.ordered, waits.running) == ("s@1", "acme", True, 1)
    assert [outcome for _, outcome, _ in log(begun)] == ["full", "full", "enqueued", "enqueued"]
    assert begun.admin.schedules().ticks["s"] == TickState(at(4 * MINUTE), False, "s@2")


def test_events_tell_of_ticks(begun: Queue, at: Any, redis: Any):
    begun.admin.events_level("all")
    tick(begun, at, 2, 0, missed=1, now=at(2 * MINUTE) + 40)
    entries = redis.xrange(f"{begun.prefix}events")
    found = [decode(value, name) for _, fields in entries for name, value in fields.items()]

    assert [event.kind for event in found] == ["enqueued", "tick"]
    told = found[1]
    assert (told.mid, told.job, told.error, told.attempt) == ("", "s", "enqueued", 1)
    assert told.fingerprint == "s@2"
    assert told.finished_at - told.enqueued_at == 40


def _definition(**changes: Any) -> str:
    return json.dumps({"name": "s", "job": "work", "cron": "0 0 1 * *", **changes})


@pytest.mark.parametrize(("verb", "margin_ms"), [("add", 0), ("declare", 2_000)])
@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"cron": "0 0 15 * *"}, True),
        ({"tz": "Europe/Berlin"}, True),
        ({"cron": "", "every_ms": 60_000}, True),
        ({"start_ms": 60_000}, True),
        ({"end_ms": 9 * 10**12}, True),
        ({"start_ms": 1, "times": 3}, True),
        ({"args": [1]}, False),
        ({"missed": "all", "overlap": "allow"}, False),
        ({"job": "other", "spread_ms": 5}, False),
    ],
)
def test_definition_with_other_times_begins_now_and_no_other_change_does(
    queue: Queue, at: Any, verb: str, margin_ms: int, changes: dict[str, Any], begins: bool
):
    queue.admin.schedule(verb, "s", _definition(), now=at(0))
    tick(queue, at, 1, 0)

    word, last = queue.admin.schedule(verb, "s", _definition(**changes), now=at(9 * MINUTE))

    begun = at(9 * MINUTE) - margin_ms if begins else at(MINUTE)
    assert (word, int(last)) == ({"add": "added", "declare": "declared"}[verb], begun)
    assert queue.admin.schedules(0).ticks["s"] == TickState(begun, False, "s@1")
    assert queue.admin.schedule(verb, "s", _definition(**changes), now=at(10 * MINUTE))[0] == "same"


@pytest.mark.parametrize("stored", ["{", "[" * 60_000, "7", '{"cron": 7}', '{"cron": {}}'])
def test_definition_that_cannot_be_read_gives_way_to_one_that_begins_now(
    queue: Queue, at: Any, stored: str
):
    queue.admin.schedule("add", "s", stored, now=at(0))

    queue.admin.schedule("declare", "s", _definition(), now=at(MINUTE))

    assert queue.admin.schedules(0).ticks["s"].last_ms == at(MINUTE) - 2_000


def test_new_times_of_a_paused_schedule_leave_it_paused_and_never_move_ticks_back(
    queue: Queue, at: Any
):
    queue.admin.schedule("add", "s", _definition(), now=at(0))
    queue.admin.schedule("pause", "s", now=at(5 * MINUTE))

    queue.admin.schedule("add", "s", _definition(cron="* * * * *"), now=at(5 * MINUTE - 1))

    assert queue.admin.schedules(0).ticks["s"] == TickState(at(5 * MINUTE), True, "")
