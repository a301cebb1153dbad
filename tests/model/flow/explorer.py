"""Breadth first over every interleaving of a small flow: the real scripts of its slot, drainers between any two calls.

The queues are modelled: what their scripts promise is explored beside. Their mids are refused while they live or are
dead, and for a while when they are done; that while may end at any moment.

F1  once nothing lives and nothing is said, the flow is over and its record is empty but for what is kept
F2  a step is accepted once
F3  counts are those of the bits
F4  no step is accepted before its edges are met
F5  at the end the state is what follows from the bits
F6  what is done has ended
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.model.breadth_first import BreadthFirst
from tests.model.digest import digest
from tests.model.expect import need
from tests.model.explored import Explored
from tests.model.flow.world import Drain, Numbered, Scope, Todo, World
from tests.model.machine import Machine, Mutation, Violation

NOW, HOME, FLOW = 1_000_000_000, "L", "f:1"
Action = tuple[Any, ...]
#: Chunks of one member, so that a small map has several.
CHUNKS = Mutation("chunks of one", "= 250, 250, 65000", "= 1, 1, 2", "")
LIVE = ("ready", "run")
ENDINGS = ("done", "dead", "cancelled")


class Explorer(BreadthFirst[World]):
    """One scope on one machine. fault: of drainers, by name."""

    def __init__(self, scope: Scope, mutation: Mutation | None = None, fault: str = "") -> None:
        machine = Machine([CHUNKS, *([mutation] if mutation else [])], area="flow")
        super().__init__(machine, scope)
        self.scope, self.fault = scope, fault
        self._good: set[bytes] = set()

    def run(self) -> Explored:
        self.machine.reset()
        world = World(self.scope, dict(self.scope.budget), drains=(None,) * self.scope.drainers)
        rows: list[Any] = []
        for one in self.scope.steps:
            call = "c" if one.timed or one.kind != "wait" else ""
            rows += (one.name, one.kind, one.queue, one.source, one.edges, "{}", call)
        self._call("create", NOW, "hash", HOME, 60_000, "", 60_000, *rows)
        world.say(HOME, ("begin", ""))
        return self.search(world)

    def judge(self, world: World) -> None:
        self._check(world)
        self._calm(world.copy())

    def state(self, world: World) -> bytes:
        return digest(f"{self.machine.whole()}\n{world.text()}")

    def _call(self, name: str, *args: Any) -> tuple[Any, ...]:
        return self.machine.run(name, "", NOW, *args)

    # What may happen next.

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
            for queue in sorted({where for _, where, _ in w.outbox}):
                yield ("begin", free, queue)
        if self._streams() and w.producer != ("over",):
            yield ("produce",)
            if w.producer:
                yield from self._rare(w, "stop")
        for word in ("cancel", "retry", "signal", "forge"):
            yield from self._rare(w, word)

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

    def act(self, w: World, action: Action) -> None:
        name, *rest = action
        if name in w.left:
            w.left[name] -= 1
        getattr(self, f"_do_{name}")(w, *rest)

    # Queues.

    def _do_take(self, w: World, mid: str) -> None:
        w.messages[mid] = "run"

    def _do_finish(self, w: World, mid: str) -> None:
        del w.messages[mid]
        w.taken |= {mid}
        w.done, w.ended = w.done | {mid}, w.ended | {mid}
        w.say(self._queue_of(w, mid), ("done", mid))

    def _do_die(self, w: World, mid: str) -> None:
        w.messages[mid] = "dead"
        w.ended, w.was_dead = w.ended | {mid}, w.was_dead | {mid}
        w.say(self._queue_of(w, mid), ("dead", mid))

    def _do_lose(self, w: World, mid: str) -> None:
        w.messages[mid] = "ready"

    def _do_revive(self, w: World, mid: str) -> None:
        w.messages[mid] = "ready"

    def _do_forget(self, w: World) -> None:
        """An hour has gone by. A drainer that was in between does nothing any more."""
        w.taken = frozenset()
        w.drains = (None,) * len(w.drains)

    def _do_cancel(self, w: World) -> None:
        w.cancelled = True
        w.say(HOME, ("cancel", ""))

    def _do_retry(self, w: World) -> None:
        w.say(HOME, ("retry", ""))

    def _do_signal(self, w: World) -> None:
        for one in self.scope.steps:
            if one.kind == "wait":
                w.say(HOME, ("signal", one.name))

    def _do_forge(self, w: World) -> None:
        """Each queue says of the members of others that they are done, and cancels the flow."""
        for queue in ("L", "H"):
            records = [
                ("done", mid)
                for one in self.scope.steps
                if one.queue != queue
                for mid in w.mids(one.name)
            ]
            w.say(queue, *records, *([("cancel", "")] if queue != HOME else []))

    def _queue_of(self, w: World, mid: str) -> str:
        return w.step(mid.partition(".")[0]).queue

    def _enqueue(self, w: World, mid: str) -> None:
        state = w.messages.get(mid)
        if state in LIVE or (state and self.fault != "dead mids are accepted") or mid in w.taken:
            return
        w.messages[mid] = "ready"
        w.accepted[mid] += 1
        step = w.step(mid.partition(".")[0])
        need(step.kind == "map" or w.accepted[mid] == 1, f"F2 {mid} was accepted twice")
        for name, _, when in (edge.partition(":") for edge in step.edges.split(",") if edge):
            self._met(w, name, when)

    def _met(self, w: World, name: str, when: str) -> None:
        if w.step(name).kind == "wait":
            return
        mids = set(w.mids(name))
        met = mids <= (w.done if when == "done" else w.ended)
        need(met and (when != "failed" or mids & w.was_dead), f"F4 before {name} {when}")

    # Drainers.

    def _do_begin(self, w: World, place: int, queue: str) -> None:
        self._put(w, place, Drain(queue, w.read(queue)))

    def _do_kill(self, w: World, place: int) -> None:
        self._put(w, place, None)

    def _put(self, w: World, place: int, drain: Drain | None) -> None:
        w.drains = (*w.drains[:place], drain, *w.drains[place + 1 :])

    def _do_drain(self, w: World, place: int) -> None:
        d = w.drains[place]
        assert d is not None
        self._put(w, place, getattr(self, f"_drain_{d.phase}")(w, d))

    def _drain_apply(self, w: World, d: Drain) -> Drain:
        todo = self._apply(d.queue, w.entries(d.entries))
        if self.fault == "entries are deleted first":
            self._drop(w, d)
        return d._replace(phase="todo", todo=todo)

    def _drain_todo(self, w: World, d: Drain) -> Drain | None:
        if not d.todo:
            self._drop(w, d)
            return None
        doubtful = [one for one in d.todo if one[3] and one[2] not in d.known]
        known = d.known | {one[2] for one in d.todo}
        if doubtful and self.fault != "nobody looks":
            found = tuple(
                (queue, tuple(w.entries(w.read(queue))))
                for queue in sorted({one[5] for one in doubtful})
            )
            return d._replace(phase="found", sub=found, known=known)
        if d.at < len(d.todo):
            sub = getattr(self, f"_item_{d.todo[d.at][1]}")(w, d.todo[d.at], d.sub)
            return d._replace(known=known, sub=sub or (), at=d.at + (not sub))
        rows = [part for one in d.todo for part in (one[0], one[2])]
        return d._replace(
            todo=self._answered(self._call("sent", NOW, 64, *rows)), at=0, known=known
        )

    def _drain_found(self, w: World, d: Drain) -> Drain:
        for queue, records in d.sub:
            self._apply(queue, [one for one in records if one[1] in ENDINGS])
        return d._replace(phase="todo", sub=(), todo=self._apply("", []))

    def _drop(self, w: World, d: Drain) -> None:
        w.outbox = tuple(one for one in w.outbox if one[0] not in d.entries)

    def _apply(self, queue: str, records: Sequence[Numbered]) -> tuple[Todo, ...]:
        rows: list[Any] = []
        for entry, kind, what in records:
            step, _, number = what.partition(".")
            rows += (kind, step, number if kind in ENDINGS else f"{entry + 1}-0", "")
        return self._answered(self._call("apply", NOW, f"q{queue}", 64, *rows))

    def _answered(self, reply: tuple[Any, ...]) -> tuple[Todo, ...]:
        flat = reply[3:]
        return tuple(
            (flat[at], flat[at + 1], flat[at + 2], flat[at + 3] == "1", *flat[at + 4 : at + 7])
            for at in range(0, len(flat), 9)
        )

    # What is to be sent. Each call takes one step; what it returns is where it goes on, () at the end.

    def _item_send(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        self._enqueue(w, f"{item[0]}.0")
        return ()

    def _item_drop(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        self._cancel_at_queue(w, [f"{item[0]}.0"])
        return ()

    def _item_map(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._expand(w, item[0], sub or ("next", 0))

    def _expand(self, w: World, step: str, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        phase, chunk, *rest = sub
        if phase == "look":
            records = w.entries(w.read(w.step(step).queue))
            self._apply(
                w.step(step).queue,
                [one for one in records if one[1] in ENDINGS],
            )
            live = self._call("page", step, "live", 0, 100)[1:]
            return ("add", chunk, chunk in live)
        if phase == "add":
            if rest[0]:
                self._enqueue(w, f"{step}.{chunk}")
            return ("next", chunk + 1)
        if chunk == w.step(step).size:
            word = self._call("seal", NOW, step, chunk)[0]
            need(word in ("ok", "closed"), f"{step} isn't sealed: {word}")
            return ()
        word = self._call("reserve", NOW, step, chunk, 1)[0]
        after = {
            "new": ("add", chunk, True),
            "doubt": ("look", chunk),
            "added": ("next", chunk + 1),
        }
        return after.get(word, ())

    def _item_revive(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        step, queue = item[0], item[5]
        phase, *rest = sub or ("page",)
        if phase == "page":
            numbers = self._call("page", step, "failed", 0, 100)[1:]
            return ("mark", numbers) if numbers else ()
        [numbers] = rest
        if phase == "mark":
            self._call("retried", NOW, step, *numbers)
            return ("revive", numbers)
        if phase == "revive":
            for number in numbers:
                if w.messages.get(f"{step}.{number}") == "dead":
                    w.messages[f"{step}.{number}"] = "ready"
            gone = tuple(one for one in numbers if w.messages.get(f"{step}.{one}") not in LIVE)
            return ("gone", gone) if gone else ()
        self._apply(queue, [(0, "dead", f"{step}.{number}") for number in numbers])
        return ()

    def _item_cancel(self, w: World, item: Todo, sub: tuple[Any, ...]) -> tuple[Any, ...]:
        step, queue = item[0], item[5]
        phase, *rest = sub or ("page",)
        if phase == "page":
            numbers = self._call("page", step, "live", 0, 100)[1:]
            return ("cancel", numbers) if numbers else ()
        mids = [f"{step}.{number}" for number in rest[0]]
        if phase == "cancel":
            self._cancel_at_queue(w, mids)
            return ("apply", rest[0])
        self._apply(queue, [(0, "cancelled", mid) for mid in mids])
        return ()

    def _cancel_at_queue(self, w: World, mids: list[str]) -> None:
        for mid in mids:
            if w.messages.get(mid) in LIVE:
                del w.messages[mid]
                w.say(self._queue_of(w, mid), ("cancelled", mid))

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
            w.say(HOME, ("look", ""))

    def _do_stop(self, w: World) -> None:
        w.producer = ()

    # What must hold.

    def _get(self, *command: Any) -> Any:
        return self.machine.command(NOW, *map(str, command))

    def _counts(self, step: str) -> list[int]:
        return [int(one) for one in self._get("HGET", "meta", f"n:{step}").split(",")]

    def _bits(self, step: str, key: str) -> list[int]:
        extents = self._get("HGET", "meta", f"x:{step}") or ""
        places = [
            at
            for one in extents.split(",")
            if one
            for first, length in [map(int, one.split(":"))]
            for at in range(first, first + length)
        ]
        return [self._get("GETBIT", key, at) for at in places[: self._counts(step)[0]]]

    def _check(self, w: World) -> None:
        for one in self.scope.steps:
            counts = self._counts(one.name)
            done, ended, retried = (
                self._bits(one.name, key) for key in ("done", "ended", "retried")
            )
            found = [sum(done), sum(ended), sum(retried)]
            need(found == [counts[1], counts[2], counts[8]], f"F3 {one.name} {counts} {found}")
            said = w.left.get("signal") != self.scope.budget.get("signal")
            need(
                one.kind != "wait" or said or not counts[1],
                f"F4 {one.name} is done without a signal",
            )
            need(all(e >= d for d, e in zip(done, ended, strict=True)), f"F6 {one.name}")

    def _calm(self, w: World) -> None:
        """F1: from here on nobody dies, and all that can go on does; stops where it was before."""
        names = []
        for _ in range(200):
            name = self.state(w)
            if name in self._good:
                break
            names.append(name)
            action = self._next_calm(w)
            if action is None:
                self._check_end(w)
                break
            self.act(w, action)
        else:
            raise Violation("F1 it goes on and on")
        self._good.update(names)

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
        state, over, failed = self._get("HMGET", "meta", "state", "over", "failed").values()
        waits = [
            one.name
            for one in self.scope.steps
            if one.kind == "wait"
            and not one.timed
            and self._counts(one.name)[4]
            and not self._counts(one.name)[2]
        ]
        if waits and not w.cancelled:
            need(state == "running", f"F1 {state} though {waits} wait for signals")
            return
        retried = [
            one.name for one in self.scope.steps if one.kind == "wait" and self._counts(one.name)[8]
        ]
        if retried:
            return
        need(over and int(over), f"F1 {state}, and not over; failed: {failed}")
        if w.cancelled:
            return
        bad = False
        for one in self.scope.steps:
            size, ndone, nended, sealed, ready_at = self._counts(one.name)[:5]
            if ready_at:
                need(sealed and nended >= size, f"F5 {one.name} never ended")
                bad = bad or ndone < size
                if one.kind != "wait":
                    need(
                        ndone == len(set(w.mids(one.name)) & w.done), f"F5 {one.name}: {ndone} done"
                    )
            elif "failed" not in one.edges:
                met = [self._is_met(*edge.split(":")) for edge in one.edges.split(",") if edge]
                need(not all(met), f"F5 {one.name} may go and never went")
        need(state == ("failed" if bad else "done"), f"F5 {state}")

    def _is_met(self, name: str, when: str) -> bool:
        size, ndone, nended, sealed, ready_at = self._counts(name)[:5]
        over = ready_at and sealed and nended >= size
        return bool(over and (when == "ended" or (ndone >= size) == (when == "done")))
