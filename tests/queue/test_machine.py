"""Random sequences of calls: after each, replies, statuses and counts equal the reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobq.queue.queue import OnConflict, Queue
from jobq.queue.types import Ending
from tests.queue.reference import CRASH_LIMIT, LEASE_MS, Reference

MIDS = ("a", "b", "c", "d")
T0 = 1_700_000_000_000
mids = st.sampled_from(MIDS)
flags = st.booleans()


class Machine(RuleBasedStateMachine):
    """One queue on a real server, and its reference."""

    redis: Any
    client: Any
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.queue = Queue("low", self.client)
        self.reference = Reference(T0)
        self.ncontents = 0

    @property
    def now(self) -> int:
        return self.reference.now

    @rule(mid=mids, delay=st.sampled_from([None, None, 0, 5]), conflict=st.sampled_from(["skip", "replace", "requeue"]),
          until=st.sampled_from([None, None, 0, 30]))  # fmt: skip
    def enqueue(self, mid: str, delay: int | None, conflict: OnConflict, until: int | None) -> None:
        self.ncontents += 1
        content = str(self.ncontents).encode()
        done = self.queue.enqueue(
            content,
            mid=mid,
            delay=delay,
            on_conflict=conflict,
            until=until,
            now=self.now,
        )
        expected = self.reference.enqueue(
            mid, content, None if delay is None else delay * 1000, conflict == "replace", conflict == "requeue",
            None if until is None else until * 1000,
        )  # fmt: skip
        assert (done.action, done.existing_status) == expected

    def upkeep(self) -> None:
        """Run calls until no work is left: the work of one call is bounded."""
        for _ in range(3):
            self.queue.admin.collect(1_000, crash_limit=CRASH_LIMIT, now=self.now)
        self.reference.upkeep()
        # Its expiry runs by real time, of which none passes here.
        self.redis.delete("jobq:{low}:eoq-backoff?")

    @rule()
    def collect(self) -> None:
        self.upkeep()

    def handed(self, limit: int) -> list[Any]:
        """Return a worker's messages: one call looks past so many stale copies, and says when to ask again."""
        for _ in range(20):
            messages, poll_after_ms, paused, *_ = self.queue.dequeue(
                limit, lease=LEASE_MS / 1000, crash_limit=CRASH_LIMIT, now=self.now
            )
            assert paused == self.reference.paused
            if messages or poll_after_ms:
                return messages
        raise AssertionError("told to ask again, again and again")

    @rule(target=held, limit=st.integers(1, 3))
    def dequeue(self, limit: int) -> list[tuple[str, str]]:
        self.upkeep()
        eligible = self.reference.eligible()
        messages = self.handed(limit)
        assert bool(messages) == bool(eligible)
        assert len(messages) <= min(limit, len(eligible))
        if any(message.ncrashes for message in messages):
            assert len(messages) == 1
        for message in messages:
            assert message.mid in eligible
            one = self.reference.hand_out(message.mid, message.token)
            known = message.content, message.attempt, message.ncrashes, message.generation
            assert (*known, message.lock_expires_at) == (
                one.content, one.attempts, one.ncrashes, one.generation, one.lock_expires_at,
            )  # fmt: skip
        return [(message.mid, message.token) for message in messages]

    @rule(holds=held, data=st.data())
    def finish(self, holds: list[tuple[str, str]], data: Any) -> None:
        endings, expected = [], []
        for mid, token in holds:
            outcome = data.draw(
                st.sampled_from(["done", "done", "retry", "dead", "crashed", "snooze", "release"])
            )
            backoff = data.draw(st.sampled_from([None, 0, 4])) if outcome != "release" else None
            endings.append(
                Ending(mid=mid, token=token, outcome=outcome, backoff=backoff, reason="why")
            )
        # The script ends releases last, each to the front.
        order = sorted(range(len(endings)), key=lambda i: endings[i].outcome == "release")
        words = {
            i: self.reference.finish(
                endings[i].mid, endings[i].token, endings[i].outcome, endings[i].backoff
            )
            for i in order
        }
        expected = [words[i] for i in range(len(endings))]
        replies = self.queue.finish(endings, crash_limit=CRASH_LIMIT, now=self.now).replies
        assert replies == expected

    @rule(holds=held)
    def extend(self, holds: list[tuple[str, str]]) -> None:
        expected = [self.reference.extend(mid, token) for mid, token in holds]
        assert self.queue.extend(holds, LEASE_MS / 1000, now=self.now) == expected

    @rule(holds=held)
    def release(self, holds: list[tuple[str, str]]) -> None:
        expected = [
            self.reference.finish(mid, token, "release", None) == "ok" for mid, token in holds
        ]
        assert self.queue.release(holds, now=self.now) == expected

    @rule(mid=mids)
    def cancel(self, mid: str) -> None:
        word = self.queue.cancel(mid, now=self.now)[0]
        assert word == self.reference.cancel(mid)

    @precondition(lambda self: self.reference.dead)
    @rule(data=st.data(), purge=flags)
    def revive_or_purge(self, data: Any, purge: bool) -> None:
        dead_id = data.draw(st.sampled_from(sorted(self.reference.dead)))
        if purge:
            assert self.queue.admin.purge(dead_id) == 1
            del self.reference.dead[dead_id]
        else:
            assert self.queue.admin.revive(dead_id, now=self.now) == [
                self.reference.revive(dead_id)
            ]

    @rule(paused=flags)
    def pause(self, paused: bool) -> None:
        (self.queue.admin.pause if paused else self.queue.admin.resume)()
        self.reference.paused = paused

    @rule(ms=st.sampled_from([1, 1_000, 4_000, 9_999, 10_000, 31_000]))
    def wait(self, ms: int) -> None:
        self.reference.now += ms

    @precondition(lambda self: len(self.reference.live) > 2)
    @rule()
    def clear(self) -> None:
        assert self.queue.admin.clear(now=self.now) == len(self.reference.live)
        self.reference.live.clear()

    @invariant()
    def statuses_are_equal(self) -> None:
        for mid in MIDS:
            found = self.queue.status(mid, now=self.now)
            expected = self.reference.status(mid)
            if expected == "nil" and found.word == "dead":
                assert found.dead_id in self.reference.dead
            else:
                assert found.word == expected, mid

    @invariant()
    def counts_are_equal(self) -> None:
        assert self.queue.admin.counts()._replace(circle=0) == self.reference.counts()
        dead = {one.dead_id: one.content for one in self.queue.admin.dead()}
        assert dead == {dead_id: content for dead_id, (content, _) in self.reference.dead.items()}

    def teardown(self) -> None:
        assert self.queue.admin.fsck() == []


@pytest.mark.timeout(1800)
def test_engine_answers_as_the_reference_does(redis, client):
    machine = type("OnThisServer", (Machine,), {"redis": redis, "client": client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100, stateful_step_count=40, deadline=None, print_blob=True,
            # To explain a failure, Hypothesis would trace every line that runs, failing or not.
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
