"""The number of partitions changes under load: nothing is lost, doubled or reordered, whoever dies on the way.

tests/chaos/test_partitions.py does the same with processes on a Cluster.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import Caller, Tries
from jobq.client.runtime import runtime
from jobq.config import ServerSettings
from jobq.errors import ConfigError, KeyFullError, NotDurableError, ScriptError, UnavailableError
from jobq.queue import keys
from jobq.queue.aio import aenqueue_many
from jobq.queue.directory import queue_names
from jobq.queue.partition_fsck import map_violations
from jobq.queue.partitioning import KEEP_S, forget_gone, left_in, partition, remove_partitions, tidy
from jobq.queue.partitions import fence_of, map_key, read_map
from jobq.queue.queue import Queue, enqueue_values, queue_scripts
from jobq.queue.routing import PartitionRouter
from jobq.queue.types import FENCES_PER_EPOCH, Ending, Message
from jobq.worker.partition_watch import map_of, queues_to_serve
from tests.waiting import until

pytestmark = pytest.mark.one_server

KEYS, ROUNDS, TOGETHER = 1_000, 3, 100
#: Round and share of its calls -> the new number of partitions.
CHANGES = {(0, 2): 8, (1, 2): 3, (2, 2): 16}


class KilledError(BaseException):
    """The process of `jobq partitions` is killed."""


@contextmanager
def killed_after(client: Client, ncalls: int) -> Iterator[None]:
    """The caller dies once this client has made so many calls within."""
    perform, left = client.perform, [ncalls]

    def counted(*args: Any) -> Any:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        return perform(*args)

    client.perform = counted  # type: ignore[method-assign]
    try:
        with suppress(KilledError):
            yield
    finally:
        del client.perform  # type: ignore[method-assign]


class Load:
    """Producers with maps of any age, and workers of all partitions, some of which die.

    Attributes:
        added: mid -> how often it was accepted as a new message.
        ran: mid -> how often it ran to its end.
        handed: key -> numbers of its messages, as they were handed out.
    """

    def __init__(self, client: Client) -> None:
        self.client, self.chance = client, random.Random(7)
        # The last is used so rarely that its map is of an earlier change.
        self.producers = [Queue("low", client) for _ in range(3)]
        self.added, self.ran = Counter[str](), Counter[str]()
        self.handed: dict[str, list[int]] = {f"key{at}": [] for at in range(KEYS)}
        self.held: list[tuple[Queue, Message]] = []
        self.repeated = 0

    def produce(self, round_: int, first: int) -> None:
        """Enqueue a message of each of TOGETHER keys; a tenth of them again, and as many mids without a key."""
        keyed = [
            (f"key{at}-{round_}", f"key{at} {round_}".encode(), f"key{at}")
            for at in range(first, first + TOGETHER)
        ]
        plain = [(f"plain-{mid}", b"plain") for mid, _, _ in keyed[::5]]
        self._send(keyed, ordered=True)
        self._send(plain)
        again = self.chance.sample(keyed, TOGETHER // 10)
        self._send(again, ordered=True)
        # Collected messages are added again.
        mids = [mid for mid in self.ran if mid.startswith("plain")]
        earlier = [(mid, b"plain") for mid in self.chance.sample(mids, min(len(mids), 10))]
        self._send([*plain[::2], *earlier])
        self.repeated += len(again) + len(plain[::2]) + len(earlier)

    def _send(self, messages: list[Any], *, ordered: bool = False) -> None:
        [producer] = self.chance.choices(self.producers, (60, 38, 2))
        for each in producer.enqueue_many(messages, ordered=ordered):
            if each.action == "added":
                assert self.ran[each.mid] == self.added[each.mid], f"{each.mid} lives twice"
                self.added[each.mid] += 1

    def work(self, *, dies: bool = False) -> bool:
        """Take messages and end two thirds of all taken, or die with them; return whether messages are left."""
        queues = [Queue(name, self.client) for name in read_map(self.client, "low").served()]
        for queue in queues:
            queue.admin.collect(crash_limit=0)
            # Dead workers don't renew leases.
            lease = 0.001 if dies else 60
            messages = queue.dequeue(20, lease=lease, crash_limit=0).messages
            self.held += [(queue, message) for message in messages if not dies]
            for message in messages:
                key, _, number = message.content.decode().partition(" ")
                if number:
                    self.handed[key].append(int(number))
        self.chance.shuffle(self.held)
        for _ in range(len(self.held) - len(self.held) // 3):
            queue, message = self.held.pop()
            queue.finish([Ending(mid=message.mid, token=message.token, outcome="done")])
            self.ran[message.mid] += 1
        return bool(self.held) or any(queue.admin.counts().messages for queue in queues)

    def change(self, count: int) -> None:
        """Change the number of partitions; whoever does it dies between its steps, under load, until it succeeds."""
        for ncalls in self.chance.sample(range(3, 16), 3):
            with killed_after(self.client, ncalls):
                partition(self.client, "low", count)
            self.work()
        partition(self.client, "low", count)


def test_nothing_is_lost_doubled_or_reordered_when_the_number_changes_under_load(
    client: Client,
) -> None:
    load = Load(client)
    for round_ in range(ROUNDS):
        for call in range(KEYS // TOGETHER):
            load.produce(round_, call * TOGETHER)
            if count := CHANGES.get((round_, call)):
                load.change(count)
            load.work(dies=call % 4 == 3)
            assert map_violations(client, "low", ()) == []
            tidy(client, read_map(client, "low"))
    until(lambda: not load.work())

    assert load.ran == load.added
    assert len(load.ran) == KEYS * ROUNDS * 6 // 5
    assert all(set(numbers) == set(range(ROUNDS)) for numbers in load.handed.values())
    assert load.repeated >= len(load.ran) / 10
    assert all(sorted(numbers) == numbers for numbers in load.handed.values())
    known = tidy(client, read_map(client, "low"))
    assert [epoch.drained for epoch in known.epochs] == [True, True, True, False]
    for name in ("low", *(f"low/{number}" for number in range(27))):
        assert Queue(name, client).admin.fsck() == []
        is_old = name == "low" or int(name[4:]) < 11
        assert left_in(client, name) == (is_old, 0, 0, 0, True)


def test_a_change_continues_when_a_worker_notes_meanwhile_that_partitions_are_drained(
    client: Client, monkeypatch: Any
) -> None:
    from jobq.queue import partitioning

    Queue("low", client).enqueue(b"x")
    stale = partition(client, "low", 2)
    until(lambda: not Queue("low", client).admin.clear())
    assert tidy(client, stale).epochs != stale.epochs
    monkeypatch.setattr(partitioning, "read_map", lambda *_: stale)

    assert partition(client, "low", 4).newest.size == 4


def test_a_seal_is_restored_when_a_failover_lost_it(client: Client) -> None:
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="stays")
    known = partition(client, "low", 2)
    client.command("HDEL", keys.key(queue.prefix, "meta"), "sealed", "max_content")

    assert tidy(client, known) == known

    assert left_in(client, "low").is_sealed
    assert queue.enqueue(b"x").partition


def test_nothing_is_sealed_when_the_map_is_not_durable(client: Client, server: Any) -> None:
    settings = ServerSettings(url=server.url, durability="replicas=1", durable_within_s=0.01)
    hopeful = connect(settings=settings)

    for _ in range(2):
        with pytest.raises(NotDurableError, match="a new map"):
            partition(hopeful, "low", 2)

    hopeful.close()
    assert not left_in(client, "low").is_sealed


def test_async_batches_of_a_key_keep_their_order_when_the_queue_is_partitioned(
    client: Client, monkeypatch: Any
) -> None:
    """The first call of each takes longer than the next."""
    partition(client, "low", 2)
    send = PartitionRouter.send

    def slower(routes: Any, level: str, values: Any, rows: Any, mids: Any, *args: Any) -> Any:
        time.sleep(0.05 * (mids[0] in ("m0", "m600")))
        return send(routes, level, values, rows, mids, *args)

    monkeypatch.setattr(PartitionRouter, "send", slower)
    queue = Queue("low", client)
    for first in (0, 600):
        rows = [(f"m{number}", b"x") for number in range(first, first + 600)]
        asyncio.run(aenqueue_many(queue, rows, key="k", ordered=True))

    order = []
    for place in queue.partitions():
        while messages := place.dequeue(1).messages:
            order += [int(message.mid[1:]) for message in messages]
            place.finish([Ending(mid=each.mid, token=each.token) for each in messages])
    assert order == list(range(1200))


def sent(queue: Queue, mids: list[str], caller: Caller) -> list[str]:
    """Send messages under the next number of this caller; return their actions."""
    rows = [part for mid in mids for part in (mid, b"x")]
    done = queue.send("memory", enqueue_values(), rows, mids, caller, Tries())
    return [each.action for each in done]


@pytest.mark.parametrize("knows", [True, False])
def test_a_repeated_call_runs_nothing_twice_when_partitions_changed_in_between(
    client: Client, knows: bool
) -> None:
    """An outage buffer repeats a call under its number, because it doesn't know whether the call arrived."""
    queue, caller, mids = Queue("low", client), Caller(), [f"m{number}" for number in range(8)]
    queue.enqueue(b"x", mid="m0")
    if knows:
        partition(client, "low", 4)
    first = sent(queue, mids, caller)
    assert first == ["exists", *["added"] * 7]
    partition(client, "low", 3)
    Queue("low", client).admin.clear()
    tidy(client, read_map(client, "low"))

    caller.number -= 1
    assert sent(queue, mids, caller) == first

    assert all(left_in(client, place.name).messages == 0 for place in queue.partitions())


