"""The real Lua text of the engine, or of topics, over mini-Redis, in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jobq.client.scripts import Script, folder

HERE = Path(__file__).parent / "lua"


class Violation(AssertionError):
    """A promise that doesn't hold."""


class Mutation:
    """One textual change to the Lua that the explorer must notice."""

    def __init__(self, name: str, before: str, after: str, scope: str) -> None:
        self.name, self.before, self.after, self.scope = name, before, after, scope

    def __repr__(self) -> str:
        return self.name


LAP = "local lap = nready == 0 and 100 or math.min(100, 2 * limit + 8)"
WALKS = "{} % {} + {} >= {} or not (since >= 0 and since < {})"
LONG = "{} % {} + {} >= {} and redis.call('LLEN', circle) > {}"


def lap_of(length: int) -> tuple[Mutation, ...]:
    """Upkeep that looks at so few mids: no fault, only less at a time."""
    name = f"laps of {length}"
    return (
        Mutation(name, LAP, f"local lap = {length}", ""),
        Mutation(name, "walk(100, by", f"walk({length}, by", ""),
    )


def walked_every(dequeued: int, ms: int, often: int, length: int) -> tuple[Mutation, ...]:
    """Walk the circle more often, which is no fault, so that states of few messages reach the walk.

    With more than `length` mids it is walked with every `often` hand-outs.
    """
    return tuple(
        Mutation(f"walks every {dequeued}", text.format(*usual), text.format(*ours), "")
        for before, more in (("before", "nhanded"), ("fence", "nmids"))
        for text, usual, ours in (
            (WALKS, (before, 50, more, 50, 100), (before, dequeued, more, dequeued, ms)),
            (LONG, (before, 10, more, 10, 1_000), (before, often, more, often, length)),
        )
    )


Args = tuple[str | int, ...]


def _plain_enqueue(args: Args) -> Args | None:
    options = args[2:13]
    return (*args[:2], *args[13:]) if len(args) == 15 and not any(options) else None


def _plain_dequeue(args: Args) -> Args:
    return (*args[:4], args[5])


def _plain_finish(args: Args) -> Args | None:
    endings = [args[i : i + 6] for i in range(7, len(args), 6)]
    if not endings or len(endings) != args[6]:
        return None
    if any(ending[2:4] != ("done", "") for ending in endings):
        return None
    rows = [part for ending in endings for part in (*ending[:2], *ending[4:])]
    return (*args[:4], args[5], *rows)


PLAIN: dict[str, Callable[[Args], Args | None]] = {
    "enqueue": _plain_enqueue, "dequeue": _plain_dequeue, "finish": _plain_finish,
}  # fmt: skip
"""From the arguments of a script to those of the one for plain calls; None for a call that isn't plain."""


