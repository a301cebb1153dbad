"""A ledger's lines put together: enqueues, runs, reported endings, faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jobq.chaos.ledger import Line

FOREVER = float("inf")
#: A fault acts on what begins so shortly after it, too.
GRACE_S = 0.5


@dataclass(eq=False)
class Run:
    """One run of a job. `points`: moments at which it wrote a line, and the lease left at each."""

    mid: str
    fence: int
    pid: int
    start: float
    points: list[tuple[float, float]]
    ended: bool = False
    loop: bool = False

    @property
    def last(self) -> float:
        """When it was last seen alive."""
        return self.points[-1][0]

    @property
    def overrun(self) -> float:
        """How long it went on past its lease, as it knew it. On a loop that stood still it didn't, unless it ended."""
        return 0.0 if self.loop and not self.ended else max(0.0, -self.points[-1][1])

    def ended_by(self, at: float) -> bool:
        """Whether it had had its effect."""
        return self.ended and self.last <= at

    def leased(self) -> Iterator[tuple[float, float]]:
        """Spans in which it was alive and knew its lease to be valid."""
        for (at, left), (following, _) in zip(self.points, self.points[1:], strict=False):
            if left > 0:
                yield at, min(at + left, following)


class Ending(NamedTuple):
    """One attempt's end as it was reported. `reply` info: none came."""

    mid: str
    token: str
    outcome: str
    reply: str
    began: float
    answered: float


class Fault(NamedTuple):
    """What the nemesis did. No pids: to everybody. `cuts`, `spares`: as in `Stage.fault`."""

    name: str
    at: float
    until: float
    pids: frozenset[int]
    cuts: bool
    spares: bool = False


@dataclass
class History:
    """Of one round."""

    outcomes: dict[str, str] = field(default_factory=dict)
    taken_for_other: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    started: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    ended: Counter[str] = field(default_factory=Counter)
    handed: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    fences: dict[tuple[str, str], int] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    poison: dict[str, int] = field(default_factory=dict)
    late: float = 0.0
    answered: dict[tuple[str, int], float] = field(default_factory=dict)
    accepted: dict[tuple[str, int], float] = field(default_factory=dict)

    def hit(self, fault: Fault, run: Run) -> bool:
        """Whether a fault can have made another run necessary of what this one ran."""
        if not fault.cuts or (fault.pids and run.pid not in fault.pids):
            return False
        settled_at = self.answered.get((run.mid, run.fence), FOREVER)
        if run.start > fault.until + GRACE_S or settled_at < fault.at:
            return False
        return not fault.spares or not run.ended_by(fault.at) or self._ended_last(run, fault.at)

    def _ended_last(self, run: Run, at: float) -> bool:
        """Whether its process may not have come to note its end."""
        later = (one for one in self.runs if one.pid == run.pid and one.ended_by(at))
        return run.last >= max(one.last for one in later)


def read(lines: Iterable[Line]) -> History:
    """All of it, in the order of time."""
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
            history.faults.append(Fault(*known, line.get("spares", False)))
        else:
            _rest(history, line)
    _settle(history)
    return history


def _rest(history: History, line: Line) -> None:
    if line["word"] == "orphan":
        history.orphans.append(line["pid"])
    elif line["word"] == "poison":
        history.poison[line["mid"]] = line["limit"]
    elif line["word"] == "late":
        history.late = line["most"]


def _enqueue(history: History, line: Line) -> None:
    mid = line["mid"]
    if line["word"] == "enqueue":
        history.outcomes[mid] = "info"
        return
    history.outcomes[mid] = line["outcome"]
    if line["outcome"] == "ok" and line.get("action") != "added" and not line.get("again"):
        history.taken_for_other.append(mid)


def _run(history: History, line: Line, running: dict[tuple[str, int, int], Run]) -> None:
    name = (line["mid"], line["fence"], line["pid"])
    point = (line["at"], line["left"])
    if line["word"] == "start" or name not in running:
        # A fork may end what its parent began: that is a run by itself.
        run = Run(*name, start=line["at"], points=[point], loop=line.get("loop", False))
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


def _endings(line: Line, reply: Line | None) -> Iterator[Ending]:
    # Another number of replies: two processes read from one connection, so this isn't the answer.
    if reply is not None and len(reply["replies"]) != len(line["endings"]):
        reply = None
    replies = reply["replies"] if reply else ["info"] * len(line["endings"])
    answered = reply["at"] if reply else FOREVER
    for (mid, token, outcome), said in zip(line["endings"], replies, strict=True):
        word = "info" if said == "unknown" else said
        yield Ending(mid, token, outcome, word, line["at"], answered)


def _settle(history: History) -> None:
    for ending in history.endings:
        fence = history.fences.get((ending.mid, ending.token))
        if fence is not None:
            name = (ending.mid, fence)
            history.answered[name] = min(ending.answered, history.answered.get(name, FOREVER))
            if ending.reply == "ok" and ending.outcome == "done":
                history.accepted.setdefault(name, ending.answered)
