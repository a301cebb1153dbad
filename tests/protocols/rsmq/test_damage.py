"""What crashed and other clients leave behind is repaired or read for what it means; nothing is lost."""

from __future__ import annotations

import pytest

from jobq.client.connection import connect
from jobq.errors import ScriptError
from jobq.protocols.rsmq import (
    InvalidFormatError,
    QueueExistsError,
    QueueNotFoundError,
    Repaired,
    Rsmq,
)
from jobq.protocols.rsmq.messages import epoch_s
from tests.protocols.rsmq.conftest import BEGINNING_US

PHANTOM = "hochb5vvsg0123456789abcdefghijkl"
GO_ID = "ABCDEFGHIJKLMNOPQRSTUV"
MS = BEGINNING_US // 1000


@pytest.mark.parametrize("verb", ["receive_message", "pop_message"])
def test_phantom_at_the_head_is_removed_and_the_next_message_handed_out(rsmq, q, redis, verb):
    redis.zadd("rsmq:q", {PHANTOM: MS - 1})
    redis.hset("rsmq:q:Q", f"{PHANTOM}:rc", 3)
    rsmq.send_message(q, "x")
    assert getattr(rsmq, verb)(q).message == "x"
    assert redis.zscore("rsmq:q", PHANTOM) is None
    assert redis.hexists("rsmq:q:Q", f"{PHANTOM}:rc") == 0
    assert rsmq.get_queue_attributes(q).totalrecv == 1


def test_thousands_of_phantoms_hide_no_message(rsmq, q, redis):
    redis.zadd("rsmq:q", {f"{number:032}": number for number in range(3_500)})
    rsmq.send_message(q, "x")
    assert rsmq.receive_message(q).message == "x"
    assert redis.zcard("rsmq:q") == 1


def test_batch_is_full_though_phantoms_stand_between(rsmq, q, redis):
    ids = rsmq.send_messages(q, ["a", "b", "c", "d"])
    redis.hdel("rsmq:q:Q", ids[1])
    assert [one.message for one in rsmq.receive_messages(q, 3)] == ["a", "c", "d"]


def test_id_whose_body_is_still_being_sent_is_passed_over_and_kept(rsmq, q, clock, redis):
    """The Go client of the blog sends id and body by two commands, with ids of 22 characters."""
    redis.zadd("rsmq:q", {GO_ID: MS})
    rsmq.send_message(q, "x")
    assert rsmq.receive_message(q).message == "x"
    assert rsmq.receive_message(q) is None
    redis.hset("rsmq:q:Q", GO_ID, "from go")
    assert rsmq.receive_message(q).message == "from go"
    redis.hdel("rsmq:q:Q", GO_ID)
    clock.advance(60)
    assert rsmq.receive_message(q).message == "x"
    assert redis.zscore("rsmq:q", GO_ID) is None


def test_message_with_an_id_that_node_refuses_is_received_changed_and_deleted(rsmq, q, redis):
    redis.zadd("rsmq:q", {GO_ID: MS})
    redis.hset("rsmq:q:Q", GO_ID, "from go")
    message = rsmq.receive_message(q)
    assert (message.id, message.sent) == (GO_ID, None)
    assert rsmq.change_message_visibility(q, GO_ID, 0) is True
    assert rsmq.delete_message(q, GO_ID) is True
    with pytest.raises(InvalidFormatError):
        rsmq.delete_message(q, GO_ID)
    assert rsmq.delete_message(q, GO_ID, receipt=1) is False


def test_messages_of_an_orphan_belong_to_the_queue_that_is_made_of_it(rsmq, redis):
    redis.zadd("rsmq:q", {PHANTOM: MS})
    redis.hset("rsmq:q:Q", mapping={PHANTOM: "orphan", "totalsent": 7})
    for call in (rsmq.receive_message, rsmq.pop_message, rsmq.get_queue_attributes, rsmq.peek):
        with pytest.raises(QueueNotFoundError):
            call("q")
    rsmq.create_queue("q")
    assert rsmq.receive_message("q").message == "orphan"
    assert rsmq.get_queue_attributes("q").totalsent == 7


def test_orphan_is_deleted_as_a_queue_is(rsmq, redis, stored):
    redis.hset("rsmq:q:Q", PHANTOM, "orphan")
    assert rsmq.delete_queue("q") == 1
    assert stored() == {}


