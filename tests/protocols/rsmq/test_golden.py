"""What is in Redis after every call, to the byte, as RSMQ's specification has it."""

from __future__ import annotations

import pytest

from jobq.protocols.rsmq import Rsmq

MADE = {
    "vt": "30",
    "delay": "0",
    "maxsize": "65536",
    "created": "1795203951",
    "modified": "1795203951",
}
MS = 1_795_203_951_424


def test_create_queue_writes_its_settings_and_lists_it(rsmq, stored):
    assert rsmq.create_queue("q") == 1
    assert stored() == {"rsmq:QUEUES": ("set", {"q"}), "rsmq:q:Q": ("hash", MADE)}


def test_create_queue_writes_the_settings_given(rsmq, stored):
    rsmq.create_queue("q", vt=0, delay=9_999_999, maxsize=-1)
    _, attributes = stored()["rsmq:q:Q"]
    assert attributes == {**MADE, "vt": "0", "delay": "9999999", "maxsize": "-1"}


def test_set_queue_attributes_writes_what_is_given_and_when(rsmq, q, clock, stored):
    clock.advance(2)
    rsmq.set_queue_attributes(q, vt=5)
    assert stored()["rsmq:q:Q"][1] == {**MADE, "vt": "5", "modified": "1795203953"}


def test_send_message_writes_id_body_and_count(rsmq, q, stored):
    sent = rsmq.send_message(q, "grüezi")
    assert sent[:10] == "hochb5vvsh"
    assert len(sent) == 32 and sent.isalnum()
    assert stored() == {
        "rsmq:QUEUES": ("set", {"q"}),
        "rsmq:q": ("zset", [(sent, MS)]),
        "rsmq:q:Q": ("hash", {**MADE, sent: "grüezi", "totalsent": "1"}),
    }


def test_send_message_is_visible_after_its_delay_in_whole_milliseconds(rsmq, q, redis):
    sent = rsmq.send_message(q, "x", delay=7)
    assert redis.zscore("rsmq:q", sent) == MS + 7_000
    rsmq.set_queue_attributes(q, delay=3)
    sent = rsmq.send_message(q, "x")
    assert redis.zscore("rsmq:q", sent) == MS + 3_000
    sent = rsmq.send_message(q, "x", delay=0)
    assert redis.zscore("rsmq:q", sent) == MS


def test_receive_message_writes_score_counts_and_first_reception(rsmq, q, clock, stored):
    sent = rsmq.send_message(q, "x")
    clock.advance(1)
    message = rsmq.receive_message(q)
    assert message.as_dict() == {
        "id": sent, "message": "x", "rc": 1, "fr": MS + 1_000, "sent": 1795203951424.433,
    }  # fmt: skip
    received = {sent: "x", f"{sent}:rc": "1", f"{sent}:fr": str(MS + 1_000)}
    assert stored()["rsmq:q"] == ("zset", [(sent, MS + 31_000)])
    assert stored()["rsmq:q:Q"][1] == {**MADE, **received, "totalsent": "1", "totalrecv": "1"}


def test_receive_message_again_counts_and_keeps_when_it_was_first(rsmq, q, clock, stored):
    sent = rsmq.send_message(q, "x")
    rsmq.receive_message(q, vt=5)
    clock.advance(5)
    message = rsmq.receive_message(q, vt=60)
    assert (message.rc, message.fr) == (2, MS)
    received = {sent: "x", f"{sent}:rc": "2", f"{sent}:fr": str(MS)}
    assert stored()["rsmq:q"] == ("zset", [(sent, MS + 65_000)])
    assert stored()["rsmq:q:Q"][1] == {**MADE, **received, "totalsent": "1", "totalrecv": "2"}


def test_pop_message_leaves_only_its_count(rsmq, q, stored):
    sent = rsmq.send_message(q, "x")
    assert rsmq.pop_message(q).as_dict() == {
        "id": sent, "message": "x", "rc": 1, "fr": MS, "sent": 1795203951424.433,
    }  # fmt: skip
    assert stored() == {
        "rsmq:QUEUES": ("set", {"q"}),
        "rsmq:q:Q": ("hash", {**MADE, "totalsent": "1", "totalrecv": "1"}),
    }


