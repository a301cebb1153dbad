"""The metrics of a worker, read from memory that its processes share, without a query to the server."""

from __future__ import annotations

from collections.abc import Iterator

from jobq import __version__
from jobq.metrics.names import WORKER, Family, Rows
from jobq.worker.counters import OUTCOMES, Counted, Histogram, counted
from jobq.worker.monitor import PoolView

#: Maximum number of queues that the label of jobq_worker_info names.
MAX_NAMED = 20


def worker_families(pool: PoolView, by_job: bool = True) -> Iterator[Family]:
    """Yield the metrics of a worker and its processes.

    Args:
        by_job: Whether metrics have the label `job`.
    """
    figures = counted(pool.pages)
    yield from _of_attempts(figures) if by_job else _without_jobs(figures)
    waits: Rows = {(queue,): wait for queue, wait in figures.waits.items()}
    yield Family(WORKER["jobq_wait_seconds"], waits)
    children = pool.children()
    yield Family(WORKER["jobq_slots"], {(): pool.slots})
    yield Family(WORKER["jobq_slots_busy"], {(): sum(child.running for child in children)})
    rss: Rows = {(str(child.place),): child.rss for child in children}
    yield Family(WORKER["jobq_child_rss_bytes"], rss)
    margins = [child.margin_s for child in children if child.margin_s is not None]
    yield Family(WORKER["jobq_lease_remaining_seconds"], {(): min(margins)} if margins else {})
    deaths: Rows = {(cause,): count for cause, count in figures.deaths.items()}
    yield Family(WORKER["jobq_child_deaths_total"], deaths)
    for name, count in figures.plain.items():
        yield Family(WORKER[f"jobq_{name}_total"], {(): count})
    yield Family(WORKER["jobq_server_full"], {(): int(pool.state.is_server_full)})
    queues = ",".join(name for name, _ in pool.settings.queues[:MAX_NAMED])
    yield Family(WORKER["jobq_worker_info"], {(__version__, queues): 1})


def _of_attempts(figures: Counted) -> Iterator[Family]:
    # A counter that appears at 1 would show no increase, so all outcomes of a series appear together.
    attempts: Rows = {
        (queue, job, outcome): figures.attempts.get((queue, job, outcome), 0)
        for queue, job, _ in figures.attempts
        for outcome in OUTCOMES
    }
    runs: Rows = {(job,): run for job, run in figures.runs.items()}
    cpu: Rows = {(job,): seconds for job, seconds in figures.cpu_s.items()}
    yield Family(WORKER["jobq_attempts_total"], attempts)
    yield Family(WORKER["jobq_run_seconds"], runs)
    yield Family(WORKER["jobq_cpu_seconds_total"], cpu)


def _without_jobs(figures: Counted) -> Iterator[Family]:
    counts: dict[tuple[str, ...], float] = {
        (queue, outcome): 0 for queue, _, _ in figures.attempts for outcome in OUTCOMES
    }
    for (queue, _, outcome), count in figures.attempts.items():
        counts[queue, outcome] += count
    attempts: Rows = {**counts}
    yield Family(WORKER["jobq_attempts_total"]._replace(labels=("queue", "outcome")), attempts)
    runs = list(figures.runs.values())
    buckets = tuple(map(sum, zip(*(run.buckets for run in runs), strict=True)))
    total = Histogram(buckets, sum(run.sum for run in runs))
    yield Family(WORKER["jobq_run_seconds"]._replace(labels=()), {(): total} if runs else {})
    cpu_s = sum(figures.cpu_s.values())
    yield Family(WORKER["jobq_cpu_seconds_total"]._replace(labels=()), {(): cpu_s})