def break_queue(client: Client, name: str) -> None:
    """Let the server refuse enqueues to this queue."""
    client.command("SET", keys.key(keys.prefix(client.namespace, name), "messages"), "no hash")


def repair_queue(client: Client, name: str) -> None:
    client.command("DEL", keys.key(keys.prefix(client.namespace, name), "messages"))


@pytest.mark.parametrize("mids", [("a",), ("a", "b", "c")])
def test_a_call_that_another_process_repeats_reaches_the_partitions(
    client: Client, mids: tuple[str, ...]
) -> None:
    """The first process died after the sealed queue had answered 'moved' to its call."""
    Queue("low", client).enqueue(b"x", mid="waits")
    partition(client, "low", 2)
    first, rows = Queue("low", client), [part for mid in mids for part in (mid, b"x")]
    first.send("memory", enqueue_values(), rows, mids, Caller(caller_id="c"), step="old")

    for _ in range(2):
        done = Queue("low", client).send(
            "memory", enqueue_values(), rows, mids, Caller(caller_id="c")
        )
        assert [one.action for one in done] == ["added"] * len(mids)

    assert Queue("low", client).admin.counts().ready == 1 + len(mids)


def test_other_partitions_get_their_messages_when_one_does_not_accept_any(client: Client) -> None:
    partition(client, "low", 4)
    queue, mids = Queue("low", client), [f"m{number}" for number in range(40)]
    name = queue.partitions()[-1].name
    break_queue(client, name)

    with pytest.raises(
        UnavailableError, match="of 40 messages, but one rejected its part"
    ) as raised:
        queue.enqueue_many([(mid, b"x") for mid in mids])

    repair_queue(client, name)
    there = [mid for mid in mids if queue.status(mid).word != "nil"]
    assert 0 < len(there) < 40
    assert {*raised.value.mids} == {*mids} - {*there}
    done = queue.enqueue_many([(mid, b"x") for mid in raised.value.mids])
    assert {each.partition for each in done} == {name}


