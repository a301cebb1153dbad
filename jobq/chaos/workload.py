"""The module that workers of a round import: a job that records its runs, and code to record every call to the queue.

Importing this module replaces methods of `Queue` in this process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jobq.chaos.bad_jobs import AMPLE_S, KINDS, LOOK_S, WAYS, gone, outlived
from jobq.chaos.call_records import shorten_from_environment
from jobq.chaos.ledger import Ledger
from jobq.chaos.limit_check import RATE, RATE_NAME, SLOTS, SLOTS_NAME
from jobq.chaos.producers import QUEUE
from jobq.chaos.queue_faults import JOB_S, NEIGHBOUR
from jobq.client.numbered_calls import NumberedCall
from jobq.errors import JobAborted
from jobq.jobs.context import Call, Context, current
from jobq.jobs.registry import job
from jobq.limits import ConcurrencyLimit, Grant, RateLimit
from jobq.queue.queue import Queue
from jobq.queue.types import Dequeued, Ending, Finished

FOLDER, LOOP = "JOBQ_CHAOS_LEDGER", "JOBQ_CHAOS_LOOP"

shorten_from_environment()
ledger = Ledger(os.environ.get(FOLDER, ""))
_finish, _finish_call = Queue.finish, Queue.finish_call
_dequeue = Queue.dequeue
_dequeue_call = Queue.dequeue_call
_admit, _aadmit = RateLimit.admit, RateLimit.aadmit
#: How long a limited job runs.
LIMITED_S = 0.02


def work(mid: str, seconds: float, padding: str = "") -> None:
    """Sleep for `seconds`; record the start and the end of the run."""
    note("start")
    try:
        time.sleep(seconds)
    except JobAborted:
        note("aborted")
        raise
    note("end")


async def work_on_loop(mid: str, seconds: float, padding: str = "") -> None:
    """Do the same as `work`, on an event loop."""
    note("start")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("aborted")
        raise
    note("end")


# Workers that know an async job have children with an event loop; other workers have plain children.
job(name="jobq.chaos", queue=QUEUE)(work_on_loop if os.environ.get(LOOP) else work)


@job(name="jobq.chaos.poison", queue=QUEUE, hard_timeout=AMPLE_S)
def poison(mid: str, kind: str) -> None:
    """Crash the process."""
    note("start")
    KINDS[kind]()


def fork(mid: str, way: str) -> None:
    """Fork, let the forked process end in the given way, and wait for its exit."""
    for pause_s in _forked(way):
        time.sleep(pause_s)


async def fork_on_loop(mid: str, way: str) -> None:
    """Do the same as `fork`, on an event loop."""
    for pause_s in _forked(way):
        await asyncio.sleep(pause_s)


def _forked(way: str) -> Iterator[float]:
    note("start")
    pid, began = os.fork(), time.monotonic()
    if pid == 0:
        WAYS[way]()
        return
    while not gone(pid):
        if outlived(pid, began):
            ledger.write("orphan", pid=pid)
        yield LOOK_S
    note("end")


job(name="jobq.chaos.fork", queue=QUEUE)(fork_on_loop if os.environ.get(LOOP) else fork)


LIMITS = [RateLimit(RATE_NAME, RATE), ConcurrencyLimit(SLOTS_NAME, SLOTS)]


def limited(mid: str) -> None:
    """A job with limits, which runs for a moment."""
    note("start")
    time.sleep(LIMITED_S)
    note("end")


async def limited_on_loop(mid: str) -> None:
    """Do the same as `limited`, on an event loop."""
    note("start")
    await asyncio.sleep(LIMITED_S)
    note("end")


job(name="jobq.chaos.limited", queue=QUEUE, limits=LIMITS)(
    limited_on_loop if os.environ.get(LOOP) else limited
)


@job(name="jobq.chaos.neighbour", queue=NEIGHBOUR)
def neighbour() -> None:
    """Sleep, to keep workers busy with the damaged queue. Runs in that queue are not recorded."""
    time.sleep(JOB_S)


def note(word: str, context: Context | None = None) -> None:
    """Record an event of a run, by default of the current run."""
    # Read the time first, so that a process stopped in between doesn't claim an expired lease.
    at, context = time.monotonic(), context or current()
    left = min(context.lease_left, 3600.0)
    ledger.write(
        word, at=at, mid=context.mid, attempt=context.attempt, fence=context.fence,
        pid=os.getpid(), thread=threading.get_native_id(), left=left, loop=bool(os.environ.get(LOOP)),
    )  # fmt: skip


def finish(queue: Queue, endings: Sequence[Ending], **options: Any) -> Finished:
    """Call Queue.finish, and record the call and its replies."""
    if queue.name == NEIGHBOUR:
        return _finish(queue, endings, **options)
    if not endings:
        return _noted(_finish(queue, endings, **options))
    call, pid = secrets.token_hex(6), os.getpid()
    reports = [[ending.mid, ending.token, ending.outcome] for ending in endings]
    ledger.write("finish", call=call, endings=reports, pid=pid)
    finished = _finish(queue, endings, **options)
    ledger.write("finished", call=call, replies=finished.replies, pid=pid)
    return _noted(finished)


def dequeue(queue: Queue, limit: int = 1, **options: Any) -> Dequeued:
    """Call Queue.dequeue, and record the result."""
    dequeued = _dequeue(queue, limit, **options)
    return dequeued if queue.name == NEIGHBOUR else _hand(dequeued)


def dequeue_call(queue: Queue, limit: int, **options: Any) -> NumberedCall[Dequeued]:
    """Call Queue.dequeue_call, and record the result once the server has answered."""
    call = _dequeue_call(queue, limit, **options)
    if queue.name != NEIGHBOUR:
        read = call.read
        call.read = lambda reply: _hand(read(reply))
    return call


def finish_call(queue: Queue, endings: Sequence[Ending], **options: Any) -> NumberedCall[Finished]:
    """Call Queue.finish_call, record the call immediately, and record its replies after the server has answered."""
    made = _finish_call(queue, endings, **options)
    if queue.name == NEIGHBOUR:
        return made
    call, pid = secrets.token_hex(6), os.getpid()
    reports = [[ending.mid, ending.token, ending.outcome] for ending in endings]
    if reports:
        ledger.write("finish", call=call, endings=reports, pid=pid)

    def answered(finished: Finished) -> Finished:
        if reports:
            ledger.write("finished", call=call, replies=finished.replies, pid=pid)
        return _noted(finished)

    read = made.read
    made.read = lambda reply: answered(read(reply))
    return made


def admit(limit: RateLimit, call: Call, worker: str) -> Grant:
    """Call RateLimit.admit and record the grant."""
    return _granted(_admit(limit, call, worker))


async def aadmit(limit: RateLimit, call: Call, worker: str) -> Grant:
    """Call RateLimit.aadmit and record the grant."""
    return _granted(await _aadmit(limit, call, worker))


def _granted(grant: Grant) -> Grant:
    if grant:
        ledger.write("grant", started=grant.started_ms, pid=os.getpid())
    return grant


def _noted(finished: Finished) -> Finished:
    if finished.dequeued is not None:
        _hand(finished.dequeued)
    return finished


def _hand(dequeued: Dequeued) -> Dequeued:
    if dequeued.messages:
        handed = [[message.mid, message.token, message.fence] for message in dequeued.messages]
        ledger.write("handed", messages=handed, pid=os.getpid())
    return dequeued


if ledger.folder:
    # By setattr, for mypy. Apart from these methods, the workers of a round are like any other.
    setattr(Queue, "finish", finish)  # noqa: B010
    setattr(Queue, "dequeue", dequeue)  # noqa: B010
    setattr(Queue, "dequeue_call", dequeue_call)  # noqa: B010
    setattr(Queue, "finish_call", finish_call)  # noqa: B010
    setattr(RateLimit, "admit", admit)  # noqa: B010
    setattr(RateLimit, "aadmit", aadmit)  # noqa: B010
