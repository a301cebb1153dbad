"""After a child's death: everything it held is ended or given back, at once and exactly once."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import NamedTuple

from jobq.client.clock import boot_ns
from jobq.errors import CodecError
from jobq.events import SEPARATOR, ago_ms, attempt_record, trace_id
from jobq.jobs.codec import decode
from jobq.jobs.failure import one_column
from jobq.jobs.signing import opened, seal_of
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.worker import exit_codes
from jobq.worker import shared_state as slots
from jobq.worker.shared_state import HeldMessage, SharedSlots

_FOLLOWS = {"ok": "; it runs again", "dead": "; it is dead, having crashed too often"}
#: In place of a slot, of a message that was handed out and has none: `UNREAD + 1 == slots.ALL_HANDED`.
UNREAD = slots.ALL_HANDED - 1
#: Killed for these, a running job is not to blame: it is given back.
BLAMELESS = frozenset(("shutdown", "lease"))


class ChildExit(NamedTuple):
    """What is left of a child."""

    pid: int
    status: int
    usage: resource.struct_rusage
    caller: str
    held: list[HeldMessage]
    ran_us: int
    killed_for: str = ""
    hard_slots: frozenset[int] = frozenset()
    suspect: int = 0

    @property
    def how(self) -> str:
        """`child 7 was killed by SIGKILL`, `child 7 exited with 70`, with CPU and peak memory."""
        code = os.waitstatus_to_exitcode(self.status)
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        why = f" for its {self.killed_for}" if self.killed_for else ""
        cpu_s = self.usage.ru_utime + self.usage.ru_stime
        return f"child {self.pid} {how}{why} (CPU {cpu_s:.2f} s, peak {self.rss_kib // 1024} MB)"

    @property
    def had(self) -> str:
        """`1 running and 12 waiting`, and what had ended without the server knowing yet."""
        states = [held.state for held in self.held]
        ended = states.count(slots.ENDED)
        known = f"{states.count(slots.RUNNING)} running and {states.count(slots.HELD)} waiting"
        return known + (f", {ended} just ended" if ended else "")

    @property
    def rss_kib(self) -> int:
        """Peak memory."""
        peak = self.usage.ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak


class CrashedAttempt(NamedTuple):
    """An attempt that ended with its child; job '' and attempt 0 where nobody knows them any more."""

    job: str
    mid: str
    attempt: int
    queue: str
    reply: str

    @property
    def what(self) -> str:
        """As logs begin it."""
        attempt = f" attempt {self.attempt}" if self.attempt else ""
        return f"{self.job} {self.mid}{attempt} of queue {self.queue}".lstrip()

    @property
    def follows(self) -> str:
        """What becomes of it; '' where others have settled that."""
        return _FOLLOWS.get(self.reply, "")


def examined(
    pid: int, status: int, usage: resource.struct_rusage, memory: SharedSlots
) -> ChildExit:
    """What the dead child's memory says; afterwards it may be used anew."""
    started_at = memory.words[slots.STARTED_AT]
    ran_us = max(0, boot_ns() - started_at) // 1000 if started_at else 0
    why = "lease" if os.waitstatus_to_exitcode(status) == exit_codes.FENCED else ""
    held, suspect = memory.held(taken=True), memory.words[slots.SUSPECT]
    return ChildExit(pid, status, usage, memory.caller, held, ran_us, why, suspect=suspect)


def bury(
    death: ChildExit, index: int, queue: Queue, crash_limit: int, worker: str
) -> list[CrashedAttempt]:
    """End what it held of one queue; what is to blame for it. May be repeated whole after an error.

    Its caller is closed first, so that a dequeue of its that arrives later hands out nothing.
    """
    handed = queue.close_caller(death.caller) if death.caller else []
    mine = [held for held in death.held if held.queue == index]
    known = {held.token for held in mine}
    crashed = _ended(queue, [_ending(queue, death, held, worker) for held in mine], crash_limit)
    unread = [
        HeldMessage(UNREAD, slots.FREE, index, mid, token)
        for mid, token in handed
        if token not in known
    ]
    # Where it was one of many, each is marked, runs alone from now on, and dies of a crash of its own only.
    limit = crash_limit if len(unread) == 1 else 0
    crashed += _ended(queue, [_ending(queue, death, held, worker) for held in unread], limit)
    queue.admin.collect(1, crash_limit=crash_limit)
    return crashed


def _ended(queue: Queue, endings: list[Ending], crash_limit: int) -> list[CrashedAttempt]:
    replies = queue.finish(endings, crash_limit=crash_limit).replies if endings else []
    return [
        _crash(queue, ending, reply)
        for ending, reply in zip(endings, replies, strict=True)
        if ending.outcome == "crashed"
    ]


def _crash(queue: Queue, ending: Ending, reply: str) -> CrashedAttempt:
    if reply == "stale":  # its content may be another life's by now
        return CrashedAttempt("", ending.mid, 0, queue.name, reply)
    job, attempt = ending.record.split(SEPARATOR, 2)[:2]
    return CrashedAttempt(job, ending.mid, int(attempt), queue.name, reply)


def _ending(queue: Queue, death: ChildExit, held: HeldMessage, worker: str) -> Ending:
    if held.state == slots.ENDED:
        return Ending(mid=held.mid, token=held.token, record=_record(queue, death, held, worker))
    if not _to_blame(death, held):
        return Ending(mid=held.mid, token=held.token, outcome="release")
    reason = death.how
    if held.state != slots.RUNNING:
        reason = f"before its job began, as it was read; {reason}"
    if held.slot in death.hard_slots:
        reason = f"ran past its hard timeout; {reason}"
    return Ending(
        mid=held.mid, token=held.token, outcome="crashed", reason=reason,
        record=_record(queue, death, held, worker, "crash"),
    )  # fmt: skip


def _to_blame(death: ChildExit, held: HeldMessage) -> bool:
    running = held.state == slots.RUNNING
    if death.killed_for == "hard timeout":
        return running and held.slot in death.hard_slots
    if death.killed_for in BLAMELESS:
        return False
    if death.suspect:
        # Known exactly: jobs that run beside it are not to blame.
        return held.slot + 1 == death.suspect and held.state in (slots.HELD, slots.FREE)
    return running


def _record(queue: Queue, death: ChildExit, held: HeldMessage, worker: str, error: str = "") -> str:
    content = b""
    # What killed the child as it read it must not kill the supervisor too.
    if held.state in (slots.RUNNING, slots.ENDED):
        content = queue.client.command("HGET", keys.key(queue.prefix, "messages"), held.mid) or b""
    try:
        call = decode(opened(seal_of(queue.client), queue.name, held.mid, content))
        name, enqueued_at, trace = one_column(call.job), call.enqueued_at, trace_id(call.headers)
    except CodecError:
        name, enqueued_at, trace = "", 0, ""
    ran_us = death.ran_us if error and held.state == slots.RUNNING else 0
    attempt = queue.status(held.mid).attempts
    return attempt_record(
        name, attempt, ago_ms(enqueued_at), ran_us, 0, death.rss_kib, worker, error,
        nbytes=len(content), trace_id=trace,
    )  # fmt: skip


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
