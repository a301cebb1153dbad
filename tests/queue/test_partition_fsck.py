"""`jobq check fsck` finds what is wrong with a map of partitions, and repairs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.queue import partition_fsck
from jobq.queue.directory import queue_names
from jobq.queue.partition_fsck import (
    DRAINED,
    ELSEWHERE,
    LOST,
    LOW_FENCE,
    NO_FENCE,
    SEALED,
    UNLISTED,
    UNREADABLE,
    map_violations,
    mend_map,
)
from jobq.queue.partitioning import KEEP_S, forget_gone, left_in, partition, tidy
from jobq.queue.partitions import PartitionMap, map_key, read_map
from jobq.queue.queue import Queue
from jobq.queue.types import FENCES_PER_EPOCH, Ending, Violation

pytestmark = pytest.mark.one_server
MAP = "jobq:{low}:partitions"


@pytest.fixture
def low(client: Client) -> Queue:
    """A queue whose number changed from 2 to 3; a message is in the queue itself and in each epoch."""
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="m0")
    partition(client, "low", 2)
    queue.enqueue_many([(f"a{number}", b"x", "acme") for number in range(3)])
    partition(client, "low", 3)
    queue.enqueue_many([(f"b{number}", b"x") for number in range(9)])
    queue.enqueue_many([b"x"] * 9, key="other", ordered=True)
    return queue


@pytest.fixture
def check(client: Client) -> Callable[[], list[tuple[str, str]]]:
    def violations() -> list[tuple[str, str]]:
        of_map = map_violations(client, "low", queue_names(client))
        return [(violation.rule, violation.mid) for violation in of_map]

    return violations


def mended(client: Client, violations: list[tuple[str, str]]) -> list[str]:
    return [mend_map(client, "low", Violation(*violation)) for violation in violations]


def test_a_map_is_clean_when_its_number_changes_and_messages_die(
    low: Queue, client: Client, check: Any
) -> None:
    assert check() == []
    for place in low.alone():
        place.admin.call_on_dead()
        for held in place.dequeue(100).messages:
            ending = Ending(mid=held.mid, token=held.token, outcome="dead", reason="why")
            place.finish([ending])
    assert any(low.admin.counts())
    tidy(client, read_map(client, "low"))
    assert check() == []
    assert map_violations(client, "never", ["low", "low/0"]) == []


@pytest.mark.parametrize(
    ("damage", "shown"),
    [
        (("SET", MAP, "x"), "its key is a string"),
        (("HSET", MAP, "map", "0,0,0;2,0,2;1,2,3"), "0,0,0;2,0,2;1,2,3"),
        (("HSET", MAP, "map", "0,0,0;1,0,9999"), "0,0,0;1,0,9999"),
    ],
)
def test_a_map_is_made_again_from_the_partitions_when_it_cannot_be_read(
    low: Queue, client: Client, check: Any, damage: tuple[str, ...], shown: str
) -> None:
    before, redis = read_map(client, "low"), client.command
    redis("DEL", MAP)
    redis(*damage)
    assert check() == [(UNREADABLE, shown)]

    assert mended(client, check()) == [f"rebuilt: {before}"]

    assert (check(), read_map(client, "low")) == ([], before)
    assert low.enqueue(b"x").action == "added"
    [aside] = client.command("KEYS", "*damaged*")
    assert aside.startswith(b"jobq:{low}:damaged:partitions:")


def test_a_lost_map_is_made_again_when_the_queue_is_sealed(
    low: Queue, client: Client, check: Any
) -> None:
    before = read_map(client, "low")
    client.command("DEL", MAP)
    assert check() == [(LOST, "low")]
    assert mended(client, check()) == [f"rebuilt: {before}"]
    assert check() == []


def test_the_queue_accepts_messages_again_when_map_and_partitions_are_lost(
    low: Queue, client: Client, check: Any, redis: Any
) -> None:
    redis.delete(MAP, *redis.keys("jobq:{low/*"))
    assert mended(client, check()) == ["accepts messages again"]
    assert check() == []
    assert Queue("low", client).enqueue(b"x").partition == ""


def test_nothing_is_made_again_when_a_partition_is_missing(
    low: Queue, client: Client, check: Any, redis: Any
) -> None:
    redis.delete(MAP, *redis.keys("jobq:{low/3}:*"))
    assert mended(client, check()) == [""]
    assert check() == [(LOST, "low")]


def test_a_map_of_an_earlier_change_is_completed_when_partitions_are_newer(
    low: Queue, client: Client, check: Any
) -> None:
    before = read_map(client, "low")
    client.command("HSET", MAP, "map", str(before._replace(epochs=before.epochs[:2])))
    violations = check()
    assert [rule for rule, _ in violations] == [SEALED, SEALED, *[UNLISTED] * (len(violations) - 2)]
    assert violations[-1][1] in ("low/2", "low/3", "low/4")

    mended(client, violations[2:])

    assert (check(), read_map(client, "low")) == ([], before)


def test_a_partition_of_no_epoch_stays_as_it_is_when_it_has_messages(
    low: Queue, client: Client, check: Any
) -> None:
    Queue("low/9", client).enqueue(b"x")
    assert check() == [(UNLISTED, "low/9")]
    assert mended(client, check()) == [""]


def test_workers_serve_a_partition_again_when_the_map_says_drained_wrongly(
    low: Queue, client: Client, check: Any
) -> None:
    client.command("HSET", MAP, "map", "0,0,0,d9;1,0,2;2,2,3")
    assert check() == [(DRAINED, "low")]
    assert mended(client, check()) == ["workers serve it again"]
    assert str(read_map(client, "low")) == "0,0,0;1,0,2;2,2,3"


@pytest.fixture
def run_all(client: Client) -> Callable[[], list[str]]:
    """run_all(): run the messages of all partitions that workers serve; return their mids."""

    def run() -> list[str]:
        mids = []
        for name in read_map(client, "low").served():
            place = Queue(name, client)
            while messages := place.dequeue(100).messages:
                mids += [message.mid for message in messages]
                place.finish([Ending(mid=one.mid, token=one.token) for one in messages])
            place.admin.collect()
        return mids

    return run


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "before its seal"])
@pytest.mark.parametrize("is_forgotten", [True, False], ids=["forgotten", "in the map"])
def test_messages_of_an_older_backup_run_when_the_map_has_their_partition_as_drained(
    low: Queue,
    client: Client,
    check: Any,
    redis: Any,
    run_all: Any,
    is_sealed: bool,
    is_forgotten: bool,
) -> None:
    backup = {key: redis.dump(key) for key in redis.keys("jobq:{low/[01]}:*")}
    run_all()
    known = tidy(client, read_map(client, "low"))
    assert [epoch.drained for epoch in known.epochs] == [True, True, False]
    if is_forgotten:
        known = tidy(client, known, known.epochs[1].drained_at + KEEP_S)
        assert forget_gone(client, known)
    # The node of these partitions goes back to an older backup.
    redis.delete(*redis.keys("jobq:{low/[01]}:*"))
    for key, value in backup.items():
        redis.restore(key, 0, value)
    if not is_sealed:
        for name in ("low/0", "low/1"):
            redis.hdel(f"jobq:{{{name}}}:meta", "sealed", "max_content")
    assert run_all() == []
    found = check()
    assert {rule for rule, _ in found} == {UNLISTED if is_forgotten else DRAINED}
    place = next(name for name in ("low/0", "low/1") if Queue(name, client).admin.counts().messages)
    assert place in {name for _, name in found}

    if is_forgotten:
        mended(client, found)
    tidy(client, read_map(client, "low"))  # as workers do every now and then

    assert sorted(run_all()) == ["a0", "a1", "a2"]
    assert check() == []
    assert low.enqueue(b"x", key="acme").partition in read_map(client, "low").newest.names("low")


def test_a_seal_and_a_fence_are_repaired_when_they_contradict_the_map(
    low: Queue, client: Client, check: Any
) -> None:
    Queue("low/2", client).scripts["seal"].run({"epoch": 3})
    client.command("HSET", "jobq:{low/3}:meta", "fence", 7)
    assert check() == [(SEALED, "low/2"), (LOW_FENCE, "low/3")]

    assert mended(client, check()) == ["accepts messages again", "raised"]

    assert check() == []
    assert not left_in(client, "low/2").is_sealed
    assert Queue("low/3", client).dequeue().next_due_ms >= 0
    assert int(client.command("HGET", "jobq:{low/3}:meta", "fence")) >= 2 * FENCES_PER_EPOCH + 7


@pytest.mark.parametrize("stored", ["abc", "-1", "1e3", "", b"\xff"])
def test_a_fence_is_named_until_the_next_dequeue_when_it_is_no_number(
    low: Queue, client: Client, check: Any, stored: str | bytes
) -> None:
    client.command("HSET", "jobq:{low/3}:meta", "fence", stored)
    assert check() == [(NO_FENCE, "low/3")]
    assert mended(client, check()) == [""]

    assert Queue("low/3", client).dequeue().messages  # the fence goes on from the server's clock
    assert check() == [(LOW_FENCE, "low/3")]
    assert mended(client, check()) == ["raised"]
    assert check() == []


def test_messages_are_named_when_they_belong_in_another_partition(
    low: Queue, client: Client, check: Any
) -> None:
    epoch = read_map(client, "low").newest
    [other, *_] = [name for name in epoch.names("low") if name != epoch.name_for("low", "stray")]
    Queue(other, client).enqueue_many([("stray", b"x"), ("k", b"x", "stray")])

    violations = check()

    assert [rule for rule, _ in violations] == [ELSEWHERE]
    assert violations[0][1] == f"{other}: k and 1 more"
    assert mended(client, violations) == [""]


def test_a_change_during_the_check_is_no_damage(
    low: Queue, client: Client, check: Any, monkeypatch: Any
) -> None:
    left, changed = partition_fsck.left_in, []

    def meanwhile(client: Client, name: str) -> Any:
        if not changed and name == "low":
            changed.append(partition(client, "low", 4))
        return left(client, name)

    monkeypatch.setattr(partition_fsck, "left_in", meanwhile)
    assert check() == []
    assert isinstance(changed[0], PartitionMap)
    assert map_key(client, "low") == MAP
