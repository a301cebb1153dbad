"""Plain calls of enqueue, dequeue and finish have scripts of their own, which do what the general ones do.

Two queues are given the same random calls in the same moments, one of them without the scripts for plain calls. After
each call the replies and all keys are equal.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import random
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.client.numbered_calls import BoundScript, Caller
from jobq.errors import ScriptError
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

pytestmark = pytest.mark.one_server

T0 = 1_700_000_000_000
CALLS = 60
OUTCOMES: list[Any] = ["done"] * 40 + ["retry", "dead", "crashed", "snooze", "release", "unknown"]


#: Calls that no test makes.
ALWAYS = 10**9


def prepare(queue: Queue, *, plain: bool) -> None:
    """Change the scripts of one queue: a rest ends by the clock of the test alone. plain: it sends plain calls so."""
    if not plain:
        queue.enqueues.skip = queue.dequeues.skip = queue.finishes.skip = ALWAYS
    rests = {"_plain": ", 'PX', sleep_ms)", "": ", 'PX', string.format('%d', ms))"}
    for name, (suffix, rest) in itertools.product(("dequeue", "finish"), rests.items()):
        name += suffix
        bound = queue.scripts[name]
        script = copy.copy(bound.script)
        assert rest in script.text
        script.text = script.text.replace(rest, ")")
        script.source = script.text.encode()
        script.sha = hashlib.sha1(script.source, usedforsecurity=False).hexdigest()
        call_key = f"{queue.prefix}call:"
        queue.scripts[name] = BoundScript(queue.client, script, bound.keys, call_key, "a twin")


class Twins:
    """A queue, another without the scripts for plain calls, and the answers of the calls."""

    def __init__(self, client: Client, redis: Any, seed: int) -> None:
        self.redis, self.random, self.now = redis, random.Random(seed), T0
        client = Client(client.settings, clock=lambda: self.now)
        self.queues = [Queue("one", client), Queue("two", client)]
        for queue in self.queues:
            prepare(queue, plain=queue is self.queues[0])
        self.callers = [[Caller(caller_id=f"caller{i}") for i in range(2)] for _ in self.queues]
        self.held: list[Message] = []
        self.last: dict[int, Any] = {}
        self.mids = self.asked = 0

    def both(self, call: Any) -> Any:
        """One call of each; the reply."""
        replies = [
            call(queue, callers) for queue, callers in zip(self.queues, self.callers, strict=True)
        ]
        assert replies[0] == replies[1]
        assert self.facts(self.queues[0]) == self.facts(self.queues[1])
        return replies[0]

    def facts(self, queue: Queue) -> dict[str, Any]:
        """Return every key of a queue with its contents; of events, without the ids that the server chose."""
        found: dict[str, Any] = {}
        for key in sorted(self.redis.keys(f"{queue.prefix}*")):
            kind, name = self.redis.type(key), key.decode().removeprefix(queue.prefix)
            if name.startswith("call:") and not name.startswith("call:caller"):
                continue  # of a caller that a queue chose
            match kind:
                case b"hash":
                    found[name] = self.redis.hgetall(key)
                case b"list":
                    found[name] = self.redis.lrange(key, 0, -1)
                case b"set":
                    found[name] = self.redis.smembers(key)
                case b"zset":
                    found[name] = self.redis.zrange(key, 0, -1, withscores=True)
                case b"stream":
                    found[name] = [fields for _, fields in self.redis.xrange(key)]
                case _:
                    found[name] = self.redis.get(key)
        return found

    def step(self) -> None:
        chosen = self.random
        self.now += chosen.choice([0, 1, 1, 3, 40, 40, 2_000, -2])
        if chosen.random() < 0.02:
            self.now += 30_000
        act = chosen.choice(
            [self.enqueue] * 8 + [self.dequeue] * 5 + [self.finish] * 9 + [self.rare]
        )
        act(self.random.randrange(2))

    def enqueue(self, _: int) -> None:
        self.mids += 1
        mid = f"m{self.mids}"
        odd = self.random.random()
        options: dict[str, Any] = {}
        if odd < 0.05:
            options = self.random.choice(
                [{"delay": 1}, {"delay": 20}, {"lease": 90}, {"until": 5}, {"key": "k"}]
            )
        elif odd < 0.06:
            mid = "m\xe9\u20ac"
        self.both(lambda queue, _: queue.enqueue(b"v", mid=mid, **options))
        if odd > 0.9:
            self.mids += 80
            more = [(f"m{self.mids - i}", b"v") for i in range(80)]
            self.both(lambda queue, _: queue.enqueue_many(more))

    def dequeue(self, which: int) -> None:
        limit, now = self.random.choice([1, 1, 2, 5, 64]), self.now
        self.asked += 1
        self.last[which] = lambda queue, callers: queue.dequeue(
            limit, now=now, caller=callers[which]
        )
        handed = self.both(self.last[which])
        self.held += handed.messages

    def finish(self, which: int) -> None:
        some = self.random.sample(
            self.held, min(len(self.held), self.random.choice([0, 1, 1, 1, 2, 5, 64]))
        )
        plain = self.random.random() < 0.7
        endings = [
            Ending(
                mid=one.mid,
                token=one.token if plain or self.random.random() < 0.9 else "stale",
                outcome="done" if plain else self.random.choice(OUTCOMES),
                backoff=None if plain else self.random.choice([None, None, None, 0.003]),
                record="job\x1f1",
                age_ms=self.random.choice([0, 7]),
            )
            for one in some
        ]
        self.held = [one for one in self.held if one not in some]
        limit, now = self.random.choice([0, 1, 1, 3, 64]), self.now
        self.asked += 1
        self.last[which] = lambda queue, callers: queue.finish(
            endings, dequeue=limit, now=now, caller=callers[which]
        )
        done = self.both(self.last[which])
        if done.dequeued:
            self.held += done.dequeued.messages

    def rare(self, which: int) -> None:
        """A reason why the next calls are unusual: a pause, a level, a repeated call, keys that another program
        wrote."""
        value, now = self.random.choice(["nan", "-1", "1e3", "0x10", "x", "7.5"]), self.now

        def write(command: str, key: str, *words: Any) -> Any:
            return lambda queue, _: self.redis.execute_command(command, queue.prefix + key, *words)

        def again(queue: Queue, callers: list[Caller]) -> Any:
            callers[which].number -= 1
            return self.last[which](queue, callers)

        mid = self.random.choice(self.held).mid if self.held else "m1"
        self.both(
            self.random.choice(
                [
                    lambda queue, _: queue.admin.pause(),
                    lambda queue, _: queue.admin.resume(),
                    lambda queue, _: queue.admin.resume(),
                    write("HSET", "meta", "events", "off"),
                    write("HSET", "meta", "events", "all"),
                    lambda queue, _: queue.cancel(mid, now=now),
                    lambda queue, _: queue.admin.collect(now=now),
                    again if which in self.last else write("HDEL", "locks", mid),
                    write(
                        "HSET",
                        "meta",
                        self.random.choice(["fence", "floor", "max_lease", "walked"]),
                        value,
                    ),
                    write("HDEL", "messages", mid),
                    write("HDEL", "locks", mid),
                    write("RPUSH", "circle", mid),
                    write("LPUSH", "ready", mid),
                    write("SADD", "done", mid),
                    write("SET", "ndry-runs?", value),
                ]
            )
        )


@pytest.mark.parametrize("key", ["locks", "mid-circle", "done", "tokens"])
def test_plain_call_changes_nothing_when_a_key_has_another_type(
    client: Client, redis: Any, key: str
) -> None:
    queue = Queue("low", client)
    queue.enqueue_many([(f"m{i}", b"v") for i in range(4)], now=T0)
    held = queue.dequeue(now=T0).messages
    for _ in range(2):  # the second finds the queue plain
        ending = Ending(mid=held[0].mid, token=held[0].token)
        held = queue.finish([ending], dequeue=1, now=T0).dequeued.messages
    redis.delete(f"{queue.prefix}{key}")
    redis.set(f"{queue.prefix}{key}", "another program's")
    before = {name: redis.dump(name) for name in redis.keys(f"{queue.prefix}*")}

    ending = Ending(mid=held[0].mid, token=held[0].token)
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        queue.finish([ending], dequeue=1, now=T0)

    assert before == {name: redis.dump(name) for name in redis.keys(f"{queue.prefix}*")}


def test_forged_record_is_no_reply_of_a_plain_call_when_the_call_is_repeated(
    client: Client, redis: Any
) -> None:
    queue, caller = Queue("low", client), Caller()
    queue.enqueue_many([(f"m{i}", b"v") for i in range(3)], now=T0)
    [held] = queue.dequeue(now=T0, caller=caller).messages
    ending = Ending(mid=held.mid, token=held.token)
    queue.finish([ending], dequeue=1, now=T0, caller=caller)
    record = f"{caller.number}\x1eplain\x1e0\x1f0\x1f0\x1f0\x1fm1"
    redis.set(f"{queue.prefix}call:{caller.id}", record)

    caller.number -= 1
    with pytest.raises(ScriptError, match="was forged"):
        queue.finish([ending], dequeue=1, now=T0, caller=caller)


def test_queue_whose_calls_are_never_plain_is_rarely_asked_for_plain_calls(
    client: Client, redis: Any
) -> None:
    queue = Queue("low", client)
    queue.rules(max=5)
    redis.config_resetstat()
    for _ in range(100):
        queue.dequeue()
    calls = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert 100 < calls <= 100 + 10


def test_queue_is_asked_for_plain_calls_again_when_its_calls_are_plain(
    client: Client, redis: Any
) -> None:
    queue = Queue("low", client)
    queue.admin.pause()
    for _ in range(4):
        queue.dequeue()
    queue.admin.resume()
    while queue.dequeues.skip:
        queue.dequeue()
    redis.config_resetstat()
    for _ in range(10):
        queue.dequeue()
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 10
    assert queue.dequeues.skip == 0


@pytest.mark.parametrize("histories", [20, pytest.param(60, marks=pytest.mark.long)])
def test_plain_calls_do_the_same_when_their_own_scripts_take_them(
    client: Client, redis: Any, histories: int
) -> None:
    redis.config_resetstat()
    asked = 0
    for seed in range(histories):
        twins = Twins(client, redis, seed)
        for _ in range(CALLS):
            twins.step()
        asked += twins.asked
        twins.queues[0].client.close()
        for queue in twins.queues:
            redis.delete(*redis.keys(f"{queue.prefix}*"))
    # The general scripts look twice at keys that only they read so.
    general = redis.info("commandstats")["cmdstat_strlen"]["calls"] / 2 - asked
    assert 0.2 < general / asked < 0.8
