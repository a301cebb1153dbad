"""Messages taken out by an operation are restored byte for byte, and moved to another time and back."""

from __future__ import annotations

import pytest

from jobq.errors import CodecError, ConfigError, ServerFullError
from jobq.queue.bin import ANY, Bin
from jobq.queue.types import Ending


@pytest.fixture
def bin_(queue) -> Bin:
    return queue.admin.bin("op-1")


def stored(redis, queue):
    """Every key of live and dead messages, as its members; mere markers of a change are left out."""
    left_out = (b"call:", b"bin:", b"events", b"wake", b"meta", b"eoq-backoff?", b"ndry-runs")
    found = {}
    for key in sorted(redis.keys(f"{queue.prefix}*")):
        name = key.removeprefix(queue.prefix.encode())
        if not name.startswith(left_out):
            found[name] = READ[redis.type(key)](redis, key)
    return found


READ = {
    b"hash": lambda redis, key: redis.hgetall(key),
    b"set": lambda redis, key: redis.smembers(key),
    b"zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
    b"list": lambda redis, key: redis.lrange(key, 0, -1),
}


def run_all(queue, at, most=30):
    """The mids in the order in which they are handed out, one at a time; the first slots of a line may be empty."""
    order = []
    for step in range(most):
        for one in queue.dequeue(9, now=at(step)).messages:
            order.append(one.mid)
            queue.finish([Ending(mid=one.mid, token=one.token)], now=at(step))
    return order


def test_messages_come_back_byte_for_byte_with_time_place_and_options(queue, redis, bin_, at, end):
    queue.enqueue_many([(f"m{i}", b"\xff\x00%d" % i) for i in range(6)], lease=70, now=at(0))
    queue.enqueue(b"later", mid="later", delay=60, until=9, now=at(0))
    queue.enqueue(b"again", mid="again", now=at(0))
    held = {one.mid: one for one in queue.dequeue(7, now=at(1)).messages}
    queue.checkpoint("m0", held["m0"].token, "half \x1f way")
    for mid in ("m0", "m1"):
        end(queue, held[mid], "retry", backoff=30, now=at(2))
    for mid in ("m2", "m3", "m4", "m5"):
        queue.release([(mid, held[mid].token)], now=at(2))
    before, generation = stored(redis, queue), queue.status("m0").generation
    wanted = [("m3", ANY), ("m0", generation), ("m1", ""), ("later", ""), ("none", "")]

    assert bin_.take_out(*wanted, now=at(3)) == ["taken", "taken", "changed", "taken", "nil"]
    assert bin_.take_out(*wanted, now=at(4)) == ["in bin", "in bin", "changed", "in bin", "nil"]
    assert queue.admin.fsck() == []
    assert [queue.status(mid).word for mid in ("m3", "m0", "later")] == ["nil"] * 3
    assert bin_.left_s() == pytest.approx(3_600, abs=60)

    assert bin_.put_back("waiting", "m3", "m0", "later", "none", now=at(5)) == [
        "restored", "restored", "restored", "nil",
    ]  # fmt: skip
    assert stored(redis, queue) == before
    assert queue.admin.fsck() == []
    assert bin_.left_s() is None


def test_message_whose_turn_came_is_first_and_others_keep_their_order(queue, bin_, at):
    queue.enqueue_many([(f"m{i}", b"v") for i in range(6)], now=at(0))
    bin_.take_out(("m0", ""), ("m1", ""), ("m4", ""), now=at(1))
    assert [one.mid for one in queue.dequeue(1, now=at(2)).messages] == ["m2"]

    bin_.put_back("waiting", "m0", "m1", "m4", now=at(3))

    assert [one.mid for one in queue.dequeue(9, now=at(4)).messages] == [
        "m0",
        "m1",
        "m3",
        "m4",
        "m5",
    ]


