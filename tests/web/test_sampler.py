"""The sampler: figures equal the server's, charts have gaps where data is missing, events count once."""

from __future__ import annotations

import math

import pytest

from jobq.errors import UnavailableError
from jobq.events import attempt_record
from jobq.jobs.codec import encode
from jobq.queue import directory, presence
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web.api.resource import ROOT
from jobq.web.outcomes import DEAD, DONE, FAILED, DurationCounts, Outcomes, Recent
from jobq.web.rings import Ring
from jobq.web.sampler import ALL, DEQUEUED, READY, Sampler, Sampling
from jobq.web.tail import Tail, shared
from jobq.web.trouble import Growth, GrowthWatch, QueueFigures, busy_slots


def worker(client, name="w", **facts):
    """A live worker of `low` with four slots."""
    told = {
        "queues": ["low"],
        "slots": 4,
        "lease_ms": 15_000,
        "started_at": 1,
        "seen_at": client.clock_ms(),
    }
    presence.put_worker(client, name, told | facts)


def run(queue: Queue, outcome: str = "done", count: int = 1) -> None:
    """Run `count` messages with this outcome, for 2 s after 1 s of waiting."""
    for _ in range(count):
        queue.enqueue(encode("resize"))
    for message in queue.dequeue(count).messages:
        record = attempt_record("resize", 1, 3000, 2_000_000, 0, 0, "w:1", "Timeout: no", "f00d")
        backoff = 60 if outcome == "retry" else None
        ending = Ending(
            mid=message.mid, token=message.token, outcome=outcome, record=record, backoff=backoff
        )
        queue.finish([ending])


def test_pages_show_queues_in_use_and_count_others_when_the_list_is_too_long(
    client, redis, visit, monkeypatch
):
    Queue("low", client).enqueue(encode("resize"))
    redis.sadd("jobq:queues", b"\xff", *(f"a{number}" for number in range(9)))
    monkeypatch.setattr(directory, "MAX_QUEUES", 3)
    visitor = visit()
    for path in ("/", "/queues"):
        page = visitor.get(path)
        assert (
            page.status_code == 200
            and "The list of queues has 10 names that these figures ignore." in page.text
        )
    assert visitor.get("/queues/low").status_code == 200
    assert visitor.get("/queues/a1").status_code == 404
    for path in ("/dead", "/history", "/settings"):
        assert visitor.get(path).status_code == 200


def test_figures_are_those_of_the_server(client, redis):
    low = Queue("low", client)
    for number in range(5):
        low.enqueue(encode("resize", enqueued_at=client.clock_ms() - 60_000), mid=f"m{number}")
    low.enqueue(encode("resize"), mid="later", delay=60)
    low.dequeue(1)
    Queue("high", client).enqueue(b"not a call", mid="x")
    redis.set("jobq:{bad}:messages", "no hash")
    redis.sadd("jobq:queues", "bad", b"\xff")
    worker(client)
    worker(client, "gone", seen_at=client.clock_ms() - 600_000)
    found = Sampling(client).take_snapshot()
    low_now, high_now = found.queues["low"], found.queues["high"]
    assert (low_now.ready, low_now.delayed, low_now.running, low_now.workers) == (4, 1, 1, 1)
    assert (low_now.slots, low_now.dequeued, low_now.dequeued_per_s) == (4, 1, None)
    assert 60_000 <= low_now.oldest_ms < 120_000 and not low_now.at_least
    assert high_now.at_least and high_now.state == "no_worker"
    assert found.queues["bad"].state == "damaged" and set(found.queues) == {"low", "high", "bad"}
    assert (found.totals.ready, found.totals.running, found.totals.slots) == (5, 1, 4)
    assert [one.name for one in found.lost_workers] == ["gone"]
    assert [one.queue for one in found.in_trouble] == ["bad", "high", "low"]


def test_outcomes_count_each_event_once_whenever_it_was_written(client):
    low = Queue("low", client)
    run(low, "done", 7)
    run(low, "dead", 2)
    sampling = Sampling(client)
    assert sampling.take_snapshot().queues["low"].recent == Recent(known=False)
    sampling.catch_up()
    run(low, "retry", 3)
    found = sampling.catch_up()
    recent = found.queues["low"].recent
    assert (recent.done, recent.failed, recent.dead) == (7, 3, 2)
    assert recent.failure_share == 5 / 12 and not recent.sampled
    assert 512 < recent.wait_p95_ms <= 1024 and 1024 < recent.run_p95_ms <= 2048
    assert found.totals.recent[:3] == (7, 3, 2)
    at = found.at_ms / 1000
    for column, count in ((DONE, 7), (FAILED, 3), (DEAD, 2)):
        counts = sampling.outcomes.counted("low", column, at - 300, at)
        assert sum(value for _, value in counts) == count
    dead = sampling.outcomes.newest_dead()
    assert [(one.queue, one.job, one.error) for one in dead] == [
        ("low", "resize", "Timeout: no")
    ] * 2
    assert sampling.catch_up().queues["low"].recent == recent


