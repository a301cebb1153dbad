"""Order, batches, receipts, counts: what a queue promises beyond single calls."""

from __future__ import annotations

import os

import pytest

from jobq.errors import ConfigError
from jobq.protocols.rsmq import (
    InvalidValueError,
    MessageNotStringError,
    MessageTooLongError,
    QueueNotFoundError,
    Rsmq,
    steps,
)
from jobq.protocols.rsmq.checks import random_parts


def test_batch_is_received_in_its_order_though_sent_in_one_microsecond(rsmq, q):
    sent = [str(number) for number in range(1_000)]
    ids = rsmq.send_messages(q, sent)
    assert ids == sorted(set(ids))
    assert {len(id_) for id_ in ids} == {32}
    assert [one.message for one in rsmq.receive_messages(q, 1_000)] == sent


def test_ids_of_a_batch_count_up_from_its_time(rsmq, q, clock):
    ids = rsmq.send_messages(q, ["x"] * 1_000)
    assert [int(id_[:10], 36) for id_ in ids] == list(range(clock.us, clock.us + 1_000))


def test_batches_of_the_server_s_clock_are_received_in_order(client):
    rsmq = Rsmq(client)
    rsmq.create_queue("q", maxsize=-1)
    sent = [str(number) for number in range(3_000)]
    rsmq.send_messages("q", sent)
    received = [one.message for _ in range(3) for one in rsmq.receive_messages("q", 1_000)]
    assert received == sent


@pytest.mark.parametrize(
    ("bad", "error"),
    [("x" * 65537, MessageTooLongError), (5, MessageNotStringError)],
    ids=["long", "number"],
)
def test_batch_is_refused_whole_when_its_last_message_is(rsmq, q, stored, bad, error):
    before = stored()
    for count in (3, 2_500):
        with pytest.raises(error):
            rsmq.send_messages(q, [*["x"] * count, bad])
        assert stored() == before


def test_batch_of_large_messages_takes_several_calls(client):
    rsmq = Rsmq(client)
    rsmq.create_queue("q", maxsize=-1)
    sent = [bytes([65 + number]) * 3_000_000 for number in range(4)]
    rsmq.send_messages("q", sent)
    assert [one.body for one in rsmq.receive_messages("q", 10)] == sent


def test_empty_batch_sends_nothing(rsmq, q):
    assert rsmq.send_messages(q, []) == []
    assert rsmq.delete_messages(q, []) == []


def test_random_parts_are_of_the_alphabet_and_differ():
    parts = random_parts(1_000)
    assert len(set(parts)) == 1_000
    assert all(len(part) == 22 and part.isalnum() for part in parts)


def test_random_parts_of_a_forked_child_are_its_own():
    random_parts(1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b" ".join(random_parts(50)))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    theirs = os.read(read, 4_000).split()
    os.close(read)
    assert len(theirs) == 50
    assert not {*theirs} & {*random_parts(50)}


def test_message_that_comes_back_gets_in_line_by_when_its_timeout_ended(rsmq, q, clock):
    rsmq.send_message(q, "first")
    rsmq.receive_message(q, vt=5)
    clock.advance(1)
    rsmq.send_message(q, "second")
    clock.advance(10)
    assert [one.message for one in rsmq.receive_messages(q, 5)] == ["second", "first"]


def test_message_is_visible_at_the_millisecond_its_timeout_ends(rsmq, q, clock):
    rsmq.send_message(q, "x")
    rsmq.receive_message(q, vt=1)
    clock.us += 999_000
    assert rsmq.receive_message(q) is None
    clock.us += 1_000
    assert rsmq.receive_message(q).rc == 2


def test_batch_hands_out_no_message_twice_when_its_timeout_is_zero(rsmq, q):
    rsmq.send_messages(q, ["a", "b"])
    assert [one.message for one in rsmq.receive_messages(q, 10, vt=0)] == ["a", "b"]
    assert rsmq.counts(q) == (2, 0)


