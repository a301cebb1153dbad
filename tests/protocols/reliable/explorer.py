"""Every interleaving of a few clients on a few messages, breadth first, each state once.

Clients pop, wait in line, get tickets, acknowledge, give back, recover and die at any moment; the scripts are
the real ones, the server is the model's mini-Redis.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobq.client.scripts import Script, folder
from tests.model.breadth_first import BreadthFirst
from tests.model.explored import Explored
from tests.model.machine import Violation

MODEL = Path(__file__).parents[2] / "model" / "lua"
AGE_MS = 500
PATIENCE_MS = 1000
START = 1_700_000_000_000
#: An id or a token.
_NAMED = re.compile(r"1\d{12}-\d+|[A-Z]\d+")


@dataclass(frozen=True)
class Scope:
    """What may happen, and how often."""

    name: str
    pushes: int = 3
    together: int = 1
    clients: str = "AB"
    deaths: int = 1
    gives_back: int = 1
    recovers: int = 2
    max_deliveries: int = 0
    count: int = 1


@dataclass(frozen=True)
class World:
    """What isn't in Redis: who waits in which order, who has which ticket, who believes to hold what."""

    now: int
    left: dict[str, int]
    line: tuple[str, ...] = ()
    tickets: tuple[tuple[str, str], ...] = ()
    holds: tuple[tuple[str, str, str], ...] = ()  # client, id, token
    holder: tuple[tuple[str, str], ...] = ()  # id, the token that must be good
    live: tuple[str, ...] = ()
    numbers: int = 0

    def budget(self, what: str) -> int:
        return self.left[what]

    def spend(self, what: str) -> World:
        return replace(self, left={**self.left, what: self.left[what] - 1})

    def copy(self) -> World:
        """Return the same one: a step makes another."""
        return self


