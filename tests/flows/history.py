"""A flow's life at random: drainers, workers and producers pause and die between any two calls. And what must hold.

The scripts, the queues and the drainers are the real ones. The time is the history's own, and goes in leaps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.flows.announcing import announce
from jobq.flows.draining import Drainer
from jobq.flows.identity import member_of
from jobq.flows.state import Edge, FlowFacts, StepFacts
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow, StoredStep
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Enqueued
from tests.flows.flowing import RUN, call_of
from tests.flows.lockstep import TurnTaker

F, PART = "import:7", "part:7"
QUEUES = ("low", "high")
START_MS = 1_700_000_000_000
#: A call that a program is about to make is made this soon, or the program is dead.
MAX_PAUSE_MS = 45 * 60_000
MAX_PROGRAMS = 8


class Broken(AssertionError):
    """A promise that a history broke."""


class WatchedQueue(Queue):
    """Reports what was accepted."""

    history: History

    def enqueue_members(self, contents: Any, **options: Any) -> Sequence[Enqueued]:
        found = super().enqueue_members(contents, **options)
        for one in found:
            if one.action == "added":
                self.history.accepted(one.mid)
        return found


class History:
    """One flow, from its start to its end."""

    drainer: type[Drainer] = Drainer

    def __init__(self, client: Client, redis: Any, seed: int, *, ncalls: int = 400) -> None:
        self.client, self.redis, self.rng, self.ncalls = client, redis, random.Random(seed), ncalls
        self.now = START_MS
        client.clock = lambda: self.now
        client.queues.clear()
        for name in QUEUES:
            client.queues[name] = WatchedQueue(name, client)
            client.queues[name].history = self
            # Looked up once, so that no history depends on the time of day.
            client.queues[name].listed_until = float("inf")
        self.store = FlowStore(client, F)
        self.naccepted: Counter[str] = Counter()
        self.done: set[str] = set()
        self.ended: set[str] = set()
        self.was_dead: set[str] = set()
        self.is_cancelled = False
        #: Whether a producer has stored all items of maps, before which none says that the flow begins.
        self.is_stored = False
        self.forges = self.rng.random() < 0.3
        self.steps = self._steps()
        #: The steps of a flow that is a step of this one, if there is one.
        self.part = self._part()
        #: Mid -> what its job returned.
        self.returned: dict[str, bytes] = {}
        self.programs: list[tuple[TurnTaker, int]] = []
        self.kills = 0

    # The flow.

    def _steps(self) -> dict[str, StoredStep]:
        rng, steps = self.rng, dict[str, StoredStep]()
        self.sizes: dict[str, int] = {}
        for number in range(rng.randint(2, 6)):
            name, queue = f"s{number}", rng.choice(QUEUES)
            whens = rng.choices(["done", "ended", "failed"], [8, 2, 1], k=len(steps))
            after = tuple(
                Edge(one, when)
                for one, when in zip(steps, whens, strict=True)
                if rng.random() < 0.5
            )
            kind = rng.choices(["step", "map", "wait"], [6, 2, 1])[0]
            source, call, options = "", call_of(name), b"{}"
            if kind == "map":
                source = "items" if after else "stream"
                self.sizes[name] = rng.randint(0, 3)
            if kind == "wait":
                timed = rng.random() < 0.5
                call, options = (call, b'{"delay": 900}') if timed else (b"", b"{}")
            steps[name] = StoredStep(name, kind, queue, after, source, options, call)  # type: ignore[arg-type]
        return steps

    def _part(self) -> dict[str, StoredStep]:
        """Replace a step by a sub-flow, at times."""
        single = [name for name, one in self.steps.items() if one.kind == "step"]
        if not single or self.rng.random() > 0.4:
            return {}
        name, queues = self.rng.choice(single), self.rng.choices(QUEUES, k=2)
        self.steps[name] = StoredStep(name, "flow", "", self.steps[name].after, PART)
        return {
            "x": StoredStep("x", "step", queues[0], (), "", b"{}", call_of("x")),
            "y": StoredStep("y", "step", queues[1], (Edge("x"),), "", b"{}", call_of("y")),
        }

    def mids(self, step: str) -> list[str]:
        return [f"~{F}.r1.{step}.{i}" for i in range(self.sizes.get(step, 1))]

    def _ends(self, when: str, step: str) -> bool:
        """Return whether a step has come to such an end, judged by the ends of its messages."""
        if self.steps[step].kind == "flow":
            x, y = (f"~{PART}.r1.{name}.0" for name in self.part)
            over = x in self.ended and (y in self.ended or x in self.was_dead)
            met = {
                "done": {x, y} <= self.done,
                "ended": over,
                "failed": over and bool({x, y} & self.was_dead),
            }
            return met[when]
        mids = set(self.mids(step))
        met = {
            "done": mids <= self.done,
            "ended": mids <= self.ended,
            "failed": mids <= self.ended and bool(mids & self.was_dead),
        }
        return met[when]

    # Programs.

    def start(self) -> None:
        if self.part:
            part = StoredFlow(
                tuple(self.part.values()), "hash", "high", 86_400_000, self._place_of_part()
            )
            FlowStore(self.client, PART).create(part._replace(life_ms=86_400_000, run_id=RUN))
        flow = StoredFlow(tuple(self.steps.values()), "hash", "low", 86_400_000, run_id=RUN)
        self.store.create(flow)
        for name, one in self.steps.items():
            if one.source == "items" and self.sizes[name]:
                calls = [call_of(mid) for mid in self.mids(name)]
                self.store.put_items(name, one.queue, 0, calls)
        self.is_stored = True
        announce(self.client, "low", "begin", F)
        for name, one in self.steps.items():
            if one.source == "stream":
                self.stream(name)

    def stream(self, name: str) -> None:
        """Enqueue members like the producer of a map."""
        mids = self.mids(name)
        if mids:
            found = self.store.reserve(name, 0, len(mids))
            if found.outcome == "doubt":
                page = self.store.page(name, "live")
                mids = [mids[one] for one in page.numbers]
            if found.outcome in ("new", "doubt"):
                queue = self.client.queues[self.steps[name].queue]
                rows = [(mid, b"v") for mid in mids]
                queue.enqueue_members(rows, in_order=True)
        self.store.seal(name, 1 if self.mids(name) else 0)
        announce(self.client, "low", "look", F)

    def drain(self) -> None:
        self.drainer(self.client, lambda: self.now * 1_000_000).drain(self.rng.choice(QUEUES))

    def work(self, name: str = "", bad: float = 0.2) -> int:
        """Run waiting messages; messages."""
        queue: Queue = self.client.queues[name or self.rng.choice(QUEUES)]
        found = queue.dequeue(self.rng.randint(1, 3), crash_limit=1000).messages
        for one in found:
            outcome = "dead" if self.rng.random() < bad else "done"
            returned = one.mid.encode() if outcome == "done" and self._returns(one.mid) else b""
            kept = {"result": returned, "result_ttl": 86_400} if returned else {"reason": "why"}
            ending = Ending(mid=one.mid, token=one.token, outcome=outcome, **kept)
            reply = queue.finish([ending], crash_limit=1000).replies[0]
            if reply in ("ok", "dead"):
                self.ended.add(one.mid)
                (self.done if outcome == "done" else self.was_dead).add(one.mid)
                if returned:
                    self.returned[one.mid] = returned
        return len(found)

    def _returns(self, mid: str) -> bool:
        """Whether the job of a message returns something; the timer of a wait never does."""
        member = member_of(mid)
        assert member is not None
        of_wait = member.flow == F and self.steps[member.step].kind == "wait"
        return not of_wait and sum(mid.encode()) % 2 == 1

    def revive(self) -> None:
        queue = self.client.queues[self.rng.choice(QUEUES)]
        queue.admin.revive(*(one.dead_id for one in queue.admin.dead() if self.rng.random() < 0.7))

    def say(self) -> None:
        word = self.rng.choice(["retry", "retry", "look", "begin", "signal", "signal"])
        waits = [name for name, one in self.steps.items() if one.kind == "wait"]
        if word == "signal" and waits:
            announce(self.client, "low", "signal", F, f"{self.rng.choice(waits)}\x1fyes")
        elif word == "retry":
            announce(self.client, "low", "retry", F, self.rng.choice(["", *self.steps]))
        elif word != "signal" and (word != "begin" or self.is_stored):
            announce(self.client, "low", word, F)  # type: ignore[arg-type]

    def cancel(self) -> None:
        announce(self.client, "low", "cancel", F)
        self.is_cancelled = True

    def forge(self) -> None:
        """A tenant of another queue writes what isn't so."""
        queue = self.rng.choice(QUEUES)
        mids = [
            mid for name, one in self.steps.items() if one.queue != queue for mid in self.mids(name)
        ]
        if mids:
            self.redis.xadd(
                f"jobq:{{{queue}}}:flow-outbox", {"1": f"done\x1f{self.rng.choice(mids)}"}
            )
        if queue != "low":
            self.redis.xadd(f"jobq:{{{queue}}}:flow-outbox", {"1": f"cancel\x1f{F}"})

    # The invariants.

    def accepted(self, mid: str) -> None:
        """F2 and F4, when a message is accepted."""
        self.naccepted[mid] += 1
        member = member_of(mid)
        assert member is not None
        is_part = member.flow == PART
        step = (self.part if is_part else self.steps)[member.step]
        if self.naccepted[mid] > 1:
            raise Broken(f"F2 {mid} was accepted twice")
        if is_part and step.name == "y" and f"~{PART}.r1.x.0" not in self.done:
            raise Broken("F4 y goes before x")
        after = (
            self.steps[self._place_of_part().rpartition(".")[2]].after if is_part else step.after
        )
        for edge in after:
            self._check_edge(step.name, edge)

    def _check_edge(self, name: str, edge: Edge) -> None:
        if self.steps[edge.step].kind == "wait":
            return
        if not self._ends(edge.when, edge.step):
            raise Broken(f"F4 {name} goes before {edge}")

    def _place_of_part(self) -> str:
        """`flow.run_id.step` that the sub-flow is."""
        return next(f"{F}.{RUN}.{name}" for name, one in self.steps.items() if one.kind == "flow")

    def check_bits(self) -> None:
        """F3 and F6: counts equal the bits, and done steps have ended."""
        self._check_bits(self.store.prefix, self.steps)
        if self.part:
            self._check_bits(FlowStore(self.client, PART).prefix, self.part)

    def _check_bits(self, prefix: str, steps: dict[str, StoredStep]) -> None:
        bits = {name: self.redis.get(prefix + name) or b"" for name in ("done", "ended", "retried")}

        def is_set(name: str, at: int) -> bool:
            raw = bits[name]
            return at // 8 < len(raw) and bool(raw[at // 8] & (128 >> at % 8))

        meta = self.redis.hgetall(f"{prefix}meta")
        for step in steps:
            counts = [int(one) for one in meta[f"n:{step}".encode()].split(b",")]
            extents = meta.get(f"x:{step}".encode(), b"").decode()
            places = [
                at
                for one in filter(None, extents.split(","))
                for first, length in [map(int, one.split(":"))]
                for at in range(first, first + length)
            ][: counts[0]]
            found = [
                sum(is_set(name, at) for at in places) for name in ("done", "ended", "retried")
            ]
            if found != [counts[1], counts[2], counts[8]]:
                raise Broken(f"F3 {step}: counted {counts}, set {found}")
            if any(is_set("done", at) and not is_set("ended", at) for at in places):
                raise Broken(f"F6 {step}: done and not ended")

    def check_end(self) -> None:
        """F1: nothing lives, nothing waits, and the flow is over."""
        facts = self.store.facts()
        if facts is None:
            raise Broken("F1 the flow is gone")
        self.check_bits()
        if not facts.ended_at or facts.state not in ("done", "failed", "cancelled"):
            raise Broken(f"F1 {facts}")
        for queue in QUEUES:
            prefix = f"jobq:{{{queue}}}:"
            if self.redis.xlen(f"{prefix}flow-outbox"):
                raise Broken(f"F1 the outbox of {queue} isn't empty")
            if self._members(queue):
                raise Broken(f"F1 {queue} holds members")
        if not self.is_cancelled:
            self._check_state(facts)
            self._check_results()

    def _check_results(self) -> None:
        """F7: a member's result is stored, and its queue no longer has it."""
        for flow in (F, PART):
            names = {
                mid.split(".", 2)[2].replace(".", ":"): mid
                for mid in self.returned
                if mid.startswith(f"~{flow}.")
            }
            found = FlowStore(self.client, flow).results(list(names))
            for name, mid in names.items():
                if mid in self.done and found.get(name) != self.returned[mid]:
                    raise Broken(
                        f"F7 {mid} returned {self.returned[mid]!r}, kept is {found.get(name)!r}"
                    )

    def _check_state(self, facts: FlowFacts) -> None:
        """F5: the state follows from the bits."""
        steps = {one.name: one for one in facts.steps}
        for one in facts.steps:
            met = all(self._is_met(steps[edge.step], edge.when) for edge in one.after)
            if met and not one.ready_at and all(edge.when != "failed" for edge in one.after):
                raise Broken(f"F5 {one.name} may go and never went")
            if one.ready_at and one.size != self.sizes.get(one.name, 1):
                raise Broken(f"F5 {one.name} has {one.size} members")
            ndone = len(set(self.mids(one.name)) & self.done)
            if one.kind == "flow":
                ndone = int(self._ends("done", one.name))
            if one.ready_at and one.kind != "wait" and one.done != ndone:
                raise Broken(f"F5 {one.name}: {one.done} done, {self.done} in truth")
        bad = any(one.ready_at and one.done < one.size for one in facts.steps)
        if facts.state != ("failed" if bad else "done"):
            raise Broken(f"F5 the flow is {facts.state}: {steps}")

    @staticmethod
    def _is_met(step: StepFacts, when: str) -> bool:
        if not step.ready_at or not step.sealed or step.ended < step.size:
            return False
        if when == "done":
            return step.done == step.size
        return when == "ended" or step.done < step.size

    def _members(self, queue: str) -> int:
        """Live messages of flows."""
        return int(self.redis.hget(f"jobq:{{{queue}}}:meta", "members") or 0)

    # How it goes.

    def run(self) -> None:
        self._launch("start", self.start)
        for _ in range(self.ncalls):
            self._pass_time()
            self._turn()
        for program, _ in self.programs:
            program.kill()
        self.programs.clear()
        self._end_well()

    def _pass_time(self) -> None:
        leap = self.rng.choices([0, 300, 20_000, 400_000, 2_000_000], [20, 10, 4, 1, 0.5])[0]
        self.now += leap
        for pair in [one for one in self.programs if self.now - one[1] > MAX_PAUSE_MS]:
            pair[0].kill()
            self.programs.remove(pair)

    def _turn(self) -> None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.28 and len(self.programs) < MAX_PROGRAMS:
            kinds: list[tuple[str, Callable[[], Any], float]] = [
                ("drain", self.drain, 6), ("work", self.work, 6), ("revive", self.revive, 1), ("say", self.say, 2),
                ("start", self.start, 1), ("cancel", self.cancel, 0.05), ("forge", self.forge, self.forges),
            ]  # fmt: skip
            name, program, _ = rng.choices(kinds, [one[2] for one in kinds])[0]
            self._launch(name, program)
        elif chance < 0.34:
            # Claims last a second.
            for queue in QUEUES:
                self.redis.delete(f"jobq:{{{queue}}}:flow-claim")
        elif self.programs:
            at = rng.randrange(len(self.programs))
            program, _ = self.programs[at]
            if rng.random() < 0.06:
                program.kill()
                self.kills += 1
            else:
                program.go()
            self.programs[at] = (program, self.now)
            if program.is_over:
                del self.programs[at]
                if program.error is not None:
                    raise program.error

    def _launch(self, name: str, program: Callable[[], Any]) -> None:
        self.programs.append((TurnTaker(name, program), self.now))

    def _end_well(self) -> None:
        """No process dies from here: the same call again, then everything runs until nothing moves."""
        self.start()
        for retry in (False, True):
            self._run_down()
            self.check_end()
            if retry or self.is_cancelled:
                break
            announce(self.client, "low", "retry", F)
        facts = self.store.facts()
        if not self.is_cancelled and (facts is None or facts.state != "done"):
            raise Broken(f"F1 all was retried and done, and the flow is {facts}")

    def _run_down(self) -> None:
        drainer = self.drainer(self.client, lambda: self.now * 1_000_000)
        for _ in range(60):
            self.now += 60_000
            for queue in QUEUES:
                self.redis.delete(f"jobq:{{{queue}}}:flow-claim")
            moved = sum(drainer.drain(queue) for queue in QUEUES)
            moved += sum(self.work(queue, 0) for queue in QUEUES for _ in range(8))
            if not moved and not self._open_waits() and not any(map(self._members, QUEUES)):
                return
        raise Broken(f"F1 it moves on and on: {self.store.facts()}")

    def _open_waits(self) -> bool:
        """Signal those that wait for nothing else; whether there were any."""
        facts = self.store.facts()
        found = (
            [one.name for one in facts.steps if one.kind == "wait" and one.sent and one.live]
            if facts
            else []
        )
        for name in found:
            announce(self.client, "low", "signal", F, f"{name}\x1fyes")
        return bool(found)
