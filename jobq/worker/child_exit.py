"""After a child's exit, reports an outcome for each of the child's messages, or returns the message to its queue."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from jobq.client.names import base_of, partition_in
from jobq.errors import CodecError
from jobq.events import CRASH, SEPARATOR, ago_ms, attempt_record, trace_id
from jobq.jobs.codec import decode
from jobq.jobs.failure import one_column
from jobq.jobs.results import encode_failure, ended
from jobq.jobs.signing import is_sealed, opened, seal_of
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.worker import exit_codes
from jobq.worker.counters import Counters
from jobq.worker.shared_state import ALL_HANDED, HeldMessage, SharedSlots, SlotState

_FOLLOWS = {"ok": "; it runs again", "dead": "; it was dead-lettered after too many crashes"}
#: Represents the slot of a handed-out message without a slot: `UNREAD + 1 == ALL_HANDED`.
UNREAD = ALL_HANDED - 1
#: Reasons for killing a child for which its running messages aren't charged, but given back.
NOT_CHARGED = frozenset(("shutdown", "lease"))


class ChildExit(NamedTuple):
    """How a child ended, and the messages that the child held.

    Attributes:
        marks: For each slot, the uncounted outcome that the child may have reported.
    """

    pid: int
    status: int
    usage: resource.struct_rusage
    caller: str
    held: list[HeldMessage]
    ran_us: int
    killed_for: str = ""
    hard_slots: frozenset[int] = frozenset()
    suspect: int = 0
    marks: Mapping[int, int] = MappingProxyType({})

    @property
    def how(self) -> str:
        """Return how the child ended, such as `child 7 was killed by SIGKILL`, with CPU time and peak memory."""
        code = os.waitstatus_to_exitcode(self.status)
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        why = f" for its {self.killed_for}" if self.killed_for else ""
        cpu_s = self.usage.ru_utime + self.usage.ru_stime
        return f"child {self.pid} {how}{why} (CPU {cpu_s:.2f} s, peak {self.rss_kib // 1024} MB)"

    @property
    def had(self) -> str:
        """Return the counts of held messages and unreported outcomes, such as `1 running and 12 waiting`."""
        states = [held.state for held in self.held]
        ended = states.count(SlotState.ENDED)
        nwaiting = states.count(SlotState.HELD) + states.count(SlotState.GATHERING)
        known = f"{states.count(SlotState.RUNNING)} running and {nwaiting} waiting"
        return known + (f", {ended} just ended" if ended else "")

    @property
    def ncharged(self) -> int:
        """Return the number of messages that may have caused the child's death."""
        return sum(_is_charged(self, held) for held in self.held)

    @property
    def rss_kib(self) -> int:
        peak = self.usage.ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak


class CrashedAttempt(NamedTuple):
    """An attempt cut short by the death of its child.

    Attributes:
        job: The job's name; '' if unknown.
        attempt: The attempt's number; 0 if unknown.
        headers: The headers of its call.
        ran_us: The run time in microseconds; 0 if unknown.
    """

    job: str
    mid: str
    attempt: int
    queue: str
    reply: str
    headers: Mapping[str, str] = MappingProxyType({})
    ran_us: int = 0

    @property
    def fields(self) -> dict[str, object]:
        fields: dict[str, object] = {
            name: getattr(self, name) for name in ("job", "mid", "attempt", "reply")
        }
        fields["queue"] = base_of(self.queue)
        if partition := partition_in(self.queue):
            fields["partition"] = partition
        return fields

    @property
    def what(self) -> str:
        """Return the start of a log line about this attempt: its job, message and queue."""
        attempt = f" attempt {self.attempt}" if self.attempt else ""
        return f"{self.job} {self.mid}{attempt} of queue {self.queue}".lstrip()

    @property
    def follows(self) -> str:
        """Return a log text about the message's next step; '' if another call ended or returned the message."""
        return _FOLLOWS.get(self.reply, "")


def inspect_exit(
    pid: int, status: int, usage: resource.struct_rusage, slots: SharedSlots,
    counters: Counters | None = None,
) -> ChildExit:  # fmt: skip
    """Read a dead child's shared memory. Afterwards, the next child may use the memory."""
    marks = counters.take_marks() if counters is not None else {}
    why = "lease" if os.waitstatus_to_exitcode(status) == exit_codes.FENCED else ""
    return ChildExit(
        pid, status, usage, slots.caller, slots.held(taken=True), slots.ran_ns() // 1000, why,
        suspect=slots.suspect, marks=marks,
    )  # fmt: skip


def cause_of(child: ChildExit, out_of_memory: bool) -> str:
    """Return the cause of a child's death, one of jobq.jobs.crashes.CAUSES.

    Args:
        out_of_memory: Whether the kernel has just killed a process for lack of memory.
    """
    if child.killed_for in ("lease", "hard timeout"):
        return child.killed_for.replace(" ", "_")
    code = os.waitstatus_to_exitcode(child.status)
    if code >= 0:
        return "exit"
    return "memory" if out_of_memory and code == -signal.SIGKILL else "signal"


