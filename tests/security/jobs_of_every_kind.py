"""Jobs that use what a job may use: retries, results, limits, keys, schedules, flows and all that is kept of them."""

from __future__ import annotations

import logging
import os
from typing import Any

from jobq import ConcurrencyLimit, DeadCall, RateLimit, Retry, Snooze, current, job, schedule
from jobq.flows.definition import Failure

RATE, SLOTS = RateLimit("rate", "1000/s"), ConcurrencyLimit("slots", 3)
log = logging.getLogger(__name__)


def buried(call: DeadCall) -> None:
    """Take note of a death."""
    log.info("%s is dead", call.mid)


@job(queue="low", result_ttl=60, keep_logs=60, limits=[RATE, SLOTS], redact=["secret"])
def works(number: int, secret: str = "") -> int:
    """Use limits, progress, a checkpoint and the log, and fail once."""
    context = current()
    log.info("attempt %s", context.attempt)
    context.progress(0.5, note="half")
    context.checkpoint(number)
    with SLOTS.slot(timeout=60):
        if context.attempt == 1:
            raise Retry(after=0)
    return number + 1


@job(queue="low", key="customer")
def keyed(customer: str) -> None:
    """Run in order, and be retried once."""
    if current().attempt == 1 and customer == "late":
        raise Snooze(0.01)


@job(queue="low", unique=True, throttle=60)
def once(number: int) -> None:
    """Enqueue a call from a job."""
    works.enqueue(number)


@job(queue="low", retries=0, on_dead=buried)
def dies() -> None:
    """Fail permanently."""
    raise ValueError("no")


@job(queue="low")
def crashes() -> None:
    """Kill this process once."""
    if current().attempt == 1:
        os.kill(os.getpid(), 9)


@job(queue="low")
async def waits() -> None:
    """Enqueue from an event loop, within a limit."""
    await RATE.ahold(0)
    await works.aenqueue(7)


@schedule(every=1, name="beat", missed="all", overlap="allow")
@job(queue="low")
def beats() -> None:
    """Run every second."""


@job(queue="low", result_ttl=60)
def listed(many: int) -> list[int]:
    """Return some numbers."""
    return list(range(many))


@job(queue="high", retries=0, result_ttl=60)
def adds(numbers: list[int], more: Any = None) -> int:
    """Return the sum; fail where more is "fail"."""
    if more == "fail":
        raise ValueError("no")
    return sum(numbers)


@job(queue="high")
def grows() -> None:
    """Add steps to its own flow."""
    flow = current().flow
    more = flow.map(listed, [1, 2], name="more", results=True)
    flow.step(alert, more.failures, name="told")


@job(queue="low")
def alert(failures: list[Failure]) -> None:
    """Handle the failure."""