def _spelled_out(name: str, args: Args, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    """The reply of a script for plain calls, as the script that takes every call gives it."""
    head = ("handed",) if name == "dequeue" else ("ok",) * int(args[6])
    if len(reply) < 4:
        return head if len(reply) == 1 else (*head, reply[1], 0, reply[2])
    _, sleep_ms, fence, lock_at, mids, contents = reply
    pairs = [(mids, contents)]
    if not isinstance(mids, str):
        pairs = list(zip(mids.values(), contents.values(), strict=True))
    rows = [part for mid, content in pairs for part in (mid, content, 1, 0, "", lock_at, 0)]
    return (*head, sleep_ms, 0, fence, *rows)


@cache
def scripts_of(area: str) -> tuple[tuple[Path, Script], ...]:
    """Read the scripts of a folder of `lua/` once."""
    paths = sorted((folder() / area).glob("[a-z]*.lua"))
    if area == "queue":
        paths.append(folder() / "shared/put_entry.lua")
    return tuple((path, Script(path)) for path in paths)


@cache
def _dump_of(lua: str) -> Any:
    """Return a function that compiles Lua to bytes, in a runtime of its own."""
    runtime = importlib.import_module(f"lupa.{lua}").LuaRuntime(encoding=None)
    return runtime.eval(
        b"function(text, name) return string.dump(assert(loadstring(text, '=' .. name))) end"
    )


@cache
def compiled(lua: str, text: str, name: str) -> bytes:
    """Compile Lua once: every machine of this process loads the same bytes."""
    dumped: bytes = _dump_of(lua)(text.encode(), name.encode())
    return dumped


class Machine:
    """Scripts, one database, and its snapshots."""

    def __init__(
        self,
        mutations: Sequence[Mutation] = (),
        lua: str = "luajit21",
        area: str = "queue",
        slots: Sequence[str] = ("",),
    ) -> None:
        """slots: before the names of keys; the scripts of each have the same before their names."""
        module, self._lua = importlib.import_module(f"lupa.{lua}"), lua
        self._lua_error = module.LuaError
        runtime = module.LuaRuntime(unpack_returned_tuples=True)
        # Compiling traces costs more than it gives here, and garbage is looked for less often.
        runtime.execute("if jit then jit.off() end collectgarbage('setpause', 400)")

        def part(name: str, *args: Any) -> Any:
            text = (HERE / f"{name}.lua").read_text()
            return runtime.eval("loadstring")(compiled(lua, text, name))(*args)

        store = part("mini_redis")
        part("hashes_sets", store)
        part("lists_zsets", store)
        part("streams", store)
        part("bits", store)
        snapshots = part("snapshots", store)
        scripts = part("runtime", store, snapshots)
        snapshots.struct = scripts.struct
        self.add_script = scripts.load
        self._load_scripts(mutations, area, slots)
        self.store = store
        self.run_script, self.command, self.reset = scripts.run, scripts.command, scripts.reset
        self.emitted, self.writes = scripts.emitted, scripts.writes
        self.forget, self.next_time = scripts.forget, scripts.next_time
        self._undeclared = scripts.undeclared
        self.leftovers, self.for_flows = scripts.leftovers, scripts.for_flows
        self.take, self.open, self.put = snapshots.take, snapshots.open, snapshots.put
        self.canonical, self.unchanged = snapshots.canonical, snapshots.unchanged
        self.whole, self.keys = snapshots.whole, snapshots["keys"]
        invariants = part("invariants", store, snapshots, scripts.struct)
        self.settled, self.broken = invariants.settled, invariants.broken
        self.recount = invariants.recount
        self.bound_dry_runs = invariants.bound_dry_runs
        self.walks_every = invariants.walks_every
        self.topic = part("topic_facts", store)

    def _load_scripts(self, mutations: Sequence[Mutation], area: str, slots: Sequence[str]) -> None:
        unused = set(mutations)
        for path, script in scripts_of(area):
            text = script.text
            for mutation in mutations:
                if mutation.before in text:
                    if text.count(mutation.before) != 1:
                        raise ValueError(f"{mutation}: its pattern isn't unique in {path.name}")
                    text = text.replace(mutation.before, mutation.after)
                    unused.discard(mutation)
            if text.startswith("#!"):
                text = "--" + text
            for slot in slots:
                keys = " ".join(slot + key for key in script.keys)
                self.add_script(slot + path.stem, compiled(self._lua, text, path.name), keys)
        if unused:
            raise ValueError(f"{unused}: no script holds the pattern any more")

    def run(self, name: str, caller: str, now: int, *args: str | int) -> tuple[Any, ...]:
        """One call, as clients make it: of the script for plain calls first, where it may be one; the reply."""
        plain = PLAIN[name](args) if name in PLAIN else None
        if plain is not None:
            reply = self._run(f"{name}_plain", caller, now, *plain)
            if reply != ("general",):
                return _spelled_out(name, args, reply) if reply[0] == "plain" else reply
        return self._run(name, caller, now, *args)

    def _run(self, name: str, caller: str, now: int, *args: str | int) -> tuple[Any, ...]:
        """One script, atomically; its reply item by item."""
        try:
            reply = self.run_script(name, caller, now, *[str(arg) for arg in args])
        except self._lua_error as error:
            text = str(error).splitlines()[0]
            if text.startswith(("I16 ", "I18 ")):
                raise Violation(text) from error
            if "undeclared key" not in text:
                raise
            raise Violation(f"I19 {name}: {text}") from error
        return reply if isinstance(reply, tuple) else () if reply is None else (reply,)

    def describe(self, script: str, lines: Sequence[str]) -> list[str]:
        """Return the reply of a script that only reads ARGV and calls Redis."""
        self.add_script("described", script, "")
        self._undeclared(True)
        return list(self.run_script("described", "", 1_000_000, *lines))