def test_stale_holder_s_delete_and_extension_are_refused(rsmq, q, clock, stored):
    rsmq.send_message(q, "x")
    stale = rsmq.receive_message(q, vt=1)
    clock.advance(1)
    held = rsmq.receive_message(q, vt=100)
    rsmq.create_queue("other")
    before = stored()
    assert rsmq.delete_message(q, stale.id, receipt=stale.receipt) is False
    assert rsmq.change_message_visibility(q, stale.id, 0, receipt=stale.receipt) is False
    assert rsmq.move_messages(q, "other", [stale]) == [False]
    assert stored() == before
    assert rsmq.delete_message(q, held.id, receipt=held.receipt) is True


def test_late_holder_s_delete_counts_while_nobody_else_received_it(rsmq, q, clock):
    rsmq.send_message(q, "x")
    late = rsmq.receive_message(q, vt=1)
    clock.advance(100)
    assert rsmq.delete_message(q, late.id, receipt=late.receipt) is True


def test_delete_messages_tells_of_each(rsmq, q, clock):
    rsmq.send_messages(q, ["a", "b", "c"])
    a, b, c = rsmq.receive_messages(q, 3, vt=1)
    rsmq.delete_message(q, a.id)
    clock.advance(1)
    rsmq.receive_messages(q, 1)
    assert rsmq.delete_messages(q, [a, b, c]) == [False, False, True]


def test_next_messages_deletes_what_is_done_and_receives_in_one_call(rsmq, q, clock, stored):
    rsmq.send_messages(q, ["a", "b", "c"])
    a, b = rsmq.receive_messages(q, 2, vt=1)
    clock.advance(1)
    taken = rsmq.receive_message(q, vt=100)
    assert taken.message == "c"
    clock.us += 1_000
    deleted, [found] = rsmq.next_messages(q, [a, ("0" * 32, 1)], vt=7)
    assert deleted == [True, False]
    assert found.id == b.id
    assert stored()["rsmq:q"][1] == [
        (found.id, clock.ms + 7_000),
        (taken.id, clock.ms - 1 + 100_000),
    ]
    assert rsmq.next_messages(q, [found]) == ([True], [])
    assert rsmq.get_queue_attributes(q).totalrecv == 4


def test_next_messages_refuses_a_stale_deletion_and_receives_all_the_same(rsmq, q):
    rsmq.send_message(q, "x")
    stale = rsmq.receive_message(q, vt=0)
    rsmq.receive_message(q, vt=0)
    deleted, [again] = rsmq.next_messages(q, [stale])
    assert deleted == [False] and (again.id, again.rc) == (stale.id, 3)


def test_next_messages_is_refused_as_a_reception_is(rsmq, q):
    with pytest.raises(QueueNotFoundError):
        rsmq.next_messages("unknown", [], vt=-1)
    with pytest.raises(InvalidValueError):
        rsmq.next_messages(q, [], vt=-1)
    with pytest.raises(ConfigError, match="limit"):
        rsmq.next_messages(q, [], 0)
    with pytest.raises(ConfigError, match="too many"):
        rsmq.next_messages(q, [("0" * 32, 1)] * 1_001)


def test_counts_are_exact_to_the_millisecond(rsmq, q, clock):
    rsmq.send_messages(q, ["a", "b"])
    rsmq.send_message(q, "c", delay=1)
    assert rsmq.counts(q) == (2, 1)
    clock.us += 999_000
    assert rsmq.counts(q) == (2, 1)
    clock.us += 1_000
    assert rsmq.counts(q) == (3, 0)
    attributes = rsmq.get_queue_attributes(q)
    assert (attributes.msgs, attributes.hiddenmsgs, attributes.totalsent) == (3, 0, 3)


def test_peek_shows_places_apart_and_when_they_change(rsmq, q, clock):
    rsmq.send_messages(q, ["a", "b"])
    rsmq.send_message(q, "c", delay=60)
    rsmq.receive_message(q, vt=30)
    assert [one.message for one in rsmq.peek(q)] == ["b"]
    assert [one.message for one in rsmq.peek(q, "hidden")] == ["a", "c"]
    assert [one.message for one in rsmq.peek(q, "all", offset=1, limit=1)] == ["a"]
    assert [one.visible_at - clock.ms for one in rsmq.peek(q, "all")] == [0, 30_000, 60_000]
    assert [one.rc for one in rsmq.peek(q, "all")] == [0, 1, 0]