def test_message_with_a_key_comes_back_to_its_place_in_the_line(queue, redis, bin_, at):
    queue.enqueue_many([(f"k{i}", b"v", "acme") for i in range(5)], ordered=True, now=at(0))
    assert bin_.take_out(("k0", ""), ("k2", ""), ("k3", ""), now=at(1)) == ["taken"] * 3
    assert queue.dequeue(9, now=at(2)).messages == [], "its slot is empty"
    [first] = queue.dequeue(9, now=at(2)).messages
    queue.finish([Ending(mid=first.mid, token=first.token)], now=at(3))

    bin_.put_back("waiting", "k0", "k2", "k3", now=at(4))

    assert queue.admin.fsck() == []
    assert [first.mid, *run_all(queue, at)] == ["k1", "k0", "k2", "k3", "k4"]


def test_line_that_emptied_meanwhile_keeps_its_order(queue, redis, bin_, at):
    queue.enqueue_many([(f"k{i}", b"v", "acme") for i in range(3)], now=at(0))
    bin_.take_out(("k0", ""), ("k1", ""), ("k2", ""), now=at(1))
    assert not redis.exists(f"{queue.prefix}lines", f"{queue.prefix}keys")
    redis.hdel(f"{queue.prefix}meta", "turn")

    bin_.put_back("waiting", "k0", "k1", "k2", now=at(2))

    assert queue.admin.fsck() == []
    assert [one.mid for one in queue.dequeue(9, now=at(3)).messages] == ["k0", "k1", "k2"]


def test_mid_that_lives_again_is_counted_and_not_forced(queue, bin_, at):
    queue.enqueue(b"old", mid="m", now=at(0))
    bin_.take_out(("m", ""), now=at(1))
    queue.enqueue(b"new", mid="m", now=at(2))

    assert bin_.put_back("waiting", "m", now=at(3)) == ["exists"]
    assert queue.content("m") == b"new"
    assert bin_.take_out(("m", ""), now=at(4)) == ["in bin"], "a repeated call takes no newer one"


def died(queue, at, *mids):
    """Return their dead ids, latest first."""
    for index, mid in enumerate(mids):
        queue.enqueue(b"content of " + mid.encode(), mid=mid, lease=20, key="acme", now=at(0))
        [held] = queue.dequeue(1, now=at(0)).messages
        queue.finish(
            [Ending(mid=mid, token=held.token, outcome="dead", reason="no")], now=at(1 + index)
        )
    return [one.dead_id for one in queue.admin.dead()]


def test_dead_messages_come_back_as_they_were(queue, redis, bin_, at):
    ids = died(queue, at, "a", "b", "a")
    before = stored(redis, queue)

    assert bin_.take_out_dead(*ids, "none#1", now=at(9)) == ["taken"] * 3 + ["nil"]
    assert queue.admin.dead() == []
    assert queue.admin.fsck() == []
    assert bin_.put_back("dead", *ids, now=at(10)) == ["restored"] * 3

    assert stored(redis, queue) == before
    assert queue.admin.fsck() == []


def test_revived_messages_are_dead_again_unless_they_started(queue, redis, bin_, at):
    ids = died(queue, at, "a", "b", "c", "d")
    a, b, c, d = reversed(ids)
    before = stored(redis, queue)
    assert (
        bin_.revive((a, at(60_000)), (b, None), (c, None), (d, at(60_000)), now=at(9))
        == ["revived"] * 4
    )
    assert queue.status("a", now=at(10)).not_before == at(60_000)
    [held] = queue.dequeue(1, now=at(11)).messages
    assert held.mid == "b"
    queue.enqueue(b"other", mid="d", on_conflict="replace", now=at(12))

    assert bin_.put_back("revived", a, b, c, d, now=at(13)) == [
        "restored", "changed", "restored", "changed",
    ]  # fmt: skip

    assert {one.dead_id for one in queue.admin.dead()} == {a, c}
    assert queue.admin.fsck() == []
    now = stored(redis, queue)
    assert now[b"dead-messages"] != before[b"dead-messages"]
    assert queue.status("a", now=at(14)).word == queue.status("c", now=at(14)).word == "dead"


