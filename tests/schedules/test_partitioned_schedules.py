"""Schedules of a partitioned queue: each tick runs once, whatever happens to the partitions and the schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobq import Queue, Registry, job, schedule
from jobq.client.connection import Client
from jobq.errors import UnavailableError
from jobq.jobs.codec import decode
from jobq.jobs.middleware import Middlewares
from jobq.jobs.ticks import tick_of
from jobq.queue.partition_ticks import PartitionTicks
from jobq.queue.partitioning import partition
from jobq.queue.partitions import read_map
from jobq.queue.types import Ending, Message
from jobq.schedules.scheduler import Scheduler

pytestmark = pytest.mark.one_server

START = 1_800_000_000_000  # a whole hour
MINUTE = 60_000


class Time:
    """A clock of the server and of schedulers, and a worker of all partitions."""

    def __init__(self, client: Client) -> None:
        self.client, self.ms = client, 0
        self.queue = Queue("low", client)
        self.ran: list[int] = []
        self.held: list[tuple[Queue, Message]] = []

    def now(self) -> int:
        return START + self.ms

    def scheduler(self, registry: Registry, share: float = 0.0) -> Scheduler:
        queues = [Queue(name, self.client) for name in ("low", "low/0")]
        return Scheduler(queues, registry, lambda: 5_000 + self.ms / 1000, lambda: share, self.now)

    def look(self, minute: int, *schedulers: Scheduler) -> None:
        """Move to this minute, where the schedulers look at the queue."""
        self.ms = minute * MINUTE
        for one in schedulers:
            one._look_at = [0.0 for _ in one._look_at[:1]] + one._look_at[1:]
            one.enqueue_due(lambda _, call: bool(call() or True))

    def places(self) -> Iterator[Queue]:
        return iter(self.queue.alone())

    def start(self) -> None:
        """Start all waiting messages."""
        for place in self.places():
            messages = place.dequeue(100, lease="1h", now=self.now()).messages
            self.held += [(place, message) for message in messages]

    def end(self) -> list[int]:
        """End all running messages; return the minutes of their ticks."""
        ran = []
        for place, message in self.held:
            tick = tick_of(decode(message.content).headers)
            assert tick is not None
            ending = Ending(mid=message.mid, token=message.token)
            if place.finish([ending], now=self.now()).replies == ["ok"]:
                ran.append((tick.at_ms - START) // MINUTE)
        self.held = []
        self.ran += ran
        return ran

    def work(self) -> list[int]:
        """Run all waiting messages."""
        self.start()
        return self.end()

    def outcomes(self) -> list[str]:
        """Return the logged outcomes of ticks, oldest first."""
        return [one.outcome for one in reversed(self.queue.admin.schedules(100).log)]


@pytest.fixture
def registry() -> Registry:
    """A registry without jobs."""
    return Registry(Middlewares())


@pytest.fixture
def passing(client: Client) -> Time:
    """A clock for queue low, which has two partitions."""
    partition(client, "low", 2)
    return Time(client)


def declare(registry: Registry, name: str = "s", key: Any = None, **options: Any) -> None:
    @schedule("*/10 * * * *", name=name, **options)
    @job(queue="low", name=f"work.{name}", registry=registry, key=key)
    def work() -> None: ...


def test_each_tick_runs_once_when_several_schedulers_look(
    passing: Time, registry: Registry
) -> None:
    declare(registry)
    several = [passing.scheduler(registry) for _ in range(3)]

    for minute in range(0, 61, 5):
        passing.look(minute, *several)
        passing.work()

    assert passing.ran == [10, 20, 30, 40, 50, 60]
    assert passing.outcomes() == ["enqueued"] * 6


def test_ticks_run_in_the_partition_of_their_key_when_the_job_has_one(
    passing: Time, registry: Registry
) -> None:
    names = [f"s{number}" for number in range(8)]
    for name in names:
        declare(registry, name, key=lambda name=name: name)
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)
    passing.look(10, scheduler)

    newest = read_map(passing.client, "low").newest
    found = {
        row.key: place.name
        for place in passing.places()
        for row in place.admin.iter_keys()
        if row.waiting
    }
    assert found == {name: newest.name_for("low", name) for name in names}
    assert passing.work() == [10] * 8


def test_no_tick_is_lost_or_doubled_when_the_number_of_partitions_changes(
    client: Client, registry: Registry
) -> None:
    passing = Time(client)
    declare(registry)
    declare(registry, "latest", overlap="queue")
    scheduler = passing.scheduler(registry)
    counts = {20: 8, 30: 3, 40: 16}

    for minute in range(0, 61, 10):
        if minute in counts:
            partition(client, "low", counts[minute])
        passing.look(minute, scheduler)
        passing.start()
        if minute in counts:
            passing.look(minute, scheduler)
        passing.end()

    assert sorted(passing.ran) == sorted([10, 20, 30, 40, 50, 60] * 2)


@pytest.mark.parametrize(
    ("overlap", "outcome", "ran"),
    [
        ("skip", "skipped", [10, 30]),
        ("queue", "waits", [10, 20, 30]),
        ("cancel", "replaced", [20]),
        ("allow", "enqueued", [10, 20, 30]),
    ],
)
def test_a_tick_finds_the_run_before_when_that_is_in_another_partition(
    passing: Time, registry: Registry, overlap: Any, outcome: str, ran: list[int]
) -> None:
    declare(registry, overlap=overlap)
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)
    passing.look(10, scheduler)
    passing.start()
    partition(passing.client, "low", 5)

    passing.look(20, scheduler)
    passing.end()
    passing.work()
    assert passing.outcomes() == ["enqueued", outcome]
    if overlap == "cancel":
        passing.ms += 3_600_000  # the cancelled run's lease ends
    else:
        passing.ms = 30 * MINUTE
        passing.queue.admin.collect(now=passing.now())
        passing.look(30, scheduler)
    passing.work()
    assert sorted(passing.ran) == ran


def test_a_message_is_sent_once_when_its_scheduler_stopped_midway(
    passing: Time, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(registry)
    declare(registry, "latest", overlap="queue")
    first, second = passing.scheduler(registry), passing.scheduler(registry)
    passing.look(0, first)

    with monkeypatch.context() as stopping:
        stopping.setattr(PartitionTicks, "send", lambda self: 0)
        passing.look(10, first)  # it stops before it sends
    assert passing.work() == []
    kept = PartitionTicks(passing.queue)._kept(())
    assert {one.schedule for one in kept} == {"s", "latest"}
    passing.look(11, second)
    assert passing.work() == [10, 10]

    for one in kept:  # it was only stopped for a while
        PartitionTicks(passing.queue)._enqueue(one)
    assert passing.work() == []
    assert PartitionTicks(passing.queue)._kept(()) == []


def test_messages_wait_for_their_partition_when_that_does_not_answer(
    passing: Time, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(registry, overlap="allow")
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)

    def fail(*_: Any) -> None:
        raise UnavailableError("the node is away")

    with monkeypatch.context() as away:
        away.setattr(PartitionTicks, "_enqueue", fail)
        passing.look(10, scheduler)
        passing.look(20, scheduler)
    assert passing.work() == []

    passing.look(21, scheduler)
    assert sorted(passing.work()) == [10, 20]


#: Unreadable messages that another program may have written.
_NO_MESSAGE = {
    "s": b"1800000000000\x1fenqueued\x1fm\x1fno message",
    "many digits": b"9" * 30 + b"\x1fenqueued\x1fm\x1f\x1f\x1f\x1f\x1fv",
    "a zero in front": b"01800000000000\x1fenqueued\x1fm\x1f\x1f\x1f\x1f\x1fv",
    b"\xff": b"1800000000000\x1fenqueued\x1fm\x1f\x1f\x1f\x1f\x1fv",
    "no number": b"\xff\xfe",
}


def test_ticks_continue_when_another_program_wrote_their_messages(
    passing: Time, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    declare(registry)
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)
    kept = f"{passing.queue.prefix}tick-sends"
    for name, text in _NO_MESSAGE.items():
        passing.client.command("HSET", kept, name, text)

    passing.look(10, scheduler)
    assert passing.work() == [10]
    assert "schedule s: the message of a tick can't be read" in caplog.text
    assert passing.client.command("EXISTS", kept) == 0


def test_ticks_pause_and_continue_when_the_schedule_is_paused(
    passing: Time, registry: Registry
) -> None:
    declare(registry)
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)
    passing.queue.admin.schedule("pause", "s", now=passing.now())
    passing.look(10, scheduler)
    assert passing.work() == []

    passing.queue.admin.schedule("resume", "s", now=passing.now())
    passing.look(20, scheduler)
    assert passing.work() == [20]


def test_a_full_line_drops_the_tick_when_its_key_is_full(
    passing: Time, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    declare(registry, key=lambda: "acme")
    place = Queue(read_map(passing.client, "low").newest.name_for("low", "acme"), passing.client)
    place.rules(key_waiting=1)
    place.enqueue(b"x", key="acme")
    scheduler = passing.scheduler(registry)
    passing.look(0, scheduler)
    passing.look(10, scheduler)

    assert passing.outcomes() == ["enqueued", "full"]
    assert "a tick was not enqueued: the line of its key is full" in caplog.text
    assert place.admin.counts().messages == 1