def test_purge_removes_hidden_messages_too_and_keeps_settings_and_totals(rsmq, q, stored):
    rsmq.send_messages(q, ["x"] * 2_500)
    rsmq.receive_messages(q, 10)
    _, before = stored()["rsmq:q:Q"]
    assert rsmq.purge(q) == 2_500
    assert "rsmq:q" not in stored()
    _, after = stored()["rsmq:q:Q"]
    assert after == {name: before[name] for name in after} and len(after) == 7
    assert rsmq.purge(q) == 0


def test_redrive_moves_what_is_visible_and_begins_receipts_anew(client):
    rsmq, q = Rsmq(client), "q"
    rsmq.create_queue(q)
    rsmq.create_queue("dead")
    ids = rsmq.send_messages("dead", [str(number) for number in range(1_500)])
    taken = rsmq.receive_message("dead")
    assert rsmq.redrive("dead", q, limit=3) == 3
    assert rsmq.redrive("dead", q) == 1_496
    assert [one.id for one in rsmq.peek("dead", "all")] == [taken.id]
    moved = rsmq.receive_messages(q, 1_000) + rsmq.receive_messages(q, 1_000)
    assert sorted(one.id for one in moved) == sorted(set(ids) - {taken.id})
    assert {one.rc for one in moved} == {1}
    assert rsmq.get_queue_attributes(q).totalsent == 1_499


@pytest.mark.parametrize("limit", [None, 2])
def test_redrive_passes_over_ids_without_a_body(client, redis, limit):
    rsmq = Rsmq(client)
    rsmq.create_queue("q")
    rsmq.create_queue("dead")
    rsmq.send_messages("dead", ["a", "b", "c"])
    redis.zadd("rsmq:dead", {f"{number:032}": 1 for number in range(2_500)})
    assert rsmq.redrive("dead", "q", limit) == (limit or 3)
    assert [one.message for one in rsmq.peek("q")] == ["a", "b", "c"][: limit or 3]


def test_redrive_to_an_unknown_queue_or_itself_is_refused(rsmq, q):
    rsmq.send_message(q, "x")
    with pytest.raises(QueueNotFoundError):
        rsmq.redrive(q, "unknown")
    with pytest.raises(ConfigError, match="name another"):
        rsmq.redrive(q, q)
    assert rsmq.counts(q) == (1, 0)


def test_messages_looked_at_are_changed_only_while_nobody_received_them(rsmq, q, stored):
    rsmq.create_queue("other")
    rsmq.send_messages(q, ["a", "b", "c"])
    a, b, c = rsmq.peek(q)
    rsmq.receive_message(q)
    before = stored()
    assert rsmq.delete_messages(q, [a]) == rsmq.move_messages(q, "other", [a]) == [False]
    assert rsmq.change_messages_visibility(q, [a], 0) == [False]
    assert stored() == before
    assert rsmq.delete_messages(q, [b]) == rsmq.move_messages(q, "other", [c]) == [True]


def test_redrive_leaves_a_message_that_somebody_received_after_it_looked(rsmq, q):
    rsmq.create_queue("dead")
    rsmq.send_messages("dead", ["a", "b"])
    taken = steps.redrive(rsmq.requests, "dead", q, None)
    request = next(taken)
    while request.script.name != "peek":
        request = taken.send(rsmq.client.ask(request))
    looked = rsmq.client.ask(request)
    held = rsmq.receive_message("dead")
    move = taken.send(looked)
    with pytest.raises(StopIteration) as end:
        taken.send(rsmq.client.ask(move))
    assert end.value.value == 1
    assert [one.id for one in rsmq.peek("dead", "hidden")] == [held.id]
    assert [one.message for one in rsmq.peek(q)] == ["b"]
