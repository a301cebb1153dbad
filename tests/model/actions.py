"""Possible next steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from tests.model import producing, ticking, undoing, working
from tests.model.machine import Machine
from tests.model.world import World

Action = tuple[str, ...]
#: Mids differ by their names alone, so that the first message is enqueued first; for a night both orders are tried.
FIRST_FIRST = os.environ.get("JOBQ_MODEL") != "large"

ACTIONS: dict[str, Callable[..., None]] = {
    action.__name__: action
    for action in (
        producing.enqueue, producing.cancel, producing.revive, producing.pause, producing.clear,
        working.dequeue, working.finish, working.release, working.extend, working.checkpoint, working.report,
        working.forget,
        working.claim, working.sign_off,
        undoing.take_out, undoing.put_back, undoing.take_dead, undoing.revive_undoably, undoing.put_dead_back,
        undoing.edit, undoing.edit_back, undoing.reschedule,
        working.close, working.collect, working.tick, ticking.define, ticking.schedule, working.step_back,
        working.again,
    )
}  # fmt: skip


def moves(m: Machine, w: World) -> Iterator[Action]:
    """Everything that may happen next."""
    scope, left = w.scope, w.left
    if left["enqueue"]:
        alike = FIRST_FIRST and not (w.ncontents or scope.batches)
        for mids in scope.mids[:1] if alike else scope.mids + scope.batches:
            for flavour in scope.flavours:
                yield "enqueue", mids, flavour
    for mid in scope.mids:
        if left.get("cancel"):
            yield "cancel", mid
        if left.get("revive") and w.records[mid].dead:
            yield "revive", mid
    yield from undoings(w)
    # Of workers that are alike, the first acts for all.
    for worker in {w.situation(worker): worker for worker in reversed(scope.workers)}.values():
        yield from moves_of(w, worker)
    for caller in w.calls:
        yield "again", caller
    if left.get("pause"):
        yield ("pause",)
        if scope.pause_ms and not w.is_paused:
            yield "pause", str(scope.pause_ms)
    if left.get("clear"):
        yield ("clear",)
    if left.get("sign_off") and w.named:
        yield ("sign_off",)
    if left.get("step_back"):
        yield ("step_back",)
    if "collect" in scope.actions:
        yield ("collect",)
    if left.get("define"):
        yield "define", "hourly"
        yield "define", "daily"
    for index in range(len(scope.ticks)):
        yield "schedule", str(index)
    if working.next_moment(m, w):
        yield ("tick",)


def undoings(w: World) -> Iterator[Action]:
    scope, left = w.scope, w.left
    for mid in scope.mids:
        if left.get("take"):
            yield "take_out", mid, "any"
            yield "take_out", mid, "first"
            if w.records[mid].dead and "dead" in scope.endings:
                yield "take_dead", mid
                yield "revive_undoably", mid
        if left.get("put") and mid in w.binned:
            yield "put_back", mid
        if left.get("edit"):
            yield "edit", mid
        if mid in w.edited:
            yield "edit_back", mid
        if left.get("move"):
            yield "reschedule", mid, "now"
            yield "reschedule", mid, "later"
    if left.get("put"):
        for dead_id in w.binned_dead:
            yield "put_dead_back", dead_id


def moves_of(w: World, worker: str) -> Iterator[Action]:
    scope, left, holds = w.scope, w.left, w.holds[worker]
    if len(holds) < scope.hold_cap:
        yield "dequeue", worker
        if scope.idle:
            yield "dequeue", worker, "woken"
    for which in ("0", "1", "01", "10"):
        if int(max(which)) >= len(holds):
            continue
        for outcome in scope.endings:
            if outcome == "done" or left["fail"]:
                yield "finish", worker, which, outcome
                if "more" in scope.actions:
                    yield "finish", worker, which, outcome, "more"
    if holds:
        for name in ("extend", "release"):
            if name in scope.actions:
                yield name, worker
        if left.get("checkpoint"):
            yield "checkpoint", worker
        if left.get("report"):
            yield "report", worker
        if left.get("forget"):
            yield "forget", worker
    if left.get("close"):
        yield "close", worker
    if left.get("claim"):
        yield "claim", worker, "room"
        yield "claim", worker, "full"
