"""Breadth first over every interleaving of a scope, each state once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jobq.queue.fsck import PARTS
from tests.model.actions import ACTIONS, Action, moves
from tests.model.breadth_first import BreadthFirst
from tests.model.digest import digest
from tests.model.drain import Drain
from tests.model.expect import forget_blocked, need, taken_deaths, told_flows
from tests.model.explored import Explored
from tests.model.machine import Machine, Mutation, lap_of, walked_every
from tests.model.world import Scope, World, begin

#: The key in options, and in newer content that waits.
_OWN = re.compile(r"\d*,[@<>]?\d*,o?-?\d*,(.+)$")
_NEWER = re.compile(r"\d*,\d*,\d*,o?,\d+,(.*?):")


class Explorer(BreadthFirst[World]):
    """One scope on one machine."""

    def __init__(
        self,
        scope: Scope,
        mutation: Mutation | None = None,
        lua: str = "luajit21",
        depth: int | None = None,
    ) -> None:
        self.scope = scope
        changes = walked_every(*scope.walks)
        if mutation:
            changes += (mutation,)
        if scope.lap:
            changes += lap_of(scope.lap)
        self.machine = Machine(changes, lua)
        self.machine.walks_every(*scope.walks)
        super().__init__(self.machine, scope, depth)
        self.drain = Drain(self.machine)
        self._first_parts = [*PARTS]

    def run(self) -> Explored:
        self.machine.reset()
        world = begin(self.scope)
        if self.scope.dead_max or self.scope.on_dead:
            most, on_dead = self.scope.dead_max or "", "1" if self.scope.on_dead else ""
            self.machine.run("retention", "", world.clock, most, "", on_dead)
        self._set_rules(world)
        return self.search(world)

    def _set_rules(self, world: World) -> None:
        scope = self.scope
        if scope.rule or scope.most:
            rule = scope.rule or ("",) * 5
            self.machine.run("set_limits", "", world.clock, "", "", scope.most or "", *rule)

    def moves(self, world: World) -> Iterable[Action]:
        return moves(self.machine, world)

    def act(self, world: World, step: Action) -> World:
        ACTIONS[step[0]](self.machine, world, *step[1:])
        told_flows(self.machine, world)
        self._settle(world)
        return world

    def judge(self, world: World) -> None:
        self.drain.check(world, self._check)

    def _settle(self, world: World) -> None:
        forget_blocked(world)
        if world.scope.on_dead:
            taken_deaths(self.machine, world)
            silent = [mid for mid, record in world.records.items() if record.died]
            need(not silent, f"no message tells of the death of {silent}")
        for record in world.records.values():
            record.died = 0
        if most := world.scope.dead_max:
            records, command = world.records.values(), self.machine.command
            died = sum(len(record.dead) for record in records)
            for record in records:
                dead = [
                    one for one in record.dead if command(world.clock, "ZSCORE", "dead", one[0])
                ]
                record.dead = tuple(dead)
            kept = sum(len(record.dead) for record in records)
            need(kept == min(most, died), f"{kept} of {died} dead are kept, of {most} at most")
        revivable = "revive" in world.left or "take" in world.left  # nothing else reads the dead
        broken = self.machine.settled(world.now, world.scope.idle, revivable)
        need(not broken, broken)
        if not revivable:
            for record in world.records.values():
                record.dead = ()

    def state(self, world: World) -> bytes:
        # The answer to the producer: a script that keeps no record of a call leaves the same keys as before it.
        told = world.calls["P"].reply if "P" in world.calls else ()
        return digest(self.machine.canonical(f"{world.text()} {told}", self.scope.calls))

    def _check(self, world: World) -> None:
        m, owed = self.machine, []
        for mid, record in world.records.items():
            owed += [mid, record.content]
        broken = m.broken(*owed)
        need(not broken, broken)
        for mid in world.records:
            self._check_word(world, mid)
            self._check_key(world, mid)
        told, recount = m.run("counts", "", world.clock)[:9], m.recount()
        need(told == recount, f"I14 counts tells {told}, there are {recount}")
        for part in self._parts():
            reply = m.run("fsck", "", world.clock, part, 0, 100)
            need(reply[0] == "0" and reply[3] == 0, f"fsck: {reply}")

    def _parts(self) -> list[str]:
        """Return the parts of a queue in which fsck has something to look at; in the first state, all of them."""
        keys = {*self.machine.keys().values(), "totals"}
        there = [part for part in PARTS if ("keys" if part == "running" else part) in keys]
        parts, self._first_parts = self._first_parts or there, []
        return parts

    def _check_word(self, world: World, mid: str) -> None:
        """I1: the status that the world expects is the one told."""
        record = world.records[mid]
        word, *_, report, _, _, _, _ = self.machine.run("status", "", world.clock, mid, "")
        # What was newly accepted has none. That of a run that is over is still shown until it is collected.
        if (record.content or record.token) and word != "done-with-requeue":
            told = record.report if record.token or not record.fresh else ""
            need(report == told, f"S1 {mid} reports {report!r}, not {told!r}")
        expected: tuple[str, ...]
        if record.token and record.until > world.now:
            expected = ("locked-with-requeue",) if record.fresh else ("locked",)
        elif record.content and record.deduped_till > world.now:
            expected = ("done-with-requeue",)
        elif record.content:
            later = record.not_before > world.now and not record.token and not record.lined
            expected = ("queued-with-backoff",) if later else ("queued",)
            if record.deduped_till:
                expected += ("done-with-requeue",)
        elif record.deduped_till > world.now:
            expected = ("done-with-backoff",)
        else:
            expected = ("nil", "dead", "done-awaiting-gc")
        need(word in expected, f"I1 status of {mid} is {word}, not {' or '.join(expected)}")

    def _check_key(self, world: World, mid: str) -> None:
        """K10: a message waits and runs under the key of its content."""
        record, command = world.records[mid], self.machine.command
        if not record.content:
            return
        waits = command(world.clock, "HGET", "requeue", mid)
        own = command(world.clock, "HGET", "options", mid)
        if waits:
            need(
                _key(_NEWER, waits) == record.newer_key,
                f"K10 {mid} waits as {waits}, of {record.newer_key}",
            )
        if record.token or not waits:
            key = record.newer_key if record.fresh and not waits else record.key
            need(_key(_OWN, own) == key, f"K10 {mid} has {own}, its key is {key}")


def _key(pattern: re.Pattern[str], text: object) -> str:
    match = pattern.match(str(text or ""))
    return match[1] if match else ""
