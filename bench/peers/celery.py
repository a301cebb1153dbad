"""Celery: prefork, 128 messages prefetched per process, no results, no events, no gossip, mingle or heartbeat.

Early acknowledgement, its default, which loses what a killed process ran and had prefetched. There is no bulk
call; `many` publishes on one producer, as the documentation advises for many messages.

Swept, jobs/s of one process and of two, one run on a machine with some other work: prefetch 4 1,000 / 1,400,
128 1,200 / 1,500, 1,000 1,400 / 1,300.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.peers import handlers, place

app = Celery("bench", broker=place.URL if place.PORT else f"redis+socket://{place.SOCKET}")
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=int(place.knob("PREFETCH", "128")),
    # Early acknowledgement is faster; the case of a killed process needs safe acknowledgement.
    task_acks_late=place.SAFE,
    task_reject_on_worker_lost=place.SAFE,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
    task_default_queue="bench",
)
_jobs = {name: app.task(name=name)(function) for name, function in handlers.HANDLERS.items()}


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `apply_async`."""
    for each_arguments in arguments:
        _jobs[handler].apply_async(each_arguments)


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`apply_async` on one producer."""
    with app.producer_or_acquire() as producer:
        for each_arguments in arguments:
            _jobs[handler].apply_async(each_arguments, producer=producer)


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """With a countdown, which the worker keeps in its memory; queued until then."""
    with app.producer_or_acquire() as producer:
        for each_arguments in arguments:
            _jobs[handler].apply_async(each_arguments, producer=producer, countdown=3600)


def worker(processes: int) -> list[list[str]]:
    """Prefork, or that many workers of threads."""
    threads = place.knob("THREADS", "")
    names = [f"bench{number}@localhost" for number in range(processes if threads else 1)]
    pool = ["-P", "threads", "-c", threads] if threads else [
        "-P", place.knob("POOL", "prefork"), "-c", str(processes),
    ]  # fmt: skip
    return [
        [place.program("celery"), "-A", "bench.peers.celery", "worker", *pool, "-n", name, "-l", "WARNING",
         "--without-gossip", "--without-mingle", "--without-heartbeat"]
        for name in names
    ]  # fmt: skip
