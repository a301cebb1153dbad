"""Each crash and bug that RedisRQ had (commands `rq.*`), tried on ours."""

from __future__ import annotations

import pytest
import redis as redis_py

from jobq.client.connection import connect
from jobq.client.functions import area_library
from jobq.config import ServerSettings
from jobq.errors import ConfigError, ScriptError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import PLACES, places
from tests.client.deployments import HOST, Node
from tests.conftest import binary


def alive(redis, server) -> bool:
    return redis.info("server")["process_id"] == server.process.pid


# 1. RQ.INSPECT of an empty list, or of PENDING with nothing pending, killed the server.


def test_inspect_of_an_empty_queue_is_empty(rq, fcall, redis, server):
    [id] = rq.push("q", "a")
    assert fcall("inspect", ["q"], "PENDING", 1, 5) == [] == rq.pending("q", 1, 5)
    rq.pop(1, 0, "q")
    assert fcall("inspect", ["q"], 1, 5) == [] == rq.inspect("q", 0, 5)
    rq.ack("q", id)
    assert fcall("inspect", ["q"], "PENDING", 1, 5) == []
    assert fcall("inspect", ["q"], "PENDING", -1, 5) == [] == fcall("inspect", ["q"], -1, 5)
    assert alive(redis, server)


def test_inspect_with_a_start_before_the_first_begins_there(rq):
    ids = rq.push("q", "a", "b")
    assert [one.id for one in rq.inspect("q", -9, 9)] == ids


@pytest.mark.parametrize(
    "args", [(), (1,), ("x", 1), (1, "x"), (0, 0), (0, -1), (0, 1, 2), ("PENDING",), ("PENDING", "DEAD", 0, 1),
             (10**15, 1), ("0.5", 1), (0, 1, "NOW", "x")],
)  # fmt: skip
def test_inspect_refuses_wrong_arguments(rq, fcall, args):
    rq.push("q", "a")
    with pytest.raises(redis_py.ResponseError, match="usage: inspect"):
        fcall("inspect", ["q"], *args)


# 2. RQ.ACK of an id longer than 128 bytes overran the stack; garbage was taken for the id before it.


@pytest.mark.parametrize("length", [41, 129, 5000, 1_000_000])
def test_ack_of_a_long_id_is_refused(rq, fcall, redis, server, length):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    for garbage in ("1" * length, f"{id}{'0' * length}", "x" * length):
        with pytest.raises(redis_py.ResponseError, match="ids, which look like"):
            fcall("ack", ["q"], garbage)
        with pytest.raises(ConfigError, match="ids look like 1601155608777-1"):
            rq.ack("q", garbage)
    assert alive(redis, server)
    assert rq.info("q").delivered == 1


@pytest.mark.parametrize(
    "garbage", ["{}junk", " {}", "{}\n", "+{}", "{}-1", "", "-", "١-١", "a\r\nb"]
)
def test_ack_of_garbage_changes_nothing_even_beside_a_good_id(rq, fcall, facts, garbage):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    before = facts()
    with pytest.raises(redis_py.ResponseError, match="ids, which look like"):
        fcall("ack", ["q"], id, garbage.format(id))
    with pytest.raises(ConfigError, match="is not an id"):
        rq.ack("q", id, garbage.format(id))
    assert facts() == before


def test_ack_takes_no_id_for_another_that_reads_the_same_as_a_number(rq):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    assert rq.ack("q", id.replace("-1", "-01"), f"0{id}") == []
    assert rq.ack("q", id) == [id]


# 3. RQ.RECOVER with elapsed 0 answered the same messages again and again, and hung for a large count.


@pytest.mark.parametrize("count", [7, 1_000_000_000])
def test_recover_answers_each_message_at_most_once(rq, at, count):
    ids = rq.push("q", "a", "b", now=at(0))
    rq.pop(2, 0, "q", now=at(0))
    recovered = rq.recover("q", count, 0, now=at(0))
    assert [(one.id, one.deliveries) for one in recovered] == [(ids[0], 2), (ids[1], 2)]


