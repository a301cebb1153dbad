"""Faults of flows that random histories must notice: changes of the Lua, and of drainers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobq.client import scripts
from jobq.flows import draining, sending
from jobq.flows.accepting import results_at
from jobq.flows.draining import Drainer
from jobq.flows.store import FlowStore
from jobq.flows.types import Applied
from jobq.queue.queue import Queue


class Fault(NamedTuple):
    """A fault in one file. lua: file, text, replacement. also: what else is changed. rare: it takes many histories."""

    name: str
    lua: tuple[str, str, str] | None = None
    also: Callable[[pytest.MonkeyPatch], None] | None = None
    rare: bool = False


def _no_mark(patch: pytest.MonkeyPatch) -> None:
    """The queue of a step doesn't note that it has accepted it."""
    enqueue_members = Queue.enqueue_members

    def enqueued(self: Queue, *args: Any, in_order: bool = False, **options: Any) -> Any:
        in_order = in_order and "until" not in options
        return enqueue_members(self, *args, in_order=in_order, **options)

    patch.setattr(Queue, "enqueue_members", enqueued)


def _short_dedupe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sending, "DEDUPE_S", 60.0)
    _no_mark(patch)


def _no_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drainer, "unapplied", lambda *_: [])
    _short_dedupe(patch)


def _never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draining, "GIVE_UP_S", 1e9)
    _short_dedupe(patch)


def _dropped_first(patch: pytest.MonkeyPatch) -> None:
    take = Drainer._take

    def taken(self: Any, queue: Any, entries: Any, read_at: int) -> set[str]:
        queue.flow_outbox_drop([entry.entry_id for entry in entries])
        return take(self, queue, entries, read_at)

    patch.setattr(Drainer, "_take", taken)


def _results_first(patch: pytest.MonkeyPatch) -> None:
    """Results are deleted at the queue before the flow has them."""

    def taken(queue: Any, mids: Any) -> dict[str, bytes]:
        found = results_at(queue, mids)
        for mid in found:
            queue.client.command("UNLINK", queue.result_key(mid))
        return found

    patch.setattr(draining, "results_at", taken)


def _trusts_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A retry doesn't look for members that a person revived, and that are done."""
    patch.setattr(sending, "apply_all", lambda *_: None)
    _short_dedupe(patch)


def _sent_first(patch: pytest.MonkeyPatch) -> None:
    """What is to be sent is taken off before it is sent."""
    apply = FlowStore.apply

    def applied(self: Any, *args: Any, **options: Any) -> Applied:
        found = apply(self, *args, **options)
        if found.todo:
            FlowStore.sent(self, found.todo)
        return found

    patch.setattr(FlowStore, "apply", applied)


FAULTS = (
    Fault(
        "a dead mid is accepted",
        ("queue/enqueue", "kept_at[i] or dead_ids[i] and 'dead' or nil", "kept_at[i]"),
        also=_no_mark,
        rare=True,
    ),
    Fault("nobody looks for what was answered before", also=_no_look, rare=True),
    Fault("a drainer never gives up", also=_never_gives_up, rare=True),
    Fault("entries are deleted before they are applied", also=_dropped_first, rare=True),
    Fault("what is to be sent is forgotten before it is sent", also=_sent_first),
    Fault("results are deleted before the flow has them", also=_results_first, rare=True),
    Fault("a retry doesn't look for what is done", also=_trusts_the_dead, rare=True),
    Fault(
        "a sub-flow that ends says so to nobody",
        ("flow/_progress", "if flow.parent ~= '' then to_do(flow, PARENT, 'parent') end", ""),
        rare=True,
    ),
    Fault(
        "anybody ends a sub-flow's step",
        (
            "flow/apply",
            "return source == 'f' .. s.source and s.ready_at > 0 end",
            "return s.ready_at > 0 end",
        ),
        rare=True,
    ),
    Fault(
        "endings are counted, not set",
        (
            "flow/apply",
            "if redis.call('SETBIT', ended, bit, 1) == 0 then s.nended",
            "if redis.call('SETBIT', ended, bit, 1) then s.nended",
        ),
    ),
    Fault(
        "done is counted, not set",
        (
            "flow/apply",
            "if redis.call('SETBIT', done, bit, 1) == 1 then return end",
            "redis.call('SETBIT', done, bit, 1)",
        ),
    ),
    Fault(
        "any queue may end a member",
        ("flow/apply", "if not s.is_there then return false end", ""),
        rare=True,
    ),
    Fault(
        "any queue may command",
        ("flow/apply", "if source ~= 'q' .. flow.home then return false end", ""),
    ),
    Fault(
        "a step is ready as often as its edges are met",
        ("flow/_progress", "if s and s.ready_at == 0 and can_go(s)", "if s and can_go(s)"),
        also=_short_dedupe,
        rare=True,
    ),
    Fault(
        "one met edge is enough",
        (
            "flow/_progress",
            "if not is_met(name, when) then return false end",
            "if is_met(name, when) then return true end",
        ),
    ),
    Fault(
        "a map is over before it is sealed",
        (
            "flow/_flow",
            "local function is_over(s) return s.ready_at > 0 and s.sealed == 1 and",
            "local function is_over(s) return s.ready_at > 0 and",
        ),
    ),
    Fault("what was sent is kept", ("flow/sent", "if stored == stamp then", "if false then")),
    Fault(
        "a retry forgets who was about to be revived",
        (
            "flow/page",
            "wanted = is_set(e, at) and not is_set(d, at)",
            "wanted = is_set(e, at) and not is_set(d, at) and not is_set(r, at)",
        ),
        rare=True,
    ),
    Fault(
        "a member that was retried never ends",
        (
            "flow/apply",
            "if s.nretried > 0 and redis.call('SETBIT', retried, bit, 0) == 1 then",
            "if false then",
        ),
    ),
    Fault(
        "a retry goes on behind the members that were under way",
        (
            "flow/retried",
            "s.revived = math.max(s.revived, cursor)",
            "s.revived = math.max(s.revived, cursor + 1)",
        ),
        rare=True,
    ),
    Fault(
        "a drainer of an earlier retry says how far a later one is",
        ("flow/retried", "^revive,(%d+),') ~= text(stamp) then", "^revive,(%d+),') == '' then"),
        rare=True,
    ),
    Fault(
        "a cancel leaves an open map open", ("flow/apply", "      s.sealed = 1\n", ""), rare=True
    ),
)


@contextmanager
def sown(fault: Fault, folder: Path) -> Iterator[None]:
    """The fault is in force."""
    with pytest.MonkeyPatch.context() as patch:
        if fault.also:
            fault.also(patch)
        if fault.lua:
            shutil.copytree(scripts.folder(), folder, dirs_exist_ok=True)
            file, before, after = fault.lua
            path = folder / f"{file}.lua"
            text = path.read_text()
            assert text.count(before) == 1, (
                f"{fault.name}: its text stands {text.count(before)} times in {file}"
            )
            path.write_text(text.replace(before, after))
            patch.setattr(scripts, "folder", lambda: folder)
        scripts.load.cache_clear()
        try:
            yield
        finally:
            scripts.load.cache_clear()
