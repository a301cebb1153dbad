"""The ledger, which stores the events of a chaos test as JSON lines outside the tested server.

Every line has `word`, the kind of event, and `at`, seconds by a clock that all processes share. The other fields:

========  =====================================================================
enqueue   mid of a message, before the enqueue; key, most, ordered: its key, the key's maximum of
          running messages, and whether the key's messages run in enqueue order
enqueued  mid, outcome (ok, fail = surely not accepted, info = unknown), action,
          again: whether an earlier try may have been accepted
handed    messages: [mid, token, fence] of each message that a call fetched; pid
start     mid, attempt, fence, pid, left: seconds of lease as known to the run, loop: whether
          its child has an event loop
end       the fields of start; the job has finished its work
aborted   the fields of start; the run was stopped
cancelled mids of messages whose cancellation the server confirmed
finish    call, endings: [mid, token, outcome] before they are reported; pid
finished  call, replies: one per ending; missing if the server didn't reply
injection number, pause: seconds before the injection
fault     name, pids (empty = all), until, cuts: whether the fault explains a second run,
          spares: whether runs that had ended in these processes are excluded
stall     until: end of a pause of this machine, during which leases may have expired
late      worst: seconds by which this machine was late to wake a sleeping thread
poison    mid, limit: number of runs after which the message must be dead; timed: whether a
          hard timeout ends the runs, possibly before a run has recorded its start
tick      text: the error in a tick of a schedule
orphan    pid: a process that outlived its supervisor, or a job's fork that kept working
========  =====================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]


class Ledger(NamedTuple):
    """The log of all events in a round: a folder with a file per process."""

    folder: str

    def write(self, word: str, *, at: float | None = None, **fields: Any) -> None:
        line = {"word": word, "at": time.monotonic() if at is None else at, **fields}
        path = os.path.join(self.folder, f"{os.getpid()}.jsonl")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def lines(self) -> Iterator[Line]:
        """Yield all lines, file by file, except a killed process's incomplete last line."""
        for file in sorted(Path(self.folder).glob("*.jsonl")):
            for text in file.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(text)
                except ValueError:
                    continue


FOREVER = float("inf")
#: A fault also affects what begins this soon after it.
GRACE_S = 0.5
#: Prefix of jobs with limits. Such a job returns its slots before its end is recorded.
STEM = "limited-"


@dataclass(eq=False)
class Run:
    """One run of a job.

    Attributes:
        points: The times at which the run recorded an event, each with the remaining lease at that time.
    """

    mid: str
    fence: int
    pid: int
    start: float
    points: list[tuple[float, float]]
    ended: bool = False
    loop: bool = False
    thread: int = 0

    @property
    def last(self) -> float:
        return self.points[-1][0]

    @property
    def overrun(self) -> float:
        """Return how long the run continued after its lease expired, in seconds.

        Return 0 for an unfinished run on an event loop.
        """
        return 0.0 if self.loop and not self.ended else max(0.0, -self.points[-1][1])

    def ended_by(self, at: float) -> bool:
        return self.ended and self.last <= at

    def leased(self) -> Iterator[tuple[float, float]]:
        """Yield the time spans during which the run continued and had a valid lease."""
        for (at, left), (following, _) in zip(self.points, self.points[1:], strict=False):
            if left > 0:
                yield at, min(at + left, following)


class ReportedEnding(NamedTuple):
    """A worker's report about the end of one attempt.

    Attributes:
        reply: The server's reply; "info" if there was none.
    """

    mid: str
    token: str
    outcome: str
    reply: str
    began: float
    answered: float


class InjectedFault(NamedTuple):
    """A record of one injected fault. Without pids, the fault affected all processes.

    Attributes:
        cuts, spares: See `RoundSetup.injected`.
    """

    name: str
    at: float
    until: float
    pids: frozenset[int]
    cuts: bool
    spares: bool = False


class KeyUse(NamedTuple):
    """The key of a message. At most `most` messages with this key may run concurrently."""

    key: str
    most: int
    ordered: bool


class Poison(NamedTuple):
    """A message that crashes its process and must be dead-lettered after `limit` runs.

    Attributes:
        timed: Whether a hard timeout may end a run before it has recorded its start.
    """

    limit: int
    timed: bool


@dataclass
class History:
    """All events of one round."""

    outcomes: dict[str, str] = field(default_factory=dict)
    taken_for_other: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    started: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    ended: Counter[str] = field(default_factory=Counter)
    handed: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    fences: dict[tuple[str, str], int] = field(default_factory=dict)
    endings: list[ReportedEnding] = field(default_factory=list)
    faults: list[InjectedFault] = field(default_factory=list)
    crashes: list[InjectedFault] = field(default_factory=list)
    stalls: list[InjectedFault] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    grants: list[int] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    poison: dict[str, Poison] = field(default_factory=dict)
    keys: dict[str, KeyUse] = field(default_factory=dict)
    cancelled: dict[str, float] = field(default_factory=dict)
    late: float = 0.0
    answered: dict[tuple[str, int], float] = field(default_factory=dict)
    accepted: dict[tuple[str, int], float] = field(default_factory=dict)

    def hit(self, fault: InjectedFault, run: Run) -> bool:
        """Return whether this fault may be the reason why the message of `run` ran again."""
        if not fault.cuts or (fault.pids and run.pid not in fault.pids):
            return False
        settled_at = self.answered.get((run.mid, run.fence), FOREVER)
        if run.start > fault.until + GRACE_S or settled_at < fault.at:
            return False
        return not fault.spares or not run.ended_by(fault.at) or self._ended_last(run, fault.at)

    def _ended_last(self, run: Run, at: float) -> bool:
        """Return whether this run's end may be missing from the record.

        A killed process may not have recorded the end of each thread's last run.
        """
        if run.mid.startswith(STEM) and at - run.last <= GRACE_S:
            return True
        others = [other for other in self.runs if other.pid == run.pid and other.start <= at]
        later = sum(other.ended_by(at) and other.last > run.last for other in others)
        return later < len({run.thread for run in others})