@pytest.mark.parametrize("knows", [True, False])
def test_messages_reach_partitions_when_the_replies_of_sealed_queues_are_not_durable(
    client: Client, knows: bool
) -> None:
    queue = Queue("low", client)
    queue.enqueue_many([("old", b"x"), ("old2", b"x")])
    partition(client, "low", 4)
    if knows:
        queue.enqueue(b"x")
    mids = ["old", *[f"m{number}" for number in range(20)]]

    with pytest.raises(NotDurableError) as raised:
        queue.enqueue_many([(mid, b"x") for mid in mids], durability="replicas=1")

    assert {*raised.value.mids} == {*mids}
    assert {queue.status(mid).word for mid in mids} == {"queued"}


def test_an_error_does_not_say_accepted_when_one_partition_refused_its_messages(
    client: Client,
) -> None:
    partition(client, "low", 4)
    queue, mids = Queue("low", client), [f"m{number}" for number in range(40)]
    break_queue(client, queue.partitions()[-1].name)

    with pytest.raises(UnavailableError) as raised:
        queue.enqueue_many([(mid, b"x") for mid in mids], durability="replicas=1")

    assert {*raised.value.mids} == {*mids}


def test_a_full_line_is_an_error_when_the_reply_is_not_durable(client: Client) -> None:
    queue = Queue("low", client)
    queue.rules(key_waiting=1)
    queue.enqueue(b"x", key="acme")

    with pytest.raises(KeyFullError):
        queue.enqueue(b"x", key="acme", durability="replicas=1")