def test_delete_message_removes_all_three_fields(rsmq, q, stored):
    sent = rsmq.send_message(q, "x")
    rsmq.receive_message(q)
    assert rsmq.delete_message(q, sent) is True
    assert stored() == {
        "rsmq:QUEUES": ("set", {"q"}),
        "rsmq:q:Q": ("hash", {**MADE, "totalsent": "1", "totalrecv": "1"}),
    }
    assert rsmq.delete_message(q, sent) is False


def test_change_message_visibility_writes_the_score_alone(rsmq, q, stored):
    sent = rsmq.send_message(q, "x", delay=100)
    before = stored()
    assert rsmq.change_message_visibility(q, sent, 0) is True
    assert stored() == {**before, "rsmq:q": ("zset", [(sent, MS)])}


def test_delete_queue_leaves_nothing(rsmq, q, stored):
    rsmq.send_message(q, "x")
    assert rsmq.delete_queue(q) == 1
    assert stored() == {}


def test_move_messages_moves_the_body_alone(rsmq, q, stored):
    rsmq.create_queue("dead")
    sent = rsmq.send_message(q, "x")
    message = rsmq.receive_message(q)
    assert rsmq.move_messages(q, "dead", [message]) == [True]
    assert stored() == {
        "rsmq:QUEUES": ("set", {"q", "dead"}),
        "rsmq:q:Q": ("hash", {**MADE, "totalsent": "1", "totalrecv": "1"}),
        "rsmq:dead": ("zset", [(sent, MS)]),
        "rsmq:dead:Q": ("hash", {**MADE, sent: "x", "totalsent": "1"}),
    }


@pytest.mark.parametrize("look", ["describe", "peek", "list", "counts"])
def test_looking_changes_nothing(rsmq, q, stored, look):
    rsmq.send_message(q, "x")
    before = stored()
    looks = {
        "describe": lambda: rsmq.get_queue_attributes(q), "peek": lambda: rsmq.peek(q, "all"),
        "list": rsmq.list_queues, "counts": lambda: rsmq.counts(q),
    }  # fmt: skip
    assert looks[look]()
    assert stored() == before


def test_namespace_is_the_first_part_of_every_key(client, stored):
    rsmq = Rsmq(client, ns="other")
    rsmq.create_queue("q")
    rsmq.send_message("q", "x")
    assert set(stored()) == {"other:QUEUES", "other:q", "other:q:Q"}


def test_realtime_publishes_the_number_of_messages_after_each_send(client, redis):
    rsmq = Rsmq(client, realtime=True)
    rsmq.create_queue("q")
    with redis.pubsub(ignore_subscribe_messages=True) as told:
        told.subscribe("rsmq:rt:q")
        told.get_message(timeout=60)
        rsmq.send_message("q", "x")
        rsmq.send_message("q", "x", delay=60)
        rsmq.receive_message("q")
        rsmq.send_messages("q", ["x", "y"])
        heard = [told.get_message(timeout=60)["data"] for _ in range(4)]
    assert heard == [b"1", b"2", b"3", b"4"]


def test_nothing_is_published_without_realtime(rsmq, q, redis):
    with redis.pubsub(ignore_subscribe_messages=True) as told:
        told.subscribe("rsmq:rt:q")
        told.get_message(timeout=60)
        rsmq.send_message(q, "x")
        redis.publish("rsmq:rt:q", "the first")
        assert told.get_message(timeout=60)["data"] == b"the first"


def test_server_time_is_used_without_a_clock(client, redis):
    rsmq = Rsmq(client)
    rsmq.create_queue("q")
    before = redis.time()
    sent = rsmq.send_message("q", "x")
    after = redis.time()
    assert before <= divmod(int(sent[:10], 36), 1_000_000) <= after
    assert redis.zscore("rsmq:q", sent) == int(sent[:10], 36) // 1000
