"""Dramatiq: its default middleware, 8 threads to a process (its default), 128 messages prefetched.

`dramatiq_queue_prefetch` is the documented way to prefetch more messages. There is no bulk call.

Swept, jobs/s of one process and of two, the better of two runs on a machine with some other work: threads 1
10,100 / 7,700, 2 6,900 / 7,900, 8 7,600 / 9,400 (14,400 in a quieter run), 16 8,100 / 9,700; prefetch 16
2,100 / 4,200, 128 8,100 / 9,400, 1,000 8,300 / 8,900.
"""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers import handlers, place

broker = RedisBroker(url=place.URL)
dramatiq.set_broker(broker)
_jobs = {
    name: dramatiq.actor(actor_name=name, queue_name="bench")(function)
    for name, function in handlers.HANDLERS.items()
}
THREADS, PREFETCH = place.knob("THREADS", "8"), place.knob("PREFETCH", "128")


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `send`."""
    for each_arguments in arguments:
        _jobs[handler].send(*each_arguments)


many = each


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`send_with_options`, to the queue of the delayed."""
    for each_arguments in arguments:
        _jobs[handler].send_with_options(args=each_arguments, delay=3_600_000)


def worker(processes: int) -> list[list[str]]:
    """Return the command of the master."""
    return [
        ["env", f"dramatiq_queue_prefetch={PREFETCH}", place.program("dramatiq"), "bench.peers.dramatiq",
         "-p", str(processes), "-t", THREADS],
    ]  # fmt: skip
