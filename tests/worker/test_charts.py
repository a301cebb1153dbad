"""Figures for charts: one worker writes them, a queue without change writes nothing, and they are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.jobs.codec import encode
from jobq.queue import charts, keys
from jobq.queue.charts import MAX_RINGS, MINUTE_MS, MINUTES, kept_minutes
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.worker import charts as keeping
from jobq.worker.charts import ChartKeeper

pytestmark = pytest.mark.one_server


class Minutes:
    """Lets minutes pass, in each of which some workers try to keep charts."""

    def __init__(self, client: Client, redis: Any) -> None:
        self.client, self.redis = client, redis
        self.now = client.clock_ms() // MINUTE_MS * MINUTE_MS
        client.clock = lambda: self.now

    def keep(self, *keepers: ChartKeeper) -> None:
        """Let one minute pass."""
        self.now += MINUTE_MS
        for keeper in keepers:
            keeper.begin()
            keeper.sample()
        self.redis.delete(keys.charts(self.client.namespace, "turn"))

    def kept(self, queue: str) -> list[tuple[int, ...]]:
        """Return the points of charts: minutes ago, ready, running, oldest, hand-outs."""
        at = self.now // MINUTE_MS
        return [
            (at - one.minute, one.ready, one.running, one.oldest_s, one.fence)
            for one in kept_minutes(self.client, queue, at)
        ]


@pytest.fixture
def minutes(client: Client, redis: Any) -> Any:
    yield Minutes(client, redis)
    client.clock = None


def test_charts_have_each_minute_and_a_queue_without_change_writes_nothing(
    minutes: Minutes, client: Client, redis: Any
):
    keeper, low = ChartKeeper(client, "w"), Queue("low", client)
    low.enqueue_many([(f"m{n}", encode("a", enqueued_at=minutes.now)) for n in range(3)])
    minutes.keep(keeper)
    low.dequeue(1, lease=3_600)
    minutes.keep(keeper)
    low.admin.pause()
    low.cancel("m1", "m2")
    low.admin.collect()
    minutes.keep(keeper)
    ring = redis.get(keys.chart(client.namespace, "low"))
    for _ in range(2):
        minutes.keep(keeper)
    assert redis.get(keys.chart(client.namespace, "low")) == ring
    assert minutes.kept("low") == [
        (4, 3, 0, 60, 0), (3, 2, 1, 120, 1), (2, 0, 1, 0, 1), (1, 0, 1, 0, 1), (0, 0, 1, 0, 1)
    ]  # fmt: skip
    assert [one[:3] for one in minutes.kept("")][-1] == (0, 0, 1)
    assert all(redis.pttl(key) > 0 for key in redis.keys("jobq:charts:*"))


def test_only_one_worker_keeps_a_minute(minutes: Minutes, client: Client, redis: Any):
    Queue("low", client).enqueue(encode("a"))
    first, second = ChartKeeper(client, "w1"), ChartKeeper(client, "w2")
    redis.config_resetstat()
    minutes.keep(first, second)
    calls = redis.info("commandstats")
    assert calls["cmdstat_set"]["calls"] == 2
    assert calls["cmdstat_setrange"]["calls"] == 2  # of low, and of all
    redis.config_resetstat()
    minutes.now += MINUTE_MS
    first.begin()
    first.sample()
    second.begin()
    second.sample()
    assert redis.info("commandstats")["cmdstat_setrange"]["calls"] == 1


def test_queues_are_sampled_in_steps_and_written_after_the_last_one(
    minutes: Minutes, client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeping, "PER_STEP", 2)
    for name in ("a", "b", "c"):
        Queue(name, client).enqueue(encode("a"))
    keeper, total = ChartKeeper(client, "w"), keys.chart(client.namespace, "")
    keeper.begin()
    keeper.sample()
    assert redis.get(total) is None
    keeper.sample()
    assert [one[:2] for one in minutes.kept("")] == [(0, 3)]
    redis.delete(total)
    keeper.sample()
    assert redis.get(total) is None


def test_rings_are_bounded_and_the_other_queues_are_one_sum(
    minutes: Minutes, client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeping, "MAX_RINGS", 2)
    for number in range(4):
        queue = Queue(f"q{number}", client)
        queue.enqueue_many([(f"m{n}", encode("a")) for n in range(number + 1)])
    minutes.keep(ChartKeeper(client, "w"))
    minutes.keep(ChartKeeper(client, "w2"))
    assert [bool(minutes.kept(f"q{number}")) for number in range(4)] == [False, False, True, True]
    rest = charts.minutes_in(redis.get("jobq:charts:rest"), minutes.now // MINUTE_MS)
    assert rest[-1].ready == 3 and minutes.kept("")[-1][1] == 10
    size = len(redis.get(keys.chart(client.namespace, "q3")))
    assert size <= 32 * MINUTES <= 64 * 1024 and 32 * MINUTES * MAX_RINGS <= 32 << 20


def test_full_server_leaves_a_gap(minutes: Minutes, client: Client, redis: Any):
    Queue("low", client).enqueue(encode("a"))
    redis.config_set("maxmemory", 1)
    try:
        minutes.keep(ChartKeeper(client, "w"))
    finally:
        redis.config_set("maxmemory", 0)
    assert minutes.kept("") == []


@pytest.mark.parametrize("ring", [b"", b"x" * 31, b"\xff" * 46_080, b"\xff" * 100_000])
def test_ring_of_a_stranger_shows_nothing(ring: bytes):
    assert charts.minutes_in(ring, 28_000_000) == []


def test_a_partitioned_queue_has_one_chart_when_workers_keep_charts(
    minutes: Minutes, client: Client, redis: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(keeping, "PER_STEP", 1)
    partition(client, "low", 3)
    Queue("low", client).enqueue_many([(f"m{n}", encode("a")) for n in range(9)])
    keeper = ChartKeeper(client, "w")

    def keep() -> None:
        minutes.keep(keeper)
        while keeper._left:
            keeper.sample()

    keep()
    assert [row[1] for row in minutes.kept("low")] == [9]
    assert [row[1] for row in minutes.kept("")] == [9]
    assert minutes.kept("low/0") == []
    redis.set("jobq:{low/1}:messages", "x")
    keep()
    assert [row[1] for row in minutes.kept("low")] == [
        9,
        9,
    ]  # the former figures, not a part of the sum