def test_of_too_many_events_the_newest_stand_for_all(client, monkeypatch):
    low, high = Queue("low", client), Queue("high", client)
    run(low), run(high)
    sampling = Sampling(client)
    sampling.catch_up()
    monkeypatch.setattr("jobq.web.tail.MAX_EVENTS", 20)
    monkeypatch.setattr("jobq.web.tail.SAMPLE", 20)
    run(low, "done", 100), run(high, "done", 5)
    found = sampling.take_snapshot()
    assert found.sampled
    assert round(found.queues["low"].recent.done) == 101 and found.queues["low"].recent.sampled
    assert found.queues["high"].recent.done == 6 and not found.queues["high"].recent.sampled
    assert shared({"a": 10, "b": 3, "c": 90}, 50) == {"b": 3, "a": 10, "c": 37}


def test_after_a_sleep_events_are_read_back_to_where_reading_ended(client):
    low = Queue("low", client)
    run(low, "done", 4)
    outcomes = Outcomes()
    tail = Tail(client, [outcomes])
    now_ms = client.clock_ms()

    def read(slept: bool) -> float:
        tail.read_added({"low": low.admin.sample().added}, slept=slept)
        while tail.read_past(now_ms):
            pass
        return outcomes.recent("low", client.clock_ms()).done

    assert read(False) == 4
    run(low, "done", 6)
    assert read(True) == 10 and read(True) == 10
    run(low, "done", 2)
    assert read(False) == 12
    low.client.command("DEL", f"{low.prefix}events")
    run(low, "done", 1)
    assert read(False) == 13


def test_past_is_read_within_its_bound(client, monkeypatch):
    low = Queue("low", client)
    run(low, "done", 50)
    monkeypatch.setattr("jobq.web.tail.MAX_PAST", 20)
    sampling = Sampling(client)
    assert sampling.catch_up().queues["low"].recent.done == 20
    assert sampling.tail.since_ms("low") > 0
    run(low, "done", 5)
    assert sampling.catch_up().queues["low"].recent.done == 25


def test_outcomes_are_unknown_until_the_past_was_read(client):
    low = Queue("low", client)
    run(low, "dead", 2)
    sampling = Sampling(client)
    first = sampling.take_snapshot()
    assert not first.totals.recent.known and not first.queues["low"].recent.known
    second = sampling.catch_up()
    assert second.totals.recent.known and second.queues["low"].recent.known
    assert second.totals.recent.dead == 2 and not second.is_old
    sampling.snapshot = second._replace(taken=second.taken - 300)
    assert sampling.snapshot.is_old
    run(low, "dead", 1)
    assert not sampling.take_snapshot().totals.recent.known
    assert sampling.catch_up().totals.recent.dead == 3


def test_first_page_shows_no_zeros_before_events_were_read(client, visit, monkeypatch):
    run(Queue("low", client), "dead", 2)
    monkeypatch.setattr(Sampler, "_read_past", lambda self: None)
    page = visit()
    text = page.get("/").text
    assert "events are being read" in text and "Events are being read." in text
    assert "no attempt ended" not in text and "none in 15 m" not in text
    assert "no attempt ended" not in page.get("/queues/low").text
    low = page.get(f"{ROOT}/queues/low", headers={"Authorization": "Bearer x"}).json()
    assert (low["done_15m"], low["failed_15m"], low["dead_15m"]) == (None, None, None)


def test_figures_of_attempts_are_unknown_when_a_queue_records_no_events(client, visit):
    for name, level in (("low", "off"), ("high", "attempts")):
        queue = Queue(name, client)
        queue.enqueue(b"{}")
        queue.admin.events_level(level)
    page = visit()
    low, high = page.get("/queues/low").text, page.get("/queues/high").text
    assert (
        "This queue doesn't record events" in low and "This queue doesn't record events" not in high
    )
    api = page.get(f"{ROOT}/queues", headers={"Authorization": "Bearer x"}).json()["items"]
    assert {one["queue"]: one["done_15m"] for one in api} == {"low": None, "high": 0}


def test_events_that_are_no_records_are_left_out(client, redis):
    low = Queue("low", client)
    run(low, "done", 2)
    redis.xadd(f"{low.prefix}events", {b"9": b"x", b"\xff": b"\xff"})
    assert Sampling(client).catch_up().queues["low"].recent.done == 2


