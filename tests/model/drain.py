"""From any state, one fair worker that starts afresh must bring everything to its end."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.digest import digest
from tests.model.expect import call, events, handed, recovered, told_flows
from tests.model.machine import Machine, Violation
from tests.model.world import World

STEPS = 60


class Drain:
    """States known to drain are remembered, so that most walks end after a step or two."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._checked: set[bytes] = set()
        self._known: set[bytes] = set()

    def check(self, world: World, invariants: Callable[[World], None]) -> None:
        """Walk on from here, in place, until all is done; Violation when it never is.

        Budgets and the messages of stale workers don't matter there, nor in the invariants: these are checked
        here too, once for all states that differ in nothing else.
        """
        m, w = self._machine, world.copy()
        w.holds = {"D": ()}
        w.left, w.calls, w.ncontents = {}, {}, 0
        if w.pause_ends:
            m.run("resume", "", w.clock)
            w.pause_ends = 0
        m.forget(*[f"call:{caller}" for caller in w.numbers])
        name = self._name(w)
        if name not in self._checked:
            self._checked.add(name)
            invariants(w)
            self._walk(w, name)

    def _name(self, world: World) -> bytes:
        return digest(self._machine.canonical(world.text(), False))

    def _walk(self, w: World, name: bytes) -> None:
        trail = []
        while name not in self._known:
            if len(trail) == STEPS:
                owed = [record.content for record in w.records.values()]
                raise Violation(f"I13 it never drains: {self._machine.leftovers()}, owed {owed}")
            trail.append(name)
            if self._step(w):
                break
            name = self._name(w)
        self._known.update(trail)

    def _step(self, w: World) -> bool:
        m = self._machine
        _, *reply = call(m, w, "dequeue", "D", w.scope.lease, w.scope.crash_limit, 2)
        recovered(w, events(m))
        handed(m, w, "D", tuple(reply))
        told_flows(m, w)
        if not w.holds["D"]:
            return self._wait(w, int(str(reply[0])))
        for hold in w.holds["D"]:
            settings = (w.scope.lease, w.scope.crash_limit, 0, 1)
            (word,) = call(m, w, "finish", "D", *settings, hold.mid, hold.token, "done", "", 0, "")
            if word != "ok":
                raise Violation(f"the only worker's finish was called {word}")
            record = w.records[hold.mid]
            record.token = ""
            record.settle("done")
        told_flows(m, w)
        w.holds["D"] = ()
        m.forget("call:D")
        return False

    def _wait(self, w: World, poll_after_ms: int) -> bool:
        m = self._machine
        m.bound_dry_runs()
        left, owed = m.leftovers(), [r.content for r in w.records.values() if r.content]
        if not left:
            if owed:
                raise Violation(f"lost: {owed} accepted, never run, and nothing is left of it")
            return True
        w.now, w.behind = max(w.now + poll_after_ms, m.next_time(w.now, w.scope.margin)), 0
        return False
