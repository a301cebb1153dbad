"""Estimate how many worker slots queues need, for an autoscaler."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.observe.facts import EndedRuns, ended_runs
from jobq.queue.queue import Queue
from jobq.queue.types import Sample
from jobq.records import JsonRecord

#: A rate of arrivals is measured over at least MIN_S seconds. Samples older than KEPT_S seconds are forgotten.
MIN_S, KEPT_S = 10.0, 600.0
#: Factor that leaves room for varying arrivals.
SPARE = 1.2


class QueueDemand(JsonRecord):
    """How many slots a queue needs.

    Attributes:
        arrivals_per_s: Messages that become ready per second. None if no attempt finished recently and the samples are
            less than MIN_S seconds apart.
        mean_run_ms: Mean run time of attempts. None if no attempt finished recently, or if events are off.
    """

    queue: str
    paused: bool
    ready: int
    busy: int
    arrivals_per_s: float | None
    mean_run_ms: float | None
    wanted_slots: int


class Demand(JsonRecord):
    """How many slots the workers of some queues should have in total.

    Attributes:
        wanted_slots: How many jobs workers should be able to run at the same time.
        unread: Queues that can't be read, each with the reason. Their demand counts as 0.
    """

    wanted_slots: int
    busy: int
    ready: int
    queues: list[QueueDemand]
    unread: dict[str, str]


class _Before(NamedTuple):
    """A queue's number of deliveries (`fence`) and number of ready messages at an earlier time."""

    at: float
    fence: int
    ready: int


def _runs_in_all(queue: Queue) -> EndedRuns | None:
    """Return the rate and the mean run time of recent attempts in a queue and its partitions."""
    all_runs = [runs for place in (queue, *queue.partitions()) if (runs := ended_runs(place))]
    if not all_runs:
        return None
    rate = sum(runs.per_s for runs in all_runs)
    if not rate:
        return all_runs[-1]
    return EndedRuns(rate, sum(runs.mean_run_s * runs.per_s for runs in all_runs) / rate)


class DemandMeter:
    """Measures how many slots (concurrent jobs) queues need. It is thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        # By queue: the sample from which a rate is measured, and the latest sample.
        self._before: dict[str, tuple[_Before, _Before]] = {}

    def measure(self, names: Sequence[str], target_s: float) -> Demand:
        """Return how many slots these queues need to finish waiting messages within `target_s` seconds."""
        rows, unread = [], dict[str, str]()
        for name in dict.fromkeys(names):
            queue = Queue(name, self._client)
            try:
                sample = queue.admin.sample()
                runs = ended_runs(queue) if not sample.sealed else _runs_in_all(queue)
            except JobqError as error:
                if self._client.is_lost(error):
                    raise
                unread[name] = str(error)
                continue
            rows.append(demand_of(name, sample, runs, self._arrivals(name, sample), target_s))
        return Demand(
            sum(row.wanted_slots for row in rows), sum(row.busy for row in rows),
            sum(row.ready for row in rows), rows, unread,
        )  # fmt: skip

    def _arrivals(self, name: str, sample: Sample) -> float | None:
        """Return how many messages became ready per second since an earlier sample.

        Return None if the samples are less than MIN_S seconds apart.
        """
        now = _Before(time.monotonic(), sample.fence, sample.counts.ready)
        with self._lock:
            if len(self._before) > 10_000:
                self._before.clear()
            first, last = self._before.get(name, (now, now))
            if now.at - first.at > KEPT_S:
                first = last = now
            if now.at - last.at >= MIN_S:
                first, last = last, now
            self._before[name] = first, last
        if now.at - first.at < MIN_S:
            return None
        came = now.fence - first.fence + now.ready - first.ready
        return max(0, came) / (now.at - first.at)


def demand_of(
    name: str, sample: Sample, runs: EndedRuns | None, arrivals: float | None, target_s: float
) -> QueueDemand:
    """Return how many slots a queue needs.

    The result is at least the number of running messages, and larger if arriving and waiting messages need more slots.
    While run times are unknown, each running or ready message needs one slot. In a paused queue, only running messages
    count.
    """
    counts = sample.counts
    rate = arrivals if arrivals is not None else runs.per_s if runs else None
    run_s = runs.mean_run_s if runs else None
    wanted: float = counts.locked
    if not counts.all_paused:
        if run_s is None:
            wanted = counts.locked + counts.ready
        else:
            wanted = max(wanted, (rate or 0.0) * run_s * SPARE + counts.ready * run_s / target_s)
            # At least one slot for waiting messages, however short they are.
            wanted = max(wanted, 1.0 if counts.ready else 0.0)
    return QueueDemand(
        name, counts.paused, counts.ready, counts.locked, None if rate is None else round(rate, 3),
        None if run_s is None else round(1000 * run_s, 3), ceil(round(wanted, 6)),
    )  # fmt: skip
