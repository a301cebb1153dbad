"""jobq with its defaults for results, events, leases and batches."""

from __future__ import annotations

import sys
from typing import Any

import jobq
from bench.peers import handlers, place

noop = jobq.job(queue="bench")(handlers.noop)
spin = jobq.job(queue="bench")(handlers.spin)
wait = jobq.job(queue="bench")(handlers.wait)
picked_up = jobq.job(queue="bench")(handlers.picked_up)
stuck = jobq.job(queue="bench")(handlers.stuck)
_jobs: dict[str, Any] = {
    "noop": noop,
    "spin": spin,
    "wait": wait,
    "picked_up": picked_up,
    "stuck": stuck,
}
if place.knob("COROUTINES", "") or "nap" in sys.argv:
    # Registered only in its case, because workers with a coroutine run other jobs in threads, which takes longer.
    _jobs["nap"] = jobq.job(queue="bench")(handlers.nap)
_client = jobq.connect(place.URL)


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """One round trip per job."""
    bound = _jobs[handler].options(client=_client)
    for each_arguments in arguments:
        bound.enqueue(*each_arguments)


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue_many`."""
    _jobs[handler].options(client=_client).enqueue_many(arguments)


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """With a delay."""
    _jobs[handler].options(client=_client, delay=3600).enqueue_many(arguments)


def coroutines() -> list[str]:
    """Return the options for concurrent async jobs, if a case needs them."""
    at_once = place.knob("COROUTINES", "")
    return (
        ["--concurrency", at_once, "--event-loop", place.knob("EVENT_LOOP", "auto")]
        if at_once
        else []
    )


def worker(processes: int) -> list[list[str]]:
    """The public command line."""
    return [
        [sys.executable, "-m", "jobq", "worker", "--url", place.URL, "--queues", "bench",
         "--import", "bench.peers.own", "--processes", str(processes),
         "--threads", place.knob("THREADS", "1"),
         *coroutines(),
         *place.quiet("--log-level", "warning")],
    ]  # fmt: skip
