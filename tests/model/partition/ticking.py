"""Breadth first over the ticks of a schedule while its queue gets partitions.

Two clients take ticks and send their messages, in steps of one call each; one of them may stop between any two steps.

P5  each tick is taken once, and its message starts at most once; it starts, unless a later tick replaced it; no two
    runs overlap, unless the schedule allows it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.model.expect import need
from tests.model.explored import Explored
from tests.model.machine import Mutation
from tests.model.partition.two_queues import RESTS, TwoQueues
from tests.model.partition.world import NEW, OLD, Run
from tests.model.world import START

LEASE, STEPS = 1_000, 60
NAME, OPTIONS = "s", ("", "", 1, 1, "", "", "", "", "", "")


@dataclass(frozen=True)
class TickScope:
    """Possible steps and their maximum numbers."""

    name: str
    overlap: str
    budget: dict[str, int]
    """take, stop"""

    def __str__(self) -> str:
        return f"overlap={self.overlap}; at most: {self.budget}"


SCOPES = (
    TickScope("ticks that skip", "skip", {"take": 2, "stop": 1}),
    TickScope("ticks that wait", "queue", {"take": 2, "stop": 1}),
    TickScope("ticks that replace", "cancel", {"take": 2, "stop": 1}),
)


class Sender(NamedTuple):
    """A client between two of its calls.

    Attributes:
        before, is_live: The run before, whose status it has read.
        kept: The message that it sends: number, action, mid and content.
        calls: Its next calls.
    """

    before: str = ""
    is_live: str = ""
    kept: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()


@dataclass
class TickWorld:
    """The whole state but for the two queues."""

    scope: TickScope
    left: dict[str, int]
    now: int = START
    is_sealed: bool = False
    senders: tuple[Sender, ...] = (Sender(), Sender())
    taken: tuple[str, ...] = ()
    """Contents of the ticks that were taken and not skipped."""
    started: tuple[str, ...] = ()
    running: tuple[Run, ...] = ()
    number: int = 0

    def copy(self) -> TickWorld:
        return replace(self, left=dict(self.left))

    def text(self) -> str:
        return repr((self.is_sealed, sorted(self.senders), self.taken, self.started, self.running))


class TickExplorer(TwoQueues[TickWorld]):
    """A search over the ticks of one scope."""

    def __init__(self, scope: TickScope, mutation: Mutation | None = None) -> None:
        super().__init__(scope, mutation)
        self.scope = scope

    def run(self) -> Explored:
        self.machine.reset()
        self.machine.command(START - 9, "HSET", f"{NEW}meta", "fence", "0")
        self.machine.run(f"{OLD}schedule", "", START - 9, "", "add", NAME, "{}")
        return self.search(TickWorld(self.scope, dict(self.scope.budget)))

    def moves(self, world: TickWorld) -> Iterator[Any]:
        if not world.is_sealed:
            yield ("seal",)
        for index, sender in enumerate(world.senders):
            if sender not in world.senders[:index]:
                yield from self._of_sender(world, index)
        for place in (OLD, NEW):
            yield "dequeue", place
        for index in range(len(world.running)):
            yield "finish", index
        if self._ends_at(world):
            yield ("wait",)

    def _of_sender(self, world: TickWorld, index: int) -> Iterator[Any]:
        if world.senders[index].calls:
            yield "call", index
            if world.left["stop"]:
                yield "stop", index
            return
        if world.left["take"]:
            yield "take", index
        if world.is_sealed:
            yield "fetch", index

    def act(self, world: TickWorld, step: Any) -> TickWorld:
        name, *rest = step
        getattr(self, f"_{name}")(world, *rest)
        return world

    def judge(self, world: TickWorld) -> None:
        self._drain(world.copy())

    # Clients.

    def _seal(self, w: TickWorld) -> None:
        w.is_sealed = True
        self.machine.run(f"{OLD}seal", "", w.now, 1)

    def _take(self, w: TickWorld, index: int) -> None:
        text = str(self.machine.command(w.now, "HGET", f"{OLD}ticks", NAME))
        last = int(text.partition(",")[0])
        tick_ms = last + 1
        content = f"c{tick_ms - START + 9}"
        mid = f"{NAME}@latest" if self.scope.overlap in ("queue", "cancel") else f"{NAME}@{tick_ms}"
        head = ("", NAME, tick_ms, last, tick_ms, self.scope.overlap, 0, mid)
        reply = self.machine.run(f"{OLD}tick", "", w.now, *head, content, "", "", "", "")
        need((reply[0] == "sealed") == w.is_sealed, f"P5 a tick answers {reply}")
        if w.is_sealed:
            sender, message = w.senders[index], "\x1f" * 4 + content
            reply = self.machine.run(
                f"{OLD}tick_partitioned", "", w.now, *head, sender.before, sender.is_live, message
            )
        word, detail = str(reply[0]), str(reply[1])
        if word == "look":
            self._set(w, index, Sender(detail, "1" if self._lives(w, detail) else ""))
            return
        if word in ("unsent", "exists"):
            return
        w.left["take"] -= 1
        self._set(w, index, Sender())
        need(content not in w.taken, f"P5 {content} was taken twice")
        if word != "skipped":
            w.taken += (content,)

    def _fetch(self, w: TickWorld, index: int) -> None:
        _, number, action, mid, message = (
            *self.machine.run(f"{OLD}ticks_sent", "", w.now, 20), "", "", "", "", ""
        )[:5]  # fmt: skip
        if not number:
            return
        cancels = (("cancel", OLD), ("cancel", NEW)) if action == "replaced" else ()
        calls = (*cancels, ("enqueue", OLD), ("enqueue", NEW), ("ack", OLD))
        kept = (str(number), str(action), str(mid), str(message)[4:])
        self._set(w, index, Sender(kept=kept, calls=calls))

    def _call(self, w: TickWorld, index: int) -> None:
        sender = w.senders[index]
        (number, _, mid, content), ((verb, place), *rest) = sender.kept, sender.calls
        if verb == "cancel":
            (word,) = self.machine.run(f"{place}cancel", "c", w.now, "c", number, "", "", mid)
            if word != "nil":
                rest = [call for call in rest if call[0] != "cancel"]
        elif verb == "ack":
            self.machine.run(f"{OLD}ticks_sent", "", w.now, 0, NAME, number, "")
        else:
            more = f" {OLD}moved_keys" if place == OLD else ""
            word, *_ = self.machine.run(
                f"{place}enqueue{more}", "e", w.now, "e", number, "", *OPTIONS, mid, content
            )
            if word != "moved":
                rest = [call for call in rest if call[0] != "enqueue"]
        self._set(w, index, sender._replace(calls=tuple(rest)) if rest else Sender())

    def _stop(self, w: TickWorld, index: int) -> None:
        """Kill the client."""
        w.left["stop"] -= 1
        self._set(w, index, Sender())

    def _set(self, w: TickWorld, index: int, sender: Sender) -> None:
        w.senders = (*w.senders[:index], sender, *w.senders[index + 1 :])

    def _lives(self, w: TickWorld, mid: str) -> bool:
        for place in (OLD, NEW):
            word = str(self.machine.run(f"{place}status", "", w.now, mid, "")[0])
            if word == "done-with-requeue" or word.startswith(("queued", "locked")):
                return True
        return False

    # Workers.

    def _dequeue(self, w: TickWorld, place: str) -> bool:
        self.machine.forget(*RESTS)
        w.number += 1
        _, _, _, _, *rows = self.machine.run(
            f"{place}dequeue", "A", w.now, "A", w.number, "", LEASE, 0, 1
        )
        if not rows:
            return False
        mid, content = str(rows[0]), str(rows[1])
        need(content not in w.started, f"P5 {content} started twice")
        need(not w.running, f"P5 {content} overlaps {w.running}")
        w.started += (content,)
        w.running += (Run(place, mid, f"A.{w.number}.0", content),)
        return True

    def _finish(self, w: TickWorld, index: int) -> None:
        run = w.running[index]
        w.running = (*w.running[:index], *w.running[index + 1 :])
        w.number += 1
        self.machine.run(
            f"{run.place}finish", "A", w.now, "A", w.number, "", LEASE, 0, 0, 1, run.mid, run.token, "done", "", 0, "",
        )  # fmt: skip

    def _wait(self, w: TickWorld) -> None:
        w.now = self._ends_at(w)
        w.running = ()

    def _ends_at(self, w: TickWorld) -> int:
        """The time at which a cancelled run's mid is free again; 0 if there is none."""
        mids = (f"{NAME}@latest",) if self.scope.overlap != "skip" else ()
        found = [
            int(self.machine.command(w.now, "HGET", f"{place}backoffs", mid) or 0)
            for place in (OLD, NEW)
            for mid in mids
        ]
        return min((at for at in found if at > w.now), default=0)

    def _drain(self, w: TickWorld) -> None:
        """Run one client, which nobody kills, and a fair worker."""
        w.left, w.senders = {"take": 0, "stop": 0}, (Sender(),)
        for _ in range(STEPS):
            if self.was_drained(w):
                return
            if w.is_sealed and not w.senders[0].calls:
                self._fetch(w, 0)
            while w.senders[0].calls:
                self._call(w, 0)
            while w.running:
                self._finish(w, 0)
            if self._dequeue(w, OLD) or self._dequeue(w, NEW):
                continue
            if not self._ends_at(w):
                break
            self._wait(w)
        owed = w.taken if self.scope.overlap == "skip" else w.taken[-1:]
        lost = [content for content in owed if content not in w.started]
        need(not lost, f"P5 {lost} were taken and never ran")