def read_history(lines: Iterable[Line]) -> History:
    """Return the whole history, ordered by time."""
    history, running = History(), dict[tuple[str, int, int], Run]()
    ordered = sorted(lines, key=lambda line: float(line["at"]))
    replies = {line["call"]: line for line in ordered if line["word"] == "finished"}
    for line in ordered:
        word = line["word"]
        if word in ("enqueue", "enqueued"):
            _enqueue(history, line)
        elif word in ("start", "end", "aborted"):
            _run(history, line, running)
        elif word == "handed":
            for mid, token, fence in line["messages"]:
                history.handed[mid].append((fence, line["at"]))
                history.fences[mid, token] = fence
        elif word == "finish":
            history.endings += _endings(line, replies.get(line["call"]))
        elif word == "fault":
            pids = frozenset(line.get("pids") or ())
            known = (line["name"], line["at"], line["until"], pids, line["cuts"])
            history.faults.append(InjectedFault(*known, line.get("spares", False)))
        else:
            _rest(history, line)
    _settle(history)
    _crash(history)
    return history


def _rest(history: History, line: Line) -> None:
    if line["word"] == "orphan":
        history.orphans.append(line["pid"])
    elif line["word"] == "grant":
        history.grants.append(line["started"])
    elif line["word"] == "tick":
        history.ticks.append(line["text"])
    elif line["word"] == "poison":
        history.poison[line["mid"]] = Poison(line["limit"], line.get("timed", False))
    elif line["word"] == "stall":
        stall = InjectedFault("stall", line["at"], line["until"], frozenset(), cuts=True)
        history.stalls.append(stall)
    elif line["word"] == "cancelled":
        history.cancelled |= dict.fromkeys(line["mids"], line["at"])
    elif line["word"] == "late":
        history.late = line["worst"]


def _enqueue(history: History, line: Line) -> None:
    mid = line["mid"]
    if line["word"] == "enqueue":
        history.outcomes[mid] = "info"
        if "key" in line:
            history.keys[mid] = KeyUse(line["key"], line["most"], line["ordered"])
        return
    history.outcomes[mid] = line["outcome"]
    if line["outcome"] == "ok" and line.get("action") != "added" and not line.get("again"):
        history.taken_for_other.append(mid)


def _run(history: History, line: Line, running: dict[tuple[str, int, int], Run]) -> None:
    name = (line["mid"], line["fence"], line["pid"])
    point = (line["at"], line["left"])
    if line["word"] == "start" or name not in running:
        # A fork may end what its parent began: that is a run by itself.
        run = Run(
            *name,
            start=line["at"],
            points=[point],
            loop=line.get("loop", False),
            thread=line.get("thread", 0),
        )
        running[name] = run
        history.runs.append(run)
        history.started[run.mid].append(run)
        if line["word"] == "start":
            return
    else:
        run = running[name]
        run.points.append(point)
    if line["word"] == "end":
        run.ended = True
        history.ended[run.mid] += 1


def _endings(line: Line, reply: Line | None) -> Iterator[ReportedEnding]:
    # Another number of replies: two processes read from one connection, so this isn't the answer.
    if reply is not None and len(reply["replies"]) != len(line["endings"]):
        reply = None
    replies = reply["replies"] if reply else ["info"] * len(line["endings"])
    answered = reply["at"] if reply else FOREVER
    for (mid, token, outcome), said in zip(line["endings"], replies, strict=True):
        word = "info" if said == "unknown" else said
        yield ReportedEnding(mid, token, outcome, word, line["at"], answered)


def _crash(history: History) -> None:
    """Record a fault for each run of a poison message, because the crash may have ended other jobs too."""
    for mid in history.poison:
        for run in history.started.get(mid, ()):
            pids = frozenset((run.pid,))
            history.crashes.append(
                InjectedFault("crash", run.start, run.start, pids, cuts=True, spares=True)
            )


def _settle(history: History) -> None:
    for ending in history.endings:
        fence = history.fences.get((ending.mid, ending.token))
        if fence is not None:
            name = (ending.mid, fence)
            history.answered[name] = min(ending.answered, history.answered.get(name, FOREVER))
            if ending.reply == "ok" and ending.outcome == "done":
                history.accepted.setdefault(name, ending.answered)
