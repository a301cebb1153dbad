"""Ledgers as a test describes them, and their verdicts."""

from __future__ import annotations

from jobq.chaos.ledger import Line
from jobq.chaos.verdict import FinalState, Verdict, verdict_of


class Story:
    """Writes a ledger's lines, a millisecond after one another."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now = 100.0

    def say(self, word: str, **fields: object) -> None:
        self.now += 0.001
        self.lines.append({"word": word, "at": self.now, **fields})

    def enqueue(
        self, mid: str, outcome: str = "ok", action: str = "added", **keyed: object
    ) -> None:
        self.say("enqueue", mid=mid, **keyed)
        if outcome:
            self.say("enqueued", mid=mid, outcome=outcome, action=action)

    def hand(self, mid: str, fence: int, pid: int = 1) -> None:
        self.say("handed", messages=[[mid, f"t{fence}", fence]], pid=pid)

    def run(
        self,
        word: str,
        mid: str,
        fence: int,
        pid: int = 1,
        left: float = 2.0,
        loop: bool = False,
        thread: int = 0,
    ) -> None:
        self.say(
            word, mid=mid, attempt=1, fence=fence, pid=pid, left=left, loop=loop, thread=thread
        )

    def finish(self, mid: str, fence: int, reply: str = "ok", outcome: str = "done") -> None:
        call = f"c{len(self.lines)}"
        self.say("finish", call=call, endings=[[mid, f"t{fence}", outcome]], pid=1)
        if reply:
            self.say("finished", call=call, replies=[reply], pid=1)

    def ran(self, mid: str, fence: int, pid: int = 1, thread: int = 0) -> None:
        """Record a run with an unreported end."""
        self.hand(mid, fence, pid)
        for word in ("start", "end"):
            self.run(word, mid, fence, pid, thread=thread)

    def whole(self, mid: str, fence: int, pid: int = 1) -> None:
        self.ran(mid, fence, pid)
        self.finish(mid, fence)

    def injected(self, pids: tuple[int, ...] = (), cuts: bool = True, spares: bool = False) -> None:
        self.say(
            "fault", name="kill", pids=list(pids), until=self.now + 0.001, cuts=cuts, spares=spares
        )  # fmt: skip

    def judged(self, **final: object) -> Verdict:
        return verdict_of(self.lines, FinalState(**final))  # type: ignore[arg-type]


def broken(verdict: Verdict) -> dict[str, list[str]]:
    return {name: found for name, found in verdict.broken.items() if found}


def poisoned(story: Story, runs: int) -> None:
    story.say("poison", mid="a", limit=3)
    story.enqueue("a")
    for fence in range(runs):
        story.hand("a", fence, pid=fence)
        story.run("start", "a", fence, pid=fence)


def interrupted(story: Story, pids: tuple[int, ...], cuts: bool = True) -> Verdict:
    """A run by process 1 with an unreported end, a fault, and a run by process 2."""
    story.enqueue("a")
    story.ran("a", 1)
    story.injected(pids, cuts)
    story.now += 2
    story.whole("a", 2, pid=2)
    return story.judged()


def two_at_once(story: Story, left: float) -> Verdict:
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1, left=left)
    story.injected(pids=(1,))
    story.now += 1
    story.hand("a", 2, pid=2)
    story.run("start", "a", 2, pid=2)
    story.now += 1
    story.run("end", "a", 1, left=-1)
    story.run("end", "a", 2, pid=2)
    story.finish("a", 1, "stale")
    story.finish("a", 2)
    return story.judged()


def repeated(story: Story, *mids: str) -> None:
    """Each runs to its end in a separate process, and again after a fault."""
    for pid, mid in enumerate(mids, 1):
        story.enqueue(mid)
        story.ran(mid, 1, pid=pid)
    story.injected(tuple(range(1, len(mids) + 1)))
    story.now += 2
    for mid in mids:
        story.whole(mid, 2, pid=9)
