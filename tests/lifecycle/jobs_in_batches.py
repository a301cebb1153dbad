"""Batch jobs that write what happens to them; each call has the ledger and a name."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from jobq import Calls, Dead, JobAborted, job
from tests.lifecycle.jobs_at_work import HERE, ajob, gate, note, rest

TOGETHER = {**HERE, "batch": 10}


def note_all(calls: Calls[str, str], word: str) -> None:
    """One line per call, with the names of the batch."""
    names = [call.args[1] for call in calls]
    for call in calls:
        note(call.args[0], call.args[1], word, attempt=call.attempt, batch=names)


@job(name="together", result_ttl="1m", **TOGETHER)
def together(calls: Calls[str, str]) -> list[str]:
    """Return the names in capitals."""
    note_all(calls, "start")
    return [call.args[1].upper() for call in calls]


@job(name="one_by_one", **TOGETHER)
def one_by_one(calls: Calls[str, str]) -> None:
    """Ends its calls by their names, then waits for its gate."""
    note_all(calls, "start")
    for at, call in enumerate(calls):
        if call.args[1].startswith("bad") and call.attempt == 1:
            calls.fail(at, ValueError("bad"))
        elif call.args[1].startswith("dead"):
            calls.fail(at, Dead("no use"))
        elif call.args[1].startswith("good"):
            calls.done(at)
    note(calls[0].args[0], "batch", "ended", open=len(calls.open))
    try:
        while not gate(calls[0].args[0], "batch").exists():
            time.sleep(0.005)
            lost = [call.args[1] for call in calls if not call.lease_valid()]
            if lost:
                note(calls[0].args[0], lost[0], "lost")
    except JobAborted as aborted:
        note(calls[0].args[0], "batch", "aborted", why=str(aborted))
        raise


@job(name="kills_together", **TOGETHER)
def kills_together(calls: Calls[str, str]) -> None:
    """Ends the first call, and kills the process if there are others or one is poison."""
    note_all(calls, "start")
    if len(calls) > 1:
        calls.done(0)
    if len(calls) > 1 or calls[0].args[1] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    note_all(calls, "end")


@job(name="overlong_together", timeout=0.3, hard_timeout=60, **TOGETHER)
def overlong_together(calls: Calls[str, str]) -> None:
    """The first time past its timeout."""
    note_all(calls, "start")
    if calls[0].attempt == 1:
        rest()
    note_all(calls, "end")


@ajob(name="atogether", result_ttl="1m", **TOGETHER)
async def atogether(calls: Calls[str, str]) -> list[str]:
    """Run `together` on the event loop."""
    await asyncio.sleep(0.001)
    return together.function(calls)


@ajob(name="aone_by_one", **TOGETHER)
async def aone_by_one(calls: Calls[str, str]) -> None:
    """Ends good calls on the event loop, then waits for its gate."""
    note_all(calls, "start")
    for at, call in enumerate(calls):
        if call.args[1].startswith("good"):
            calls.done(at)
    note(calls[0].args[0], "batch", "ended", open=len(calls.open))
    try:
        while not gate(calls[0].args[0], "batch").exists():
            await asyncio.sleep(0.005)
            for call in calls:
                if not call.lease_valid():
                    note(call.args[0], call.args[1], "lost")
    except asyncio.CancelledError:
        note(calls[0].args[0], "batch", "aborted")
        raise


@ajob(name="akills_together", **TOGETHER)
async def akills_together(calls: Calls[str, str]) -> None:
    """Run `kills_together` on the event loop."""
    await asyncio.sleep(0.001)
    kills_together.function(calls)


@job(name="lingers", **{**HERE, "batch": 3, "linger": 0.2})
def lingers(calls: Calls[str, str]) -> None:
    """Gets fewer than three calls after a moment."""
    note_all(calls, "start")


@job(name="waits_for_three", **{**HERE, "batch": 3, "linger": 60})
def waits_for_three(calls: Calls[str, str]) -> None:
    """Gets three calls together."""
    note_all(calls, "start")


@ajob(name="alingers", **{**HERE, "batch": 3, "linger": 0.2})
async def alingers(calls: Calls[str, str]) -> None:
    """Run `lingers` on the event loop."""
    note_all(calls, "start")


@ajob(name="alingers_long", **{**HERE, "batch": 3, "linger": 1.0})
async def alingers_long(calls: Calls[str, str]) -> None:
    """Run `lingers` on the event loop, after a second."""
    note_all(calls, "start")
    gate(calls[0].args[0], "lingered").touch()


@ajob(name="awatches", **HERE)
async def awatches(ledger: str, name: str) -> None:
    """Note whether a batch starts within the time of its linger and half a second."""
    note(ledger, name, "start")
    until = time.monotonic() + 1.5
    while time.monotonic() < until and not gate(ledger, "lingered").exists():
        await asyncio.sleep(0.01)
    note(ledger, name, "end", beside=gate(ledger, "lingered").exists())


@ajob(name="awaits_for_three", **{**HERE, "batch": 3, "linger": 60})
async def awaits_for_three(calls: Calls[str, str]) -> None:
    """Run `waits_for_three` on the event loop."""
    note_all(calls, "start")


@job(name="keyed_together", key=lambda ledger, name: name[0], **TOGETHER)
def keyed_together(calls: Calls[str, str]) -> None:
    """Gets calls whose names begin with the same letter."""
    note_all(calls, "start")