class Explorer(BreadthFirst[World]):
    """One scope; `change`: a textual change of the scripts that it must notice."""

    def __init__(
        self, scope: Scope, change: tuple[str, str] | None = None, depth: int | None = None
    ) -> None:
        self.scope = scope
        runtime = importlib.import_module("lupa.luajit21").LuaRuntime(unpack_returned_tuples=True)
        runtime.execute("if jit then jit.off() end collectgarbage('setpause', 400)")
        compile = runtime.eval("function(text) return assert(loadstring(text)) end")

        def part(path: Path, *args: Any) -> Any:
            return compile(path.read_text(encoding="utf-8"))(*args)

        self.store = part(MODEL / "mini_redis.lua")
        part(MODEL / "hashes_sets.lua", self.store)
        part(MODEL / "lists_zsets.lua", self.store)
        self.host = part(Path(__file__).with_name("host.lua"), self.store)
        super().__init__(self.host, scope, depth)
        self._changed = 0
        for path in sorted((folder() / "reliable").glob("[a-z]*.lua")):
            text = Script(path).text
            if change:
                self._changed += text.count(change[0])
                text = text.replace(*change)
            self.host.load(path.stem, "--" + text)
        if change and not self._changed:
            raise ValueError(f"no script has {change[0]!r} any more")

    def call(self, world: World, verb: str, *args: Any, caller: str = "X") -> list[Any]:
        """One numbered call; rows as lists."""
        words = [str(arg) for arg in args]
        reply = self.host.run(verb, caller, str(world.numbers + 1), str(world.now), *words)
        if reply is None or isinstance(reply, bool | int | float):
            return []
        return [list(row.values()) if hasattr(row, "values") else row for row in reply.values()]

    def run(self) -> Explored:
        scope = self.scope
        left = {
            "push": scope.pushes, "die": scope.deaths, "back": scope.gives_back, "recover": scope.recovers
        }  # fmt: skip
        if scope.max_deliveries:
            self.host.run("configure", "", "", str(START), str(scope.max_deliveries))
        return self.search(World(START, left))

    def act(self, world: World, step: tuple[str, ...]) -> World:
        return self._served(getattr(self, step[0])(world, *step[1:]))

    def judge(self, world: World) -> None:
        broken = self.host.broken(" ".join(world.live))
        if broken:
            raise Violation(broken)
        self._drain(world)

    def state(self, world: World) -> str:
        """Alike for worlds that differ in times, ids, tokens and budgets only."""
        parts = (self.host.text(world.now, AGE_MS, PATIENCE_MS), world.line, world.tickets,
                 sorted(world.holds), world.holder, world.live)  # fmt: skip
        names: dict[str, str] = {}
        return _NAMED.sub(
            lambda found: names.setdefault(found[0], f"#{len(names)}"), "\n".join(map(str, parts))
        )

    def _served(self, world: World) -> World:
        """The server gives tickets to those in line, who waits longest first."""
        while world.line:
            ticket = self.host.give_ticket()
            if ticket is None:
                break
            first, *rest = world.line
            world = replace(world, line=tuple(rest), tickets=(*world.tickets, (first, ticket)))
        return replace(world, numbers=world.numbers + 1)

    def moves(self, w: World) -> Iterator[tuple[str, ...]]:
        """Everything that may happen next."""
        if w.budget("push"):
            yield ("push",)
        ticketed = dict(w.tickets)
        for client in self.scope.clients:
            held = [id for who, id, _ in w.holds if who == client]
            if client in ticketed:
                yield "claim", client
            elif client in w.line:
                yield "look_again", client
            elif len(held) < 2:
                yield "pop", client
                yield "wait", client
            for id in held:
                yield "ack", client, id
                if w.budget("back"):
                    yield "nack", client, id
                    yield "release", client, id
            if w.budget("recover") and client not in w.line and client not in ticketed:
                yield "recover", client
            if w.budget("die") and (held or client in w.line or client in ticketed):
                yield "die", client
        yield ("tick",)

    def push(self, w: World) -> World:
        ids = self.call(w, "push", *["c"] * self.scope.together)
        return replace(w.spend("push"), live=(*w.live, *ids))

    def got(self, w: World, client: str, rows: list[Any], token: str) -> World:
        ids = [row[-2] for row in rows]
        holder = {**dict(w.holder), **dict.fromkeys(ids, token)}
        holds = (*w.holds, *((client, id, token) for id in ids))
        if len(set(ids)) < len(ids) or not set(ids) <= set(w.live):
            raise Violation(f"{client} was handed {ids}")
        return replace(w, holds=holds, holder=tuple(sorted(holder.items())))

    def pop(self, w: World, client: str, *more: str) -> World:
        token = f"{client}{w.numbers}"
        rows = self.call(w, "pop", "COUNT", self.scope.count, "TOKEN", token, *more)
        again = self.call(w, "pop", "COUNT", self.scope.count, "TOKEN", token, *more)
        if rows != again:
            raise Violation(f"the same call answered {rows}, then {again}")
        return self.got(w, client, rows, token)

    def wait(self, w: World, client: str) -> World:
        after = self.pop(w, client)
        return after if after.holds != w.holds else replace(w, line=(*w.line, client))

    def claim(self, w: World, client: str) -> World:
        ticket = dict(w.tickets)[client]
        without = replace(w, tickets=tuple(one for one in w.tickets if one[0] != client))
        after = self.pop(without, client, "TICKET", ticket)
        return after if after.holds != w.holds else replace(after, line=(*w.line, client))

    def look_again(self, w: World, client: str) -> World:
        self.host.run("rest", "", "", str(w.now), "NOW", str(w.now))
        return w

    def _ended(self, w: World, verb: str, client: str, id: str) -> World:
        token = next(token for who, one, token in w.holds if (who, one) == (client, id))
        good = dict(w.holder).get(id) == token
        words = ("FRONT", "RELEASE") if verb == "release" else ()
        ended = self.call(w, "nack" if words else verb, "TOKEN", token, *words, id)
        if (ended == [id]) != good:
            raise Violation(
                f"{verb} by {token} answered {ended}, the holder is {dict(w.holder).get(id)}"
            )
        holder = tuple(one for one in w.holder if one[0] != id or not good)
        holds = tuple(one for one in w.holds if one != (client, id, token))
        live = tuple(one for one in w.live if one != id or not good or verb != "ack")
        return replace(w, holds=holds, holder=holder, live=live)

    def ack(self, w: World, client: str, id: str) -> World:
        return self._ended(w, "ack", client, id)

    def nack(self, w: World, client: str, id: str) -> World:
        return self._ended(w, "nack", client, id).spend("back")

    def release(self, w: World, client: str, id: str) -> World:
        return self._ended(w, "release", client, id).spend("back")

    def recover(self, w: World, client: str) -> World:
        token = f"{client}{w.numbers}"
        rows = self.call(w, "recover", 1, AGE_MS, "TOKEN", token)
        after = self.got(w, client, rows, token).spend("recover")
        dead = set(self.store.members(self.store.look("dead")).values())
        return replace(after, holder=tuple(one for one in after.holder if one[0] not in dead))

    def die(self, w: World, client: str) -> World:
        return replace(
            w.spend("die"), line=tuple(one for one in w.line if one != client),
            tickets=tuple(one for one in w.tickets if one[0] != client),
            holds=tuple(one for one in w.holds if one[0] != client),
        )  # fmt: skip

    def tick(self, w: World) -> World:
        """Until what was delivered is old enough, and then until tickets are missed."""
        return replace(w, now=w.now + AGE_MS)

    def _drain(self, w: World) -> None:
        """All clients die; a second later one that comes gets every message, by itself."""
        w, found = replace(w, now=w.now + PATIENCE_MS), set[str]()
        for _ in range(4):
            for verb, args in (("pop", ("COUNT", 9)), ("recover", (9, 0))):
                ids = [row[-2] for row in self.call(w, verb, *args, caller="last")]
                if len(set(ids)) < len(ids):
                    raise Violation(f"{verb} answered {ids}")
                found.update(ids)
                w = replace(w, numbers=w.numbers + 1)
        found |= set(self.store.members(self.store.look("dead")).values())
        if found != set(w.live):
            raise Violation(f"{set(w.live) - found} stays behind")