def test_the_error_names_the_messages_that_are_left_when_the_map_cannot_be_read(
    client: Client,
) -> None:
    known = partition(client, "low", 2)
    queue, mids = Queue("low", client), [f"m{number}" for number in range(40)]
    queue.enqueue(b"x")
    mids.sort(key=lambda mid: known.newest.name_for("low", mid))
    queue_scripts(client, "queue", "low/1")["seal"].run({"epoch": 2})
    client.command("HSET", map_key(client, "low"), "map", "not a map")

    with pytest.raises(UnavailableError) as raised:
        queue.enqueue_many([(mid, b"x") for mid in mids])

    there = [mid for mid in mids if Queue("low/0", client).status(mid).word != "nil"]
    assert 0 < len(there) < 40
    assert {*raised.value.mids} == {*mids} - {*there}


def test_the_error_names_all_messages_that_are_left_when_calls_overlap(client: Client) -> None:
    partition(client, "low", 2)
    queue, mids = Queue("low", client), [f"m{number}" for number in range(500)]
    break_queue(client, "low/1")

    with pytest.raises(UnavailableError) as raised:
        queue.enqueue_many([(mid, b"x") for mid in mids])

    repair_queue(client, "low/1")
    there = [mid for mid in mids if queue.status(mid).word != "nil"]
    assert 0 < len(there) < 250
    assert {*raised.value.mids} == {*mids} - {*there}


@pytest.mark.parametrize("knows", [True, False])
def test_a_call_may_still_be_sent_when_only_sealed_queues_have_answered(
    client: Client, knows: bool
) -> None:
    """An outage buffer gives up a call that may have arrived, five minutes later."""
    Queue("low", client).enqueue(b"x")
    partition(client, "low", 1)
    queue, tries = Queue("low", client), Tries()
    if knows:
        queue.enqueue(b"x")
    break_queue(client, "low/0")

    with pytest.raises(ScriptError):
        queue.send("memory", enqueue_values(), ["m", b"x"], ["m"], Caller(), tries)

    assert not tries.arrived


def test_other_calls_leave_the_outage_buffer_when_a_line_of_a_partition_is_full(
    client: Client, server: Any
) -> None:
    Queue("low", client).rules(key_waiting=1)
    known = partition(client, "low", 2)
    key_of = {known.newest.name_for("low", f"k{n}"): f"k{n}" for n in range(9)}
    full, free = key_of["low/0"], key_of["low/1"]
    buffered = connect(settings=ServerSettings(url=server.url, outage_buffer=100))
    low, high = Queue("low", buffered), Queue("high", buffered)
    low.enqueue(b"x", mid="first", key=full)

    low.enqueue_many([("waits", b"x", full), ("enters", b"x", free)])
    high.enqueue(b"x", mid="other")

    until(lambda: high.status("other").word == "queued")
    assert low.status("enters").word == "queued"
    assert [one.mid for one in Queue("low/0", client).dequeue(2).messages] == ["first"]
    assert buffered.outage is not None
    buffered.outage.flush(30)
    buffered.close()
    assert low.status("waits").word == "queued"


