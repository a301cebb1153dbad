"""The event stream: events written by each verb, at each level."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.events import KINDS, LEVELS, attempt_record, decode
from jobq.jobs.codec import encode
from jobq.queue.types import Ending, Lease

RECORD = attempt_record("mail.send", 1, 1_699_999_999_000, 250_000, 9_000, 4_096, "w1", "Boom", "f")


@pytest.fixture
def stream(queue, redis):
    """The events so far."""
    return lambda: [decode(fields[b"1"]) for _, fields in redis.xrange(f"{queue.prefix}events")]


def kinds(events):
    return [(event.kind, event.mid) for event in events]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("done", "done"),
        ("retry", "retry"),
        ("dead", "dead"),
        ("crashed", "crashed"),
        ("snooze", "snoozed"),
    ],
)
def test_finished_attempt_is_one_event_with_the_columns_of_its_child(
    queue, at, stream, outcome, kind
):
    queue.enqueue(b"v", mid="m", now=at(0))
    [held] = queue.dequeue(now=at(0)).messages
    queue.finish(
        [Ending(mid="m", token=held.token, outcome=outcome, age_ms=40, record=RECORD)],
        now=at(1_000),
    )

    [event] = stream()

    assert (event.kind, event.mid, event.finished_at) == (kind, "m", at(960))
    assert (event.job, event.attempt, event.worker) == ("mail.send", 1, "w1")
    assert (event.run_us, event.cpu_us, event.rss_kib) == (250_000, 9_000, 4_096)
    assert (event.error, event.fingerprint) == ("Boom", "f")
    assert event.started_at == at(710)
    assert event.wait_ms == 1_710


def test_crash_too_many_is_a_death(queue, at, stream):
    queue.enqueue(b"v", mid="m", now=at(0))
    for i in range(2):
        [held] = queue.dequeue(now=at(i)).messages
        crash = Ending(mid="m", token=held.token, outcome="crashed", reason="signal 9")
        queue.finish([crash], crash_limit=2, now=at(i))
    assert kinds(stream()) == [("crashed", "m"), ("dead", "m")]


def test_recovery_and_death_by_expiry_name_attempt_and_reason(queue, at, stream):
    queue.enqueue(b"v", mid="m", now=at(0))
    for i in range(2):
        assert queue.dequeue(lease=1, now=at(1_000 * i)).messages
        queue.admin.collect(crash_limit=2, now=at(1_000 * (i + 1)))
    first, second = stream()
    assert (first.kind, first.attempt, first.error) == ("recovered", 1, "lock expired")
    assert (second.kind, second.attempt, second.error) == ("dead", 2, "lock expired")
    assert (first.finished_at, second.finished_at) == (at(1_000), at(2_000))


@pytest.mark.parametrize(
    ("content", "job"),
    [(encode("app.mail", [1]), "app.mail"), (b'{"job": "app.mail"}', "app.mail"),
     (b"jobq-s1 k2026 " + b"0f" * 32 + b"\n" + encode("app.mail"), "app.mail"),
     (b'{"args":["{\\"job\\":\\"no\\""],"job":"app.mail"}', ""), (b'{"job":"a\\u0041"}', ""),
     (b'{"job":"a\x1fb"}', ""), (b'{"job":"a\nb"}', ""), (b'{"job":"\xff"}', ""), (b'{"job":""}', ""),
     (b'{"job":"' + b"a" * 201 + b'"}', ""), (b"jobq-e1 k2026\n" + b"\0" * 40, ""), (b'{"job":"a', ""), (b"", "")],
)  # fmt: skip
def test_recovery_names_the_job_when_its_content_begins_with_it(queue, at, stream, content, job):
    queue.enqueue(content, mid="m", now=at(0))
    for i in range(2):
        assert queue.dequeue(lease=1, now=at(1_000 * i)).messages
        queue.admin.collect(crash_limit=2, now=at(1_000 * (i + 1)))
    assert [(one.kind, one.job, one.mid, one.attempt) for one in stream()] == [
        ("recovered", job, "m", 1), ("dead", job, "m", 2),
    ]  # fmt: skip


def test_administration_leaves_its_marks(queue, at, end, stream):
    queue.enqueue_many([("a", b""), ("b", b""), ("c", b"")], now=at(0))
    a, _ = queue.dequeue(2, now=at(0)).messages
    end(queue, a, "dead", reason="no use", now=at(1))
    queue.cancel("b", "c", "none", now=at(2))
    queue.admin.revive(queue.admin.dead()[0].dead_id, "x#y", now=at(3))
    queue.admin.clear(now=at(4))

    assert kinds(stream()) == [
        ("dead", "a"), ("cancelled", "b"), ("cancelled", "c"), ("revived", "a"), ("cleared", ""),
    ]  # fmt: skip
    assert [event.attempt for event in stream()][1:3] == [1, 0]
    assert stream()[-1].error == "2"


def test_what_changes_nothing_leaves_no_mark(queue, at, end, stream):
    queue.enqueue(b"v", mid="m", now=at(0))
    [held] = queue.dequeue(now=at(0)).messages
    queue.extend([("m", held.token)], now=at(1))
    queue.progress("m", held.token, "half")
    queue.finish([Ending(mid="m", token="x")], now=at(2))
    queue.release([("m", held.token)], now=at(3))
    [held] = queue.dequeue(now=at(4)).messages
    queue.finish([Ending(mid="m", token=held.token, outcome="release", record=RECORD)], now=at(5))
    queue.admin.collect(now=at(6))
    queue.admin.pause()
    queue.admin.resume()
    assert stream() == []


def everything(queue, at, end):
    queue.enqueue_many([("a", b""), ("b", b"")], now=at(0))
    queue.enqueue(b"", mid="a", now=at(0))
    queue.enqueue(b"", mid="a", on_conflict="replace", now=at(0))
    a, b = queue.dequeue(2, now=at(0)).messages
    queue.enqueue(b"", mid="b", on_conflict="requeue", now=at(1))
    end(queue, a, now=at(2))
    end(queue, b, "retry", now=at(3))


ATTEMPTS = [("done", "a"), ("retry", "b")]
ENQUEUES = [("enqueued", "a"), ("enqueued", "b"), ("enqueued", "a"), ("enqueued", "b")]


@pytest.mark.parametrize(
    ("level", "expected"), [("off", []), ("attempts", ATTEMPTS), ("all", ENQUEUES + ATTEMPTS)]
)
def test_level_says_how_much_is_written(queue, at, end, stream, level, expected):
    assert queue.admin.events_level(level) == level
    everything(queue, at, end)
    assert kinds(stream()) == expected


def test_attempts_is_the_level_of_a_new_queue(queue, at, end, stream):
    assert queue.admin.events_level() == "attempts"
    everything(queue, at, end)
    assert kinds(stream()) == ATTEMPTS


def test_enqueued_event_says_what_the_enqueue_did(queue, at, end, stream):
    queue.admin.events_level("all")
    everything(queue, at, end)
    actions = [event.error for event in stream() if event.kind == "enqueued"]
    assert actions == ["", "", "updated", "requeued"]


def test_events_tell_the_length_of_content_where_scripts_see_it(queue, at, end, stream):
    queue.admin.events_level("all")
    queue.enqueue_many([("a", b"four"), ("b", b"")], now=at(0))
    [held] = queue.dequeue(now=at(0)).messages
    end(queue, held, "dead", reason="no use", now=at(1))
    queue.admin.revive(queue.admin.dead()[0].dead_id, now=at(2))
    assert [(event.kind, event.bytes) for event in stream()] == [
        ("enqueued", 4), ("enqueued", 0), ("dead", 0), ("revived", 4),
    ]  # fmt: skip


def test_record_ends_with_its_last_column_that_says_something(queue, redis, at, end):
    queue.enqueue(b"v", mid="m", now=at(0))
    queue.cancel("m", now=at(1))
    queue.enqueue(b"v", mid="n", now=at(2))
    [held] = queue.dequeue(now=at(2)).messages
    end(queue, held, now=at(3))
    values = [fields[b"1"] for _, fields in redis.xrange(f"{queue.prefix}events")]
    assert values == [
        f"cancelled\x1fm\x1f{at(1)}\x1f\x1f".encode(),
        f"done\x1fn\x1f{at(3)}\x1f".encode(),
    ]


def test_content_superseded_unrun_is_an_event_where_enqueues_are(queue, at, stream):
    for level, expected in (("attempts", []), ("all", [("superseded", "m")])):
        queue.admin.events_level(level)
        queue.enqueue(b"", mid="m", now=at(0))
        [held] = queue.dequeue(now=at(0)).messages
        queue.enqueue(b"w", mid="m", on_conflict="requeue", now=at(0))
        queue.release([Lease("m", held.token)], now=at(0))
        assert [one for one in kinds(stream()) if one[0] != "enqueued"] == expected
        queue.admin.clear(now=at(0))
        queue.client.command("DEL", f"{queue.prefix}events")


def test_content_enqueued_over_an_expired_lock_is_a_recovery(queue, at, stream):
    queue.enqueue(b"", mid="m", now=at(0))
    assert queue.dequeue(lease=1, now=at(0)).messages
    queue.enqueue(b"w", mid="m", on_conflict="replace", now=at(1_000))
    queue.admin.collect(now=at(1_000))
    [event] = stream()
    assert (event.kind, event.attempt, event.error) == ("recovered", 1, "lock expired")


def test_every_kind_a_script_writes_is_on_the_list(queue, at, end, stream):
    queue.admin.events_level("all")
    everything(queue, at, end)
    written = {event.kind for event in stream()}
    assert written <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS)
    assert LEVELS == ("off", "attempts", "all")


def test_repeated_call_writes_no_second_event(queue, at, stream):
    from jobq.client.numbered_calls import Caller

    queue.enqueue(b"v", mid="m", now=at(0))
    caller = Caller()
    [held] = queue.dequeue(caller=caller, now=at(0)).messages
    for _ in range(2):
        caller.number = 1
        queue.finish([Ending(mid="m", token=held.token)], caller=caller, now=at(1))
    assert kinds(stream()) == [("done", "m")]


def fill(redis, key, count):
    with redis.pipeline(transaction=False) as pipe:
        for i in range(count):
            pipe.xadd(key, {"1": f"done\x1fm{i}\x1f0"})
        pipe.execute()


def test_stream_keeps_about_its_length(queue, redis, at):
    key = f"{queue.prefix}events"
    fill(redis, key, 105_000)

    for i in range(10):
        queue.enqueue(b"v", mid="m", on_conflict="requeue", now=at(i))
        [held] = queue.dequeue(now=at(i)).messages
        queue.finish([Ending(mid="m", token=held.token)], now=at(i))

    assert 100_000 <= redis.xlen(key) <= 100_200
    assert decode(redis.xrevrange(key, count=1)[0][1][b"1"]).finished_at == at(9)


def test_stream_keeps_about_the_length_that_was_set(queue, redis, at):
    key = f"{queue.prefix}events"
    assert queue.admin.events_maxlen() == 100_000
    assert queue.admin.events_maxlen(1_000) == 1_000
    fill(redis, key, 3_000)
    queue.enqueue(b"v", mid="m", now=at(0))
    queue.cancel("m", now=at(1))
    assert 1_000 <= redis.xlen(key) <= 1_100
    assert (queue.admin.events_maxlen(), queue.admin.events_level()) == (1_000, "attempts")


def test_stream_keeps_about_its_length_when_messages_end_one_by_one(queue, redis, at):
    queue.admin.events_maxlen(100)
    queue.enqueue_many([b"v"] * 400, now=at(0))
    held = queue.dequeue(now=at(0)).messages
    while held:
        ending = Ending(mid=held[0].mid, token=held[0].token)
        held = queue.finish([ending], dequeue=1, now=at(0)).dequeued.messages
    # Every tenth call trims, and the server removes whole nodes of 100 entries.
    assert 100 <= redis.xlen(f"{queue.prefix}events") <= 210


@pytest.mark.parametrize("length", [0, 99, 10**9 + 1])
def test_length_out_of_range_is_refused(queue, length):
    with pytest.raises(ConfigError, match="between 100 and 1,000,000,000"):
        queue.admin.events_maxlen(length)


def test_event_of_an_error_has_the_key_before_its_place(queue, at, stream):
    queue.enqueue(b"v", mid="m", key="eu", now=at(0))
    [held] = queue.dequeue(now=at(0)).messages
    record = attempt_record("mail.send", 1, 5, 250, 9, 4, "w1", "Boom", "f", place="a/b.py:3 in f")
    queue.finish([Ending(mid="m", token=held.token, outcome="retry", record=record)], now=at(1_000))
    [event] = stream()
    assert (event.key, event.place, event.trace_id) == ("eu", "a/b.py:3 in f", "")
