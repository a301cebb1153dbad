"""How many slots queues need: never fewer than what runs, more for what waits and arrives, all that are asked for."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.events import attempt_record
from jobq.jobs.codec import encode
from jobq.metrics import demand
from jobq.metrics.demand import DemandMeter, demand_of
from jobq.observe.facts import EndedRuns, ended_runs
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Counts, Ending, Sample


def sample(*, ready: int = 0, locked: int = 0, paused: bool = False, fence: int = 0) -> Sample:
    counts = Counts(ready + locked, ready, 0, 0, locked, 0, 0, 0, 0, paused)
    return Sample(counts, fence, 0, None)


@pytest.mark.parametrize(
    ("now", "runs", "arrivals", "wanted"),
    [
        (sample(), None, None, 0),
        (sample(ready=5, locked=3), None, None, 8),  # no run time is known: a slot for each
        (sample(locked=96), EndedRuns(10, 0.1), None, 96),  # busy pods are never too many
        (sample(locked=2), EndedRuns(10, 2.0), None, 24),  # 10 a second x 2 s x 1.2
        (sample(ready=600, locked=2), EndedRuns(1, 0.5), 1.0, 11),  # 0.6 + 600 x 0.5 s / 30 s
        (sample(ready=1), EndedRuns(0, 0.001), 0.0, 1),  # one slot at least for what waits
        (sample(ready=600, locked=2, paused=True), EndedRuns(9, 9), 9.0, 2),
    ],
)
def test_slots(now, runs, arrivals, wanted):
    assert demand_of("low", now, runs, arrivals, target_s=30).wanted_slots == wanted


def test_a_queue_needs_slots_when_only_some_of_its_partitions_are_paused():
    partly = sample(ready=600, locked=2, paused=True)
    counts = partly.counts._replace(paused_partitions=1, served_partitions=4)
    assert demand_of("low", partly._replace(counts=counts), None, None, 30).wanted_slots == 602


def test_run_times_and_arrivals_are_measured(client, monkeypatch):
    queue, clock = Queue("low", client), [1_000.0]
    monkeypatch.setattr(demand.time, "monotonic", lambda: clock[0])
    assert ended_runs(queue) is None
    for number in range(12):
        queue.enqueue(encode("resize"), mid=f"m{number}")
    meter = DemandMeter(client)
    first = meter.measure(["low", "low", "other"], 30)
    assert (first.ready, first.busy, first.wanted_slots, len(first.queues)) == (12, 0, 12, 2)
    handed = queue.dequeue(10).messages
    record = attempt_record("resize", 1, 100, 2_000_000, 1, 1, "w:1")
    queue.finish([Ending(mid=one.mid, token=one.token, record=record) for one in handed[:6]])
    runs = ended_runs(queue)
    assert runs is not None and runs.mean_run_s == 2.0 and 0.05 < runs.per_s <= 6
    clock[0] += demand.MIN_S
    # 10 were handed out, and 10 fewer wait: nothing arrived.
    [row] = meter.measure(["low"], 2).queues
    assert (row.busy, row.ready, row.arrivals_per_s, row.mean_run_ms) == (4, 2, 0.0, 2000.0)
    assert row.wanted_slots == 4
    for number in range(20, 40):
        queue.enqueue(encode("resize"), mid=f"m{number}")
    clock[0] += demand.MIN_S
    [row] = meter.measure(["low"], 2).queues
    assert row.arrivals_per_s == 2.0 and row.wanted_slots == 27  # 2 x 2 s x 1.2 + 22 x 2 s / 2 s
    clock[0] += demand.KEPT_S + 1
    assert meter.measure(["low"], 2).queues[0].arrivals_per_s == pytest.approx(runs.per_s, rel=0.9)


def test_a_queue_that_cannot_be_read_is_named(client, redis):
    queue = Queue("low", client)
    queue.enqueue(encode("resize"), mid="m")
    redis.set("jobq:{bad}:ready", "x")
    found = DemandMeter(client).measure(["bad", "low"], 30)
    assert list(found.unread) == ["bad"] and found.wanted_slots == 1
    with pytest.raises(ConfigError):
        DemandMeter(client).measure(["a b"], 30)


def test_demand_is_of_all_partitions_when_a_queue_is_partitioned(client):
    partition(client, "low", 2)
    low = Queue("low", client)
    low.enqueue_many([(f"m{number}", encode("resize")) for number in range(20)])
    record = attempt_record("resize", 1, 100, 2_000_000, 1, 1, "w:1")
    for place in low.partitions():
        [one] = place.dequeue(1).messages
        place.finish([Ending(mid=one.mid, token=one.token, record=record)])

    [row] = DemandMeter(client).measure(["low"], 30).queues
    alone = [DemandMeter(client).measure([place.name], 30).queues[0] for place in low.partitions()]
    assert row.ready == 18 == sum(one.ready for one in alone)
    assert row.wanted_slots > max(one.wanted_slots for one in alone)