def drained_producer(client: Client, *counts: int) -> Queue:
    """A queue whose number changed like this, and whose messages are done; it knows that the old ones are drained."""
    queue = Queue("low", client)
    for count in counts:
        queue.enqueue(b"x")
        partition(client, "low", count)
        queue.admin.clear()
    tidy(client, read_map(client, "low"))
    queue.routed()
    assert [epoch.drained for epoch in queue.routed().map.epochs] == [True] * len(counts) + [False]
    return queue


@pytest.mark.parametrize("options", [{}, {"delay": 5}, {"key": "acme"}], ids=str)
def test_messages_go_to_the_queue_itself_when_the_server_lost_all_its_data(
    client: Client, redis: Any, options: dict[str, Any]
) -> None:
    queue = drained_producer(client, 4)
    redis.flushdb()

    assert queue.enqueue(b"x", mid="m1", **options).partition == "low"
    assert {each.partition for each in queue.enqueue_many([b"y"] * 600)} == {"low"}

    assert redis.keys("jobq:{low/*") == []
    partition(client, "low", 2)
    assert queue.enqueue(b"x", mid="m1", **options).action == "exists"
    assert queue.enqueue(b"x", mid="m2").partition in ("low/0", "low/1")


def test_no_message_stays_behind_when_a_server_without_persistence_lost_the_map(
    client: Client, redis: Any
) -> None:
    producer = drained_producer(client, 2)
    earlier = [name for name, _ in queues_to_serve(client, [("low", 1)], {})]  # a running worker
    redis.flushdb()  # a restart
    newer = Queue("low", client)
    newer.enqueue(b"x", mid="by a new client")
    producer.enqueue(b"x", mid="by a running client")
    later = [name for name, _ in queues_to_serve(client, [("low", 1)], {})]
    assert (earlier, later) == (["low", "low/0", "low/1"], ["low"])
    assert {each.mid for each in producer.dequeue(9).messages} == {
        "by a new client", "by a running client",
    }  # fmt: skip

    partition(client, "low", 2)
    done = [queue.enqueue(b"x") for queue in (producer, newer) for _ in range(10)]

    assert {each.partition for each in done} == {"low/0", "low/1"}
    assert map_violations(client, "low", ["low", "low/0", "low/1"]) == []


def test_messages_go_to_the_partitions_of_the_map_when_an_older_backup_was_restored(
    client: Client, redis: Any
) -> None:
    queue = drained_producer(client, 2, 3)
    backup = {
        key: redis.dump(key) for key in redis.keys("jobq:{low}:*") + redis.keys("jobq:{low/[01]}:*")
    }
    redis.flushdb()
    for key, value in backup.items():
        redis.restore(key, 0, value)
    redis.hset("jobq:{low}:partitions", "map", "0,0,0;1,0,2")
    redis.hdel("jobq:{low/0}:meta", "sealed", "max_content")
    redis.hdel("jobq:{low/1}:meta", "sealed", "max_content")

    done = [queue.enqueue(b"x") for _ in range(20)]

    assert {each.partition for each in done} == {"low/0", "low/1"}
    assert redis.keys("jobq:{low/[234]}:*") == []


def test_a_partition_accepts_messages_again_when_its_node_lost_its_data(
    client: Client, redis: Any
) -> None:
    queue = drained_producer(client, 2)
    redis.delete(*redis.keys("jobq:{low/1}:*"))

    assert {queue.enqueue(b"x").partition for _ in range(20)} == {"low/0", "low/1"}

    assert int(redis.hget("jobq:{low/1}:meta", "fence")) == FENCES_PER_EPOCH
    redis.delete(*redis.keys("jobq:{low/1}:*"))
    assert Queue("low/1", client).enqueue(b"x").action == "added"
    assert int(redis.hget("jobq:{low/1}:meta", "fence")) == FENCES_PER_EPOCH


