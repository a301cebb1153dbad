"""A partitioned queue: where messages go, and how the number of partitions changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.durations import Rate
from jobq.errors import ConfigError, ScriptError
from jobq.queue import keys
from jobq.queue.aio import aenqueue, aenqueue_many
from jobq.queue.partitioning import KEEP_S, left_in, partition, tidy
from jobq.queue.partitions import Epoch, PartitionMap, map_key, read_map
from jobq.queue.queue import Queue
from jobq.queue.rules import Rule
from jobq.queue.types import Ending, Message

pytestmark = pytest.mark.one_server


def messages_in(client: Client, name: str) -> list[Message]:
    """Dequeue and finish all messages of the queue and its partitions."""
    return [message for _, message in handed_out(client, name)]


def handed_out(client: Client, name: str) -> Iterator[tuple[str, Message]]:
    for place in read_map(client, name).served():
        queue = Queue(place, client)
        while messages := queue.dequeue(100).messages:
            yield from ((place, message) for message in messages)
            queue.finish([Ending(mid=one.mid, token=one.token, outcome="done") for one in messages])


def test_partition_keeps_messages_where_they_are_when_it_is_first_used(client: Client) -> None:
    queue = Queue("low", client)
    queue.enqueue(b"old", mid="m1")

    assert partition(client, "low", 4) == PartitionMap("low", (Epoch(0), Epoch(1, 0, 4)))
    assert queue.enqueue(b"x", mid="m1").action == "exists"
    done = queue.enqueue(b"new", mid="m2")
    assert done.action == "added"
    assert done.partition in read_map(client, "low").newest.names("low")
    assert sorted(one.mid for one in messages_in(client, "low")) == ["m1", "m2"]


def test_messages_are_spread_over_partitions_when_they_have_no_mids(client: Client) -> None:
    partition(client, "low", 4)
    queue = Queue("low", client)
    for _ in range(200):
        queue.enqueue(b"x")
    made = queue.enqueue_many([b"y"] * 600)

    found = Counter(place for place, _ in handed_out(client, "low"))
    assert sum(found.values()) == 800
    assert len(found) == 4
    assert len({one.partition for one in made[:250]}) == 1  # a round trip stays one call


def test_a_key_stays_in_one_partition_when_its_messages_have_different_mids(client: Client) -> None:
    partition(client, "low", 8)
    queue = Queue("low", client)
    queue.enqueue_many([(f"m{i}", b"x", f"key{i % 5}") for i in range(100)])

    places: dict[str, set[str]] = {}
    for place, message in handed_out(client, "low"):
        places.setdefault(f"key{int(message.mid[1:]) % 5}", set()).add(place)
    assert len(places) == 5
    assert all(len(found) == 1 for found in places.values())


def test_fences_of_a_key_grow_when_the_number_changes(client: Client) -> None:
    queue, fences = Queue("low", client), list[int]()
    for count in (0, 8, 3, 16):
        if count:
            partition(client, "low", count)
        queue.enqueue_many([(None, b"x", "acme")] * 3)
        fences += [message.fence for message in messages_in(client, "low")]
        tidy(client, read_map(client, "low"))

    assert fences == sorted(set(fences))
    assert len(fences) == 12
    handed = [place.admin.sample().fence for place in queue.partitions()]
    assert sum(handed) <= 12


def test_a_client_with_an_old_map_reaches_the_new_partitions_when_it_enqueues(
    client: Client,
) -> None:
    stale = Queue("low", client)
    stale.enqueue(b"x")
    for count in (8, 3, 16):
        partition(client, "low", count)
        done = stale.enqueue(b"x", mid=f"after {count}")
        assert done.partition in read_map(client, "low").newest.names("low")
    assert len(stale.enqueue_many([b"y"] * 600)) == 600
    assert len(messages_in(client, "low")) == 604


def test_async_enqueues_reach_the_partitions_when_the_client_does_not_know_them(
    client: Client,
) -> None:
    async def run() -> list[Any]:
        fresh = Queue("low", client)
        return [
            await aenqueue(fresh, b"x"),
            *await aenqueue_many(Queue("low", client), [b"y"] * 300),
        ]

    partition(client, "low", 2)
    done = asyncio.run(run())

    assert all(one.partition for one in done)
    assert len(messages_in(client, "low")) == 301


def test_the_change_continues_when_it_stopped_before_the_seals(client: Client) -> None:
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="m1")
    known = read_map(client, "low")
    queue.scripts["set_partitions"].run({"known": "", "map": str(known.after(2))})
    assert not left_in(client, "low").is_sealed
    assert queue.enqueue(b"x").partition == ""  # the queue still accepts messages

    partition(client, "low", 2)

    assert left_in(client, "low").is_sealed
    assert queue.enqueue(b"x").partition
    assert len(messages_in(client, "low")) == 3


def test_another_client_wins_when_two_change_the_number(client: Client, monkeypatch: Any) -> None:
    from jobq.queue import partitioning

    stale = read_map(client, "low")
    partition(client, "low", 2)
    monkeypatch.setattr(partitioning, "read_map", lambda *_: stale)

    with pytest.raises(ConfigError, match="just changed by another client to 2"):
        partition(client, "low", 4)


def test_old_partitions_are_forgotten_when_they_are_empty(client: Client) -> None:
    queue = Queue("low", client)
    queue.enqueue_many([("dies", b"x"), ("stays", b"y")])
    dies = queue.dequeue().messages[0]
    known = partition(client, "low", 2)
    assert tidy(client, known) == known
    queue.finish([Ending(mid="dies", token=dies.token, outcome="dead", reason="why")])
    messages_in(client, "low")
    queue.admin.collect()

    known = tidy(client, known)
    old, new = known.epochs
    assert old.drained
    assert new == Epoch(1, 0, 2)
    assert queue.enqueue(b"z", mid="dies").partition
    queue.admin.purge(queue.admin.dead()[0].dead_id)
    week = old.drained_at + KEEP_S
    assert tidy(client, known, week - 1) == known
    assert tidy(client, known, week).epochs == (Epoch(1, 0, 2),)


def test_results_in_drained_partitions_are_found_by_the_id_when_the_number_changed(
    client: Client,
) -> None:
    partition(client, "low", 4)
    queue = Queue("low", client)
    place = Queue(queue.enqueue(b"x", mid="m1").partition, client)
    [message] = place.dequeue().messages
    place.finish([Ending(mid="m1", token=message.token, result=b"7", result_ttl=600)])
    place.admin.collect()

    known = tidy(client, partition(client, "low", 3))

    assert [epoch.drained for epoch in known.epochs] == [True, True, False]
    found = Queue("low", client).place_of("m1")
    assert found is not None
    assert found.name == place.name


def test_partition_refuses_a_queue_when_it_uses_what_is_not_supported(client: Client) -> None:
    queue = Queue("low", client)
    queue.rules(max=2)

    with pytest.raises(ConfigError, match="is less than 4 partitions"):
        partition(client, "low", 4)
    assert not read_map(client, "low").is_partitioned


@pytest.mark.parametrize(("name", "count"), [("low/3", 2), ("a/", 2), ("low", 0), ("low", 257)])
def test_partition_refuses_names_and_numbers_when_they_are_invalid(
    client: Client, name: str, count: int
) -> None:
    with pytest.raises(ConfigError):
        partition(client, name, count)


@pytest.mark.parametrize(
    "stored",
    [
        "1,2", "0,0,0", "0,0,0;1,0,999999999", f"0,0,0;1,0,{'9' * 4999}", "0,0,0;1,0,0;2,0,4", "2,0,4;1,4,4",
        "0,0,0;1,0,4;2,2,4", ";".join(f"{n},{n * 256},256" for n in range(1, 18)), "0,0,0;1,0,\u0664", "x" * 99_999,
    ],
    ids=lambda stored: stored[:20],
)  # fmt: skip
def test_a_map_of_another_program_is_an_error_when_it_is_read(client: Client, stored: str) -> None:
    client.command("HSET", map_key(client, "low"), "map", stored)

    with pytest.raises(ScriptError, match="unreadable partition map"):
        read_map(client, "low")


def test_partition_is_refused_when_too_many_earlier_partitions_are_left(client: Client) -> None:
    for _ in range(8):
        partition(client, "low", 256)
        partition(client, "low", 255)

    with pytest.raises(ConfigError, match="would have 4,344 partitions"):
        partition(client, "low", 256)


def killed(client: Client, *mids: str, key: str | None = None) -> None:
    """Enqueue messages in the queue, and let them die where they are."""
    Queue("low", client).enqueue_many([(mid, mid.encode(), key) for mid in mids])
    for place in read_map(client, "low").served():
        queue = Queue(place, client)
        for held in queue.dequeue(100).messages:
            ending = Ending(mid=held.mid, token=held.token, outcome="dead", reason="why")
            queue.finish([ending])


def test_figures_of_the_queue_are_sums_when_it_is_partitioned(client: Client) -> None:
    killed(client, "dead in the queue")
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="old")
    partition(client, "low", 3)
    queue.enqueue_many([(f"m{i}", b"x") for i in range(10)])
    queue.enqueue_many([(f"k{i}", b"x", f"key{i}") for i in range(6)])
    queue.enqueue(b"x", delay=60)

    counts, sample = queue.admin.counts(), queue.admin.sample()
    assert (counts.ready, counts.delayed, counts.dead, counts.keys) == (17, 1, 1, 6)
    assert sample.head is not None
    assert sample.sealed
    assert Queue("low/1", client).admin.counts().ready < 17
    assert {one.key for one in queue.admin.iter_keys()} == {f"key{i}" for i in range(6)}
    ready = [one.mid for place in ("ready", "lines") for one in queue.admin.iter_entries(place)]
    assert sorted(ready) == sorted(
        ["old", *(f"m{i}" for i in range(10)), *(f"k{i}" for i in range(6))]
    )

    assert not queue.admin.counts().paused
    queue.partitions()[0].admin.pause()
    counts = queue.admin.counts()
    assert counts.paused and not counts.all_paused
    assert (counts.paused_partitions, counts.served_partitions) == (1, len(queue.partitions()) + 1)
    queue.admin.pause()
    assert queue.admin.counts().all_paused


def test_status_shows_the_live_message_first_when_a_dead_one_is_in_an_earlier_partition(client):
    killed(client, "m1")
    queue = Queue("low", client)
    partition(client, "low", 2)
    assert queue.status("m1").word == "dead"
    queue.enqueue(b"x", mid="m1")
    assert queue.status("m1").word == "queued"
    assert queue.holder("m1").name.startswith("low/")


def test_a_drained_partition_does_not_count_when_it_is_paused(client):
    queue = Queue("low", client)
    partition(client, "low", 2)
    partition(client, "low", 4)
    Queue("low/0", client).admin.pause()

    sample = queue.admin.sample()
    assert not sample.counts.paused
    assert (sample.counts.paused_partitions, sample.counts.served_partitions) == (0, 4)
    Queue("low/3", client).admin.pause("1h")
    sample = queue.admin.sample()
    assert (sample.counts.paused_partitions, sample.pause_ends > 0) == (1, True)


def test_dead_messages_are_listed_newest_first_when_they_are_in_several_partitions(
    client: Client,
) -> None:
    killed(client, "first")
    partition(client, "low", 3)
    killed(client, *(f"m{i}" for i in range(9)))
    queue = Queue("low", client)

    dead = queue.admin.dead()
    assert [one.died_at for one in dead] == sorted((one.died_at for one in dead), reverse=True)
    assert len(dead) == 10
    assert queue.admin.dead(8) == dead[8:]
    assert list(queue.admin.iter_dead(3)) == dead[3:]
    assert [one.mid for one in queue.admin.dead(mid="m4")] == ["m4"]
    assert queue.admin.dead(mid=dead[2].dead_id) == [dead[2]]
    assert queue.admin.purge(*(one.dead_id for one in dead[:4]), "none#1") == 4
    assert queue.admin.revive(*(one.dead_id for one in dead[4:]), "none#1") == ["revived"] * 6 + [
        "nil"
    ]
    assert queue.admin.counts().dead == 0


def test_a_dead_message_of_a_sealed_partition_is_revived_in_a_partition_of_now(
    client: Client,
) -> None:
    queue = Queue("low", client)
    queue.enqueue(b"v", mid="m1", key="acme", ordered=True, lease=7, until="1h")
    [held] = queue.dequeue().messages
    queue.finish([Ending(mid="m1", token=held.token, outcome="dead", reason="why")])
    killed(client, "m2", "m3")
    partition(client, "low", 4)
    queue.enqueue(b"newer", mid="m3")
    ids = {one.mid: one.dead_id for one in queue.admin.dead()}

    assert queue.admin.revive(ids["m1"], ids["m2"], ids["m3"]) == ["revived", "revived", "exists"]

    assert [one.mid for one in queue.admin.dead()] == ["m3"]
    [place] = [one for one in queue.partitions() if one.status("m1").word != "nil"]
    options = client.command("HGET", f"{place.prefix}options", "m1")
    assert options.startswith(b"7000,3600000,o") and options.endswith(b",acme")
    assert sorted(one.content for one in messages_in(client, "low")) == [b"m2", b"newer", b"v"]


def test_a_revival_that_stopped_before_the_purge_runs_its_message_once_when_it_is_repeated(
    client: Client, monkeypatch: Any
) -> None:
    from jobq.queue import moving

    killed(client, "m1")
    partition(client, "low", 2)
    [dead] = (queue := Queue("low", client)).admin.dead()
    moving.revive_moved(client, queue.prefix, queue, dead.dead_id)  # without the purge

    assert queue.admin.revive(dead.dead_id) == ["revived"]
    assert queue.admin.dead() == []
    assert [one.mid for one in messages_in(client, "low")] == ["m1"]


def test_a_damaged_dead_message_stays_when_it_cannot_be_revived_elsewhere(client: Client) -> None:
    killed(client, "m1")
    partition(client, "low", 2)
    [dead] = (queue := Queue("low", client)).admin.dead()
    client.command("HSET", f"{queue.prefix}dead-messages", dead.dead_id, b"no dead message")

    assert queue.admin.revive(dead.dead_id) == ["damaged"]
    assert [one.attempts for one in queue.admin.dead()] == [-1]


def test_settings_are_copied_when_a_queue_gets_partitions(client: Client) -> None:
    queue = Queue("low", client)
    queue.admin.retention(5, "1h")
    queue.admin.events_level("all")
    queue.admin.events_maxlen(1_000)
    queue.admin.pause("1h")
    queue.rules(max=10, key_max=3, key_rate="100/m", key_weight=2, key_waiting=7)
    queue.rule("acme", max=1)

    partition(client, "low", 4)

    limits = queue.admin.retention()
    for place in queue.partitions():
        admin = place.admin
        assert admin.retention() == limits
        assert (admin.events_level(), admin.events_maxlen()) == ("all", 1_000)
        assert admin.counts().paused
        assert 0 < admin.sample().pause_ends <= queue.admin.sample().pause_ends
        assert place.rules()[1:] == queue.rules()[1:]
        assert place.rule("acme") == queue.rule("acme") == Rule(max=1)
    assert [place.rules().max for place in queue.partitions()] == [3, 3, 2, 2]
    assert queue.rules().max == 10


def test_settings_reach_all_partitions_when_they_change(client: Client) -> None:
    partition(client, "low", 2)
    partition(client, "low", 3)
    queue = Queue("low", client)

    queue.admin.retention(5)
    queue.admin.events_level("off")
    assert queue.admin.events_maxlen(500) == 500
    assert queue.rules(max=7, key_max=2).max == 7
    queue.rule("acme", rate="5/s")

    places = queue.partitions()
    assert [place.rules().max for place in places] == [4, 3, 3, 2, 2]
    assert {place.rules().key_max for place in places} == {2}
    assert {place.rule("acme").rate for place in places} == {Rate(5, 1_000)}
    assert {place.admin.events_level() for place in places} == {"off"}
    assert {place.admin.retention().most for place in places} == {5}
    with pytest.raises(ConfigError, match="less than 3 partitions"):
        queue.rules(max=2)
    assert queue.rules().max == 7
    assert queue.rules(max=None).max is None
    assert {place.rules().max for place in places} == {None}


def test_partition_is_refused_when_the_limit_of_the_queue_is_too_small(client: Client) -> None:
    Queue("low", client).rules(max=3)

    with pytest.raises(ConfigError, match="max=3 of queue 'low' is less than 4 partitions"):
        partition(client, "low", 4)
    assert not read_map(client, "low").is_partitioned


def test_a_pause_reaches_new_partitions_when_it_comes_during_the_change(
    client: Client, monkeypatch: Any
) -> None:
    from jobq.queue import partitioning

    queue, set_map = Queue("low", client), partitioning.set_map

    def paused_meanwhile(*args: Any) -> PartitionMap:
        queue.admin.pause()
        return set_map(*args)

    monkeypatch.setattr(partitioning, "set_map", paused_meanwhile)
    partition(client, "low", 2)

    assert all(place.admin.counts().paused for place in queue.partitions())


def test_a_held_key_starts_nothing_when_its_queue_has_partitions(client: Client) -> None:
    partition(client, "low", 3)
    queue = Queue("low", client)
    queue.enqueue(b"x", key="acme")
    assert queue.hold("acme", 60) > 0
    assert messages_in(client, "low") == []
    assert [row.held_until > 0 for row in queue.admin.iter_keys()] == [True]

    assert queue.hold("acme", 0) == 0
    assert len(messages_in(client, "low")) == 1


def test_a_hold_leaves_nothing_in_a_sealed_partition_when_the_key_moved(client: Client) -> None:
    queue = Queue("low", client)
    queue.enqueue(b"x")
    partition(client, "low", 2)
    queue.hold("acme", 60)

    assert queue.enqueue(b"y", key="acme").partition != "low"
    assert client.command("HEXISTS", f"{queue.prefix}keys", "acme") == 0


def test_no_more_messages_run_than_the_limit_allows_when_partitions_share_it(
    client: Client,
) -> None:
    queue = Queue("low", client)
    queue.rules(max=5, key_max=1)
    partition(client, "low", 3)
    queue.enqueue_many([(None, b"x", f"key{i % 30}") for i in range(90)])

    running = [
        message
        for place in read_map(client, "low").served()
        for message in Queue(place, client).dequeue(100).messages
    ]
    assert len(running) == 5


def test_no_more_messages_of_a_key_run_than_its_limit_allows_while_the_number_changes(
    client: Client,
) -> None:
    queue, now = Queue("low", client), 1_700_000_000_000
    queue.rules(key_max=1)
    queue.enqueue_many([(None, b"x", f"key{i}") for i in range(8)], delay=5, now=now)
    for count in (2, 5):
        partition(client, "low", count)
        queue.enqueue_many([(None, b"x", f"key{i}") for i in range(16)], now=now)

    places = [Queue(name, client) for name in read_map(client, "low").served()]
    ran = 0
    for later_ms in range(0, 10_000, 1_000):
        held = [
            (one, place)
            for place in places
            for one in place.dequeue(99, now=now + later_ms).messages
        ]
        ran += len(held)
        assert len(held) <= 16  # at most one message of each of 16 keys
        for message, place in held:
            place.finish([Ending(mid=message.mid, token=message.token)], now=now + later_ms)

    assert ran == 8 + 2 * 16
    newest = read_map(client, "low").newest.names("low")
    done = queue.enqueue_many([(None, b"x", f"key{i}") for i in range(16)], now=now + 10_000)
    assert {one.partition for one in done} <= set(newest)


def test_a_partition_is_not_drained_while_a_flow_awaits_results_from_it(client: Client) -> None:
    known = partition(client, "low", 2)
    outbox = keys.key(Queue("low", client).prefix, "flow_outbox")
    client.command("XADD", outbox, "1-1", "1", "a result")
    assert tidy(client, known) == known

    Queue("low", client).flow_outbox_drop(["1-1"])

    assert tidy(client, known).epochs[0].drained
