"""Any sequence of calls against a few lines of Python that say what the queue should hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobq.protocols.reliable import ReliableQueue

LIMIT = 3
TOKENS = st.sampled_from(["", "me", "you"])


class Lives(RuleBasedStateMachine):
    """One queue; ids in the order of each place, deliveries and holders beside."""

    client: Any
    redis: Any

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.rq = ReliableQueue(self.client)
        self.rq.configure("q", max_deliveries=LIMIT)
        self.now = 1_700_000_000_000
        self.waiting: list[str] = []
        self.pending: dict[str, int] = {}  # id -> when, in the order of delivery
        self.dead: list[str] = []
        self.count: dict[str, int] = {}
        self.holder: dict[str, str] = {}
        self.last = (0, 0)

    def deliver(self, ids: list[str], token: str) -> None:
        for id in ids:
            self.count[id] += 1
            self.pending.pop(id, None)
            self.pending[id] = self.now
            self.holder[id] = token

    def chosen(self, data: Any, token: str) -> tuple[list[str], list[str]]:
        """Some ids, known or not, and those of them that this token may end."""
        known = sorted(self.count)
        ids = data.draw(st.lists(st.sampled_from([*known, "1-1"]), min_size=1, max_size=4))
        distinct = list(dict.fromkeys(ids))
        return ids, [
            id for id in distinct if id in self.pending and (not token or self.holder[id] == token)
        ]

    @rule(ms=st.integers(1, 30))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(number=st.integers(1, 4))
    def push(self, number: int) -> None:
        ids = self.rq.push("q", *["x"] * number, now=self.now)
        for id in ids:
            ms, seq = map(int, id.split("-"))
            assert (ms, seq) > self.last
            self.last = ms, seq
            self.count[id] = 0
        self.waiting += ids

    @rule(count=st.integers(0, 4), token=TOKENS)
    def pop(self, count: int, token: str) -> None:
        ids, self.waiting = self.waiting[:count], self.waiting[count:]
        self.deliver(ids, token)
        popped = self.rq.pop(count, 0, "q", token=token, now=self.now)
        assert [(one.id, one.deliveries) for one in popped or ()] == [
            (id, self.count[id]) for id in ids
        ]

    def due(self, count: int, elapsed: int) -> list[str]:
        """What comes back, after those that die of it."""
        back: list[str] = []
        for id, when in list(self.pending.items()):
            if len(back) == count or self.now - when < elapsed:
                break
            if self.count[id] >= LIMIT:
                del self.pending[id], self.holder[id]
                self.dead.append(id)
            else:
                back.append(id)
        return back

    @rule(count=st.integers(0, 4), elapsed=st.integers(0, 40), token=TOKENS)
    def recover(self, count: int, elapsed: int, token: str) -> None:
        ids = self.due(count, elapsed)
        self.deliver(ids, token)
        found = self.rq.recover("q", count, elapsed, token=token, now=self.now)
        assert [(one.id, one.deliveries) for one in found or ()] == [
            (id, self.count[id]) for id in ids
        ]

    @rule(count=st.integers(0, 4), elapsed=st.integers(0, 40), token=TOKENS)
    def pop_what_is_due_first(self, count: int, elapsed: int, token: str) -> None:
        ids = self.due(count, elapsed)
        self.deliver(ids, token)
        more = self.waiting[: count - len(ids)]
        self.waiting = self.waiting[len(more) :]
        self.deliver(more, token)
        popped = self.rq.pop(count, 0, "q", token=token, recover_after=elapsed / 1000, now=self.now)
        assert [one.id for one in popped or ()] == ids + more

    @precondition(lambda self: self.count)
    @rule(data=st.data(), token=TOKENS)
    def ack(self, data: Any, token: str) -> None:
        ids, ended = self.chosen(data, token)
        assert self.rq.ack("q", *ids, token=token, now=self.now) == ended
        for id in ended:
            del self.pending[id], self.count[id], self.holder[id]

    @precondition(lambda self: self.count)
    @rule(data=st.data(), token=TOKENS, front=st.booleans())
    def nack(self, data: Any, token: str, front: bool) -> None:
        ids, ended = self.chosen(data, token)
        assert self.rq.nack("q", *ids, token=token, front=front, now=self.now) == ended
        alive = [id for id in ended if self.count[id] < LIMIT]
        self.dead += [id for id in ended if id not in alive]
        for id in ended:
            del self.pending[id], self.holder[id]
        self.waiting = alive + self.waiting if front else self.waiting + alive

    @precondition(lambda self: self.count)
    @rule(data=st.data(), token=TOKENS)
    def release(self, data: Any, token: str) -> None:
        ids, ended = self.chosen(data, token)
        assert self.rq.release("q", *ids, token=token, now=self.now) == ended
        for id in ended:
            del self.pending[id], self.holder[id]
            self.count[id] -= 1
        self.waiting = ended + self.waiting

    @precondition(lambda self: self.count)
    @rule(data=st.data(), token=TOKENS)
    def extend(self, data: Any, token: str) -> None:
        ids, ended = self.chosen(data, token)
        assert self.rq.extend("q", *ids, token=token, now=self.now) == ended
        for id in ended:
            del self.pending[id]
            self.pending[id] = self.now

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), revive=st.booleans())
    def end_a_death(self, data: Any, revive: bool) -> None:
        id = data.draw(st.sampled_from(self.dead))
        assert (self.rq.revive if revive else self.rq.purge)("q", id, now=self.now) == [id]
        self.dead.remove(id)
        if revive:
            self.waiting.append(id)
            self.count[id] = 0
        else:
            del self.count[id]

    @precondition(lambda self: self.waiting)
    @rule()
    def ticket_is_lost(self) -> None:
        """A client dies with it; a second later nobody can tell."""
        self.redis.lpop("reliable:{q}:tickets")
        self.now += 1000

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        rq, now = self.rq, self.now
        assert [one.id for one in rq.inspect("q", 0, 200)] == self.waiting
        assert [
            (one.id, one.delivered_at, one.deliveries) for one in rq.pending("q", 0, 200, now=now)
        ] == [(id, when, self.count[id]) for id, when in self.pending.items()]
        assert sorted(one.id for one in rq.dead("q")) == sorted(self.dead)
        assert self.redis.hlen("reliable:{q}:messages") == len(self.count)
        tokens = {id.encode(): token.encode() for id, token in self.holder.items() if token}
        assert self.redis.hgetall("reliable:{q}:tokens") == tokens
        counted = {id for id in self.count if self.count[id] - (id in self.pending)}
        assert {id.decode() for id in self.redis.hkeys("reliable:{q}:unacked")} >= counted


@pytest.mark.timeout(1800)
def test_any_sequence_of_calls_leaves_every_message_in_its_one_place(client, redis):
    kind = type("LivesHere", (Lives,), {"client": client, "redis": redis})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=150, stateful_step_count=40, deadline=None,
            # To explain a failure, Hypothesis would trace every line that runs, failing or not.
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
