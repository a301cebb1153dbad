"""Breadth first over every interleaving of a small flow: the real scripts of its slot, drainers between any two calls.

The queues are modelled: their scripts' promises are explored elsewhere. Their mids are refused while they live or are
dead, and those of steps for a while when they are done; members up to the last one of their step that was accepted for
this flow, for a while too. That while may end at any moment. A step may be a whole other flow, with another queue as
its home.

F1  once nothing lives and nothing is said, the flow is over and its record is empty but for what is kept
F2  a step is accepted once, and each member of a map
F3  counts are those of the bits
F4  no step is accepted before its edges are met
F5  at the end the state is what follows from the bits
F6  what is done has ended
F7  a result is at its flow as soon as its member counts as done, as that run returned it; in the end no queue has it
F8  a step that is a flow ends as that flow did, and not before; F2 and F4 hold for what is behind it
F9  a flow that is over expires, and nothing of it goes on; one that goes on stays. A retry runs all that is dead. Once
    a cancel is taken, with nobody else at it, nothing lives. Nothing lives of one that is over, but by a cancel or by
    hand
F10 F2 to F9 hold for a flow that is started again under the id of one that was removed, whatever is still said to that,
    and whatever its drainers still do
F11 a sub-flow whose step never begins is cancelled; one that a retry may begin waits while that may come
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.model.breadth_first import BreadthFirst
from tests.model.digest import digest
from tests.model.expect import need
from tests.model.explored import Explored
from tests.model.flow.world import SUB, Drain, Numbered, Scope, Sender, StepOf, Target, Todo, World
from tests.model.machine import Machine, Mutation, Violation

NOW = 1_000_000_000
#: Of the flow and its sub-flow: the home queue, and the id.
HOMES, FLOWS = {"": "L", SUB: "H"}, {"": "f:1", SUB: "p:1"}
Action = tuple[Any, ...]
#: For how long a flow is kept once it is over, and how long a sub-flow waits for its begin at first.
KEEP_MS, LONG_MS = 60_000, 900_000
#: Chunks of one member, so that a small map has several.
CHUNKS = Mutation("chunks of one", "= 250, 250, 65000", "= 1, 1, 2", "")
LIVE = ("ready", "run")
ENDINGS = ("done", "done+", "dead", "cancelled")
OVER = ("done", "failed", "cancelled")
#: In place of the number of an entry.
NO_ENTRY = -1


class Explorer(BreadthFirst[World]):
    """One scope on one machine. fault: of drainers, by name."""

    def __init__(self, scope: Scope, mutation: Mutation | None = None, fault: str = "") -> None:
        self.machine = Machine(
            [CHUNKS, *([mutation] if mutation else [])], area="flow", slots=tuple(scope.slots)
        )
        super().__init__(self.machine, scope)
        self.scope, self.fault = scope, fault
        self._good: set[bytes] = set()

    def run(self) -> Explored:
        self.machine.reset()
        world = World(self.scope, dict(self.scope.budget), drains=(None,) * self.scope.drainers)
        self._start(world)
        return self.search(world)

    def _start(self, w: World) -> None:
        for slot, steps in reversed(self.scope.slots.items()):
            rows: list[Any] = []
            for one in steps:
                call = "c" if one.timed or one.kind not in ("wait", "flow") else ""
                queue, source = (one.queue, one.source) if one.kind != "flow" else ("", FLOWS[SUB])
                rows += (one.name, one.kind, queue, source, one.edges, "{}", call)
            parent = self._parent(w) if slot else ""
            life_ms = LONG_MS if slot else 60_000
            self._call(slot, "create", w.run, "hash", HOMES[slot], KEEP_MS, parent, life_ms, *rows)
        self._tell(w, "", "begin")

    @property
    def _place(self) -> str:
        """The step that the sub-flow is."""
        return next((one.name for one in self.scope.steps if one.kind == "flow"), "")

    def _parent(self, w: World) -> str:
        return f"{FLOWS['']}.r{w.run}.{self._place}"

    def judge(self, world: World) -> None:
        self._check(world)
        self._calm(world.copy())

    def state(self, world: World) -> bytes:
        return digest(f"{self.machine.whole()}\n{world.text()}")

    def _call(self, slot: str, name: str, run: int, *args: Any) -> tuple[Any, ...]:
        """A script that is told which run is meant."""
        return self.machine.run(slot + name, "", NOW, NOW, f"r{run}", *args)

    def _page(self, slot: str, step: str, what: str) -> tuple[Any, ...]:
        return self.machine.run(f"{slot}page", "", NOW, step, what, 0, 100)[1:]

    @staticmethod
    def _tell(w: World, slot: str, word: str, detail: str = "") -> None:
        w.say(HOMES[slot], (word, detail, slot))

    # Possible next steps.

    def moves(self, w: World) -> Iterator[Action]:
        for mid, state in w.messages.items():
            yield from self._of_message(w, mid, state)
        if w.taken:
            yield from self._rare(w, "forget")
        busy = [place for place, one in enumerate(w.drains) if one]
        for place in busy:
            yield ("drain", place)
            yield from self._rare(w, "kill", place)
        if len(busy) < len(w.drains):
            free = w.drains.index(None)
            for queue in sorted({where for _, where, *_ in w.outbox}):
                yield ("begin", free, queue)
        if self._streams() and w.producer != ("over",):
            yield ("produce",)
            if w.producer:
                yield from self._rare(w, "stop")
        for word in ("cancel", "retry", "signal", "forge"):
            yield from self._rare(w, word)
        if not any(state in LIVE for state in w.messages.values()) and self._is_over():
            yield from self._rare(w, "restart")

    def _of_message(self, w: World, mid: str, state: str) -> Iterator[Action]:
        if state == "ready":
            yield ("take", mid)
        elif state == "run":
            yield ("finish", mid)
            yield from self._rare(w, "die", mid)
            yield from self._rare(w, "lose", mid)
        else:
            yield from self._rare(w, "revive", mid)

    def _rare(self, w: World, *action: Any) -> Iterator[Action]:
        if w.left.get(action[0]):
            yield action

    def _streams(self) -> list[str]:
        return [one.name for one in self.scope.steps if one.source == "stream"]

    def act(self, w: World, action: Action) -> World:
        name, *rest = action
        if name in w.left:
            w.left[name] -= 1
        getattr(self, f"_do_{name}")(w, *rest)
        return w

    # Queues.

    def _do_take(self, w: World, mid: str) -> None:
        w.messages[mid] = "run"
        if self._step_of(w, mid).kept:
            times = int(w.running.get(mid, "#0").partition("#")[2])
            w.running[mid] = f"{mid}#{times + 1}"

    def _do_finish(self, w: World, mid: str) -> None:
        del w.messages[mid]
        if self._step_of(w, mid).kind != "map":
            w.taken |= {mid}
        w.done, w.ended = w.done | {mid}, w.ended | {mid}
        kind = "done"
        if mid in w.running:
            kind, w.results[mid], w.returned[mid] = "done+", w.running[mid], w.running[mid]
        w.say(self._queue_of(w, mid), (kind, mid, w.slot_of(mid)))

    def _do_die(self, w: World, mid: str) -> None:
        w.messages[mid] = "dead"
        w.ended, w.was_dead = w.ended | {mid}, w.was_dead | {mid}
        w.say(self._queue_of(w, mid), ("dead", mid, w.slot_of(mid)))

    def _do_lose(self, w: World, mid: str) -> None:
        w.messages[mid] = "ready"

    def _do_revive(self, w: World, mid: str) -> None:
        w.messages[mid] = "ready"

    def _do_forget(self, w: World) -> None:
        """An hour has gone by. A drainer that was in between no longer acts."""
        w.taken, w.up_to = frozenset(), {}
        w.drains = (None,) * len(w.drains)

    def _is_over(self) -> bool:
        return bool(int(self._get("", "HGET", "meta", "over") or 0))

    def _do_restart(self, w: World) -> None:
        """The flow is removed, and started again. Entries for the flow are still delivered to it, and drainers
        continue.

        A person has revived messages of the earlier flow, which die once more and then are done.
        """
        for slot in self.scope.slots:
            self.machine.run(f"{slot}remove", "", NOW)
        for slot, steps in self.scope.slots.items():
            for one in steps:
                if one.kind in ("step", "map"):
                    w.say(one.queue, *[(kind, f"{one.name}.0", slot) for kind in ("dead", "done")])
        made = World(
            self.scope, w.left, outbox=w.outbox, nentries=w.nentries, marks=w.marks, run=w.run + 1,
            drains=w.drains,
        )  # fmt: skip
        w.__dict__.update(made.__dict__)
        self._start(w)

    def _do_cancel(self, w: World) -> None:
        w.cancelled = True
        self._tell(w, "", "cancel")

    def _do_retry(self, w: World) -> None:
        self._tell(w, "", "retry")

    def _do_signal(self, w: World) -> None:
        for one in self.scope.steps:
            if one.kind == "wait":
                self._tell(w, "", "signal", one.name)

    def _do_forge(self, w: World) -> None:
        """Each queue reports members of other queues as done, and cancels the flow."""
        for queue in ("L", "H"):
            records = [
                ("done", f"{one.name}.{number}", slot)
                for slot, steps in self.scope.slots.items()
                for one in steps
                if one.queue != queue or one.kind == "flow"
                for number in range(one.size)
            ]
            words = [("cancel", "", slot) for slot in self.scope.slots if HOMES[slot] != queue]
            w.say(queue, *records, *words)

    @staticmethod
    def _step_of(w: World, mid: str) -> StepOf:
        return w.step(mid.partition(".")[0])

    def _queue_of(self, w: World, mid: str) -> str:
        return self._step_of(w, mid).queue

    def _enqueue(self, w: World, mid: str) -> bool:
        """Whether it is refused because it was accepted before, and its message is gone."""
        state, step, slot = w.messages.get(mid), self._step_of(w, mid), w.slot_of(mid)
        if state in LIVE or (state and self.fault != "dead mids are accepted") or mid in w.taken:
            return False
        noun = "members" if step.kind == "map" else "steps"
        # A queue refuses what is dead for workers of earlier versions too, who leave no number behind.
        if self.fault not in (f"{noun} are accepted again", "dead mids are accepted"):
            number = int(mid.rpartition(".")[2])
            if number <= w.up_to.get(step.name, -1):
                return True
            w.up_to[step.name] = number
        w.messages[mid] = "ready"
        w.accepted[mid] += 1
        need(w.accepted[mid] == 1, f"F2 {mid} was accepted twice")
        edges = step.edges + ("," + w.step(self._place).edges if slot else "")
        for name, _, when in (edge.partition(":") for edge in edges.split(",") if edge):
            if w.step(name).kind != "wait":
                need(w.is_met(name, when), f"F4 {mid} before {name} {when}")
            if when == "done" and w.step(name).kept:
                self._need_result(w, f"{name}.0")
        return False

    def _need_result(self, w: World, mid: str) -> None:
        name, _, number = mid.partition(".")
        found = self._get(w.slot_of(mid), "HGET", "results", f"{name}:{number}")
        need(
            found == w.returned.get(mid), f"F7 {mid} returned {w.returned.get(mid)}, kept: {found}"
        )

    # Drainers.

    def _do_begin(self, w: World, place: int, queue: str) -> None:
        entries = w.read(queue)
        self._put(w, place, Drain(queue, entries, w.targets_in(entries)))

    def _do_kill(self, w: World, place: int) -> None:
        self._put(w, place, None)

    def _put(self, w: World, place: int, drain: Drain | None) -> None:
        w.drains = (*w.drains[:place], drain, *w.drains[place + 1 :])

    def _do_drain(self, w: World, place: int) -> None:
        d = w.drains[place]
        assert d is not None
        self._put(w, place, self._send(w, d) if d.senders else self._take(w, d))

    def _take(self, w: World, d: Drain) -> Drain:
        """Take the entries to the first flow: read the results that they name, apply, and delete these results."""
        slot, run = target = d.targets[0]
        if d.results is None:
            named = [one[2] for one in w.entries(d.entries, target) if one[1] == "done+"]
            if named:
                found = {mid: w.results[mid] for mid in named if mid in w.results}
                if self.fault == "results are deleted first":
                    self._forget(w, found)
                return d._replace(results=found)
        records = w.entries(d.entries, target, d.results)
        todo = self._apply(target, f"q{d.queue}", records)
        if self.fault == "entries are deleted first":
            self._drop(w, d)
        return d._replace(senders=(Sender(slot, run, todo),), results=d.results or None)

    @staticmethod
    def _forget(w: World, results: dict[str, str]) -> None:
        w.results = {mid: one for mid, one in w.results.items() if mid not in results}

    def _send(self, w: World, d: Drain) -> Drain | None:
        if d.results:
            self._forget(w, d.results)
            return d._replace(results=None)
        *others, sender = d.senders
        if sender.todo:
            return d._replace(senders=(*others, *self._send_one(w, sender)))
        if others:
            return d._replace(senders=tuple(others))
        if len(d.targets) > 1:
            return d._replace(targets=d.targets[1:], senders=())
        self._drop(w, d)
        return None

    def _send_one(self, w: World, s: Sender) -> tuple[Sender, ...]:
        """One call; the drainers that continue after it."""
        if s.is_found:
            for queue, records in s.sub:
                some = [one for one in records if one[1] in ENDINGS]
                self._apply((s.slot, s.run), f"q{queue}", some)
            todo = self._apply((s.slot, s.run), "q", [])
            return (s._replace(is_found=False, sub=(), todo=todo),)
        doubtful = [one for one in s.todo if one[3] and one[2] not in s.known]
        known = s.known | {one[2] for one in s.todo}
        if doubtful and self.fault != "nobody looks":
            queues = sorted({one[5] for one in doubtful if one[5]})
            target = (s.slot, s.run)
            found = tuple((one, tuple(w.entries(w.read(one), target))) for one in queues)
            return (s._replace(sub=found, known=known, is_found=True),)
        if s.at == 0 and not s.sub and self.fault == "what is sent is forgotten first":
            self._sent(s)
        if s.at < len(s.todo):
            return self._send_item(w, s._replace(known=known), s.todo[s.at])
        return (s._replace(todo=self._sent(s), at=0, known=known),)

    def _sent(self, s: Sender) -> tuple[Todo, ...]:
        rows = [part for one in s.todo for part in (one[0], one[2])]
        return self._answered(self._call(s.slot, "sent", s.run, 64, *rows))

    def _send_item(self, w: World, s: Sender, item: Todo) -> tuple[Sender, ...]:
        after = s._replace(at=s.at + 1, sub=())
        if item[1] == "parent":
            todo = self._tell_parent(item)
            if not todo:
                return (after,)
            return (after, Sender("", int(item[6].split(".")[1][1:]), todo))
        if s.run != w.run:
            # Its effects at queues and sub-flows belong to an earlier run, which isn't checked.
            return (after,)
        kind = "_of_flow" if item[4] == "flow" and item[1] != "flow" else ""
        sub = getattr(self, f"_item_{item[1]}{kind}")(w, item, s.sub)
        return (s._replace(sub=sub) if sub else after,)

    def _drop(self, w: World, d: Drain) -> None:
        w.outbox = tuple(one for one in w.outbox if one not in d.entries)

    def _apply(self, target: Target, source: str, records: Sequence[Numbered]) -> tuple[Todo, ...]:
        rows: list[Any] = []
        for entry, kind, what, result in records:
            step, _, number = what.partition(".")
            word = "result" if result else kind.removesuffix("+")
            entry_id = "" if entry == NO_ENTRY else f"{entry + 1}-0"
            rows += (word, step, number if kind in ENDINGS else 0, entry_id, result)
        slot, run = target
        return self._answered(self._call(slot, "apply", run, source, 64, *rows))

    def _answered(self, reply: tuple[Any, ...]) -> tuple[Todo, ...]:
        flat = reply[4:]
        return tuple(
            (flat[at], flat[at + 1], flat[at + 2], flat[at + 3] == "1", *flat[at + 4 : at + 8])
            for at in range(0, len(flat), 9)
        )

    # What is to be sent. Each call takes one step; it returns the place where it continues, () at the end.

    def _item_send(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        step, queue, slot = item[0], item[5], w.slot_of(item[0])
        phase, *_ = sub or ("add",)
        if phase == "add":
            return ("gone",) if self._enqueue(w, f"{step}.0") else ()
        if phase == "gone":
            records = w.entries(w.read(queue), (slot, w.run))
            self._apply((slot, w.run), f"q{queue}", [one for one in records if one[1] in ENDINGS])
            return ("page",)
        live = self._page(slot, step, "live")
        need(not live, f"F2 {step}.0 is taken for one that was lost")
        return ()

    def _item_drop(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        if not sub and self.fault != "a timer is only cancelled":
            self._enqueue(w, f"{item[0]}.0")
            return ("cancel",)
        self._cancel_at_queue(w, [f"{item[0]}.0"])
        return ()

    def _item_map(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        if item[6].startswith("=") and not sub:
            self._need_result(w, f"{item[6][1:]}.0")
        return self._expand(w, item[0], sub or ("next", 0))

    def _expand(self, w: World, step: str, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        phase, chunk, *rest = sub
        if phase in ("look", "gone"):
            queue = w.step(step).queue
            records = w.entries(w.read(queue), ("", w.run))
            if phase == "look" or self.fault != "how members ended is not read":
                self._apply(("", w.run), f"q{queue}", [one for one in records if one[1] in ENDINGS])
            return ("page", chunk, phase)
        if phase == "page":
            live = self._page("", step, "live")
            need(
                rest[0] == "look" or chunk not in live,
                f"F2 {step}.{chunk} is taken for one that was lost",
            )
            return ("add", chunk, chunk in live) if rest[0] == "look" else ("next", chunk + 1)
        if phase == "add":
            if rest[0] and self._enqueue(w, f"{step}.{chunk}"):
                return ("gone", chunk)
            return ("next", chunk + 1)
        if chunk == w.step(step).size:
            word = self._call("", "seal", w.run, step, chunk)[0]
            need(word in ("ok", "closed"), f"{step} isn't sealed: {word}")
            return ()
        word = self._call("", "reserve", w.run, step, chunk, 1)[0]
        after = {
            "new": ("add", chunk, True),
            "doubt": ("look", chunk),
            "added": ("next", chunk + 1),
        }
        return after.get(word, ())

    def _item_revive(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        step, queue, slot = item[0], item[5], w.slot_of(item[0])
        phase, *rest = sub or ("say",)
        if phase == "say":
            w.say(queue, ("look", "", slot))
            w.marks = (*w.marks, w.nentries)
            return ("read", f"{w.nentries}-0")
        if phase == "read":
            records = w.entries(w.read(queue), (slot, w.run))
            self._apply((slot, w.run), f"q{queue}", [one for one in records if one[1] in ENDINGS])
            return ("page", *rest)
        if phase == "page":
            numbers = self._page(slot, step, "revive")
            return ("mark", numbers, *rest) if numbers else ()
        numbers = rest[0]
        if phase == "mark":
            mark = rest[1] if self.fault != "a retry marks no entry" else ""
            [count] = self._call(slot, "retried", w.run, step, item[2], numbers[0], mark, *numbers)
            return ("revive", numbers) if count >= 0 else ()
        if phase == "revive":
            for number in numbers:
                if w.messages.get(f"{step}.{number}") == "dead":
                    w.messages[f"{step}.{number}"] = "ready"
            gone = tuple(one for one in numbers if w.messages.get(f"{step}.{one}") not in LIVE)
            return ("gone", gone) if gone else ()
        self._apply(
            (slot, w.run),
            f"q{queue}",
            [(NO_ENTRY, "dead", f"{step}.{number}", "") for number in numbers],
        )
        return ()

    def _item_cancel(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        step, queue, slot = item[0], item[5], w.slot_of(item[0])
        phase, *rest = sub or ("page",)
        if phase == "page":
            numbers = self._page(slot, step, "live")
            return ("cancel", numbers) if numbers else ()
        mids = [f"{step}.{number}" for number in rest[0]]
        if phase == "cancel":
            self._cancel_at_queue(w, mids)
            return ("apply", rest[0])
        self._apply((slot, w.run), f"q{queue}", [(NO_ENTRY, "cancelled", mid, "") for mid in mids])
        return ()

    # Of a step that is a flow. What is read of that flow may be old when it counts.

    def _item_flow(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        self._tell(w, SUB, "begin")
        return ()

    def _item_cancel_of_flow(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        if not sub:
            return ("act", bool(int(self._get(SUB, "HGET", "meta", "over") or 0)))
        if sub[1]:
            self._apply(
                ("", w.run), f"f{FLOWS[SUB]}", [(NO_ENTRY, "cancelled", f"{item[0]}.0", "")]
            )
        else:
            self._tell(w, SUB, "cancel")
        return ()

    def _item_revive_of_flow(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        phase, *rest = sub or ("told",)
        if phase == "told" and self.fault != "a retry leaves what is to be told":
            told = [one for one in self._apply((SUB, w.run), "q", []) if one[1] == "parent"]
            return ("tell", told[0]) if told else ("mark",)
        if phase == "tell":
            self._tell_parent(rest[0])
            return ("forget", rest[0])
        if phase == "forget":
            self._call(SUB, "sent", w.run, 64, rest[0][0], rest[0][2])
            return ("mark",)
        if phase in ("told", "mark"):
            if self.fault != "a retry is not marked":
                self._call("", "retried", w.run, item[0], 0, 0, "", 0)
            return ("look",)
        if phase == "look":
            return ("act", self._get(SUB, "HGET", "meta", "state"))
        if rest[0] in ("cancelled", "open", "done"):
            kind = "done" if rest[0] == "done" else "dead"
            self._apply(("", w.run), f"f{FLOWS[SUB]}", [(NO_ENTRY, kind, f"{item[0]}.0", "")])
        else:
            self._tell(w, SUB, "retry")
        return ()

    def _item_subs(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        if not sub:
            return ("act",) if not self._counts("", self._place)[4] else ()
        if item[7] in ("done", "cancelled"):
            self._tell(w, SUB, "cancel")
        elif self.fault != "a sub-flow waits on":
            life = KEEP_MS if item[7] == "failed" else LONG_MS
            stamp = item[2] if self.fault != "an old word to a sub-flow counts" else 2**50
            self.machine.run(f"{SUB}life", "", NOW, self._parent(w), stamp, life)
        return ()

    def _tell_parent(self, item: Todo) -> tuple[Todo, ...]:
        """How the sub-flow ended; the items that its parent has to send then."""
        told = self._counts("", self._place)[2] and self.fault == "a sub-flow is told once"
        if item[7] not in OVER or told:
            return ()
        _, _, run, where = item[6].replace(":", ".", 1).split(".")
        kind, target = "done" if item[7] == "done" else "dead", ("", int(run[1:]))
        return self._apply(target, f"f{FLOWS[SUB]}", [(NO_ENTRY, kind, f"{where}.0", "")])

    def _cancel_at_queue(self, w: World, mids: list[str]) -> None:
        for mid in mids:
            if w.messages.get(mid) in LIVE:
                del w.messages[mid]
                w.say(self._queue_of(w, mid), ("cancelled", mid, w.slot_of(mid)))

    # The producer of streamed maps.

    def _do_produce(self, w: World) -> None:
        step, *sub = w.producer or (self._streams()[0], "next", 0)
        after = self._expand(w, step, tuple(sub))
        if after:
            w.producer = (step, *after)
            return
        later = self._streams()[self._streams().index(step) + 1 :]
        w.producer = (later[0], "next", 0) if later else ("over",)
        if not later:
            self._tell(w, "", "look")

    def _do_stop(self, w: World) -> None:
        w.producer = ()

    # The invariants.

    def _get(self, slot: str, name: str, key: str, *rest: Any) -> Any:
        return self.machine.command(NOW, name, slot + key, *map(str, rest))

    def _counts(self, slot: str, step: str) -> list[int]:
        return [int(one) for one in self._get(slot, "HGET", "meta", f"n:{step}").split(",")]

    def _bits(self, slot: str, step: str, key: str) -> list[int]:
        extents = self._get(slot, "HGET", "meta", f"x:{step}") or ""
        places = [
            at
            for one in extents.split(",")
            if one
            for first, length in [map(int, one.split(":"))]
            for at in range(first, first + length)
        ]
        size = self._counts(slot, step)[0]
        return [self._get(slot, "GETBIT", key, at) for at in places[:size]]

    def _check(self, w: World) -> None:
        for slot, steps in self.scope.slots.items():
            for one in steps:
                self._check_step(w, slot, one)
            state, over, retried, goes = self._get(
                slot, "HMGET", "meta", "state", "over", "retried", "open"
            ).values()
            is_over = bool(int(over or 0))
            expires = self._get(slot, "PTTL", "meta") > 0
            need(expires == (is_over or state == "open"), f"F9 {slot}{state} expires: {expires}")
            left = self._get(slot, "HLEN", "todo")
            left -= sum(self._get(slot, "HEXISTS", "todo", one) for one in ("^", "%"))
            need(not is_over or not int(retried or 0) + left, f"F9 {slot} is over and goes on")
            is_quiet = state != "open" and not int(goes or 0) + int(retried or 0) + left
            need(is_over or not is_quiet, f"F9 {slot} is not over, and nothing goes on")
            if is_over and state != "cancelled" and "revive" not in self.scope.budget:
                live = [
                    mid for one in steps for mid in w.mids(one.name) if w.messages.get(mid) in LIVE
                ]
                need(not live, f"F9 {slot} is over, and {live} live")
            for one in steps if is_over else ():
                if one.kind == "flow" and self._counts(slot, one.name)[4]:
                    need(
                        int(self._get(SUB, "HGET", "meta", "over") or 0),
                        "F9 over before its sub-flow",
                    )

    def _check_step(self, w: World, slot: str, one: StepOf) -> None:
        counts = self._counts(slot, one.name)
        done, ended, retried = (
            self._bits(slot, one.name, key) for key in ("done", "ended", "retried")
        )
        found = [sum(done), sum(ended), sum(retried)]
        need(found == [counts[1], counts[2], counts[8]], f"F3 {one.name} {counts} {found}")
        said = w.left.get("signal") != self.scope.budget.get("signal")
        need(one.kind != "wait" or said or not counts[1], f"F4 {one.name} is done without a signal")
        need(all(e >= d for d, e in zip(done, ended, strict=True)), f"F6 {one.name}")
        if one.kept:
            for number in range(len(done)):
                if done[number]:
                    self._need_result(w, f"{one.name}.{number}")
        if one.kind == "flow" and counts[2] and not w.cancelled:
            need(w.is_met(one.name, "ended"), f"F8 {one.name} has ended, and its flow hasn't")
            need(not counts[1] or w.is_met(one.name, "done"), f"F8 {one.name} isn't done")

    def _calm(self, w: World) -> None:
        """F1: afterwards no process dies, and all possible work continues; stops where it was before. Then all is
        retried."""
        names, retried = list[bytes](), False
        for _ in range(200):
            name = self.state(w)
            if name in self._good:
                break
            names.append(name)
            action = self._next_calm(w)
            if action is None:
                self._check_end(w)
                state = self._get("", "HGET", "meta", "state")
                if state != "failed" or any(one.kind == "wait" for one in self.scope.steps):
                    break
                need(not retried, "F9 all was retried, and it has failed again")
                retried, action = True, ("retry",)
            self._check_cancelled(action)
            getattr(self, f"_do_{action[0]}")(w, *action[1:])
        else:
            raise Violation("F1 it goes on and on")
        self._good.update(names)

    def _check_cancelled(self, action: Action) -> None:
        if action[0] in ("take", "finish") and self.scope.drainers == 1 and not self._streams():
            state = self._get("", "HGET", "meta", "state")
            need(state != "cancelled", f"F9 {action[1]} lives, and its flow is cancelled")

    def _next_calm(self, w: World) -> Action | None:
        for place, one in enumerate(w.drains):
            if one:
                return ("drain", place)
        if self._streams() and w.producer != ("over",):
            return ("produce",)
        if w.outbox:
            return ("begin", 0, w.outbox[0][1])
        for mid, state in w.messages.items():
            if state in LIVE:
                return ("finish" if state == "run" else "take", mid)
        return None

    def _check_end(self, w: World) -> None:
        need(w.cancelled or not w.results, f"F7 queues still have {w.results}")
        self._check_end_of(w, "")
        if self._place and self._counts("", self._place)[4]:
            self._check_end_of(w, SUB)
        elif self._place:
            self._check_not_begun()

    def _check_not_begun(self) -> None:
        above, below = (self._get(slot, "HGET", "meta", "state") for slot in ("", SUB))
        if above in ("done", "cancelled"):
            need(below == "cancelled", f"F11 {above}, and its sub-flow stays {below}")
        else:
            life, wanted = self._get(SUB, "PTTL", "meta"), KEEP_MS if above == "failed" else LONG_MS
            need(below == "open", f"F11 {above}, and its sub-flow is {below}")
            need(life == wanted, f"F11 {above}, and its sub-flow waits {life} ms")

    def _check_end_of(self, w: World, slot: str) -> None:
        steps = self.scope.slots[slot]
        state, over, failed = self._get(slot, "HMGET", "meta", "state", "over", "failed").values()
        counts = {one.name: self._counts(slot, one.name) for one in steps}
        waits = [
            one.name
            for one in steps
            if one.kind == "wait"
            and not one.timed
            and counts[one.name][4]
            and not counts[one.name][2]
        ]
        if waits and not w.cancelled:
            need(state == "running", f"F1 {state} though {waits} wait for signals")
            return
        if any(one.kind == "wait" and counts[one.name][8] for one in steps):
            return
        need(over and int(over), f"F1 {slot}{state}, and not over; failed: {failed}")
        if w.cancelled:
            return
        for one in steps:
            self._check_end_of_step(w, slot, one)
        bad = any(ready_at and ndone < size for size, ndone, _, _, ready_at, *_ in counts.values())
        need(state == ("failed" if bad else "done"), f"F5 {slot}{state}")

    def _check_end_of_step(self, w: World, slot: str, one: StepOf) -> None:
        size, ndone, nended, sealed, ready_at = self._counts(slot, one.name)[:5]
        if ready_at:
            need(sealed and nended >= size, f"F5 {one.name} never ended")
            number = len(set(w.mids(one.name)) & w.done)
            if one.kind == "flow":
                number = int(w.is_met(one.name, "done"))
            need(one.kind == "wait" or ndone == number, f"F5 {one.name}: {ndone} done")
        elif "failed" not in one.edges:
            edges = [edge.split(":") for edge in one.edges.split(",") if edge]
            met = [self._is_met(slot, name, when) for name, when in edges]
            need(not all(met), f"F5 {one.name} may go and never went")

    def _is_met(self, slot: str, name: str, when: str) -> bool:
        size, ndone, nended, sealed, ready_at = self._counts(slot, name)[:5]
        over = ready_at and sealed and nended >= size
        return bool(over and (when == "ended" or (ndone >= size) == (when == "done")))
