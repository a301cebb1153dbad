"""Random histories of calls on one limit, at moments of their own, against what limits promise.

R1: in no span more starts than the rate allows, but for those given back. R2: the ring's times don't increase from its
head. R3: no more slots in use than there are. R4: the same token holds one slot, the same call counts once. R5: a
limit that is held allows nothing. R6: what is refused is free at the moment that was named, if nothing else comes.
"""

from __future__ import annotations

from random import Random
from typing import Any

from jobq.client.scripts import Script, load

BEGIN = 1_700_000_000_000
START = "jobq:limit:{x}:"


class Broken(AssertionError):
    """A promise that wasn't kept."""


def must(holds: bool, what: str, *facts: Any) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(f"{what}: {facts}")


class World:
    """One limit on a server. changed: scripts with a fault, by name."""

    def __init__(self, redis: Any, changed: dict[str, str]) -> None:
        self.redis = redis
        self.now = BEGIN
        self._changed = changed
        self._loaded: dict[str, tuple[str, Script]] = {}
        self._number = 0

    def run(self, name: str, **values: Any) -> Any:
        """Call a script at the moment that it is."""
        return self.call(name, self.command(name, **values))

    def command(self, name: str, **values: Any) -> list[Any]:
        """The keys and arguments of a call, under a new number."""
        _, script = self._script(name)
        self._number += 1
        known = {"now": self.now, "caller": "c", "number": self._number, **values}
        rest = known.pop("rest", ())
        keys = [START + ("call:c" if key == "last_call" else key) for key in script.keys]
        return [len(keys), *keys, *(known[arg] for arg in script.args), *rest]

    def call(self, name: str, command: list[Any]) -> Any:
        """Make a call."""
        return self.redis.evalsha(self._script(name)[0], *command)

    def _script(self, name: str) -> tuple[str, Script]:
        if name not in self._loaded:
            script = load("limit", name)
            text = self._changed.get(name, script.text)
            self._loaded[name] = (self.redis.script_load(text), script)
        return self._loaded[name]


