"""Breadth first over every interleaving of a scope of a topic, each state once.

T1   an index is given once, and its message never changes
T2   nobody is handed what is settled, or what another holds under a live lease; what is free is handed out
T3   a stretch passes over nothing
T4   who lost a stretch commits, renews and gives back nothing of it
T5   a lease is as long as asked
T6   deliveries count hand-outs
T7   what is handed out and not settled is in one stretch; the settled index is below all of them
T8   one fair reader settles everything: nothing is lost
T9   compaction keeps the newest of each key, at every step; readers see each message once, in order
T10  what retention dropped is gone, and nothing else
T11  a repeated call answers as it did and changes nothing; an older one is refused
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.breadth_first import BreadthFirst
from tests.model.digest import digest
from tests.model.expect import need
from tests.model.explored import Explored
from tests.model.machine import Machine, Mutation, Violation
from tests.model.topic.actions import ACTIONS, Action, moves, poll, stretches, visible
from tests.model.topic.world import Scope, World, begin

STEPS = 60


class Explorer(BreadthFirst[World]):
    """One scope on one machine."""

    def __init__(
        self, scope: Scope, mutation: Mutation | None = None, depth: int | None = None
    ) -> None:
        self.machine = Machine([mutation] if mutation else [], area="topic")
        super().__init__(self.machine, scope, depth)
        self.scope = scope
        self._drained: set[bytes] = set()

    def run(self) -> Explored:
        m = self.machine
        m.reset()
        world = begin(self.scope)
        m.run("subscribe", "", world.now, "", "g", "earliest", "", "earliest")
        return self.search(world)

    def moves(self, world: World) -> Iterable[Action]:
        return moves(self.machine, world)

    def act(self, world: World, step: Action) -> World:
        ACTIONS[step[0]](self.machine, world, *step[1:])
        return world

    def judge(self, world: World) -> None:
        self._check(world)
        self._repeat(world)
        self._drain(world.copy())

    def state(self, world: World) -> bytes:
        return digest(self.machine.topic.text(world.now, world.text()))

    def _check(self, w: World) -> None:
        m, there = self.machine, visible(self.machine)
        last, first, cursor, _, _ = m.topic.numbers()
        need((last, first) == (len(w.accepted), w.first), f"T10 {first} to {last}")
        for index, content in there.items():
            need(content == w.accepted[index - 1][0], f"T1 {index} is {content}")
        need(min(there, default=first) >= first, f"T10 {there} before {first}")
        self._check_keys(w, there)
        rows = stretches(m)
        ends = [end for row in rows for end in row[1:3]]
        need(ends == sorted(ends), f"T7 stretches overlap: {rows}")
        need(not ends or ends[-1] <= cursor, f"T7 {rows} after the cursor {cursor}")
        need({r[0] for r in rows if "+" not in r[0]} == w.tokens, f"T7 {rows}, not {w.tokens}")
        held = {i for row in rows for i in range(row[1], row[2] + 1)}
        for index in there:
            owed = index <= cursor and index not in w.settled
            need((index in held) == owed or index < w.first, f"T7 {index} held: {index in held}")
        settled = m.run("lag", "", w.now, "")[1]
        lowest = rows[0][1] - 1 if rows else cursor
        need(settled == lowest, f"T7 settled up to {settled}, not {lowest}")

    def _check_keys(self, w: World, there: dict[int, str]) -> None:
        for index, (_, key) in enumerate(w.accepted, 1):
            newest = not key or w.newest(key) == index
            deletion = not w.accepted[index - 1][0]
            if newest and not deletion and index >= w.first:
                need(index in there, f"T9 {index} is gone")
        _, _, _, base_to, phase = self.machine.topic.numbers()
        for index in there:
            _, key = w.accepted[index - 1]
            if key and index <= base_to and not phase:
                later = [k for _, k in w.accepted[index:base_to]]
                need(key not in later, f"T9 {index} is still there")

    def _repeat(self, w: World) -> None:
        for caller, call in w.calls.items():
            # A call without effect isn't recorded, and may find messages now.
            words = call.reply[:1] if call.script == "commit" else call.reply[1:2]
            if words[0] in ("stale", "") and not (call.script == "poll" and call.reply[2]):
                continue
            m, args = self.machine, (call.script, caller, w.now, caller)
            reply = m.run(*args, call.number, *call.args)
            same = slice(0, 1) if call.script == "commit" else slice(1, 4)
            need(reply[same] == call.reply[same], f"T11 repeated {call.script}: {reply}")
            need(not m.writes(), f"T11 repeated {call.script} changed something")
            late = m.run(*args, call.number - 1, *call.args)
            need(late[0] == "closed", f"T11 older {call.script}: {late}")
            need(not m.writes(), f"T11 older {call.script} changed something")

    def _drain(self, w: World) -> None:
        """Walk on from here until all is settled; Violation when it never is."""
        m, trail = self.machine, []
        w.left, w.scope = {}, Scope("drain", {})
        w.holds, w.calls = {}, {}
        if w.paused:
            w.paused = False
            m.run("steer", "", w.now, 0, "")
        while m.topic.numbers()[4]:
            m.run("compact", "", w.now, "", 0, 1)
        for _ in range(STEPS):
            name = self.state(w)
            if name in self._drained:
                break
            trail.append(name)
            poll(m, w, "D", 2)
            later = m.topic.next_lease(w.now)
            if "D" in w.holds:
                ACTIONS["commit"](m, w, "D", 0)
            elif later:
                w.now = later
            else:
                lost = [i for i in visible(m) if i not in w.settled]
                need(not lost, f"T8 never settled: {lost}")
                break
        else:
            raise Violation(f"T8 it never ends: {stretches(m)}")
        self._drained.update(trail)
