"""A sealed queue takes only messages whose mid or key lives in it. The others belong to partitions of a newer epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ScriptError
from jobq.queue import keys
from jobq.queue.admin import tick_values
from jobq.queue.partitioning import left_in, tidy
from jobq.queue.partitions import Epoch, PartitionMap
from jobq.queue.queue import Queue, batch_of, enqueue_values, queue_scripts
from jobq.queue.routing import SealedError
from jobq.queue.types import Ending

pytestmark = pytest.mark.one_server

T0 = 1_700_000_000_000


def seal(queue: Queue, epoch: int = 2) -> list[bytes]:
    reply: list[bytes] = queue.scripts["seal"].run({"epoch": epoch})
    return reply


def ask(queue: Queue, *mids: str, first: bool = True, **options: Any) -> list[tuple[str, str]]:
    """Enqueue in one call, by default with the key for moved messages."""
    key = options.get("key")
    values, rows, _ = batch_of([(mid, b"new") for mid in mids], enqueue_values(**options), key)
    extra = list(queue.extra_keys(values, mids))
    if first:
        extra.append(keys.key(queue.prefix, "moved_keys"))
    caller = queue.callers.take()
    state = queue.scripts["enqueue"].numbered(caller, values, rows, extra)
    reply = [word.decode() for word in queue.client.perform(queue.wake_key, state)]
    queue.callers.give_back(caller)
    return list(zip(reply[::2], reply[1::2], strict=True))


@pytest.fixture
def sealed(queue: Queue) -> Queue:
    """A sealed queue in which m1, and k1 of the key K, wait."""
    queue.enqueue(b"1", mid="m1")
    queue.enqueue(b"2", mid="k1", key="K")
    assert seal(queue) == [b"sealed", b"2", 0]
    return queue


def test_seal_keeps_the_first_epoch_when_it_is_sealed_again(sealed: Queue) -> None:
    assert seal(sealed, 5) == [b"sealed", b"2", 0]
    assert sealed.admin.fsck() == []


def test_enqueue_takes_only_mids_and_keys_that_live_when_the_queue_is_sealed(sealed: Queue) -> None:
    assert ask(sealed, "m1", "m2", "m1") == [
        ("exists", "queued"),
        ("moved", "2"),
        ("exists", "queued"),
    ]
    assert ask(sealed, "m1", on_conflict="replace") == [("updated", "")]
    assert ask(sealed, "k2", key="K") == [("added", "")]
    assert ask(sealed, "k3", key="L") == [("moved", "2")]
    assert [one.mid for one in sealed.dequeue(9).messages] == ["m1", "k1", "k2"]


@pytest.mark.parametrize("options", [{}, {"key": "K"}, {"delay": 5}, {"on_conflict": "requeue"}])
def test_enqueue_answers_sealed_when_the_caller_does_not_know_of_it(
    sealed: Queue, facts: Callable[[], dict[bytes, bytes]], options: dict[str, Any]
) -> None:
    before = facts()

    assert ask(sealed, "m1", first=False, **options) == [("sealed", "2")]
    assert facts() == before


def test_enqueue_answers_moved_again_when_the_call_is_repeated(sealed: Queue) -> None:
    caller = sealed.callers.take()
    values, rows, _ = batch_of([("m1", b"x"), ("m2", b"y")], enqueue_values())
    state = sealed.scripts["enqueue"].numbered(
        caller, values, rows, [keys.key(sealed.prefix, "moved_keys")]
    )

    first, again = (sealed.client.perform(sealed.wake_key, state) for _ in range(2))

    assert first == again == [b"exists", b"queued", b"moved", b"2"]


def test_enqueue_deletes_only_results_of_what_it_takes_when_others_are_moved(sealed: Queue) -> None:
    for mid in ("gone", "k2"):
        sealed.client.command("RPUSH", sealed.result_key(mid), "old")

    assert ask(sealed, "gone", "k2", key="K", drop_results=True) == [("added", ""), ("added", "")]
    assert not sealed.client.command("EXISTS", *sealed.result_keys(["gone", "k2"]))
    sealed.client.command("RPUSH", sealed.result_key("other"), "old")
    values = enqueue_values(drop_results=True)
    caller = sealed.callers.take()
    values, rows, mids = batch_of([("other", b"x", "L"), ("k3", b"y", "K")], values)
    extra = [*sealed.result_keys(mids), keys.key(sealed.prefix, "moved_keys")]
    state = sealed.scripts["enqueue"].numbered(caller, values, rows, extra)
    assert sealed.client.perform(sealed.wake_key, state) == [b"moved", b"2", b"added", b""]
    assert sealed.client.command("EXISTS", sealed.result_key("other"))


def test_a_finished_mid_starts_over_elsewhere_when_the_queue_is_sealed(sealed: Queue) -> None:
    message = sealed.dequeue().messages[0]
    assert message.mid == "m1"
    sealed.finish([Ending(mid="m1", token=message.token, outcome="done")])

    assert ask(sealed, "m1", until="done") == [("moved", "2")]
    assert ask(sealed, "m1", on_conflict="requeue") == [("moved", "2")]


def test_a_key_stays_moved_when_a_delayed_message_of_it_comes_back(sealed: Queue) -> None:
    queue = sealed
    for message in queue.dequeue(2, now=T0).messages:
        ending = Ending(mid=message.mid, token=message.token, outcome="retry", backoff=5)
        queue.finish([ending], now=T0)

    assert ask(queue, "k2", key="K") == [("moved", "2")]
    assert len(queue.dequeue(9, now=T0 + 6_000).messages) == 2  # k1 runs: its key has a state again
    assert ask(queue, "k3", key="K") == [("moved", "2")]
    assert ask(queue, "k1", key="K") == [("exists", "queued")]


@pytest.mark.parametrize("rules", [{"key_max": 1}, {"key_rate": "9/s"}, {"key_weight": 2}, {}])
def test_a_key_with_limits_stays_while_messages_of_it_are_delayed(
    queue: Queue, rules: dict[str, Any]
) -> None:
    queue.rules(**rules)
    queue.enqueue_many([(f"d{i}", b"x", "K") for i in range(3)], delay=5, now=T0)
    queue.enqueue(b"x", mid="later", key="L", delay=60, now=T0)
    seal(queue)
    stays = ("added", "") if "key_max" in rules or "key_rate" in rules else ("moved", "2")

    assert ask(queue, "k1", key="K", now=T0 + 1) == [stays]
    if stays[0] == "moved":
        assert ask(queue, "k1", key="K", ordered=True, now=T0 + 1) == [stays]  # once moved, always
        return
    for now in range(T0 + 9_000, T0 + 11_000, 100):
        messages = queue.dequeue(9, now=now).messages
        queue.finish([Ending(mid=one.mid, token=one.token) for one in messages], now=now)
    assert ask(queue, "k2", key="K", now=T0 + 11_000) == [("moved", "2")]
    assert ask(queue, "l1", key="L", now=T0 + 11_000) == [("added", "")]
    assert queue.client.command("ZCARD", keys.key(queue.prefix, "rests")) == 1
    assert queue.admin.fsck() == []


def test_an_ordered_key_stays_while_messages_of_it_are_delayed(queue: Queue) -> None:
    queue.enqueue(b"x", key="K", ordered=True, delay=5, now=T0)
    seal(queue)

    assert ask(queue, "k2", key="K", ordered=True, now=T0) == [("added", "")]


def test_every_key_stays_until_a_seal_has_listed_the_keys_of_delayed_messages(queue: Queue) -> None:
    queue.rules(key_max=1)
    queue.enqueue_many([(f"d{i}", b"x", f"K{i}") for i in range(2_500)], delay=5, now=T0)
    assert seal(queue) == [b"sealed", b"2", 1_500]

    assert ask(queue, "l1", key="L", now=T0) == [("added", "")]
    assert not left_in(queue.client, queue.name).is_listed
    tidy(queue.client, PartitionMap(queue.name, (Epoch(0), Epoch(2, 0, 1))))

    assert left_in(queue.client, queue.name).is_listed
    assert ask(queue, "m1", key="M", now=T0) == [("moved", "2")]
    assert ask(queue, "k2499", key="K2499", now=T0) == [("added", "")]


def test_a_held_key_waits_when_only_delayed_messages_are_in_the_sealed_queue(queue: Queue) -> None:
    queue.rules(key_max=1)
    queue.enqueue(b"x", mid="d1", key="K", delay=5, now=T0)
    seal(queue)

    queue.scripts["hold"].run({"now": T0 + 1, "key": "K", "wait_ms": 60_000})
    queue.scripts["hold"].run({"now": T0 + 1, "key": "L", "wait_ms": 60_000})

    assert queue.dequeue(9, now=T0 + 9_000).messages == []
    assert queue.client.command("HKEYS", keys.key(queue.prefix, "keys")) == [b"K"]
    assert [one.mid for one in queue.dequeue(9, now=T0 + 61_000).messages] == ["d1"]


def test_listed_keys_are_kept_when_the_queue_is_repaired(queue: Queue) -> None:
    queue.rules(key_max=1)
    queue.enqueue_many([("d1", b"x", "K"), ("d2", b"x", "K")], delay=5, now=T0)
    seal(queue)
    queue.client.command("HDEL", keys.key(queue.prefix, "messages"), "d2")
    assert queue.admin.fsck()

    queue.scripts["repair"].run({"now": T0}, ["d2"])

    assert queue.admin.fsck() == []
    assert ask(queue, "k1", key="K", now=T0) == [("added", "")]


def test_members_of_flows_move_when_the_queue_is_sealed(queue: Queue) -> None:
    queue.enqueue_members([("~f.m.0", b"x")], in_order=True)
    seal(queue)

    values = {**enqueue_values(), "again": "next"}
    rows = ["~f.m.0", b"x", "~f.m.1", b"y"]
    extra = [*queue.extra_keys(values, ["~f.m.0"]), keys.key(queue.prefix, "moved_keys")]
    state = queue.scripts["enqueue"].numbered(queue.callers.take(), values, rows, extra)

    assert queue.client.perform(queue.wake_key, state) == [b"exists", b"accepted", b"moved", b"2"]
    assert queue.admin.fsck() == []


def test_nothing_else_adds_messages_when_the_queue_is_sealed(
    queue: Queue, facts: Callable[[], dict[bytes, bytes]]
) -> None:
    queue.enqueue_many([("dies", b"x"), ("waits", b"y")])
    message = queue.dequeue().messages[0]
    ending = Ending(mid="dies", token=message.token, outcome="dead", reason="why")
    queue.finish([ending])
    dead_id = queue.admin.dead()[0].dead_id
    bin_ = queue.admin.bin("op")
    assert bin_.take_out(("waits", "")) == ["taken"]
    seal(queue)
    before = facts()

    assert queue.admin.bin("other").revive((dead_id, None)) == ["sealed"]
    with pytest.raises(ScriptError, match="has no later partitions"):
        queue.admin.revive(dead_id)
    with pytest.raises(SealedError, match="its schedules enqueue to its partitions"):
        queue.admin.tick(tick_values("name", T0, 0, "s", b"call"))
    head = msgspec.msgpack.encode(["row", "", 1])
    deliver = queue_scripts(queue.client, "pipeline", queue.name)["deliver"]
    values = {"now": "", "dedupe_ms": "", "keyed": "", "batch": b"%08d" % len(head) + head + b"x"}
    assert deliver.call(Caller(), values) == [b"sealed", b"2"]
    assert facts() == before
    assert bin_.put_back("waiting", "waits") == ["sealed"]
    assert queue.admin.counts().messages == 0


def test_the_seal_stays_when_the_queue_is_cleared(sealed: Queue) -> None:
    sealed.admin.clear()

    assert ask(sealed, "m1") == [("moved", "2")]


def test_fsck_reports_a_seal_when_only_some_scripts_see_it(sealed: Queue) -> None:
    sealed.client.command("HDEL", keys.key(sealed.prefix, "meta"), "sealed")

    assert [one.rule for one in sealed.admin.fsck()] == [
        "meta: the queue is sealed for some scripts only"
    ]
    seal(sealed, 3)
    assert sealed.admin.fsck() == []


def test_a_sealed_queue_hands_out_as_many_messages_when_they_are_large(queue: Queue) -> None:
    queue.enqueue_many([(f"m{i}", b"x" * 1_000) for i in range(50)])
    seal(queue)

    assert len(queue.dequeue(50).messages) == 50


def test_commands_of_an_unsealed_queue_are_the_same_when_partitions_are_not_used(
    queue: Queue, commands: Callable[[Callable[[], Any]], int]
) -> None:
    """P4: neither the plain nor the general scripts ask whether it is sealed."""
    queue.enqueue_many([b"warm"] * 3)
    held = queue.dequeue(3).messages
    asked = {
        "plain": commands(lambda: queue.enqueue(b"x")),
        "general": commands(lambda: queue.enqueue(b"x", delay=5)),
    }
    queue.finish([Ending(mid=one.mid, token=one.token, outcome="done") for one in held])

    assert asked == {"plain": 6, "general": 15}


@pytest.mark.parametrize("first", [True, False])
def test_enqueue_changes_nothing_when_a_partition_was_never_made(
    client: Any, facts: Callable[[], dict[bytes, bytes]], first: bool
) -> None:
    place = Queue("low/3", client)
    assert ask(place, "m1", first=first) == [("sealed", "")]
    assert ask(place, "m1", first=first, delay=5) == [("sealed", "")]
    assert facts() == {}

    client.command("HSET", keys.key(place.prefix, "meta"), "fence", 0)

    assert ask(place, "m1", first=first) == [("added", "")]