class Starts:
    """A history of one rate."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.in_ring = random.random() < 0.5
        self.most = random.choice([1, 2, 5, 40] if self.in_ring else [10_001, 30_000])
        self.costs = [1, 1, 1, 2, 3]
        if not self.in_ring:
            self.costs = [1, self.most // 40, self.most // 20, self.most // 20]
        self.span, margin = random.choice([1_000, 60_000]), random.choice([0, 0, 137])
        self.rate = {"most": self.most, "span_ms": self.span, "margin_ms": margin}
        self.window = self.span + margin
        #: About how much time passes between two calls.
        self.pace = self.span // random.choice([3, 25] if self.in_ring else [10, 20])
        #: When, and how many of them count.
        self.taken: list[list[int]] = []
        self.held = 0
        #: Whether it is held, or idle for long, at times.
        self.interrupted = random.random() < 0.5

    def step(self) -> None:
        """Let time pass, and make a call."""
        random = self.random
        pace = self.pace
        self.world.now += random.choice([0, 0, 1, 3, pace // 2, pace, 2 * pace])
        if random.random() < 0.02 * self.interrupted:
            self.world.now += self.window
        action = random.random()
        if action < 0.05 * self.interrupted:
            self.hold()
        elif action < 0.2 and self.taken:
            self.settle(random.choice(self.taken[-5:]))
        else:
            self.take()
        if self.in_ring:
            self.look()

    def hold(self) -> None:
        """Nothing starts for a while."""
        length = self.random.choice([0, 5, self.span])
        self.world.run("hold", hold_ms=length)
        self.held = max(self.held, self.world.now + length) if length else 0

    def settle(self, start: list[int], unused: int = 0) -> None:
        """Give some of a start back."""
        at, cost = start
        if cost:
            unused = unused or self.random.randint(1, cost)
            command = self.world.command("settle", started=at, unused=unused, **self.rate)
            replies = [self.world.call("settle", command)[1] for _ in range(2)]
            must(replies[0] == replies[1], "R4 settle", replies)
            must(replies[0] <= unused, "settle", replies, unused)
            # Of a rate above 10,000 it is kept where giving it back changes nothing.
            start[1] -= replies[0] if self.in_ring else unused

    def take(self) -> None:
        """Start something; or, if it is refused, perhaps at the moment when that is free."""
        world, cost = self.world, min(self.random.choice(self.costs), self.most)
        patience = self.random.choice([0, 3_600_000])
        word, *facts = self.started(cost, patience)
        if word == b"ok":
            return
        must(
            (word == b"held") == (self.held > world.now and facts[0] == self.held - world.now),
            "held",
            word,
        )
        must(facts[0] > 0, "R6", facts)
        if self.random.random() < 0.3:
            world.now += facts[0] - 1
            if facts[0] > 1:
                must(self.started(cost, 0)[0] != b"ok", "R6 early", facts)
            world.now += 1
            must(self.started(cost, 0)[0] == b"ok", "R6", facts)

    def started(self, cost: int, patience: int) -> Any:
        """The reply to a start, which is counted."""
        world = self.world
        command = world.command("take", cost=cost, patience_ms=patience, **self.rate)
        reply = world.call("take", command)
        if reply[0] == b"ok":
            must(world.now >= self.held, "R5", world.now, self.held)
            self.taken.append([world.now, cost])
            must(world.call("take", command) == reply, "R4 take")
            used = self.used()
            must(used <= self.most, "R1", used, self.most)
        return reply

    def used(self) -> int:
        """Starts of the last span."""
        return sum(n for at, n in self.taken if self.world.now - at <= self.window)

    def look(self) -> None:
        """The ring, and what people see of it."""
        ring = [int(one) for one in self.world.redis.lrange(START + "ring", 0, -1)]
        must(ring == sorted(ring, reverse=True), "R2", ring)
        counted = self.world.run("look", **self.rate)[3]
        must(counted == min(self.used(), self.most), "look", counted)


def starts(redis: Any, seed: int, steps: int, changed: dict[str, str]) -> None:
    """A history of one rate."""
    redis.flushall()
    random = Random(seed)
    history = Starts(World(redis, changed), random)
    for _ in range(steps):
        history.step()


def greedy(redis: Any, seed: int, steps: int, changed: dict[str, str]) -> None:
    """As much as a rate allows, at each moment that it names; a start from before is given back in between."""
    redis.flushall()
    random = Random(seed)
    history = Starts(World(redis, changed), random)
    most = history.most if history.in_ring else history.most // 20
    history.started(most, 0)
    history.world.now += history.span // random.choice([1, 10])
    given_back, cost = random.randrange(steps), max(1, most // 4)
    for number in range(2 * steps):
        if number == given_back:
            history.settle(history.taken[0], most)
        reply = history.started(cost, 0)
        if reply[0] != b"ok":
            history.world.now += reply[1]
            must(history.started(cost, 0)[0] == b"ok", "R6", reply)


def slots(redis: Any, seed: int, steps: int, changed: dict[str, str]) -> None:
    """A history of slots, whose holders may stop to renew."""
    random = Random(seed)
    redis.flushall()
    world = World(redis, changed)
    most, lease = random.choice([1, 2, 5]), 1_000
    ends: dict[str, int] = {}
    held = number = 0
    for _ in range(steps):
        world.now += random.choice([0, 1, 50, 300, 999, 1_000])
        live = {token for token, end in ends.items() if end > world.now}
        action = random.random()
        if action < 0.05:
            length = random.choice([0, 5, 2_000])
            world.run("hold", hold_ms=length)
            held = max(held, world.now + length) if length else 0
        elif action < 0.3 and ends:
            token = random.choice(sorted(ends))
            must(world.run("leave", token=token)[1] in (0, 1), "leave")
            ends.pop(token)
        elif action < 0.6 and ends:
            tokens = random.sample(sorted(ends), random.randint(1, len(ends)))
            reply = world.run("renew", most=most, lease_ms=lease, rest=tokens)[1:]
            for token, kept in zip(tokens, reply, strict=True):
                must(kept == (token in live or len(live) < most), "renewed", token, kept, live)
                ends.pop(token)
                if kept:
                    ends[token] = world.now + lease
                    live.add(token)
        else:
            number += 1
            token = random.choice(sorted(live)) if live and random.random() < 0.2 else f"t{number}"
            word, *facts = world.run("enter", most=most, lease_ms=lease, token=token)
            if token in live:
                must(word == b"ok", "R4", word)
            if word == b"ok":
                must(token in live or held <= world.now, "R5", held)
                must(world.run("enter", most=most, lease_ms=lease, token=token)[0] == b"ok", "R4")
                ends[token] = world.now + lease
            elif word == b"wait":
                first = min((end for end in ends.values() if end > world.now), default=0)
                must(
                    len(live) >= most and facts[0] == first - world.now, "a free slot", live, facts
                )
        live = {token for token, end in ends.items() if end > world.now}
        must(len(live) <= most, "R3", live)
        must(redis.zcount(START + "holders", f"({world.now}", "+inf") == len(live), "R3", live)


def stepping(redis: Any, seed: int, steps: int, changed: dict[str, str]) -> None:
    """Slots of one limit are in use when the clock steps back far."""
    random = Random(seed)
    redis.flushall()
    world = World(redis, changed)
    lengths = random.sample([1_000, 5_000, 60_000], 2)
    slots = {"most": 3, "lease_ms": lengths[0]}
    for number, length in enumerate(lengths):
        world.run("enter", most=3, lease_ms=length, token=f"t{number}")
    world.now -= random.randint(100_000, 86_400_000)
    if random.random() < 0.5:
        world.run("renew", **slots, rest=["t0"])
    else:
        world.run("enter", **slots, token="new")
    ends = [int(end) for _, end in redis.zrange(START + "holders", 0, -1, withscores=True)]
    must(max(ends) <= world.now + max(lengths), "R7", ends, world.now, lengths)
    world.now += max(lengths)
    must(world.run("enter", most=1, lease_ms=1_000, token="late")[0] == b"ok", "R7", ends)


def resetting(redis: Any, seed: int, steps: int, changed: dict[str, str]) -> None:
    """Callers wait for turns of a slow rate when the server is set to a fast one."""
    random = Random(seed)
    redis.flushall()
    world = World(redis, changed)
    rate = {"most": random.randint(1, 5), "span_ms": 3_600_000, "margin_ms": 0}
    for _ in range(rate["most"]):
        world.run("take", cost=1, patience_ms=0, **rate)
    for _ in range(random.randint(1, 5)):
        world.run("take", cost=1, patience_ms=3_600_000, **rate)
    most = random.randint(10, 100)
    world.run("set", most=most, span_ms=1_000)
    replies = [world.run("take", cost=1, patience_ms=3_600_000, **rate) for _ in range(most)]
    turns = [turn for word, *facts in replies if word == b"wait" for turn in facts[1:2]]
    must(bool(turns) and max(turns) <= 2_000, "R8", turns)