def test_content_is_edited_and_edited_back_until_it_ran(queue, redis, bin_, at, end):
    queue.enqueue_many([("m", b"old"), ("later", b"old")], delay=1, lease=70, now=at(0))
    queue.enqueue(b"old", mid="runs", now=at(0))
    [held] = queue.dequeue(now=at(1)).messages
    before = stored(redis, queue)

    wanted = [
        ("m", "", b"n" * 9_999),
        ("later", "", b"old"),
        ("runs", "*", b"x"),
        ("none", "", b"x"),
    ]
    assert bin_.edit(*wanted, now=at(2)) == ["edited", "same", "changed", "nil"]
    assert bin_.edit(*wanted[:1], now=at(2)) == ["in bin"], "the former content is kept"
    assert queue.content("m") == b"n" * 9_999
    assert bin_.put_back("edited", "m", "later", now=at(3)) == ["restored", "nil"]
    assert stored(redis, queue) == before

    end(queue, held, "retry", backoff=5, now=at(4))
    bin_.edit(("runs", held.token, b"new"), now=at(5))
    held = queue.dequeue(9, now=at(5_005)).messages[-1]
    assert (held.mid, held.content) == ("runs", b"new")
    assert bin_.put_back("edited", "runs", now=at(5_006)) == ["changed"]
    assert queue.admin.fsck() == []


def test_long_contents_are_edited_in_calls_of_a_few(queue, bin_, at):
    queue.enqueue_many([(f"m{i}", b"x") for i in range(9)], now=at(0))
    long = [(f"m{i}", "", b"y" * 1_000_000) for i in range(9)]
    assert bin_.edit(*long, now=at(1)) == ["edited"] * 9
    with pytest.raises(CodecError, match="at most 1,048,576 are allowed"):
        bin_.edit(("m1", "", b"x" * 2**21))


def test_events_name_the_operation(queue, redis, at):
    [dead_id] = died(queue, at, "a")
    queue.enqueue(b"v", mid="m", now=at(2))
    bin_ = queue.admin.bin("op-7")
    bin_.take_out(("m", ""), now=at(3))
    bin_.put_back("waiting", "m", now=at(4))
    bin_.revive((dead_id, None), now=at(5))
    bin_.put_back("revived", dead_id, now=at(6))

    columns = [entry[b"1"].split(b"\x1f") for _, entry in redis.xrange(f"{queue.prefix}events")]
    told = [(row[0], row[1], row[10]) for row in columns if len(row) > 10 and row[10] == b"op-7"]
    assert told == [
        (b"cancelled", b"m", b"op-7"), (b"revived", b"m", b"op-7"),
        (b"revived", b"a", b"op-7"), (b"cancelled", b"a", b"op-7"),
    ]  # fmt: skip


def test_bin_is_bounded_and_counts_its_bytes(queue, redis, bin_, at):
    queue.enqueue_many([(f"big{i}", b"x" * 900_000) for i in range(20)], now=at(0))
    words = bin_.take_out(*((f"big{i}", "") for i in range(20)), now=at(1))

    assert words == ["taken"] * 18 + ["full"] * 2
    assert queue.admin.counts().ready == 2
    fields = redis.hgetall(bin_.key)
    assert int(fields.pop(b"bytes")) == sum(
        len(name) - 1 + len(text) for name, text in fields.items()
    )
    bin_.put_back("waiting", *(f"big{i}" for i in range(17)), now=at(2))
    fields = redis.hgetall(bin_.key)
    assert int(fields.pop(b"bytes")) == sum(
        len(name) - 1 + len(text) for name, text in fields.items()
    )
    assert bin_.put_back("waiting", "big17", now=at(3)) == ["restored"]
    assert not redis.exists(bin_.key)


def test_bin_holds_so_many_messages_and_no_more(queue, redis, bin_, at):
    redis.hset(bin_.key, mapping={f"w{i}": "-" for i in range(10_000)} | {"bytes": "1"})
    queue.enqueue(b"v", mid="m", now=at(0))
    assert bin_.take_out(("m", ""), now=at(1)) == ["full"]
    redis.hdel(bin_.key, "w1")
    queue.enqueue(b"v", mid="n", now=at(0))
    assert bin_.take_out(("m", ""), ("n", ""), now=at(1)) == ["taken", "full"]


