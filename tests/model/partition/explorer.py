"""Breadth first over every interleaving of a change of partitions, from an old queue to a new queue.

Calls of several producers alternate in any order. A producer without the map calls the old queue, and reads the map
after the reply 'sealed'. With the map, it calls the old queue first, and the new queue after the reply 'moved'.

P1  no mid lives in both queues
P2  an ordered key starts its messages in order, one at a time, across the change
P3  all accepted messages run; in the end the sealed queue is empty, and rejects each message
P6  a partition that lost its data accepts nothing until a producer has read the map again
P7  in both queues together, no more messages of a key run or start than its limits allow
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.expect import need
from tests.model.explored import Explored
from tests.model.machine import Mutation
from tests.model.partition.two_queues import RESTS, TwoQueues
from tests.model.partition.world import NEW, OLD, Producer, Run, Scope, World
from tests.model.world import START

Action = tuple[Any, ...]
#: Lower scores in `rests` are times.
LISTED = 10**15
ONE_AT_A_TIME = Mutation(
    "lists one at a time", "'ZRANGE', seal_due, 0, 999", "'ZRANGE', seal_due, 0, 0", ""
)
LEASE, BACKOFF_MS, HOLD_MS, LIFE_MS, STEPS = 1_000, 2, 3, 1_000_000, 60


class Explorer(TwoQueues[World]):
    """A search over the messages of one scope."""

    def __init__(self, scope: Scope, mutation: Mutation | None = None) -> None:
        super().__init__(scope, mutation, [ONE_AT_A_TIME] if scope.lists_one else ())
        self.scope = scope
        #: A mid under two keys is two messages.
        self._has_one_key = len({flavour.key for flavour in scope.flavours.values()}) == 1

    def run(self) -> Explored:
        self.machine.reset()
        for place in (OLD, NEW) if self.scope.rule else ():
            self.machine.run(f"{place}set_limits", "", START, "", "", "", *self.scope.rule)
        knows = self.scope.knows
        producers = (Producer(knows),) * self.scope.producers
        world = World(self.scope, dict(self.scope.budget), has_map=knows, producers=producers)
        if knows:
            self._make(world)
        return self.search(world)

    # Possible steps.

    def moves(self, world: World) -> Iterator[Action]:
        for index in range(len(world.producers)):
            yield from self._of_producer(world, index)
        if not world.has_map:
            yield ("write_map",)
        elif not world.is_sealed or self._is_listing(world):
            yield ("seal",)
        for place in (OLD, NEW):
            yield "dequeue", place
        for index in range(len(world.running)):
            yield from self._of_run(world, index)
        yield from self._of_operator(world)
        if self._next_time(world):
            yield ("tick",)

    def _of_operator(self, world: World) -> Iterator[Action]:
        left = world.left
        if left.get("revive"):
            yield from (("revive", index) for index in range(len(world.dead)))
        if left.get("take"):
            yield from (("take", place_and_mid) for place_and_mid in sorted(world.contents))
        if left.get("hold"):
            yield ("hold",)
        if left.get("wipe") and not self.machine.command(world.now, "HLEN", f"{NEW}messages"):
            yield ("wipe",)
        if left.get("put"):
            yield from (("put", index) for index in range(len(world.binned)))

    def _of_producer(self, world: World, index: int) -> Iterator[Action]:
        producer = world.producers[index]
        if producer.mid:
            yield "ask", index
            return
        if world.has_map and not producer.has_map:
            yield "read_map", index
        if world.left["enqueue"] and producer not in world.producers[:index]:
            accepted = world.flavour_of.values() if world.scope.once else ()
            yield from (
                ("enqueue", index, mid, flavour)
                for mid, flavour in world.scope.enqueues
                if flavour not in accepted
            )

    def _of_run(self, world: World, index: int) -> Iterator[Action]:
        for outcome in world.scope.endings:
            if outcome == "done" or world.left.get("fail"):
                yield "finish", index, outcome
        if world.left.get("lose"):
            yield "lose", index

    def act(self, world: World, step: Action) -> World:
        name, *rest = step
        getattr(self, f"_{name}")(world, *rest)
        self._check(world)
        return world

    def judge(self, world: World) -> None:
        self._drain(world.copy())

    # Producers.

    def _enqueue(self, w: World, index: int, mid: str, flavour: str) -> None:
        w.left["enqueue"] -= 1
        w.ncontents += 1
        busy = Producer(w.producers[index].has_map, mid, flavour, f"c{w.ncontents}")
        w.producers = _replaced(w.producers, index, busy)
        self._ask(w, index)

    def _ask(self, w: World, index: int) -> None:
        """The next call of a producer."""
        producer = w.producers[index]
        is_deduped = self.machine.command(w.now, "HEXISTS", f"{OLD}backoffs", producer.mid) == 1
        lived = (
            is_deduped or self._lives(w, OLD, producer.mid) or self._key_lives(w, producer.flavour)
        )
        word, reason = self._sent(w, producer)
        if not w.is_made and producer.place == NEW:
            need((word, reason) == ("sealed", ""), f"P6 a lost partition took {producer.mid}")
            self._make(w)
            w.producers = _replaced(w.producers, index, producer._replace(place=OLD))
            return
        takes = producer.place == OLD and w.is_sealed and word in ("added", "requeued")
        need(
            lived or not takes, f"P3 the sealed queue took {producer.mid}, which doesn't live there"
        )
        if word == "sealed":
            need(not producer.has_map, "sealed, although the call had the key for moved messages")
            w.producers = _replaced(w.producers, index, producer._replace(has_map=w.has_map))
            need(w.has_map, "sealed before there is a map")
            return
        if word == "moved":
            need(producer.place == OLD and w.is_sealed, f"moved from {producer.place}")
            need(reason == "1", f"moved to epoch {reason}")
            w.producers = _replaced(w.producers, index, producer._replace(place=NEW))
            return
        self._accepted(w, producer, word)
        w.producers = _replaced(w.producers, index, Producer(producer.has_map))

    def _sent(self, w: World, producer: Producer) -> tuple[str, str]:
        flavour = w.scope.flavours[producer.flavour]
        w.number += 1
        plain = (producer.mid, producer.content)
        keyed = ("ordered" if flavour.ordered else "key") if flavour.key else ""
        options = (
            flavour.delay, "", flavour.update, flavour.requeue, flavour.again, flavour.lock, flavour.dedupe,
            flavour.at_most, "", keyed,
        )  # fmt: skip
        asks_first = producer.has_map and producer.place == OLD
        if not any(options) and not asks_first:
            reply = self.machine.run(
                f"{producer.place}enqueue_plain", "P", w.now, "P", w.number, *plain
            )
            if reply != ("general",):
                return reply
        more = f" {OLD}moved_keys" if asks_first else ""
        rows = (*plain, flavour.key) if keyed else plain
        return self.machine.run(
            f"{producer.place}enqueue{more}", "P", w.now, "P", w.number, "", *options, *rows
        )[:2]

    def _accepted(self, w: World, producer: Producer, word: str) -> None:
        flavour, content = w.scope.flavours[producer.flavour], producer.content
        if word == "exists":
            return
        need(word in ("added", "requeued"), f"enqueue answered {word}")
        if word == "requeued":
            if before := w.newer.pop(producer.place + producer.mid, ""):
                w.over(before)
            w.newer[producer.place + producer.mid] = content
        else:
            w.contents[f"{producer.place}{producer.mid}"] = content
        w.owed += (content,)
        if w.scope.rule:
            w.flavour_of[content] = producer.flavour
        if flavour.ordered and not flavour.delay:
            w.order += (content,)

    # The operator.

    def _write_map(self, w: World) -> None:
        self._make(w)
        w.has_map = True

    def _make(self, w: World) -> None:
        """Start the fence of the new queue."""
        self.machine.command(w.now, "HSETNX", f"{NEW}meta", "fence", "0")
        w.is_made = True

    def _wipe(self, w: World) -> None:
        """The server of the new queue loses its data."""
        w.left["wipe"] -= 1
        self.machine.command(w.now, "DEL", f"{NEW}meta")
        w.is_made = False

    def _read_map(self, w: World, index: int) -> None:
        """A process that starts now."""
        w.producers = _replaced(w.producers, index, Producer(True))

    def _seal(self, w: World) -> None:
        w.is_sealed = True
        need(self.machine.run(f"{OLD}seal", "", w.now, 1)[:2] == ("sealed", "1"), "it isn't sealed")

    def _hold(self, w: World) -> None:
        """Hold the first key in both queues."""
        w.left["hold"] -= 1
        name, flavour = next(iter(w.scope.flavours.items()))
        lived = self._key_lives(w, name)
        for place in (OLD, NEW):
            self.machine.run(f"{place}hold", "", w.now, "", flavour.key, HOLD_MS)
        need(
            lived or not w.is_sealed or not self._key_lives(w, name),
            "P2 a hold brought a key back to the sealed queue",
        )

    def _revive(self, w: World, index: int) -> None:
        w.left["revive"] -= 1
        place, dead_id, content = w.dead[index]
        w.number += 1
        (word,) = self.machine.run(
            f"{place}revive", "P", w.now, "P", w.number, "", "", "", dead_id, ""
        )
        if word == "revived":
            w.dead = (*w.dead[:index], *w.dead[index + 1 :])
            w.owed += (content,)
            w.contents[place + dead_id.partition("#")[0]] = content
        need(word in ("revived", "exists", "sealed"), f"revive answered {word}")

    def _take(self, w: World, place_and_mid: str) -> None:
        w.left["take"] -= 1
        place = OLD if place_and_mid.startswith(OLD) else NEW
        mid = place_and_mid.removeprefix(place)
        w.number += 1
        (word,) = self.machine.run(
            f"{place}take_out", "P", w.now, "P", w.number, "", "op", LIFE_MS, "waiting", mid, "*"
        )
        if word == "taken":
            content = w.contents.pop(place_and_mid)
            w.over(content)
            w.binned += ((place, mid, content),)

    def _put(self, w: World, index: int) -> None:
        w.left["put"] -= 1
        place, mid, content = w.binned[index]
        w.number += 1
        (word,) = self.machine.run(
            f"{place}put_back", "P", w.now, "P", w.number, "", "op", "waiting", mid
        )
        need(word in ("restored", "exists", "sealed"), f"put_back answered {word}")
        if word == "restored":
            w.binned = (*w.binned[:index], *w.binned[index + 1 :])
            w.owed += (content,)
            w.contents[place + mid] = content

    # Workers.

    def _dequeue(self, w: World, place: str) -> bool:
        self.machine.forget(*RESTS)
        w.number += 1
        _, _, _, _, *rows = self.machine.run(
            f"{place}dequeue", "A", w.now, "A", w.number, "", LEASE, 0, 1
        )
        if not rows:
            return False
        mid, content = str(rows[0]), str(rows[1])
        need(content in w.owed, f"P3 {content} of {mid} was handed out, and isn't owed")
        need(
            not self._has_one_key or all(run.mid != mid for run in w.running),
            f"P1 {mid} runs twice",
        )
        if content in w.order:
            need(w.order[0] == content, f"P2 {content} of {mid} came before {w.order[0]}")
        if w.newer.get(place + mid) == content:
            del w.newer[place + mid]
        w.contents[place + mid] = content
        w.running += (Run(place, mid, f"A.{w.number}.0", content),)
        if w.scope.rule:
            self._started(w, content)
        return True

    def _started(self, w: World, content: str) -> None:
        most, starts, span_ms, *_ = w.scope.rule
        key = self._key_of(w, content)
        running = [run.content for run in w.running if self._key_of(w, run.content) == key]
        need(not most or len(running) <= int(most), f"P7 {running} of {key} run at the same time")
        if starts:
            recent = [each for each in w.starts if each[1] > w.now - int(span_ms)]
            w.starts = tuple(sorted([*recent, (key, w.now)]))
            times = [at for name, at in w.starts if name == key]
            need(len(times) <= int(starts), f"P7 {key} started at {times}")

    def _key_of(self, w: World, content: str) -> str:
        return w.scope.flavours[w.flavour_of[content]].key

    def _finish(self, w: World, index: int, outcome: str) -> None:
        run = w.running[index]
        w.running = (*w.running[:index], *w.running[index + 1 :])
        w.left["fail"] = w.left.get("fail", 0) - (outcome != "done")
        w.number += 1
        detail = BACKOFF_MS if outcome == "retry" else "why" if outcome == "dead" else ""
        (word,) = self.machine.run(
            f"{run.place}finish", "A", w.now, "A", w.number, "", LEASE, 0, 0, 1,
            run.mid, run.token, outcome, detail, 0, "",
        )  # fmt: skip
        if word != "ok":
            return
        newer = run.place + run.mid in w.newer
        if outcome != "retry" or newer:
            w.over(run.content)
            w.contents.pop(run.place + run.mid, None)
        if outcome == "dead":
            dead_id = str(self.machine.command(w.now, "HGET", f"{run.place}last_dead", run.mid))
            w.dead += ((run.place, dead_id, run.content),)

    def _lose(self, w: World, index: int) -> None:
        """Stop the worker's host."""
        w.left["lose"] -= 1
        w.running = (*w.running[:index], *w.running[index + 1 :])

    def _tick(self, w: World) -> None:
        w.now = self._next_time(w)
        w.running = tuple(
            run for run in w.running if self._time(w, run.place, "locks", run.mid) > w.now
        )

    def _time(self, w: World, place: str, key: str, mid: str) -> int:
        return int(self.machine.command(w.now, "HGET", place + key, mid) or 0)

    def _next_time(self, w: World) -> int:
        """The end of a backoff, of a key's rest, or of the lock of a lost worker; 0 if there is none."""
        held = {(run.place, run.mid) for run in w.running}
        moments = []
        for place in (OLD, NEW):
            rests = self.machine.command(w.now, "ZRANGE", f"{place}rests", 0, -1, "WITHSCORES")
            moments += [int(at) for at in list(rests.values())[1::2] if int(at) < LISTED]
            for mid in w.scope.mids:
                moments.append(self._time(w, place, "backoffs", mid))
                if (place, mid) not in held:
                    moments.append(self._time(w, place, "locks", mid))
        return min((at for at in moments if at > w.now), default=0)

    # Promises.

    def _lives(self, w: World, place: str, mid: str) -> bool:
        command = self.machine.command
        if not command(w.now, "HEXISTS", f"{place}messages", mid):
            return False
        over = command(w.now, "SISMEMBER", f"{place}done", mid) == 1
        return not over or command(w.now, "HEXISTS", f"{place}requeue", mid) == 1

    def _key_lives(self, w: World, flavour: str) -> bool:
        key = w.scope.flavours[flavour].key
        if not key or self.machine.command(w.now, "HEXISTS", f"{OLD}keys", key):
            return bool(key)
        is_limited = w.scope.rule or w.scope.flavours[flavour].ordered
        return bool(is_limited) and (self._is_listing(w) or self._is_later(w, key))

    def _is_later(self, w: World, key: str) -> bool:
        """Whether the old queue has delayed messages or newer content of the key.

        It may also be others' messages, after the key was listed, since the queue then counts the key as alive.
        """
        command = self.machine.command
        rests, overdue = f"{OLD}rests", command(w.now, "ZCOUNT", f"{OLD}due", 0, w.now)
        if overdue and command(w.now, "ZSCORE", rests, f"\x1f{key}"):
            return True
        for mid in w.scope.mids:
            own = str(command(w.now, "HGET", f"{OLD}options", mid) or "")
            is_delayed = command(w.now, "HEXISTS", f"{OLD}backoffs", mid)
            if is_delayed and own.endswith(f",{key}") and self._lives(w, OLD, mid):
                return True
        any_newer = command(w.now, "HLEN", f"{OLD}requeue") > 0
        return any_newer and bool(command(w.now, "ZSCORE", rests, f"\x1f\x1f{key}"))

    def _is_listing(self, w: World) -> bool:
        return bool(self.machine.command(w.now, "EXISTS", f"{OLD}seal_due"))

    def _check(self, w: World) -> None:
        for mid in w.scope.mids if self._has_one_key else ():
            need(
                not (self._lives(w, OLD, mid) and self._lives(w, NEW, mid)),
                f"P1 {mid} lives in both queues",
            )

    def _drain(self, w: World) -> None:
        """One fair worker of both queues, after all producers are gone."""
        w.left, w.producers = {}, ()
        while self._is_listing(w):
            self._seal(w)
        for _ in range(STEPS):
            if self.was_drained(w):
                return
            while w.running:
                self._finish(w, 0, "done")
            if self._dequeue(w, OLD) | self._dequeue(w, NEW):
                continue
            if not self._next_time(w):
                break
            self._tick(w)
        need(not w.owed, f"P3 {w.owed} were accepted and never ran")
        if w.is_sealed:
            left = [self.machine.command(w.now, "HLEN", OLD + key) for key in ("messages", "keys")]
            need(left == [0, 0], f"P3 the sealed queue still holds {left}")
            for flavour in w.scope.flavours:
                for mid in w.scope.mids:
                    told = self._sent(w, Producer(True, mid, flavour, "c0"))
                    need(told[0] == "moved", f"P3 an empty sealed queue answers {told}")
            listed = self.machine.command(w.now, "ZCARD", f"{OLD}rests")
            need(not w.scope.rule or listed == 0, "P7 a key of an empty sealed queue stays listed")


def _replaced(
    producers: tuple[Producer, ...], index: int, producer: Producer
) -> tuple[Producer, ...]:
    return (*producers[:index], producer, *producers[index + 1 :])