def test_queue_that_was_never_listed_is_listed_when_made_again(rsmq, q, redis):
    redis.srem("rsmq:QUEUES", q)
    with pytest.raises(QueueExistsError):
        rsmq.create_queue(q)
    assert rsmq.list_queues() == [q]


def test_counter_goes_on_from_what_it_holds_and_anew_from_what_is_no_number(rsmq, q, redis):
    redis.hset("rsmq:q:Q", mapping={"totalsent": "many", "totalrecv": "1.5"})
    sent = rsmq.send_message(q, "x")
    redis.hset("rsmq:q:Q", f"{sent}:rc", "a few")
    assert rsmq.receive_message(q).rc == 1
    attributes = rsmq.get_queue_attributes(q)
    assert (attributes.totalsent, attributes.totalrecv) == (1, 2)


def test_settings_of_other_clients_are_read_as_far_as_they_are_whole(rsmq, q, redis, clock):
    redis.hset("rsmq:q:Q", mapping={"vt": "15.5", "delay": "2.0", "maxsize": "65565"})
    attributes = rsmq.get_queue_attributes(q)
    assert (attributes.vt, attributes.delay, attributes.maxsize) == (15, 2, 65565)
    sent = rsmq.send_message(q, "x" * 65565)
    assert redis.zscore("rsmq:q", sent) == clock.ms + 2_000
    clock.advance(2)
    rsmq.receive_message(q)
    assert redis.zscore("rsmq:q", sent) == clock.ms + 15_000


def test_settings_that_say_nothing_are_those_of_a_new_queue(rsmq, q, redis, clock):
    redis.hset("rsmq:q:Q", mapping={"vt": "soon", "delay": "", "maxsize": "?"})
    attributes = rsmq.get_queue_attributes(q)
    assert (attributes.vt, attributes.delay, attributes.maxsize) == (30, 0, 65536)
    sent = rsmq.send_message(q, "x")
    rsmq.receive_message(q)
    assert redis.zscore("rsmq:q", sent) == clock.ms + 30_000


@pytest.mark.parametrize(
    ("written", "read"),
    [("1645018248", 1645018248), ("1645018248123", 1645018248), ("1645018248.5", 1645018248), ("", None),
     ("2022-03-01T10:00:00.123456789Z", 1646128800), ("2022-03-01T10:00:00+01:00", 1646125200),
     ("yesterday", None), ("nan", None), ("inf", None)],
)  # fmt: skip
def test_times_are_read_from_seconds_milliseconds_and_dates(written, read):
    assert epoch_s(written) == read


def test_attributes_have_no_times_where_a_client_wrote_none(rsmq, redis):
    redis.hset(
        "rsmq:q:Q", mapping={"vt": "30", "delay": "0", "maxsize": "65536", "createdby": "ersin"}
    )
    attributes = rsmq.get_queue_attributes("q")
    assert (attributes.created, attributes.modified, attributes.totalsent) == (None, None, 0)


def test_queue_with_a_name_that_node_refuses_is_used_but_not_made(rsmq, redis):
    redis.hset("rsmq:my queue.1:Q", mapping={"vt": "30.0", "delay": "0.0", "maxsize": "65565"})
    redis.sadd("rsmq:QUEUES", "my queue.1")
    sent = rsmq.send_message("my queue.1", "x")
    assert rsmq.receive_message("my queue.1").id == sent
    assert rsmq.delete_message("my queue.1", sent) is True
    assert rsmq.delete_queue("my queue.1") == 1
    with pytest.raises(InvalidFormatError):
        rsmq.create_queue("my queue.1")


def test_queue_that_lacks_a_setting_is_no_queue_but_can_be_looked_at(rsmq, redis):
    """As in Node: attributes ask for vt alone, everything else for all three."""
    redis.hset("rsmq:q:Q", "vt", "30")
    assert rsmq.get_queue_attributes("q").delay == 0
    with pytest.raises(QueueNotFoundError):
        rsmq.send_message("q", "x")


def test_heal_removes_phantoms_and_what_deleted_messages_left(rsmq, q, redis, clock, stored):
    kept = rsmq.send_message(q, "x")
    rsmq.receive_message(q)
    before = stored()
    redis.zadd("rsmq:q", {PHANTOM: MS + 99_999_999, GO_ID: MS - 6_000})
    leaked = {f"{number:032}": "body" for number in range(2_500)} | {f"{PHANTOM}:rc": "1"}
    redis.hset("rsmq:q:Q", mapping={**leaked, "Z" * 22: "go deletes no bodies"})
    redis.srem("rsmq:QUEUES", q)
    assert rsmq.repair(q) == Repaired(phantoms=2, fields=2_502)
    assert stored() == before
    assert rsmq.peek(q, "all")[0].id == kept