def end_held(
    child: ChildExit, index: int, queue: Queue, crash_limit: int, worker: str,
    counters: Counters | None = None,
) -> list[CrashedAttempt]:  # fmt: skip
    """Report or return the messages that a dead child held in one queue. Return the crashed attempts.

    First, close the child's session, so that a delayed dequeue call of the child returns nothing. After an error, the
    call may be repeated.
    """
    handed = queue.end_session(child.caller) if child.caller else []
    mine = [held for held in child.held if held.queue == index]
    known = {held.token for held in mine}
    unread = [
        HeldMessage(UNREAD, SlotState.FREE, index, mid, token)
        for mid, token in handed
        if token not in known
    ]
    nread = len(unread) if child.suspect == ALL_HANDED else 0
    # If another queue's call handed out the messages, they are charged when that queue's messages are ended.
    nelsewhere = 1 if child.suspect == ALL_HANDED and not unread else 0
    # Mark each of several suspects to run alone, so that only its own crash can dead-letter it.
    limit = crash_limit if child.ncharged + nread + nelsewhere == 1 else 0
    crashed = _ended(child, index, queue, worker, counters, mine, limit)
    crashed += _ended(child, index, queue, worker, counters, unread, limit)
    queue.admin.collect(1, crash_limit=crash_limit)
    return crashed


def _ended(
    child: ChildExit, index: int, queue: Queue, worker: str, counters: Counters | None,
    all_held: Sequence[HeldMessage], crash_limit: int,
) -> list[CrashedAttempt]:  # fmt: skip
    """Report and count outcomes of the messages in `all_held`. Return the crashed attempts."""
    described = [_ending(queue, child, held, worker) for held in all_held]
    endings = [ending for ending, _ in described]
    replies = queue.finish(endings, crash_limit=crash_limit).replies if endings else []
    if counters is not None:
        for held, ending, reply in zip(all_held, endings, replies, strict=True):
            _count(counters, child, index, held, ending, reply)
    return [
        _crash(queue, child, ending, headers, reply)
        for (ending, headers), reply in zip(described, replies, strict=True)
        if ending.outcome == "crashed"
    ]


def _count(
    counters: Counters, child: ChildExit, index: int, held: HeldMessage, ending: Ending, reply: str
) -> None:
    mark = child.marks.get(held.slot)
    if ending.outcome != "release":
        counters.crashed(index, ending, reply)
    if reply == "stale" and mark and held.state in (SlotState.ENDED, SlotState.REPORTING):
        counters.marked(mark)


def _crash(
    queue: Queue, child: ChildExit, ending: Ending, headers: Mapping[str, str], reply: str
) -> CrashedAttempt:
    if reply == "stale":  # its content may belong to a later message now
        return CrashedAttempt("", ending.mid, 0, queue.name, reply)
    job, attempt = ending.record.split(SEPARATOR, 2)[:2]
    return CrashedAttempt(
        job, ending.mid, int(attempt), queue.name, reply, headers, child.ran_us
    )  # fmt: skip


def _ending(
    queue: Queue, child: ChildExit, held: HeldMessage, worker: str
) -> tuple[Ending, Mapping[str, str]]:
    """Return the outcome to send for a message. Also return its call's headers if a crash must be reported."""
    if held.state == SlotState.ENDED:
        record, headers, _ = _record(queue, child, held, worker)
        return Ending(mid=held.mid, token=held.token, record=record), headers
    if not _is_charged(child, held):
        return Ending(mid=held.mid, token=held.token, outcome="release"), {}
    reason = child.how
    if held.state != SlotState.RUNNING:
        reason = f"while it was decoded, before its job began; {reason}"
    if held.slot in child.hard_slots:
        reason = f"ran past its hard timeout; {reason}"
    record, headers, content = _record(queue, child, held, worker, CRASH)
    end, end_ttl = _remembered(queue, held.mid, content, reason, record)
    ending = Ending(
        mid=held.mid, token=held.token, outcome="crashed", reason=reason, record=record, result=end,
        result_ttl=end_ttl,
    )  # fmt: skip
    return ending, headers


def _remembered(
    queue: Queue, mid: str, content: bytes, reason: str, record: str
) -> tuple[bytes | None, float]:
    """Return the result to store if this crash dead-letters the message, and the result's lifetime in seconds."""
    seal = seal_of(queue.client)
    try:
        for_ms = decode(opened(seal, queue.name, mid, content)).remember_ms
    except CodecError:
        return None, 0
    if not for_ms:
        return None, 0
    end = ended(encode_failure(reason, CRASH), int(record.split(SEPARATOR, 2)[1]))
    if seal is not None and is_sealed(content):
        end = seal.of("result").close(queue.name, mid, end, content)
    return end, for_ms / 1000


def _is_charged(child: ChildExit, held: HeldMessage) -> bool:
    running = held.state == SlotState.RUNNING
    if child.killed_for == "hard timeout":
        return running and held.slot in child.hard_slots
    if child.killed_for in NOT_CHARGED:
        return False
    if child.suspect:
        # The thread that read it ran nothing else. Jobs in other threads may have ended the process as well.
        is_read = held.slot + 1 == child.suspect and held.state in (SlotState.HELD, SlotState.FREE)
        return is_read or (running and held.in_thread)
    return running


def _record(
    queue: Queue, child: ChildExit, held: HeldMessage, worker: str, error: str = ""
) -> tuple[str, Mapping[str, str], bytes]:
    content, headers = b"", dict[str, str]()
    # A message that killed the child while it was read must not also kill the supervisor.
    if held.state in (SlotState.RUNNING, SlotState.ENDED):
        content = queue.client.command("HGET", keys.key(queue.prefix, "messages"), held.mid) or b""
    try:
        call = decode(opened(seal_of(queue.client), queue.name, held.mid, content))
        name, enqueued_at, headers = one_column(call.job), call.enqueued_at, call.headers
    except CodecError:
        name, enqueued_at = "", 0
    ran_us = child.ran_us if error and held.state == SlotState.RUNNING else 0
    attempt = queue.status(held.mid).attempts
    record = attempt_record(
        name, attempt, ago_ms(enqueued_at), ran_us, 0, child.rss_kib, worker, error,
        nbytes=len(content), trace_id=trace_id(headers),
    )  # fmt: skip
    return record, headers, content


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
