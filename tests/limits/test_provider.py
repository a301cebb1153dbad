"""Workers die while jobs and web processes call a provider that counts its calls.

Time is simulated; the scripts run on a real server. Two judges: one goes by when starts were granted, one by when
requests arrive, up to half a second later. `make soak` makes 50,000 calls.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from random import Random

import pytest

from jobq import RateLimit
from jobq.client.steps import drive

JOBS = 50_000 if os.environ.get("JOBQ_LIMITS") == "large" else 1_500
MAX_COUNT, SPAN_MS, JITTER_MS = 100, 60_000, 500
BEGIN = 1_700_000_000_000


class Provider:
    """Answers 429 to a request beyond its limit in the last span."""

    def __init__(self):
        self.times = []

    def worst(self):
        """The most requests of any span."""
        times = sorted(self.times)
        first = worst = 0
        for last, at in enumerate(times):
            while at - times[first] >= SPAN_MS:
                first += 1
            worst = max(worst, last - first + 1)
        return worst


class Simulation:
    """Jobs that wait for their turns, and web requests that don't."""

    def __init__(self, limit, seed):
        self.limit, self.random = limit, Random(seed)
        self.by_grant, self.by_arrival = Provider(), Provider()
        self.events, self.handed, self.attempts = [], Counter(), Counter()
        self.end = 0.0

    def take(self, at, patience_s):
        """Ask for a start at a moment."""
        steps = self.limit._acquire_steps(1, patience_s, BEGIN + int(at))
        return drive(steps, self.limit.calls._call)

    def started(self, at):
        """A request that was granted, and arrives a little later."""
        self.by_grant.times.append(int(at))
        self.by_arrival.times.append(int(at) + self.random.randrange(JITTER_MS))

    def run(self, jobs, web_per_span, death):
        """Until all jobs are done; death: of how many workers, after a start was granted."""
        left, random, at = jobs, self.random, 0.0
        for number in range(jobs):
            heapq.heappush(self.events, (number * 2.0, number, False))
        while at < 1.4 * jobs / MAX_COUNT * SPAN_MS:
            at += random.expovariate(web_per_span / SPAN_MS)
            heapq.heappush(self.events, (at, -len(self.events), True))
        while left:
            at, number, web = heapq.heappop(self.events)
            grant = self.take(at, 0.0 if web else 3_600.0)
            if web:
                if grant:
                    self.started(at)
                continue
            self.handed[number] += 1
            # Most workers come in time, some are late by seconds.
            late = random.random() * 50 if random.random() < 0.7 else random.expovariate(1 / 8_000)
            if not grant:
                heapq.heappush(self.events, (at + grant.retry_after * 1_000 + late, number, False))
                continue
            self.started(at)
            self.attempts[number] += 1
            # The last ones wait for their turns alone.
            self.end = at if left > jobs / 20 else self.end
            if random.random() < death:
                heapq.heappush(self.events, (at + late, number, False))
            else:
                left -= 1


@pytest.mark.one_server
def test_a_provider_never_refuses_and_nearly_all_of_its_rate_is_used(client, redis):
    limit = RateLimit("stripe", f"{MAX_COUNT}/m", margin=JITTER_MS / 1_000)
    simulated = Simulation(limit, seed=3)
    simulated.run(JOBS, web_per_span=20, death=0.01)

    assert simulated.by_grant.worst() <= MAX_COUNT
    assert simulated.by_arrival.worst() <= MAX_COUNT
    granted = sum(at <= simulated.end for at in simulated.by_grant.times)
    spans = (simulated.end + SPAN_MS) / (SPAN_MS + JITTER_MS)
    assert granted / spans >= 0.9 * MAX_COUNT
    crashed = sum(count - 1 for count in simulated.attempts.values())
    # Turns are given for an hour. Behind a longer backlog a job comes once more for each hour that it waits.
    hours = simulated.end / 3_600_000
    longer = hours / 2 if hours > 1 else 0
    assert (sum(simulated.handed.values()) - crashed) / JOBS <= 2.3 + longer
    assert max(simulated.attempts.values()) <= 1 + crashed
    assert sum(simulated.attempts.values()) == JOBS + crashed