def test_a_repeatable_call_is_sent_again_as_a_whole_when_a_partition_lost_its_data(
    client: Client, redis: Any
) -> None:
    """Its number says that a partition got all its messages."""
    queue, mids = drained_producer(client, 2), [f"m{number}" for number in range(20)]
    mids.sort(key=lambda mid: read_map(client, "low").newest.name_for("low", mid))
    redis.delete(*redis.keys("jobq:{low/1}:*"))
    caller = Caller()

    with pytest.raises(UnavailableError, match="repeat it"):
        sent(queue, mids, caller)

    caller.number -= 1
    assert sent(queue, mids, caller) == ["added"] * 20
    redis.flushdb()
    assert sent(queue, mids, caller) == ["added"] * 20
    assert left_in(client, "low").messages == 20


@pytest.mark.parametrize("ncalls", range(6))
def test_a_deletion_leaves_the_queue_usable_when_it_stops_midway(
    client: Client, ncalls: int
) -> None:
    queue = drained_producer(client, 2)
    known = read_map(client, "low")

    with killed_after(client, ncalls):
        remove_partitions(client, known)

    if read_map(client, "low").is_partitioned:
        if ncalls:
            remedy = "run jobq partitions low 2, or repeat jobq queue delete low"
            with pytest.raises((ScriptError, UnavailableError), match=remedy):
                queue.enqueue_many([(f"m{number}", b"x") for number in range(20)])
        known = partition(client, "low", 2)
        assert queue.enqueue(b"x").partition in known.newest.names("low")
        queue.admin.clear()
        assert remove_partitions(client, read_map(client, "low")) == ""
    assert queue.enqueue(b"x").partition in ("low", "")
    assert partition(client, "low", 3).newest.number > 1
    assert queue.enqueue(b"x").partition in ("low/0", "low/1", "low/2")


def test_a_deletion_keeps_the_partitions_when_a_message_comes_meanwhile(client: Client) -> None:
    queue = drained_producer(client, 2)
    place = queue.enqueue(b"x" * 2_000).partition

    assert remove_partitions(client, read_map(client, "low")) == place

    assert {queue.enqueue(b"x").partition for _ in range(20)} == {"low/0", "low/1"}
    assert all(not left_in(client, name).is_sealed for name in ("low/0", "low/1"))
    assert [place.admin.fsck() for place in queue.partitions()] == [[]] * 2


def test_a_deletion_keeps_the_partitions_when_a_message_was_quarantined_meanwhile(
    client: Client, redis: Any
) -> None:
    queue = drained_producer(client, 2)
    redis.hset("jobq:{low/1}:quarantine", b"\xff", b"x")

    assert remove_partitions(client, read_map(client, "low")) == "low/1"

    assert redis.hlen("jobq:{low/1}:quarantine") == 1
    assert {queue.enqueue(b"x").partition for _ in range(20)} == {"low/0", "low/1"}


def test_a_partition_stays_in_the_map_while_a_message_is_in_quarantine(
    client: Client, redis: Any
) -> None:
    partition(client, "low", 2)
    redis.hset("jobq:{low/1}:quarantine", b"\xff", b"x")
    later = client.clock_ms() // 1000 + KEEP_S + 1
    tidy(client, partition(client, "low", 3))

    assert "low/1" in tidy(client, read_map(client, "low"), later).names()
    redis.delete("jobq:{low/1}:quarantine")
    assert "low/1" not in tidy(client, read_map(client, "low"), later).names()


