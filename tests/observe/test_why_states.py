"""Why a message waits, in random states of a queue: `next` says what the next dequeue hands out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.observe.facts import Collector
from jobq.observe.why import why
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

MIDS = [f"m{n}" for n in range(6)]
STATES = 300
#: Of a message that the next dequeue hands out: nothing holds it up, or that dequeue makes it ready first.
NEXT = {"next", "upkeep_late", "lease"}
#: Reasons that keep a message from being handed out whatever else holds.
HELD = {"paused", "delayed", "retrying", "snoozed", "key_held", "key_rate", "key_max", "queue_max"}


class Walk:
    """Random steps through the states of one queue, by a clock of its own."""

    def __init__(self, queue: Queue, client: Client, seed: int, keyed: bool) -> None:
        self.queue, self.client, self.chosen, self.keyed = queue, client, random.Random(seed), keyed
        self.now = client.clock_ms()
        client.clock = lambda: self.now
        self.held: dict[str, Message] = {}

    def step(self) -> None:
        """Change the state by one random step."""
        steps = [self.enqueue, self.enqueue, self.end, self.cancel, self.later, self.pause]
        self.chosen.choice([*steps, self.rule] if self.keyed else steps)()

    def enqueue(self) -> None:
        key = self.chosen.choice([None, "a", "b"]) if self.keyed else None
        options: dict[str, Any] = {} if key is None else {"key": key}
        delay = self.chosen.choice([None, None, 5])
        self.queue.enqueue(b'{"job":"a.b"}', mid=self.chosen.choice(MIDS), delay=delay, **options)

    def end(self) -> None:
        if self.held:
            message = self.held.pop(self.chosen.choice(sorted(self.held)))
            outcome = self.chosen.choice(["done", "retry", "dead", "snooze", "release"])
            backoff = self.chosen.choice([0, 4]) if outcome in ("retry", "snooze") else None
            record = f"a.b\x1f{message.attempt}\x1f\x1f10\x1f1\x1f1\x1fw\x1fTimeout"
            self.queue.finish([Ending(
                mid=message.mid, token=message.token, outcome=outcome, backoff=backoff, reason="x", record=record,
            )])  # fmt: skip

    def cancel(self) -> None:
        if not self.chosen.randrange(3):
            self.queue.cancel(self.chosen.choice(MIDS))

    def later(self) -> None:
        self.now += self.chosen.choice([1, 1_000, 6_000, 20_000])

    def pause(self) -> None:
        (self.queue.admin.resume if self.chosen.randrange(4) else self.queue.admin.pause)()

    def rule(self) -> None:
        match self.chosen.randrange(3):
            case 0:
                self.queue.rule("a", max=self.chosen.choice([1, None]))
            case 1:
                self.queue.hold("b", self.chosen.choice([0, 3]))
            case _:
                self.queue.rules(max=self.chosen.choice([2, None]))

    def handed_out(self) -> list[Message]:
        """What a worker gets next; a reply without messages may ask it to call again."""
        for _ in range(10):
            reply = self.queue.dequeue(1, lease=10)
            if reply.messages or reply.poll_after_ms:
                return reply.messages
        return []

    def check(self) -> None:
        """Ask why each message waits, then see what is handed out."""
        presence.put_worker(self.client, "w", {
            "seen_at": self.now, "lease_ms": 10_000, "queues": ["low"], "slots": 2, "version": "1.2", "jobs": "",
        })  # fmt: skip
        codes = {}
        for mid in MIDS:
            collector = Collector(self.queue)
            codes[mid] = [reason.code for reason in why(collector.collect(mid))]
            assert collector.unread == {}
        given = self.handed_out()
        self.held |= {one.mid: one for one in given}
        mids = {one.mid for one in given}
        if self.keyed and any(found[0] in ("lease", "upkeep_late") for found in codes.values()):
            return  # that dequeue recovers what counted as running
        upcoming = {mid for mid, found in codes.items() if found[0] == "next"}
        # Keys and messages without one take turns: of those that are next in their line, one is handed out.
        # Keys take turns, so several messages may be next in their line; of those one is handed out.
        assert mids if upcoming and self.keyed else upcoming <= mids, (codes, mids)
        for mid in mids:
            assert codes[mid][0] in NEXT | ({"turns", "line"} if self.keyed else set()), (
                mid,
                codes,
            )
            assert not HELD & set(codes[mid]), (mid, codes)


@pytest.mark.parametrize("keyed", [False, True])
def test_next_is_what_the_next_dequeue_hands_out(queue: Queue, client: Client, keyed: bool):
    walk = Walk(queue, client, 16, keyed)
    try:
        for _ in range(STATES):
            for _ in range(walk.chosen.randrange(1, 5)):
                walk.step()
            walk.check()
    finally:
        client.clock = None
