"""The simulated pool: hand-computed traces, and the formulas where they are exact."""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from itertools import pairwise

import pytest

from jobq.pipeline.report.capacity import Load, Trace, formula_wait, load, simulate, waits
from jobq.worker.scheduling import QueueTurns


def trace(*arrivals: tuple[int, int, int]) -> Trace:
    """From (queue, arrived, run)."""
    queue, arrived, run = (array("q", column) for column in zip(*arrivals, strict=True))
    return Trace(queue, arrived, run, array("q", [1] * len(arrivals)))


def random_trace(n: int, rate: float, queues: int = 1, seed: int = 1) -> Trace:
    """Arrivals and runs without memory, a mean run of 1 s."""
    rng, now, made = random.Random(seed), 0.0, []
    for _ in range(n):
        now += rng.expovariate(rate) * 1e6
        made.append((rng.randrange(queues), round(now), round(rng.expovariate(1) * 1e6)))
    return trace(*made)


def test_one_worker_serves_one_after_the_other():
    assert list(waits(trace((0, 0, 10), (0, 1, 5), (0, 2, 5), (0, 40, 1)), 1)) == [0, 9, 13, 0]


def test_two_workers_take_the_next_when_one_is_free():
    assert list(waits(trace((0, 0, 10), (0, 0, 4), (0, 1, 5), (0, 1, 1)), 2)) == [0, 0, 3, 8]


def test_one_worker_obeys_lindleys_recursion():
    made = random_trace(2000, 0.9)
    expected = [0]
    for (before, run), (now, _) in pairwise(zip(made.arrived, made.run, strict=True)):
        expected.append(max(0, expected[-1] + run - (now - before)))
    assert list(waits(made, 1)) == expected


def test_queues_take_turns_by_weight_as_a_worker_does():
    n = 40
    made = trace((0, 0, 10), *((queue, 1, 10) for queue in (0, 1, 2) for _ in range(n)))
    found = waits(made, 1, [4, 2, 1])
    order = [made.queue[i] for i in sorted(range(1, len(found)), key=lambda i: found[i])]
    turns, left, expected = QueueTurns([4, 2, 1]), [n + 1, n, n], []
    while len(expected) <= 40:
        queue = turns.next()
        assert queue is not None
        turns.record(queue, left[queue] > 0)
        if left[queue]:
            left[queue] -= 1
            expected.append(queue)
    # The first arrival was alone, whose turn it was anyhow.
    assert order[:30].count(0) / 30 == pytest.approx(4 / 7, abs=0.05)
    assert order[:30].count(2) / 30 == pytest.approx(1 / 7, abs=0.05)
    assert expected[:7].count(0) == 4 and expected[:7].count(2) == 1


def test_weights_only_share_out_the_waiting():
    made = random_trace(3000, 1.8, queues=3)
    totals = {sum(waits(made, 2, weights)) for weights in ([1, 1, 1],)}
    one = Trace(array("q", [0] * 3000), made.arrived, made.run, made.counted)
    # Whose turn it is does not depend on the length of runs, so the mean wait nearly equals the wait of one queue.
    assert totals.pop() == pytest.approx(sum(waits(one, 2)), rel=0.1)
    heavy = simulate(made, 2, [20, 1, 1], 10**6).by_queue
    assert heavy[0] is not None and heavy[1] is not None and heavy[0] > heavy[1]


def fifo_starts(arrived: list[int], runs: list[int], workers: int) -> list[int]:
    """When each starts, tick by tick: whoever came first takes any worker that is idle."""
    until, tick, starts = [0] * workers, 0, []
    coming, waiting = deque(range(len(arrived))), deque[int]()
    while coming or waiting:
        while coming and arrived[coming[0]] <= tick:
            waiting.append(coming.popleft())
        for worker in range(workers):
            while waiting and until[worker] <= tick:
                starts.append(tick)
                until[worker] = tick + runs[waiting.popleft()]
        tick += 1
    return starts