def test_partitions_leave_the_list_of_queues_when_the_map_no_longer_has_them(
    client: Client, redis: Any
) -> None:
    partition(client, "low", 2)
    stale = Queue("low", connect(settings=client.settings))
    assert stale.enqueue(b"x", mid="m1").partition in ("low/0", "low/1")
    stale.cancel("m1")
    for place in Queue("low", client).partitions():
        place.admin.collect()
    known = tidy(client, partition(client, "low", 3))
    assert forget_gone(client, known) == []
    week = client.clock_ms() // 1000 + KEEP_S + 1
    known = tidy(client, known, week)
    assert len(known.epochs) == 1

    assert forget_gone(client, known) == ["low/0", "low/1"]
    assert queue_names(client) == ["low", "low/2", "low/3", "low/4"]

    # A client that still has the first map adds the names again, but no message gets there.
    runtime.listed.clear()
    for place in stale.routes.place("low/0"), stale.routes.place("low/1"):
        place.listed_until = 0.0
    accepted = stale.enqueue_many([(f"m{number}", b"x") for number in range(20)])
    assert {each.partition for each in accepted} <= {"low/2", "low/3", "low/4"}
    assert {"low/0", "low/1"} & {*queue_names(client)}
    forget_gone(client, read_map(client, "low"))
    assert queue_names(client) == ["low", "low/2", "low/3", "low/4"]
    # A repeatable call asks all partitions that the client ever knew.
    runtime.listed.clear()
    for place in stale.routes.place("low/0"), stale.routes.place("low/1"):
        place.listed_until = 0.0
    stale.enqueue_many([(f"n{number}", b"x") for number in range(20)], caller=Caller())
    assert not {"low/0", "low/1"} & {*queue_names(client)}


def test_a_partition_stays_in_the_list_of_queues_when_it_is_not_sealed_and_empty(
    client: Client, redis: Any
) -> None:
    partition(client, "low", 2)
    known = tidy(client, partition(client, "low", 3))
    known = tidy(client, known, client.clock_ms() // 1000 + KEEP_S + 1)
    redis.hdel("jobq:{low/0}:meta", "sealed")  # its data are of an earlier time
    redis.hset("jobq:{low/1}:messages", "m1", "x")

    assert forget_gone(client, known) == []
    assert {"low/0", "low/1"} <= {*queue_names(client)}


@pytest.mark.parametrize("ncalls", range(6))
def test_a_worker_continues_after_a_deletion_that_stopped_midway(
    client: Client, ncalls: int
) -> None:
    queue = drained_producer(client, 2)
    Queue("low", client).rules(max=10)
    with killed_after(client, ncalls):
        remove_partitions(client, read_map(client, "low"))

    for _ in range(2):  # the second round seals partitions that the first has replaced
        known = map_of(client, "low", tidies=True, forgets=True)

    assert {queue.enqueue(b"x").partition for _ in range(20)} == {*known.newest.names("low")}
    if known.is_partitioned:
        assert left_in(client, "low").is_sealed
        assert [Queue(name, client).rules().max for name in known.newest.names("low")] == [5, 5]
        assert map_violations(client, "low", queue_names(client)) == []


@pytest.mark.parametrize("by_worker", [False, True])
def test_no_message_is_lost_when_partitions_are_restored_during_a_deletion(
    client: Client, monkeypatch: Any, by_worker: bool
) -> None:
    """The deletion has found all partitions empty, and hasn't deleted the map yet."""
    from jobq.queue import partitioning

    queue, accepted = drained_producer(client, 2), list[str]()

    def meanwhile(*args: Any) -> int:
        if not accepted:
            accepted.append("")
            if by_worker:
                map_of(client, "low", tidies=True, forgets=True)
            else:
                partition(client, "low", 2)
            accepted[:] = [queue.enqueue(b"x", mid=f"m{number}").partition for number in range(9)]
        return fence_of(client, "low")

    monkeypatch.setattr(partitioning, "fence_of", meanwhile)
    with pytest.raises(ConfigError, match="just changed by another client"):
        remove_partitions(client, read_map(client, "low"))

    assert len(accepted) == 9
    assert Queue("low", client).admin.counts().messages == 9
