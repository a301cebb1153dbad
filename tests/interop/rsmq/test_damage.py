"""Where Node's client loses, hides or destroys something, on the same server ours doesn't."""

from __future__ import annotations

import pytest

from jobq.protocols.rsmq import Consumed, InvalidFormatError, QueueExistsError, Rsmq
from tests.interop.rsmq.conftest import Refused

PHANTOM = "hochb5vvsg0123456789abcdefghijkl"


@pytest.fixture
def rsmq(client):
    """Ours, with a queue `q`."""
    rsmq = Rsmq(client)
    rsmq.create_queue("q")
    return rsmq


@pytest.fixture
def node(peer, rsmq):
    """Theirs."""
    return peer("node")


def test_phantom_that_node_hands_out_as_null_is_skipped(node, rsmq, redis):
    redis.zadd("rsmq:q", {PHANTOM: 1})
    assert node("receiveMessage", qname="q", vt=0)["message"] is None
    node("sendMessage", qname="q", message="x")
    assert rsmq.receive_message("q").message == "x"
    assert redis.zcard("rsmq:q") == 1


def test_queue_that_node_made_and_did_not_list_is_listed(node, rsmq, redis):
    redis.srem("rsmq:QUEUES", "q")
    with pytest.raises(Refused, match="queueExists"):
        node("createQueue", qname="q")
    assert node("listQueues") == []
    with pytest.raises(QueueExistsError):
        rsmq.create_queue("q")
    assert node("listQueues") == ["q"]


def test_name_with_which_node_deletes_the_registry_is_refused(node, rsmq):
    for call in (rsmq.delete_queue, rsmq.create_queue, rsmq.receive_message):
        with pytest.raises(InvalidFormatError):
            call("QUEUES")
    assert node("listQueues") == ["q"]
    assert node("deleteQueue", qname="QUEUES") == 1
    assert node("listQueues") == []


def test_calls_go_on_after_the_scripts_were_flushed(peer, node, rsmq, redis):
    node("sendMessage", qname="q", message="x")
    redis.script_flush()
    try:
        with pytest.raises(Refused, match="NOSCRIPT"):
            node("receiveMessage", qname="q")
        assert rsmq.receive_message("q", vt=0).message == "x"
        assert peer("jobq")("receiveMessage", qname="q")["message"] == "x"
    finally:
        # Node's client loads its scripts when it connects, and never again.
        redis.client_kill_filter(skipme=True)


def test_batch_of_ours_is_received_in_order_and_deleted_by_node(node, rsmq):
    ids = rsmq.send_messages("q", [str(number) for number in range(100)])
    got = [node("receiveMessage", qname="q") for _ in ids]
    assert [one["id"] for one in got] == ids
    assert got[0]["sent"] == rsmq.peek("q", "hidden")[0].sent
    assert [node("deleteMessage", qname="q", id=id_) for id_ in ids] == [1] * 100


def test_message_counts_as_hidden_to_node_and_the_bridge_in_the_second_in_which_it_became_visible(
    peer, node, rsmq, redis
):
    def theirs():
        both = (node, peer("jobq"))
        return [one("getQueueAttributes", qname="q")["hiddenmsgs"] for one in both]

    sent = node("sendMessage", qname="q", message="x")
    second = looked = None
    # Until both have looked within one second of the server's.
    while second is None or redis.time()[0] != second:
        second = redis.time()[0]
        redis.zadd("rsmq:q", {sent: second * 1000})
        looked = theirs()
    assert looked == [1, 1]
    assert rsmq.counts("q") == (1, 0)
    redis.zadd("rsmq:q", {sent: second * 1000 - 1})
    assert theirs() == [0, 0]


def test_consumer_handles_what_node_sends_and_node_finds_its_dead(node, rsmq):
    for text in ("fine", "bad"):
        node("sendMessage", qname="q", message=text)

    def handle(message):
        if message.message == "bad":
            raise ValueError(message.message)

    assert rsmq.consume("q", handle, burst=True, max_receives=1) == Consumed(done=1, dead=1)
    assert node("receiveMessage", qname="q-dead")["message"] == "bad"
    assert node("getQueueAttributes", qname="q")["msgs"] == 0


def test_bytes_that_are_no_text_are_read_by_node_as_by_us(node, rsmq):
    rsmq.send_message("q", b"\xff\xfeA")
    assert node("popMessage", qname="q")["message"] == "\ufffd\ufffdA"
    rsmq.send_message("q", b"\xff\xfeA")
    assert rsmq.pop_message("q").message == "\ufffd\ufffdA"


def test_half_a_surrogate_pair_is_sent_by_the_bridge_as_by_node(peer, node, rsmq):
    for one in (node, peer("jobq")):
        one("sendMessage", qname="q", message="\ud800x")
        assert rsmq.pop_message("q").body == "\ufffdx".encode()


def test_pyrsmq_queue_with_a_name_that_node_refuses_is_served(peer, rsmq):
    py = peer("py")
    py("createQueue", qname="a queue.1", vt=15.5)
    assert rsmq.get_queue_attributes("a queue.1").vt == 15
    sent = rsmq.send_message("a queue.1", "x")
    assert py("receiveMessage", qname="a queue.1")["id"] == sent
    assert rsmq.delete_message("a queue.1", sent) is True