def test_rate_and_points_come_from_two_samples(client):
    low = Queue("low", client)
    sampling = Sampling(client)
    sampling.take_snapshot()
    run(low, "done", 8)
    first = sampling.take_snapshot()
    rate = first.queues["low"].dequeued_per_s
    assert rate is None  # the queue is new here
    run(low, "done", 8)
    second = sampling.take_snapshot()
    rate = second.queues["low"].dequeued_per_s
    assert rate == pytest.approx(8000 / (second.at_ms - first.at_ms))
    low.enqueue(encode("resize"))
    at = sampling.take_snapshot().at_ms / 1000
    assert sampling.points("low", READY, at - 60, at)[-1][1] in (0, 1)
    assert (
        sampling.points(ALL, DEQUEUED, at - 60, at) and sampling.points("none", READY, 0, at) == []
    )


def test_thread_reads_while_somebody_looks_and_ends(client):
    Queue("low", client).enqueue(encode("resize"))
    sampler = Sampler(client)
    try:
        assert sampler.look(60).queues["low"].ready == 1
    finally:
        sampler.close()


def test_without_a_server_the_last_snapshot_says_so(client, monkeypatch):
    sampling = Sampling(client)

    def away():
        raise UnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(client, "clock_ms", away)
        with pytest.raises(UnavailableError):
            sampling.take_snapshot()
        patch.undo()
        before = sampling.take_snapshot()
        patch.setattr(client, "clock_ms", away)
        assert sampling.take_snapshot() == before._replace(broken="gone")
        sampler = Sampler(client)
        with pytest.raises(UnavailableError):
            sampler.look(60)
        sampler.close()
    assert not sampling.take_snapshot().broken


def test_ring_keeps_gaps_and_forgets_rounds():
    ring = Ring(5, 2, 2, frozenset((1,)))
    ring.put(100, (1, 1))
    ring.put(101, (5, 2))
    ring.put(106, (3, 9))
    ring.put(90, (7, 7))
    assert ring.points(0, 0, 200) == [(98, None), (100, 5), (102, None), (104, None), (106, 3)]
    assert ring.value(101, 1) == 1.5
    ring.put(116, (4, 4))
    assert ring.points(0, 0, 200) == [(108, None), (110, None), (112, None), (114, None), (116, 4)]
    ring.add(110, 0, 2)
    ring.add(110, 0, 2)
    ring.add(50, 0, 2)
    assert ring.value(110, 0) == 4 and ring.value(50, 0) is None


def test_histogram_tells_quantiles():
    histogram = DurationCounts()
    assert histogram.quantile_ms(0.95) is None
    for ms in (0.5, 3, 100, 100, 10**12):
        histogram.add(ms)
    assert histogram.quantile_ms(0.2) == 1 and 64 < histogram.quantile_ms(0.7) <= 128
    assert histogram.quantile_ms(1) == 2**25


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "idle"), ({"running": 1}, "working"), ({"ready": 1, "workers": 1}, "working"),
        ({"ready": 1, "workers": 0}, "no_worker"), ({"ready": 1, "workers": None}, "working"),
        ({"ready": 1, "workers": 0, "paused": True}, "paused"), ({"broken": "x", "paused": True}, "damaged"),
        ({"ready": 9, "workers": 1, "oldest_ms": 90_000}, "late"),
        ({"ready": 9000, "workers": 1, "dequeued_per_s": 10.0, "growth": Growth(20, 1)}, "falling_behind"),
        ({"ready": 90, "workers": 1, "dequeued_per_s": 100.0, "growth": Growth(20, 1)}, "working"),
        ({"recent": Recent(10, 9, 2)}, "failing"), ({"recent": Recent(1, 9, 2)}, "idle"),
    ],
)  # fmt: skip
def test_state_of_a_queue_is_what_matters_most(facts, state):
    found = QueueFigures("low", 0, **{"workers": 1, **facts})
    assert found.state == state


def test_growth_is_told_after_twenty_seconds_and_since_the_lowest_moment():
    watch = GrowthWatch()
    assert watch.put(100, 50) == Growth(None, 100)
    assert watch.put(110, 40) == Growth(None, 110)
    assert watch.put(120, 90) == Growth(2, 110)
    assert watch.put(430, 90) == Growth(None, 110)
    one = QueueFigures("low", 0, ready=100, growth=Growth(-2, 0))
    assert one.empty_in_s == 50
    assert one._replace(growth=Growth(2, 0)).empty_in_s == math.inf
    assert one._replace(growth=Growth()).empty_in_s is None


def test_messages_taken_ahead_are_not_counted_as_running():
    assert [busy_slots(taken, 3) for taken in (0, 2, 17)] == [0, 2, 3]
    assert busy_slots(17, 0) == 17