def test_heal_leaves_fields_alone_that_it_does_not_know(rsmq, q, redis, stored):
    redis.hset("rsmq:q:Q", "createdby", "ersin")
    before = stored()
    assert rsmq.repair(q) == Repaired(0, 0)
    assert stored() == before


def test_heal_of_an_unknown_queue_lists_nothing(rsmq, stored):
    with pytest.raises(QueueNotFoundError):
        rsmq.repair("q")
    assert stored() == {}


def test_move_counts_anew_where_the_total_is_no_number(rsmq, q, redis):
    rsmq.create_queue("to")
    redis.hset("rsmq:to:Q", "totalsent", "many")
    rsmq.send_message(q, "x")
    assert rsmq.move_messages(q, "to", rsmq.receive_messages(q, 1)) == [True]
    assert rsmq.get_queue_attributes("to").totalsent == 1


@pytest.mark.parametrize("field", ["vt", "delay", "maxsize"])
def test_move_to_a_half_made_queue_is_refused(rsmq, q, redis, stored, field):
    rsmq.create_queue("to")
    redis.hdel("rsmq:to:Q", field)
    rsmq.send_message(q, "x")
    held = rsmq.receive_messages(q, 1)
    before = stored()
    with pytest.raises(QueueNotFoundError):
        rsmq.move_messages(q, "to", held)
    assert stored() == before


def test_consumer_handles_a_message_whose_id_is_no_text(rsmq, q, redis, clock):
    rsmq.send_message(q, "x")
    redis.zadd("rsmq:q", {b"\xff\n": 1})
    redis.hset("rsmq:q:Q", b"\xff\n", "hostile")
    handled = []
    done = rsmq.consume(q, lambda message: handled.append(message.message), burst=True)
    assert (done.done, handled) == (2, ["hostile", "x"])
    assert redis.zcard("rsmq:q") == 0


def test_message_under_the_name_of_a_setting_takes_no_setting_with_it(rsmq, q, redis, clock):
    names = ["vt", "delay", "maxsize", "totalsent"]
    for call in (
        lambda: rsmq.pop_message(q), lambda: rsmq.receive_message(q), lambda: rsmq.purge(q),
        lambda: [rsmq.delete_message(q, name) for name in names], lambda: rsmq.repair(q),
        lambda: rsmq.move_messages(q, "to", [(name, None) for name in names]), lambda: rsmq.peek(q),
    ):  # fmt: skip
        redis.delete("rsmq:to", "rsmq:to:Q")
        rsmq.create_queue("to")
        redis.zadd("rsmq:q", dict.fromkeys(names, 1))
        try:
            assert not call() or redis.zcard("rsmq:to") == 0
        except InvalidFormatError:
            pass  # no such message, and no id that Node takes
        assert rsmq.get_queue_attributes(q).vt == 30
        rsmq.send_message("to", "still there")
        assert rsmq.counts("to") == (1, 0)


def test_peek_ends_a_page_at_256_kib_and_reads_on(rsmq, redis, client):
    rsmq.create_queue("big", maxsize=-1)
    sent = rsmq.send_messages("big", ["x" * 100_000] * 10)
    redis.hdel("rsmq:big:Q", sent[0])
    page = client.ask(rsmq.requests.peek("big", "all", 0, 10))
    assert (page.passed, len(page.messages)) == (4, 3)
    assert [one.id for one in rsmq.peek("big", "all", 1, 8)] == sent[1:9]
    rsmq.create_queue("to", maxsize=-1)
    assert rsmq.redrive("big", "to") == 9


def test_send_without_the_right_to_publish_changes_nothing(rsmq, q, client, server, redis, stored):
    redis.execute_command("ACL", "SETUSER", "mute", "on", ">x", "~*", "+@all", "resetchannels")
    mute = connect(f"unix://mute:x@{server.socket}")
    before = stored()
    with pytest.raises(ScriptError, match="channel"):
        Rsmq(mute, realtime=True).send_message(q, "x")
    assert stored() == before
    mute.close()
    redis.execute_command("ACL", "DELUSER", "mute")
