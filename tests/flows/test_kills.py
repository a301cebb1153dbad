"""Whoever says, drains or finishes is killed before each of its calls in turn, and so after each: nothing changes.

The failure table of docs/internals/faults.md, row by row, without processes: tests/chaos kills these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller
from jobq.flows.announcing import announce
from jobq.flows.draining import Drainer
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow, StoredStep
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.flows.flowing import RUN, call_of, step

pytestmark = pytest.mark.one_server
QUEUES = ("low", "high")
F, PART = "import:7", "part:7"
#: Calls that each of these flows takes at least.
MIN_CALLS = 30
#: Far more than any of them needs.
MAX_LIVES, MAX_ROUNDS = 5, 60


class KilledError(BaseException):
    """The process ends here."""


class MortalClient(Client):
    """A client whose process is killed before one of its calls is sent, which is after the one before that."""

    kill_at, ncalls = 0, 0

    def perform(self, key: str, state: Any, by: Any = None) -> Any:
        self._live()
        return super().perform(key, state, by)

    def borrow(self, key: str) -> Any:
        self._live()
        return super().borrow(key)

    def _live(self) -> None:
        self.ncalls += 1
        if self.ncalls == self.kill_at:
            raise KilledError


class Plan(NamedTuple):
    """A flow, and the actions of people. bad: members that fail the first time. words: said once the flow is quiet."""

    steps: tuple[StoredStep, ...]
    bad: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    state: str = "done"
    ran: tuple[str, ...] = ()
    part: tuple[StoredStep, ...] = ()


PART_STEP = StoredStep("part", "flow", "", step("", "a").after, PART)
ITEMS = step("rows", "a", kind="map", source="items", queue="high")
PLANS = {
    "diamond": Plan(
        (step("a"), step("b", "a", queue="high"), step("c", "a"), step("d", "b", "c", queue="high")),
        ran=("a.0", "b.0", "c.0", "d.0"),
    ),
    "map": Plan(
        (step("a"), ITEMS, step("b", "rows")), ran=("a.0", "rows.0", "rows.1", "rows.2", "b.0")
    ),
    "failure": Plan(
        (step("a"), step("b", "a"), step("bad", "a", when="failed"), step("end", "a", when="ended")),
        bad=("a.0",), state="failed", ran=("a.0", "bad.0", "end.0"),
    ),
    "retry": Plan(
        (step("a"), ITEMS, step("b", "rows"), step("bad", "rows", when="failed")),
        bad=("rows.1", "rows.2"), words=(("retry", ""),), ran=("a.0", "bad.0", "rows.0", "rows.1", "rows.2", "b.0"),
    ),
    "signal": Plan(
        (step("a"), step("gate", "a", kind="wait", options=b'{"delay": 3600}'), step("b", "gate")),
        words=(("signal", 'gate\x1f"yes"'), ("signal", 'gate\x1f"no"')), ran=("a.0", "b.0"),
    ),
    "cancel": Plan(
        (step("a"), step("gate", "a", kind="wait", call=b""), step("b", "gate"), PART_STEP),
        part=(step("x", kind="wait", call=b""),), words=(("cancel", ""),), state="cancelled", ran=("a.0",),
    ),
    "part": Plan(
        (step("a"), PART_STEP, step("b", "part")), part=(step("x", queue="high"), step("y", "x")),
        bad=("x.0",), words=(("retry", ""),), ran=("a.0", "x.0", "y.0", "b.0"),
    ),
}  # fmt: skip


class World:
    """Processes that say, run and drain, one after another; each takes over from the killed process."""

    def __init__(self, living: Client, plan: Plan, kill_at: int) -> None:
        self.living, self.plan = living, plan
        self.client = MortalClient(living.settings)
        self.client.kill_at = kill_at
        self.nkills = 0
        #: Who asks each queue for messages, in the process of now.
        self.callers: dict[str, Caller] = {}
        #: Member -> the generations of it that were handed out: one for each time that it was accepted or revived.
        self.lives: dict[str, list[str]] = defaultdict(list)

    def run(self) -> None:
        """Run the whole story."""
        self.survive(self.start)
        self.work()
        for word, detail in self.plan.words:
            self.survive(partial(self.say, word, detail))
        self.work()

    def survive(self, act: Callable[[], Any]) -> Any:
        """Do it, again by another process after a kill."""
        for _ in range(MAX_LIVES):
            try:
                return act()
            except KilledError:
                self.nkills += 1
                self.client.close()
                self.client = MortalClient(self.living.settings)
                self._let_time_pass()
        raise AssertionError("killed again and again")

    def _let_time_pass(self) -> None:
        """The claim of the dead drainer ends, and its supervisor gives back what it held."""
        for name in QUEUES:
            queue = Queue(name, self.living)
            self.living.command("DEL", keys.key(queue.prefix, "flow_claim"))
        for name, caller in self.callers.items():
            queue = Queue(name, self.living)
            leases = queue.end_session(caller.id)
            queue.release([(one.mid, one.token) for one in leases])
        self.callers = {}

    def start(self) -> None:
        plan = self.plan
        for flow, steps, parent in ((PART, plan.part, f"{F}.r1.part"), (F, plan.steps, "")):
            if not steps:
                continue
            store = FlowStore(self.client, flow)
            record = StoredFlow(steps, "hash", "low", 60_000, parent, run_id=RUN)
            assert store.create(record) in ("created", "same")
            for one in steps:
                if one.source == "items":
                    store.put_items(one.name, one.queue, 0, [call_of(f"{n}") for n in range(3)])
        announce(self.client, "low", "begin", F)

    def say(self, word: Any, detail: str) -> None:
        announce(self.client, "low", word, F, detail)

    def work(self) -> None:
        """Drain and run until the state no longer changes."""
        for _ in range(MAX_ROUNDS):
            moved = sum(self.survive(partial(self.drain, name)) for name in QUEUES)
            moved += sum(self.survive(partial(self.run_one, name)) for name in QUEUES)
            if not moved:
                return
        raise AssertionError("it never ends")

    def drain(self, name: str) -> int:
        return Drainer(self.client).drain(name)

    def run_one(self, name: str) -> int:
        """Hand out a message and end it; the first life of a bad one ends badly."""
        queue = Queue(name, self.client)
        caller = self.callers.setdefault(name, queue.callers.take())
        found = queue.dequeue(caller=caller).messages
        for one in found:
            member = one.mid.split(".", 2)[2]
            lives = self.lives[member]
            if one.generation not in lives:
                lives.append(one.generation)
            bad = member in self.plan.bad and lives[0] == one.generation
            word: Any = "dead" if bad else "done"
            queue.finish([Ending(mid=one.mid, token=one.token, outcome=word)], caller=caller)
        return len(found)


def played(living: Client, plan: Plan, kill_at: int) -> World:
    """One history; it ends as the one without a kill does."""
    living.command("FLUSHALL", "SYNC", routed_by="")
    world = World(living, plan, kill_at)
    world.run()
    facts = FlowStore(living, F).facts()
    assert facts is not None
    assert facts.state == plan.state
    retried = {*plan.bad} if ("retry", "") in plan.words else set()
    assert {name: len(lives) for name, lives in world.lives.items()} == {
        name: 1 + (name in retried) for name in plan.ran
    }
    assert not any(one.todo for one in facts.steps)
    for name in QUEUES:
        queue = Queue(name, living)
        assert queue.flow_outbox() == []
        assert queue.admin.fsck() == []
    return world


@pytest.mark.parametrize("name", PLANS)
def test_a_kill_at_any_call_changes_nothing(client: Client, name: str) -> None:
    for kill_at in count(1):
        try:
            world = played(client, PLANS[name], kill_at)
        except AssertionError as error:
            raise AssertionError(f"killed before call {kill_at}") from error
        if not world.nkills:
            assert kill_at > MIN_CALLS
            return
