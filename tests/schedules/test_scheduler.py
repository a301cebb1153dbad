"""Schedulers against a server, in time that the tests make."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from jobq import Queue, Registry, job, schedule
from jobq.config import CodecSettings
from jobq.jobs.codec import decode
from jobq.jobs.middleware import Middlewares
from jobq.jobs.signing import seal_of
from jobq.jobs.ticks import tick_of
from jobq.queue import presence
from jobq.queue.types import Ending
from jobq.schedules.definition import Schedule, checked_schedule, encoded
from jobq.schedules.scheduler import Scheduler

START = 1_800_000_000_000  # a whole hour
MINUTE = 60_000


class Time:
    """A clock of the server, and one of a process whose wall clock doesn't matter."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.ms = queue, 0

    def monotonic(self) -> float:
        return 5_000 + self.ms / 1000

    def now(self) -> int:
        return START + self.ms

    def scheduler(self, registry: Registry, share: float = 0.0) -> Scheduler:
        return Scheduler([self.queue], registry, self.monotonic, lambda: share, self.now)

    def run(self, until_ms: int, *schedulers: Scheduler) -> list[tuple[int, int]]:
        """Let time pass; (minute, how late in ms) of each message, which ends at once."""
        ran = []
        while self.ms < until_ms:
            for one in schedulers:
                one.enqueue_due(lambda _, call: bool(call() or True))
            for message in self.queue.dequeue(100, now=self.now()).messages:
                tick = tick_of(decode(message.content).headers)
                assert tick is not None
                ran.append(((tick.at_ms - START) // MINUTE, self.now() - tick.at_ms))
                self.queue.finish([Ending(mid=message.mid, token=message.token)], now=self.now())
            waits = [one.next_s() for one in schedulers]
            self.ms += max(1, min(round(min(waits, default=9e9) * 1000), until_ms - self.ms))
        return ran


@pytest.fixture
def registry() -> Registry:
    return Registry(Middlewares())


def declare(
    registry: Registry, cron: str = "*/10 * * * *", name: str = "s", **options: Any
) -> None:
    @schedule(cron, name=name, **options)
    @job(queue="low", name="work" if name == "s" else name, registry=registry)
    def work() -> None: ...


@pytest.fixture
def passing(queue: Queue) -> Time:
    return Time(queue)


def test_ticks_have_the_key_of_their_job(
    passing: Time, registry: Registry, caplog: pytest.LogCaptureFixture
):
    @schedule(every="10m", name="good", args=["acme"])
    @schedule(every="10m", name="bad", args=[""])
    @job(queue="low", name="work", registry=registry, key=lambda customer: customer[0])
    def work(customer: str) -> None: ...

    keys = []
    scheduler = passing.scheduler(registry)
    while passing.ms < 21 * MINUTE:
        scheduler.enqueue_due(lambda _, call: bool(call() or True))
        keys += [(row.key, row.waiting) for row in passing.queue.admin.iter_keys()]
        passing.run(passing.ms + MINUTE)

    assert keys == [("a", 1), ("a", 1)]
    assert [record.message for record in caplog.records] == [
        "schedule bad could not enqueue its job: work can't be called: "
        "IndexError('string index out of range')"
    ]


def test_schedule_that_cant_be_enqueued_holds_back_no_other(
    passing: Time, registry: Registry, caplog: pytest.LogCaptureFixture
):
    """Also where it owes more ticks than one look makes calls."""

    def refuse(customer: str) -> str:
        raise RuntimeError("no key today") if customer == "bad" else LookupError("away")

    @schedule(every="1m", name="a", args=["bad"], missed="all", overlap="allow")
    @schedule(every="1m", name="b", args=["worse"], missed="all", overlap="allow")
    @job(queue="low", name="work", registry=registry, key=refuse)
    def work(customer: str) -> None: ...

    declare(registry, name="z")
    looking = passing.scheduler(registry)
    passing.run(1, looking)
    passing.ms = 180 * MINUTE
    # A look that never comes to the last one would be repeated at once, without end.
    ran = passing.run(180 * MINUTE + 1_000, looking)
    assert [minute for minute, _ in ran] == [180]
    assert len([one for one in caplog.records if "could not enqueue" in one.getMessage()]) == 2


def test_each_tick_runs_once_when_several_schedulers_look(passing: Time, registry: Registry):
    declare(registry)
    several = [passing.scheduler(registry, share) for share in (0.0, 0.3, 0.9)]

    ran = passing.run(61 * MINUTE, *several)

    assert [minute for minute, _ in ran] == [10, 20, 30, 40, 50, 60]
    assert all(0 <= late <= 300 for _, late in ran)


def test_worker_that_has_nothing_to_do_looks_every_ten_seconds(passing: Time, registry: Registry):
    scheduler = passing.scheduler(registry)
    passing.run(1, scheduler)

    assert scheduler.next_s() == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize(
    ("missed", "ran", "outcome"),
    [
        ("skip", [], "missed"),
        ("one", [180], "enqueued"),
        ("all", list(range(10, 190, 10)), "enqueued"),
    ],
)
def test_policy_decides_when_no_worker_ran_for_three_hours(
    passing: Time, registry: Registry, queue: Queue, missed: Any, ran: list[int], outcome: str
):
    declare(registry, missed=missed, overlap="allow")
    passing.run(1_000, passing.scheduler(registry))
    passing.run(182 * MINUTE)

    found = passing.run(184 * MINUTE, passing.scheduler(registry))

    assert [minute for minute, _ in found] == ran
    log = queue.admin.schedules(100).log
    assert {entry.outcome for entry in log} == {outcome}
    # Each tick is in the log, or counted there.
    assert len(log) + sum(entry.missed for entry in log) == 18


def test_new_schedule_starts_now_and_makes_up_for_nothing(
    passing: Time, registry: Registry, queue: Queue
):
    declare(registry, missed="all", overlap="allow")
    passing.ms = 55 * MINUTE

    assert passing.run(61 * MINUTE, passing.scheduler(registry)) == [(60, 0)]


def test_new_schedule_has_its_first_tick_on_time(passing: Time, registry: Registry):
    declare(registry, "* * * * *")
    passing.ms = MINUTE - 1_000

    [(minute, late)] = passing.run(MINUTE + 5_000, passing.scheduler(registry))

    assert minute == 1
    assert late <= 300


@pytest.mark.parametrize(
    ("former", "later", "ran"),
    [("0 0 1 * *", "30 * * * *", [150]), ("@hourly", "* * * * *", [121, 122, 123])],
)
@pytest.mark.parametrize("missed", ["one", "all"])
def test_schedule_with_new_times_begins_now(
    passing: Time, registry: Registry, former: str, later: str, ran: list[int], missed: Any
):
    declare(registry, former, missed=missed, overlap="allow")
    passing.run(1_000, passing.scheduler(registry))
    passing.ms = 120 * MINUTE + 20_000  # nothing ran meanwhile
    edited = Registry(Middlewares())
    declare(edited, later, missed=missed, overlap="allow")

    found = passing.run((ran[-1]) * MINUTE + 10_000, passing.scheduler(edited))

    assert [minute for minute, _ in found] == ran


def test_schedule_that_is_edited_at_the_server_begins_now(
    passing: Time, registry: Registry, queue: Queue
):
    declare(registry, "0 0 1 1 *")
    for moment, cron in ((0, "@hourly"), (20 * MINUTE, "10 * * * *")):
        one = Schedule(name="edited", job="work", cron=cron, args=())
        passing.ms = moment
        queue.admin.schedule("add", "edited", encoded(one), now=passing.now())

    ran = passing.run(71 * MINUTE, passing.scheduler(registry))

    assert [minute for minute, _ in ran] == [70]


def test_deploy_with_two_expressions_runs_no_tick_twice(passing: Time, registry: Registry):
    declare(registry, "*/10 * * * *")
    newer = Registry(Middlewares())
    declare(newer, "*/15 * * * *")

    ran = passing.run(31 * MINUTE, passing.scheduler(registry), passing.scheduler(newer, 0.5))

    assert [minute for minute, _ in ran] == [10, 15, 20, 30]


def test_clock_of_the_server_that_was_a_year_ahead(passing: Time, registry: Registry, queue: Queue):
    declare(registry, "@hourly")
    scheduler = passing.scheduler(registry)
    passing.run(61 * MINUTE, scheduler)
    year = 365 * 24 * 60 * MINUTE
    passing.ms += year
    ahead = passing.run(passing.ms + 2 * MINUTE, passing.scheduler(registry))
    passing.ms -= year

    ran = passing.run(122 * MINUTE, passing.scheduler(registry))

    assert [minute * MINUTE for minute, _ in ahead] == [year + 60 * MINUTE]
    assert [minute for minute, _ in ran] == [120]
    assert [entry.outcome for entry in queue.admin.schedules(10).log] == [
        "enqueued", "clock", "enqueued", "enqueued",
    ]  # fmt: skip


def test_added_schedule_runs_where_its_job_is_known(
    passing: Time, registry: Registry, queue: Queue
):
    declare(registry, "0 0 1 1 *")
    for name, job_name in (("here", "work"), ("elsewhere", "other")):
        one = Schedule(name=name, job=job_name, cron="*/20 * * * *", args=())
        queue.admin.schedule("add", name, encoded(one), now=passing.now())
    queue.admin.schedule("add", "broken", '{"name": "broken"', now=passing.now())

    ran = passing.run(41 * MINUTE, passing.scheduler(registry))

    assert [minute for minute, _ in ran] == [20, 40]


def test_spread_moves_the_enqueue_and_not_the_tick(passing: Time, registry: Registry):
    declare(registry, spread="5m")

    [(minute, late)] = passing.run(16 * MINUTE, passing.scheduler(registry))

    assert minute == 10
    assert 0 < late < 5 * MINUTE


def test_many_ticks_at_random_times_and_processes_that_come_and_go(
    passing: Time, registry: Registry
):
    declare(registry, "* * * * *", missed="all", overlap="allow")
    chance = random.Random(3)
    schedulers = [passing.scheduler(registry, chance.random()) for _ in range(3)]
    ran = []
    while passing.ms < 120 * MINUTE:
        schedulers[chance.randrange(3)] = passing.scheduler(registry, chance.random())
        ran += passing.run(passing.ms + chance.randrange(3 * MINUTE), *schedulers)
        if chance.random() < 0.2:
            passing.ms += chance.randrange(9 * MINUTE)

    minutes = [minute for minute, _ in ran]
    assert sorted(minutes) == list(range(1, max(minutes) + 1))


def test_call_is_sealed_for_the_mid_that_it_gets(
    passing: Time, registry: Registry, queue: Queue, monkeypatch: Any
):
    declare(registry, overlap="queue")
    codec = CodecSettings(keys=(("k", b"s" * 32),))
    monkeypatch.setattr(queue.client, "settings", replace(queue.client.settings, codec=codec))
    scheduler = passing.scheduler(registry)
    for minute in (11, 21):
        while passing.ms < minute * MINUTE:
            scheduler.enqueue_due(lambda _, call: bool(call() or True))
            passing.ms += 5_000
    [message] = queue.dequeue(10, now=passing.now()).messages
    seal = seal_of(queue.client)

    assert seal is not None
    tick = tick_of(decode(seal.open("low", message.mid, message.content)).headers)
    assert tick is not None
    assert (tick.at_ms - START) // MINUTE == 20


def test_schedule_that_no_running_worker_declares_is_named_at_the_first_look(
    passing: Time, registry: Registry, caplog: pytest.LogCaptureFixture
):
    queue, client = passing.queue, passing.queue.client
    for name in ("here", "gone", "elsewhere"):
        queue.admin.schedule(
            "declare", name, encoded(checked_schedule(name, "x", "@hourly", {})), now=START
        )
    queue.admin.schedule(
        "add", "added", encoded(checked_schedule("added", "x", "@hourly", {})), now=START
    )
    facts = {
        "queues": ["low"],
        "lease_ms": 60_000,
        "seen_at": START,
        "schedules": {"low": ["elsewhere"]},
    }
    presence.put_worker(client, "other", facts)
    declare(registry, name="here")
    passing.run(20_000, passing.scheduler(registry))
    told = [one.getMessage() for one in caplog.records if "declares" in one.getMessage()]
    assert [text.partition(",")[0] for text in told] == [
        "queue low: no running worker declares schedule gone"
    ]
    caplog.clear()
    later = {**facts, "seen_at": START + 30_000}
    presence.put_worker(client, "other", later)
    presence.put_worker(client, "old", {**later, "schedules": None})  # it doesn't say
    passing.run(40_000, passing.scheduler(registry))
    assert caplog.records == []


def test_names_of_declared_schedules_are_in_the_entry_of_the_worker(
    passing: Time, registry: Registry
):
    declare(registry, name="here")
    assert passing.scheduler(registry).names() == {"low": ["here"]}