def test_pop_that_recovers_answers_each_message_at_most_once(rq, at):
    rq.push("q", "a", "b", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    popped = rq.pop(9, 0, "q", recover_after=0, now=at(0))
    assert [(one.content, one.deliveries) for one in popped] == [(b"a", 2), (b"b", 1)]


@pytest.mark.parametrize("args", [(), (1,), ("x", 1), (1, "x"), (-1, 0), (1, -1), (1, 0, "junk"),
                                  ("PENDING", 1, 0), (1, 0, "TOKEN"), ("1.5", 0)])  # fmt: skip
def test_recover_refuses_wrong_arguments_also_with_nothing_pending(fcall, args):
    with pytest.raises(redis_py.ResponseError, match="usage: "):
        fcall("recover", ["q"], *args)


def test_recover_of_very_many_is_bounded(rq, at):
    for _ in range(3):
        rq.push("q", *map(str, range(4000)), now=at(0))
    assert len(rq.pop(4000, 0, "q", now=at(0))) == 4000
    assert len(rq.pop(8000, 0, "q", now=at(0))) == 8000
    first = rq.recover("q", 20_000, 0, now=at(0))
    second = rq.recover("q", 2_000, 0, now=at(1))
    assert len(first) == 10_000
    assert {one.id for one in second}.isdisjoint(one.id for one in first)


# 4. Nothing reached the append-only file, a snapshot or a replica; see also test_durability.py.


def test_changes_count_as_changes_for_snapshots(rq, redis):
    before = redis.info("persistence")["rdb_changes_since_last_save"]
    rq.push("q", "a")
    after_push = redis.info("persistence")["rdb_changes_since_last_save"]
    rq.pop(1, 0, "q")
    assert before < after_push < redis.info("persistence")["rdb_changes_since_last_save"]


def test_two_snapshots_and_restarts_keep_every_message(server, tmp_path):
    for restart in range(3):
        node = Node(binary(server.kind), tmp_path, "--dir", str(tmp_path), "--save", "")
        rq = ReliableQueue(connect(settings=ServerSettings(url=f"redis://{HOST}:{node.port}")))
        if restart == 0:
            rq.push("q", "a", "b", "c")
            rq.pop(1, 0, "q", token="me")
        elif restart == 1:
            assert [one.content for one in rq.pop(1, 0, "q")] == [b"b"]
        else:
            assert [one.content for one in rq.pending("q", 0, 9)] == [b"a", b"b"]
            assert [one.content for one in rq.pop(9, 0, "q")] == [b"c"]
        node.redis.execute_command("SAVE")
        node.kill()


def test_renamed_and_copied_queue_is_known_by_its_new_name(fcall, redis):
    fcall("push", ["q"], "a")
    for old, new, third in zip(
        places("reliable", "q"), places("reliable", "r"), places("reliable", "s"), strict=True
    ):
        if redis.exists(old):
            redis.rename(old, new)
            redis.copy(new, third)
    [[key, id, content]] = fcall("pop", ["r"])
    assert (key, content) == (b"r", b"a")
    assert fcall("ack", ["r"], id) == [id]
    assert [row[0] for row in fcall("pop", ["s"])] == [b"s"]


# 5. The declared key positions were wrong, so Cluster and ACL looked at other words.


def test_keys_of_a_call_are_what_the_server_believes_them_to_be(fcall, redis):
    keys = [key for name in ("high", "low") for key in places("reliable", name)]
    told = redis.command_getkeys("FCALL", "reliable_pop", len(keys), *keys, "COUNT", 2)
    assert list(told) == keys


@pytest.mark.parametrize(
    ("verb", "number"), [("pop", 0), ("pop", 7), ("pop", 12), ("rest", 9), ("push", 7), ("ack", 3)]
)
def test_keys_that_are_no_whole_queues_are_refused(fcall, redis, facts, verb, number):
    [id] = fcall("push", ["q"], "a")
    before = facts()
    keys = [*places("reliable", "q"), *places("reliable", "r")][:number]
    with pytest.raises(redis_py.ResponseError):
        redis.execute_command(
            "FCALL",
            f"reliable_{verb}",
            number,
            *keys,
            *({"push": ["a"], "ack": [id]}.get(verb, [])),
        )
    assert facts() == before


def test_user_of_one_queue_can_not_pop_another(fcall, redis, server):
    fcall("push", ["mine"], "a")
    fcall("push", ["theirs"], "a")
    redis.execute_command(
        "ACL", "SETUSER", "one", "reset", "on", "nopass", "+@all", "~reliable:{mine}:*"
    )
    with redis_py.Redis(
        unix_socket_path=server.socket, username="one", password="x", protocol=2
    ) as one:
        mine, theirs = places("reliable", "mine"), places("reliable", "theirs")
        with pytest.raises(redis_py.exceptions.NoPermissionError):
            one.execute_command("FCALL", "reliable_pop", 16, *mine, *theirs)
        assert len(one.execute_command("FCALL", "reliable_pop", 8, *mine)) == 1
    redis.execute_command("ACL", "DELUSER", "one")
    assert len(fcall("pop", ["theirs"])) == 1


# 6. Words that weren't understood were taken for keys.


@pytest.mark.parametrize(
    "words", [("COUNT", "abc"), ("COUNT", -1), ("COUNT",), ("COUNT", "0.5"), ("COUNT", ""), ("COUNT", 1, "COUNT", 2),
              ("BLOCK", 100), ("RECOVER", "x"), ("RECOVER", -1), ("TOKEN",), ("TICKET",), ("q",), ("",)],
)  # fmt: skip
def test_pop_refuses_words_that_it_does_not_understand(fcall, facts, words):
    fcall("push", ["q"], "a")
    before = facts()
    with pytest.raises(redis_py.ResponseError, match="usage: "):
        fcall("pop", ["q"], *words)
    assert facts() == before


@pytest.mark.parametrize(
    "given", [("2", 0, "q"), (1.5, 0, "q"), (True, 0, "q"), (-1, 0, "q"), (1, "5", "q"), (1, 0.5, "q"),
              (1, 0), (1, 0, ""), (1, 0, "a b"), (1, 0, "{"), (1, 0, "{}q"), (1, 0, "{a}{b}"), (1, 0, "q" * 129),
              (1, 0, b"q"), (1, 0, 7)],
)  # fmt: skip
def test_pop_refuses_wrong_arguments_before_it_asks_the_server(rq, given):
    rq.push("q", "a")
    with pytest.raises(ConfigError):
        rq.pop(*given)
    assert rq.length("q") == 1


@pytest.mark.parametrize("item", [1, None, 1.5, ["a"], bytearray(b"a")])
def test_push_takes_text_and_bytes_alone(rq, item):
    with pytest.raises(ConfigError, match="neither text nor bytes"):
        rq.push("q", "good", item)
    assert rq.length("q") == 0


def test_push_refuses_half_a_surrogate_pair_whole(rq):
    with pytest.raises(ConfigError, match="is not valid text"):
        rq.push("q", "good", "\ud800")
    assert rq.length("q") == 0


# 7. The wall clock decided on ids and elapsed times, wherever it jumped to.


def test_ids_go_on_from_the_last_when_the_clock_steps_back(rq, at):
    rq.push("q", "a", now=at(0))
    assert rq.push("q", "b", now=at(-3_600_000)) == [f"{at(0)}-2"]


def test_ids_go_on_from_the_last_after_the_queue_was_emptied(rq, at):
    rq.push("q", "a", now=at(0))
    rq.clear("q")
    assert rq.push("q", "b", now=at(-1)) == [f"{at(0)}-2"]


def test_recover_goes_on_in_time_when_the_clock_steps_back_an_hour(rq, at):
    rq.push("q", "a", "b", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    back = -3_600_000
    assert rq.recover("q", 9, 1000, now=at(back)) == []
    assert rq.recover("q", 9, 1000, now=at(back + 999)) == []
    assert [one.content for one in rq.recover("q", 9, 1000, now=at(back + 1000))] == [b"a"]


def test_order_of_deliveries_holds_when_the_clock_steps_back(rq, at):
    rq.push("q", *"abc", now=at(0))
    for late in (0, -50_000, -10_000_000):
        rq.pop(1, 0, "q", now=at(late))
    assert [one.content for one in rq.pending("q", 0, 9, now=at(-10_000_000))] == [
        b"a",
        b"b",
        b"c",
    ]
    newest = rq.pending("q", 2, 1, now=at(-9_999_993))[0]
    assert (newest.delivered_at, newest.elapsed_ms) == (at(-10_000_000), 7)


def test_server_clock_is_trusted_again_when_nothing_is_pending(rq, redis, at):
    [first, second] = rq.push("q", "a", "b", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    rq.pop(1, 0, "q", now=at(-5000))
    assert redis.hget("reliable:{q}:meta", "skew") == b"5000"
    rq.ack("q", first, second)
    rq.push("q", "c", now=at(-5000))
    rq.pop(1, 0, "q", now=at(-5000))
    assert redis.hget("reliable:{q}:meta", "skew") is None
    assert rq.pending("q", 0, 1, now=at(-5000))[0].delivered_at == at(-5000)


def test_many_deliveries_of_one_millisecond_keep_their_order(rq, at):
    rq.push("q", *map(str, range(5000)), now=at(0))
    rq.pop(5000, 0, "q", now=at(0))
    order = [int(one.content) for one in rq.pending("q", 0, 5000)]
    assert order == list(range(5000))


# 8. What was missing: nack, dead letters, owners, extension, counts and length have their own files.


def test_deliveries_are_told_on_request_by_pop_and_recover(rq, fcall, at):
    rq.push("q", "a")
    assert fcall("pop", ["q"], "DELIVERIES")[0][3] == 1
    assert fcall("recover", ["q"], 1, 0, "DELIVERIES")[0][2] == 2


def test_length_is_a_call_of_its_own(rq):
    assert rq.length("q") == 0
    rq.push("q", "a", "b")
    rq.pop(1, 0, "q")
    assert rq.length("q") == 1


def test_emptied_queue_keeps_one_small_key_and_a_deleted_one_none(rq, redis):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q", token="me")
    rq.nack("q", id, token="me")
    rq.pop(1, 0, "q")
    rq.ack("q", id)
    lasting = [key for key in redis.keys("reliable:*") if redis.ttl(key) == -1]
    assert lasting == [b"reliable:{q}:meta"]
    assert rq.delete("q") == 0
    assert [key for key in redis.keys("reliable:*") if redis.ttl(key) == -1] == []


def test_push_to_a_full_server_is_refused_whole_and_consumers_go_on(rq, redis, facts):
    ids = rq.push("q", "a", "b")
    redis.config_set("maxmemory", 1)
    before = facts()
    with pytest.raises(Exception, match="nothing was changed"):
        rq.push("q", "c", "d")
    assert facts() == before
    assert len(rq.pop(2, 0, "q")) == 2
    assert rq.nack("q", ids[0]) == ids[:1]
    assert rq.ack("q", ids[1]) == ids[1:]
    redis.config_set("maxmemory", 0)


# 9. Recover only polled, and the old holder's acknowledgement won.


def test_acknowledgement_of_the_old_holder_is_refused_after_a_recover(rq, at):
    [id] = rq.push("q", "a", now=at(0))
    rq.pop(1, 0, "q", token="old", now=at(0))
    rq.recover("q", 1, 100, token="new", now=at(100))
    assert rq.ack("q", id, token="old") == []
    assert rq.ack("q", id, token="new") == [id]


def test_library_names_every_script_once_and_no_other(redis, fcall):
    names = {name for _, name in area_library("reliable").commands.values()}
    assert len(names) == len(area_library("reliable").commands) >= 13
    assert all(name.startswith("reliable_") for name in names)
    assert len(PLACES) == 8


def test_wait_in_a_transaction_is_the_clients_own_and_blocks_nobody(rq, redis):
    """The module answered an error to BLOCK in MULTI: ours waits outside of the scripts."""
    with pytest.raises(ScriptError, match="usage: pop"):
        rq._calls.change("pop", ["q"], "BLOCK", 100)
