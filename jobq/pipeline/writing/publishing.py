"""The driver's part of an atomic write: publish what every partition staged, or drop it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jobq.errors import Full, JobqError, PipelineError, ScriptError
from jobq.pipeline.writing import janitor
from jobq.pipeline.writing.outlet import Outlet, Staged, stage_key
from jobq.queue.directory import register_queue

if TYPE_CHECKING:
    from jobq.client.connection import Client

#: What a message takes in a queue beyond its content, about; a staged one takes almost nothing more.
OVERHEAD = 200
_MEMORY = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


def publish(client: Client, run: str, parts: Sequence[Staged], dedupe_ms: int) -> tuple[int, int]:
    """Enqueue all that was staged, in chunks; how many were added, and lived already.

    Nothing is enqueued before all of it was found to be there, with memory for it. What fails later leaves
    a part enqueued, and says so.
    """
    outlets = {part.queue: Outlet(client, part.queue, dedupe_ms) for part in parts}
    for part in parts:
        outlets[part.queue].check(run, part)
    _check_memory(client, run, parts)
    for queue in outlets:
        register_queue(client, queue)
    done = 0
    for part in parts:
        for number in range(part.nbatches):
            _publish_one(outlets[part.queue], run, part, number, done)
            done += 1
    drop(client, run, outlets)
    every = outlets.values()
    return sum(one.nadded for one in every), sum(one.npresent for one in every)


def drop(client: Client, run: str, queues: Iterable[str] = ()) -> None:
    """Take away all that a run staged, of `queues` and wherever else it says it did."""
    for queue in {*queues, *janitor.queues_of(client, run)}:
        janitor.drop(client, run, queue)


def _publish_one(outlet: Outlet, run: str, part: Staged, number: int, done: int) -> None:
    deadline = time.monotonic() + outlet.patience_s
    while True:
        try:
            return outlet.publish(run, part, number)
        except Full as error:
            # Workers make room meanwhile.
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise Full(_part_of_it(error, done)) from error
        except JobqError as error:
            raise PipelineError(_part_of_it(error, done)) from error


def _part_of_it(error: Exception, done: int) -> str:
    if not done:
        return str(error)
    return (
        f"{error}; {done} batches of this write are enqueued, the others are not: write the same rows again, "
        "with the same loadId or ids, and the rest is added"
    )


def _check_memory(client: Client, run: str, parts: Sequence[Staged]) -> None:
    """Full, unless the servers have room for the queues' own bookkeeping of these messages."""
    growth: dict[tuple[int, int], int] = {}
    for queue in {part.queue for part in parts}:
        memory = _memory(client, stage_key(client, queue, run))
        nrows = sum(part.nrows for part in parts if part.queue == queue)
        if memory and memory[1]:
            growth[memory] = growth.get(memory, 0) + nrows * OVERHEAD
    for (used, limit), bytes_ in growth.items():
        if used + bytes_ > limit:
            raise Full(
                f"the server has no room for what was staged: it uses {used:,} of {limit:,} bytes and would "
                f"need about {bytes_:,} more; nothing was enqueued. Raise maxmemory, or write fewer rows at once"
            )


def _memory(client: Client, key: str) -> tuple[int, int] | None:
    try:
        reply = client.command("INFO", "memory", routed_by=key)
    except ScriptError:  # this user may not ask
        return None
    found = {name: int(value) for name, value in _MEMORY.findall(reply)}
    return found.get(b"used_memory", 0), found.get(b"maxmemory", 0)
