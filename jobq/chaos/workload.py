"""What the workers of a round import: a job that notes its runs, and a witness of every report to the queue.

In a module of its own, since importing it changes `Queue` in this process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from jobq.chaos.forks import LOOK_S, WAYS, gone, outlived
from jobq.chaos.ledger import Ledger
from jobq.chaos.neighbour import JOB_S, NEIGHBOUR
from jobq.chaos.poison import AMPLE_S, KINDS
from jobq.chaos.producing import QUEUE
from jobq.chaos.records import as_told
from jobq.errors import JobAborted
from jobq.jobs.context import current
from jobq.jobs.registry import job
from jobq.queue.queue import Queue
from jobq.queue.types import DequeueAhead, Dequeued, Ending, Finished

FOLDER, LOOP = "JOBQ_CHAOS_LEDGER", "JOBQ_CHAOS_LOOP"

as_told()
ledger = Ledger(os.environ.get(FOLDER, ""))
_finish = Queue.finish
_dequeue = Queue.dequeue
_dequeue_ahead = Queue.dequeue_ahead


def work(mid: str, seconds: float, padding: str = "") -> None:
    """Take a while, and say so before and after."""
    _note("start")
    try:
        time.sleep(seconds)
    except JobAborted:
        _note("aborted")
        raise
    _note("end")


async def work_on_loop(mid: str, seconds: float, padding: str = "") -> None:
    """The same beside others."""
    _note("start")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _note("aborted")
        raise
    _note("end")


# A worker that knows an async job has children with an event loop; one that knows none has plain ones.
job(name="jobq.chaos", queue=QUEUE)(work_on_loop if os.environ.get(LOOP) else work)


@job(name="jobq.chaos.poison", queue=QUEUE, hard_timeout=AMPLE_S)
def poison(mid: str, kind: str) -> None:
    """Take the child along."""
    _note("start")
    KINDS[kind]()


def fork(mid: str, way: str) -> None:
    """Fork, leave the fork in its way, and go on until it has left."""
    _note("start")
    pid, began = os.fork(), time.monotonic()
    if pid == 0:
        return WAYS[way]()
    while not gone(pid):
        if outlived(pid, began):
            ledger.write("orphan", pid=pid)
        time.sleep(LOOK_S)
    return _note("end")


async def fork_on_loop(mid: str, way: str) -> None:
    """The same beside others."""
    _note("start")
    pid, began = os.fork(), time.monotonic()
    if pid == 0:
        return WAYS[way]()
    while not gone(pid):
        if outlived(pid, began):
            ledger.write("orphan", pid=pid)
        await asyncio.sleep(LOOK_S)
    return _note("end")


job(name="jobq.chaos.fork", queue=QUEUE)(fork_on_loop if os.environ.get(LOOP) else fork)


@job(name="jobq.chaos.neighbour", queue=NEIGHBOUR)
def neighbour() -> None:
    """Run while its queue is damaged. Nobody notes it: what becomes of that queue is not judged."""
    time.sleep(JOB_S)


def _note(word: str) -> None:
    # The moment first: stopped between the two, this must not claim a lease that is over.
    at, context = time.monotonic(), current()
    left = min(context.lease_left, 3600.0)
    ledger.write(
        word, at=at, mid=context.mid, attempt=context.attempt, fence=context.fence,
        pid=os.getpid(), left=left, loop=bool(os.environ.get(LOOP)),
    )  # fmt: skip


def finish(queue: Queue, endings: Sequence[Ending], **options: Any) -> Finished:
    """Queue.finish, noted before and after."""
    if queue.name == NEIGHBOUR:
        return _finish(queue, endings, **options)
    if not endings:
        return _noted(_finish(queue, endings, **options))
    call, pid = secrets.token_hex(6), os.getpid()
    reports = [[one.mid, one.token, one.outcome] for one in endings]
    ledger.write("finish", call=call, endings=reports, pid=pid)
    finished = _finish(queue, endings, **options)
    ledger.write("finished", call=call, replies=finished.replies, pid=pid)
    return _noted(finished)


def dequeue(queue: Queue, limit: int = 1, **options: Any) -> Dequeued:
    """Queue.dequeue, noted after."""
    dequeued = _dequeue(queue, limit, **options)
    return dequeued if queue.name == NEIGHBOUR else _hand(dequeued)


def dequeue_ahead(queue: Queue, limit: int, **options: Any) -> DequeueAhead:
    """Queue.dequeue_ahead, noted once it is answered."""
    ahead = _dequeue_ahead(queue, limit, **options)
    return ahead._replace(
        read=lambda reply: _hand(ahead.read(reply)), again=lambda: _hand(ahead.again())
    )


def _noted(finished: Finished) -> Finished:
    if finished.dequeued is not None:
        _hand(finished.dequeued)
    return finished


def _hand(dequeued: Dequeued) -> Dequeued:
    if dequeued.messages:
        handed = [[one.mid, one.token, one.fence] for one in dequeued.messages]
        ledger.write("handed", messages=handed, pid=os.getpid())
    return dequeued


if ledger.folder:
    # Set so, for mypy: a worker of a round is a worker like any other, except for these.
    setattr(Queue, "finish", finish)  # noqa: B010
    setattr(Queue, "dequeue", dequeue)  # noqa: B010
    setattr(Queue, "dequeue_ahead", dequeue_ahead)  # noqa: B010
