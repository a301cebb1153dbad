"""Replies of every command as the module gave them, golden: shapes, ids, nil and empty, order of keys."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobq.errors import ConfigError, ScriptError
from jobq.protocols.reliable import EmptyKeyError

NO = [b"undelivered", 0, b"delivered", 0]


def test_push_answers_the_ids_in_order(rq, at):
    ids = rq.push("q", "a", "b", "c", now=at(0))
    assert ids == [f"{at(0)}-1", f"{at(0)}-2", f"{at(0)}-3"]


def test_ids_go_on_within_one_millisecond_and_begin_at_one_in_the_next(rq, at):
    rq.push("q", "a", now=at(0))
    assert rq.push("q", "b", now=at(0)) == [f"{at(0)}-2"]
    assert rq.push("q", "c", "d", now=at(1)) == [f"{at(1)}-1", f"{at(1)}-2"]


def test_ids_are_of_each_queue_by_itself(rq, at):
    assert rq.push("q", "a", now=at(0)) == rq.push("r", "a", now=at(0))


def test_ids_go_to_the_next_millisecond_when_the_sequence_is_used_up(rq, redis, at):
    rq.push("q", "a", now=at(0))
    redis.hset("reliable:{q}:meta", "last_id", f"{at(0)}-9007199254740990")
    assert rq.push("q", "b", "c", now=at(0)) == [f"{at(1)}-0", f"{at(1)}-1"]


def test_push_without_an_element_is_refused(rq, fcall):
    with pytest.raises(ConfigError, match="no item"):
        rq.push("q")
    with pytest.raises(Exception, match="wrong number of arguments"):
        fcall("push", ["q"])


def test_pop_answers_triples_of_key_id_and_content(rq, fcall, at):
    rq.push("q", "a", b"\xff\x00", now=at(0))
    assert fcall("pop", ["q"], "COUNT", 5) == [
        [b"q", f"{at(0)}-1".encode(), b"a"], [b"q", f"{at(0)}-2".encode(), b"\xff\x00"],
    ]  # fmt: skip


def test_popped_message_unpacks_as_the_triple_and_knows_its_deliveries(rq, at):
    rq.push("q", "a", now=at(0))
    [popped] = rq.pop(1, 0, "q")
    key, id, content = popped
    assert (key, id, content) == ("q", f"{at(0)}-1", b"a") == popped
    assert popped.deliveries == 1


def test_pop_takes_one_unless_told(rq, fcall):
    rq.push("q", "a", "b")
    assert [row[2] for row in fcall("pop", ["q"])] == [b"a"]


def test_pop_of_nothing_is_empty_and_nil_only_after_a_wait(rq, fcall):
    assert fcall("pop", ["q"]) == [] == rq.pop(1, 0, "q")
    assert rq.pop(1, 20, "q") is None


def test_pop_of_count_zero_is_empty_and_takes_nothing(rq):
    rq.push("q", "a")
    assert rq.pop(0, 0, "q") == [] == rq.pop(0, -1, "q")
    assert rq.length("q") == 1


def test_pop_drains_the_keys_in_the_order_given(rq, fcall):
    rq.push("low", "l1", "l2")
    rq.push("high", "h1")
    rq.push("middle", "m1")
    popped = rq.pop(3, 0, "high", "none", "middle", "low")
    assert [(one.key, one.content) for one in popped] == [
        ("high", b"h1"), ("middle", b"m1"), ("low", b"l1"),
    ]  # fmt: skip
    assert [row[0] for row in fcall("pop", ["high", "low"], "COUNT", 9)] == [b"low"]


def test_pop_wakes_with_messages_of_the_one_key_that_was_pushed_to(rq, run, blocked):
    waiter = run("say(rq.pop(9, -1, 'first', 'second'))")
    blocked(1)
    rq.push("second", "a", "b")
    said = waiter.communicate()[0]
    assert "b'a'" in said and "b'b'" in said and "key='second'" in said


@pytest.mark.parametrize("name", ["{shop}mails", "mails:low", "naïve", "COUNT", "m" * 128])
def test_pop_tells_a_queue_by_the_name_it_was_given(rq, fcall, name):
    rq.push(name, "a", "b")
    assert [one.key for one in rq.pop(1, 0, name)] == [name]
    assert fcall("pop", [name])[0][0].decode() == name


def test_ack_answers_the_ids_that_were_delivered_each_once(rq, fcall):
    first, second = rq.push("q", "a", "b")
    rq.pop(1, 0, "q")
    assert rq.ack("q", first, first, second) == [first]
    assert rq.ack("q", first) == [] == fcall("ack", ["q"], second)
    assert structs.astuple(rq.info("q"))[1:3] == (1, 0)


def test_ack_recover_and_clear_of_an_unknown_queue_are_nil(rq, fcall):
    assert fcall("ack", ["q"], "1-1") is None
    assert fcall("recover", ["q"], 1, 0) is None
    assert rq.ack("q", "1-1") is rq.recover("q", 1, 0) is rq.clear("q") is rq.delete("q") is None
    assert rq.nack("q", "1-1") is rq.extend("q", "1-1") is rq.revive("q", "1-1") is None


def test_emptied_queue_still_exists(rq, fcall):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    assert rq.ack("q", id) == [id]
    assert rq.ack("q", id) == [] == rq.recover("q", 1, 0)
    assert fcall("info", ["q"]) == NO


def test_recover_answers_pairs_of_id_and_content_the_longest_ago_first(rq, fcall, at):
    ids = rq.push("q", "a", "b", "c", now=at(0))
    for late, _ in enumerate(ids):
        rq.pop(1, 0, "q", now=at(late))
    assert rq.recover("q", 5, 10, now=at(11)) == [(ids[0], b"a"), (ids[1], b"b")]
    assert [row.content for row in rq.pending("q", 0, 9)] == [b"c", b"a", b"b"]
    assert fcall("recover", ["q"], 1, 0) == [[ids[2].encode(), b"c"]]


def test_recover_counts_a_delivery_and_begins_its_time_anew(rq, at):
    rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    [recovered] = rq.recover("q", 1, 100, now=at(100))
    assert recovered.deliveries == 2
    assert rq.recover("q", 1, 100, now=at(199)) == []
    assert [one.deliveries for one in rq.recover("q", 1, 100, now=at(200)) or ()] == [3]


def test_recover_of_nothing_and_of_count_zero_is_empty(rq, at):
    rq.push("q", "a", now=at(0))
    assert rq.recover("q", 5, 0) == []
    rq.pop(1, 0, "q", now=at(0))
    assert rq.recover("q", 0, 0) == [] == rq.recover("q", 1, 1, now=at(0))


def test_inspect_shows_what_waits_in_order(rq, fcall):
    ids = rq.push("q", *"abcde")
    assert rq.inspect("q", 1, 2) == [(ids[1], b"b"), (ids[2], b"c")]
    assert fcall("inspect", ["q"], -2, 2) == [[ids[3].encode(), b"d"], [ids[4].encode(), b"e"]]
    assert fcall("inspect", ["q"], -2, 1) == [[ids[3].encode(), b"d"]]
    assert fcall("inspect", ["q"], 9, 1) == []


def test_inspect_of_pending_shows_time_elapsed_and_deliveries(rq, fcall, at):
    [id] = rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", now=at(5))
    rq.recover("q", 1, 10, now=at(20))
    assert rq.pending("q", 0, 1, now=at(27)) == [(id, b"a", at(20), 7, 2)]
    assert fcall("inspect", ["q"], "pending", 0, 1, "NOW", at(27)) == [
        [id.encode(), b"a", at(20), 7, 2]
    ]


def test_inspect_and_info_of_an_unknown_queue_are_the_error_emptykey(rq, fcall):
    for verb, args in (("inspect", (0, 1)), ("info", ())):
        with pytest.raises(Exception, match=r"^EMPTYKEY"):
            fcall(verb, ["q"], *args)
    with pytest.raises(EmptyKeyError, match="EMPTYKEY"):
        rq.info("q")
    with pytest.raises(EmptyKeyError):
        rq.inspect("q", 0, 1)


def test_info_answers_the_two_counts(rq, fcall):
    rq.push("q", "a", "b", "c")
    rq.pop(1, 0, "q")
    assert fcall("info", ["q"]) == [b"undelivered", 2, b"delivered", 1]
    info = rq.info("q")
    assert (info.undelivered, info.delivered, info.dead, info.promised) == (2, 1, 0, 0)


@pytest.mark.parametrize("verb", ["push", "pop", "ack", "recover", "inspect", "info", "nack"])
@pytest.mark.parametrize("place", ["undelivered", "tickets", "delivered", "messages", "meta"])
def test_key_of_a_wrong_type_is_refused_before_anything_changes(fcall, redis, facts, verb, place):
    fcall("push", ["q"], "a", "b")
    fcall("push", ["r"], "a")
    fcall("pop", ["q"])
    redis.delete(f"reliable:{{q}}:{place}")
    kind = redis.sadd
    kind(f"reliable:{{q}}:{place}", "x")
    before = facts()
    names = ["r", "q"] if verb == "pop" else ["q"]
    args = {"push": ("c",), "ack": ("1-1",), "nack": ("1-1",), "recover": (1, 0), "inspect": (0, 1)}
    words = {"pop": ("COUNT", 3), "info": ("ALL",)}
    try:
        fcall(verb, names, *args.get(verb, words.get(verb, ())))
    except Exception as error:
        assert "WRONGTYPE" in str(error)  # noqa: PT017
    else:
        assert verb == "info" and place == "messages"
    assert facts() == before


def test_wrong_type_is_a_script_error_in_python(rq, redis):
    redis.set("reliable:{q}:undelivered", "x")
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        rq.pop(1, 0, "q")