@pytest.mark.parametrize("block", range(10))
def test_many_queues_are_a_plain_fifo_when_whose_turn_it_is_makes_no_difference(block):
    rng = random.Random(block)
    for _ in range(100):
        n, workers, queues = rng.randint(1, 25), rng.randint(1, 6), rng.randint(2, 4)
        # So few moments that many arrive at the same one.
        came = sorted(rng.randint(0, rng.choice((3, 40))) for _ in range(n))
        runs = [rng.randint(0, 9) for _ in range(n)]
        weights = [rng.randint(1, 9) for _ in range(queues)]
        alone = trace(*((queues - 1, at, run) for at, run in zip(came, runs, strict=True)))
        starts = [at + wait for at, wait in zip(came, waits(alone, workers, weights), strict=True)]
        assert starts == fifo_starts(came, runs, workers)
        alike = trace((queues - 1, came[0], 5), *((rng.randrange(queues), at, 5) for at in came))
        found = waits(alike, workers, weights)
        starts = sorted(at + wait for at, wait in zip(alike.arrived, found, strict=True))
        assert starts == fifo_starts(list(alike.arrived), [5] * (n + 1), workers)
        mixed = trace(
            (queues - 1, came[0], 1),
            *((rng.randrange(queues), at, run) for at, run in zip(came, runs, strict=True)),
        )
        found = waits(mixed, workers, weights)
        assert min(found) >= 0
        for queue in range(queues):
            mine = [
                at + wait
                for of, at, wait in zip(mixed.queue, mixed.arrived, found, strict=True)
                if of == queue
            ]
            assert mine == sorted(mine), "within a queue the first to come starts first"


def test_two_queues_with_simultaneous_arrivals_take_a_worker_for_each_of_them():
    made = trace(*((n % 2, 1_000, 100) for n in range(40)))
    assert simulate(made, 40, [1, 1], 0).within == 1
    late = simulate(made, 39, [1, 1], 0)
    assert (late.within, late.p99, late.mean) == (39 / 40, 100, 100 / 40)


def test_busy_workers_are_littles_law():
    found = load(trace((0, 0, 1_800_000_000), (0, 5, 1_800_000_000)))
    assert found.offered == pytest.approx(1.0)
    assert found.rate * 3.6e9 == pytest.approx(2) and found.run == 1_800_000_000


def test_busy_workers_are_those_of_the_time_that_was_observed():
    made = trace(*((0, n * 100_000, 400_000) for n in range(460)))
    assert load(made, 46_000_000).offered == pytest.approx(4.0)


@pytest.mark.parametrize(("workers", "rate"), [(1, 0.5), (3, 2.4)])
def test_simulation_agrees_with_erlang_c_when_nothing_has_memory(workers, rate):
    made = random_trace(60_000, rate, seed=3)
    exact = formula_wait(Load(rate / 1e6, 1e6, rate, 1.0, 1.0), workers)
    assert simulate(made, workers, [1], 0).mean == pytest.approx(exact, rel=0.1)


def test_formula_is_the_textbooks_for_one_worker():
    # M/M/1: rho / (1 - rho) times the run; M/D/1 half of it.
    assert formula_wait(Load(0.5e-6, 1e6, 0.5, 1, 1), 1) == pytest.approx(1e6)
    assert formula_wait(Load(0.5e-6, 1e6, 0.5, 1, 0), 1) == pytest.approx(0.5e6)


def test_formula_is_infinite_when_workers_cannot_keep_up():
    assert formula_wait(Load(2e-6, 1e6, 2.0, 1, 1), 2) == math.inf


def test_only_counted_arrivals_are_judged():
    made = trace((0, 0, 100), (0, 1, 100), (1, 2, 1))
    judged = simulate(made._replace(counted=array("q", [0, 1, 1])), 1, [1, 1], 150)
    assert (judged.mean, judged.within, judged.by_queue) == (148.5, 0.5, (1.0, 0.0))


def test_queue_without_counted_arrivals_has_no_share():
    made = trace((0, 0, 1), (1, 5, 1))
    assert simulate(made._replace(counted=array("q", [0, 1])), 1, [1, 1], 0).by_queue == (None, 1.0)
