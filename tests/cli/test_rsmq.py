"""`jobq rsmq`: the flags, lines and exit codes of rsmqctl, without its bugs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from jobq.protocols.rsmq import Rsmq

ID = "hochb5vvsh0123456789abcdefghijkl"


@pytest.fixture
def ctl(cli: Any) -> Any:
    """ctl("queue", "list"): `jobq rsmq queue list`."""
    return lambda *args, **given: cli("rsmq", *args, **given)


@pytest.fixture
def rsmq(client: Any, ctl: Any) -> Rsmq:
    """With a queue `q`, delay 0."""
    rsmq = Rsmq(client)
    rsmq.create_queue("q")
    return rsmq


def test_queue_list_is_a_sorted_array(ctl):
    assert ctl("queue", "list").out == "[]\n"
    for name in "ba":
        assert ctl("queue", "create", "-n", name) == (0, "", "")
    assert ctl("queue", "list").out == '["a", "b"]\n'


def test_queue_create_takes_its_settings_and_says_nothing(ctl, client):
    assert ctl("queue", "create", "--name", "q", "-t", "5", "-d", "6", "-m", "-1") == (0, "", "")
    found = Rsmq(client).get_queue_attributes("q")
    assert (found.vt, found.delay, found.maxsize) == (5, 6, -1)
    ctl("queue", "create", "-n", "r")
    assert Rsmq(client).get_queue_attributes("r").maxsize == 65535


def test_queue_create_fails_where_there_is_one(ctl, rsmq):
    assert ctl("queue", "create", "-n", "q") == (1, "", "Queue already exists: q\n")


@pytest.mark.parametrize(
    "args", [("-n", "a b"), ("-n", "QUEUES"), ("-n", "x", "-m", "5"), ("-n", "x", "-t", "-1")]
)
def test_queue_create_fails_with_the_reason(ctl, args):
    ended = ctl("queue", "create", *args)
    assert ended.code == 1
    assert re.fullmatch(rf"Failed to create queue: {args[1]} \(.+\)\n", ended.err)


def test_queue_describe_has_rsmqctl_s_fields_in_their_order(ctl, rsmq):
    found = json.loads(ctl("queue", "describe", "-n", "q").out)
    assert list(found) == [
        "vt", "delay", "maxsize", "totalrecv", "totalsent", "created", "modified", "msgs", "hiddenmsgs",
    ]  # fmt: skip
    assert found["vt"] == 30 and found["created"] > 1_600_000_000


def test_queue_set_changes_what_is_given(ctl, rsmq):
    assert json.loads(ctl("queue", "set", "-n", "q", "-t", "7").out)["vt"] == 7
    ended = ctl("queue", "set", "-n", "q")
    assert (ended.code, ended.err) == (
        1,
        "Failed to set attributes of queue: q (No attribute was supplied)\n",
    )


@pytest.mark.parametrize(
    "verb", [("describe",), ("delete",), ("purge", "-y"), ("repair",), ("set", "-t", "1")]
)
def test_queue_that_is_not_there_fails(ctl, verb):
    assert ctl("queue", *verb, "-n", "n") == (1, "", "No such queue: n\n")


def test_queue_delete_says_nothing(ctl, rsmq):
    assert ctl("queue", "delete", "-n", "q") == (0, "", "")
    assert rsmq.list_queues() == []


def test_message_send_prints_the_id(ctl, rsmq):
    ended = ctl("message", "send", "-n", "q", "-m", "Hello, World")
    assert ended.out == rsmq.receive_message("q").id + "\n"


def test_message_send_honours_the_delay_of_the_queue(ctl, rsmq):
    rsmq.set_queue_attributes("q", delay=100)
    ctl("message", "send", "-n", "q", "-m", "x")
    assert rsmq.counts("q") == (0, 1)
    ctl("message", "send", "-n", "q", "-m", "x", "-d", "0")
    assert rsmq.counts("q") == (1, 1)


def test_message_send_takes_lines_of_stdin(ctl, rsmq):
    ended = ctl("message", "send", "-n", "q", "--stdin", given="a\n\nc")
    assert [one.id for one in rsmq.peek("q")] == ended.out.split()
    assert [one.message for one in rsmq.peek("q")] == ["a", "", "c"]


def test_message_send_needs_one_source(ctl, rsmq):
    assert ctl("message", "send", "-n", "q").code == 2
    assert ctl("message", "send", "-n", "q", "-m", "x", "--stdin").code == 2


def test_message_send_fails_with_the_reason(ctl, rsmq):
    assert ctl("message", "send", "-n", "n", "-m", "x") == (1, "", "No such queue: n\n")
    ended = ctl("message", "send", "-n", "q", "-m", "x" * 65537)
    assert ended.code == 1 and ended.err.endswith("(Message too long)\n")


@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_message_comes_as_rsmqctl_prints_it(ctl, rsmq, verb):
    sent = rsmq.send_message("q", "grüezi")
    ended = ctl("message", verb, "-n", "q")
    assert re.fullmatch(
        rf'\{{"id": "{sent}", "message": "gr\\u00fcezi", "rc": 1, "ts": \d{{13}}\}}\n', ended.out
    )
    assert ctl("message", verb, "-n", "q") == (0, "No messages on queue: q\n", "")
    assert ctl("message", verb, "-n", "q", "--json") == (0, "{}\n", "")


def test_message_receive_with_timeout_zero_leaves_it_visible(ctl, rsmq):
    rsmq.send_message("q", "x")
    ctl("message", "receive", "-n", "q", "-t", "0")
    assert rsmq.counts("q") == (1, 0)
    assert ctl("message", "receive", "-n", "q", "--wait", "10ms").records[0]["rc"] == 2


def test_message_delete_of_one_never_received_is_no_failure(ctl, rsmq):
    sent = rsmq.send_message("q", "x")
    assert ctl("message", "delete", "-n", "q", "-i", sent) == (0, "", "")
    failed = f"Failed to delete message ID: {sent}\n"
    assert ctl("message", "delete", "-n", "q", "--message-id", sent) == (1, "", failed)


def test_message_visibility_says_what_it_did(ctl, rsmq):
    sent = rsmq.send_message("q", "x")
    ended = ctl("message", "visibility", "-n", "q", "-i", sent, "-t", "600")
    assert ended.out == f"Message ID: {sent} visibility timeout set to 600s\n"
    assert rsmq.counts("q") == (0, 1)
    failed = f"Failed to change visibility timeout for message ID: {ID}\n"
    assert ctl("message", "visibility", "-n", "q", "-i", ID, "-t", "1") == (1, "", failed)
    assert ctl("message", "visibility", "-n", "q", "-i", ID).code == 2


def test_message_peek_shows_without_receiving(ctl, rsmq):
    rsmq.send_messages("q", ["a", "b"])
    rsmq.receive_message("q")
    [seen] = ctl("message", "peek", "-n", "q").records
    assert (seen["message"], seen["rc"]) == ("b", 0)
    both = ctl("message", "peek", "-n", "q", "--place", "all", "--json").records
    assert [one["message"] for one in both] == ["b", "a"]
    assert both[0]["visible_at"] > 1_600_000_000_000


def test_purge_asks_first_and_redrive_and_heal_tell_what_they_did(ctl, rsmq):
    rsmq.create_queue("dead")
    rsmq.send_messages("dead", ["a", "b", "c"])
    assert (
        ctl("queue", "redrive", "-n", "dead", "--to", "q", "--limit", "1").out
        == "dead: 1 message moved to q\n"
    )
    assert ctl("queue", "redrive", "-n", "dead", "--to", "q", "--json").records[0]["moved"] == 2
    assert ctl("queue", "purge", "-n", "q", given="n\n").code == 1
    assert ctl("queue", "purge", "-n", "q", "-y").out == "q: 3 messages deleted\n"
    assert ctl("queue", "repair", "-n", "q", "--json").records == [
        {"queue": "q", "phantoms": 0, "fields": 0}
    ]


def test_server_is_given_before_the_command_as_to_rsmqctl(line, server, rsmq):
    env = {"REDIS_URL": "redis://127.0.0.1:1"}
    assert line("rsmq", "-r", server.url, "queue", "list", env=env).out == '["q"]\n'
    nowhere = ("rsmq", "-r", "redis://127.0.0.1:1", "queue", "list", "--url", server.url)
    assert line(*nowhere).out == '["q"]\n'
    assert line("rsmq", "queue", "list", env={"REDIS_URL": server.url}).out == '["q"]\n'


def test_verbose_says_also_what_rsmq_calls_the_error(line, server, rsmq):
    ended = line("rsmq", "-v", "-r", server.url, "queue", "describe", "-n", "n")
    assert ended == (1, "", "No such queue: n [queueNotFound: Queue not found]\n")


def test_namespace_is_chosen_by_flag_and_variable(ctl, client):
    ctl("queue", "create", "-n", "q", "--ns", "other")
    assert Rsmq(client, ns="other").list_queues() == ["q"]
    assert ctl("queue", "list", env={"JOBQ_RSMQ_NS": "other"}).out == '["q"]\n'


def test_queue_name_reaches_the_terminal_harmless(ctl):
    ended = ctl("queue", "describe", "-n", "a\x1b[2J")
    assert "\x1b" not in ended.err and ended.code == 1


def test_hostile_names_and_ids_are_shown_and_deleted_by_their_own_verbs(ctl, rsmq, redis):
    redis.sadd("rsmq:QUEUES", b"\xff", "a:Q", "QUEUES", b"x" * 700)
    ended = ctl("queue", "list")
    assert (ended.code, ended.out) == (0, '["q"]\n')
    assert len(ended.err.splitlines()) == 4
    for name in ("\udcff", "a:Q", "QUEUES", "x" * 700):
        assert ctl("queue", "delete", "-n", name).code == 0
    assert ctl("queue", "list") == (0, '["q"]\n', "")
    redis.zadd("rsmq:q", {b"\xff": 1, "vt": 2, "never": "inf"})
    redis.hset("rsmq:q:Q", mapping={b"\xff": b"\xfe", "never": "x"})
    shown = ctl("message", "peek", "-n", "q", "--place", "all").records
    assert [one["id"] for one in shown] == ["\udcff", "never"]
    assert ctl("message", "receive", "-n", "q").records[0]["id"] == "\udcff"
    assert ctl("message", "delete", "-n", "q", "-i", "\udcff").code == 0
    assert ctl("queue", "repair", "-n", "q").code == 0
    assert redis.zrange("rsmq:q", 0, -1) == [b"never"]
    assert ctl("queue", "describe", "-n", "q").records[0]["vt"] == 30


@pytest.mark.parametrize("key", ["rsmq:q", "rsmq:q:Q"])
def test_queue_whose_key_has_another_type_is_told_and_deleted(ctl, rsmq, redis, key):
    redis.delete(key)
    redis.rpush(key, "somebody else's")
    for verb in (("queue", "describe"), ("message", "peek"), ("message", "receive")):
        ended = ctl(*verb, "-n", "q")
        assert ended.code == 4 and len(ended.err.splitlines()) <= 2, ended
    assert ctl("queue", "list") == (0, '["q"]\n', "")
    assert ctl("queue", "delete", "-n", "q").code == 0
    assert redis.keys("rsmq*") == []