def test_without_a_bin_messages_are_deleted(queue, redis, at):
    [dead_id] = died(queue, at, "a")
    queue.enqueue(b"v", mid="m", now=at(2))
    shredder = Bin(queue.name, queue.client, "op-2", None)

    assert shredder.take_out(("m", ""), now=at(3)) == ["taken"]
    assert shredder.take_out_dead(dead_id, now=at(3)) == ["taken"]

    assert not redis.exists(shredder.key)
    assert shredder.put_back("waiting", "m", now=at(4)) == ["nil"]
    assert queue.admin.counts().messages == 0


def test_full_server_takes_out_and_puts_back_and_revives_nothing(queue, redis, bin_, at):
    [dead_id] = died(queue, at, "a")
    queue.enqueue(b"v", mid="m", now=at(2))
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    try:
        assert bin_.take_out(("m", ""), now=at(3)) == ["taken"]
        assert bin_.put_back("waiting", "m", now=at(4)) == ["restored"]
        assert queue.admin.run_now("m", now=at(4))[0].word == "same"
        with pytest.raises(ServerFullError):
            bin_.revive((dead_id, None), now=at(5))
    finally:
        redis.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    "text",
    [b"", b"-", b"---", b"-----", b"--------", b"1:", b"9:a", b"-" * 9, b"99999999999:x", b"\xff" * 9,
     b"1:x" * 7 + b"-"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["waiting", "dead", "revived", "edited"])
def test_what_another_program_wrote_into_the_bin_is_damaged(queue, redis, bin_, at, place, text):
    for letter in "wdre":
        redis.hset(bin_.key, f"{letter}m#1", text)

    assert bin_.put_back(place, "m#1", now=at(0)) == ["damaged"]

    assert queue.admin.counts().messages == 0
    assert queue.admin.fsck() == []


def test_thousands_go_and_come_in_calls_of_250_in_their_order(queue, bin_, at):
    mids = [f"m{i:04}" for i in range(900)]
    queue.enqueue_many([(mid, b"v") for mid in mids], now=at(0))
    assert set(bin_.take_out(*((mid, "") for mid in mids), now=at(1))) == {"taken"}
    assert queue.dequeue(9, now=at(2)).messages == []
    for step in range(20):
        queue.dequeue(100, now=at(3 + step))

    assert set(bin_.put_back("waiting", *mids, now=at(30))) == {"restored"}

    assert [one.mid for one in queue.dequeue(1_000, now=at(31)).messages] == mids


def test_message_runs_now_and_the_former_time_undoes_it(queue, redis, at, end):
    queue.enqueue(b"v", mid="later", delay=60, now=at(0))
    queue.enqueue_many([("ready", b"v"), ("runs", b"v")], now=at(0))
    before = stored(redis, queue)

    moved = queue.admin.run_now("later", "ready", "none", now=at(1))
    assert moved == [("later", "moved", at(60_000)), ("ready", "same", None), ("none", "nil", None)]
    assert queue.status("later", now=at(2)).word == "queued"
    undone = queue.admin.reschedule([("later", "", moved[0].former_ms)], now=at(3))
    assert undone == [("later", "moved", None)]
    assert stored(redis, queue).keys() == before.keys() | {b"left-ready"}
    assert queue.status("later", now=at(4)).not_before == at(60_000)

    queue.admin.run_now("later", now=at(5))
    held = {one.mid: one for one in queue.dequeue(9, now=at(6)).messages}
    assert queue.admin.reschedule([("later", "", at(60_000))], now=at(7))[0].word == "changed"
    end(queue, held["later"], "retry", backoff=30, now=at(8))
    assert queue.admin.reschedule([("later", "", at(60_000))], now=at(9))[0].word == "changed"
    assert queue.admin.run_now("later", now=at(9)) == [("later", "moved", at(30_008))]
    assert queue.admin.fsck() == []


@pytest.mark.parametrize("operation", ["", "a b", "x" * 65, "ü", "a\n", "{a}"])
def test_operation_needs_a_name_that_a_key_can_have(queue, redis, operation):
    with pytest.raises(ConfigError, match="1-64"):
        queue.admin.bin(operation)


@pytest.mark.parametrize("keep", [0, -1, 86_401, "2d"])
def test_bin_is_kept_for_a_day_at_most(queue, keep):
    with pytest.raises(ConfigError, match="keep"):
        queue.admin.bin("op", keep)
