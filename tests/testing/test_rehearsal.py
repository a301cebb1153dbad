"""Faults tried on handlers: every fault of a faulty one is found, and no sound one is accused."""

from __future__ import annotations

import os
import re
import sqlite3
from functools import partial

import pytest

from jobq.errors import ConfigError
from jobq.jobs.context import current
from jobq.jobs.registry import job
from tests.testing import handlers
from tests.testing.handlers import PAIRS
from tests.testing.shop import shop

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server
#: All seeds in `make soak`.
SEEDS = range(3) if os.environ.get("JOBQ_KIT") == "large" else range(1)


def made(registry, one, sound):
    """The pair's handler as a job: sound, or faulty."""

    def handler(*args):
        one.handler(sound, *args)

    handler.__module__ = handlers.__name__
    return job(name=f"{one.handler.__name__}.{sound}", registry=registry, retries=3)(handler)


def tried(jobq, handler, one, fault, seed):
    other = {} if one.other is None else {"other": handler.args(*one.other)}
    return jobq.rehearse(
        handler, *one.args, before=shop.reset, observe=shop.observe, faults=[fault], seed=seed, points=20, **other
    )  # fmt: skip


def test_there_are_thirty_pairs():
    assert len(PAIRS) == 30
    assert {fault for one in PAIRS for fault in one.faults} == {
        "twice", "killed", "zombie", "late", "reordered"
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one", PAIRS, ids=lambda one: one.handler.__name__)
def test_each_fault_of_a_faulty_handler_is_found_and_its_sound_twin_passes(
    jobq, registry, one, seed
):
    faulty, sound = made(registry, one, False), made(registry, one, True)
    for fault in one.faults:
        with pytest.raises(
            AssertionError, match=r"interruptions end as one clean run does; \d+ don't"
        ):
            tried(jobq, faulty, one, fault, seed)
    every = ["twice", "killed", "zombie", "late", *(["reordered"] if one.other else [])]
    for fault in every:
        tried(jobq, sound, one, fault, seed)


@pytest.fixture
def rehearse(jobq):
    """rehearse(job, *args, …) on the shop."""
    return partial(jobq.rehearse, before=shop.reset, observe=shop.observe)


def test_report_names_lines_and_differences(rehearse, registry):
    @job(name="charge", registry=registry)
    def charge(order, amount):
        if not shop.rows:
            shop.send(amount)
            shop.append((order, amount))
        shop.put(order, "over")

    with pytest.raises(AssertionError) as raised:
        rehearse(charge, 17, 990, faults=("killed", "zombie"), within=[charge.function])
    lines = str(raised.value).splitlines()
    assert lines[0] == "charge: 4 of 7 interruptions end as one clean run does; 3 don't:"
    assert re.fullmatch(
        r"  killed after line \d+ `shop\.send\(amount\)`: sent has 2 items, not 1: \[990, 990\], not \[990\]", lines[1]
    )  # fmt: skip
    assert re.fullmatch(
        r"  halted before line \d+ `shop\.send\(amount\)` while the next attempt ran: rows has 2 items, not 1: "
        r"\[\(17, 990\), \(17, 990\)\], not \[\(17, 990\)\]; sent has 2 items, not 1: .*", lines[2]
    )  # fmt: skip
    done = rehearse(charge, 17, 990, allow=("sent", "rows"), within=[charge.function])
    assert (str(done), done.findings) == (
        "charge: 9 of 9 interruptions end as one clean run does", [],
    )  # fmt: skip


def test_zombie_knows_that_its_lease_is_over_and_has_the_older_fence(rehearse, registry):
    seen = []

    @job(name="look", registry=registry)
    def look():
        context = current()
        state = (
            context.attempt, context.fence, context.lease_valid(), context.progress(1), context.checkpoint("x"),
        )  # fmt: skip
        seen.append(state)

    rehearse(look, faults=("zombie",), within=[look.function])
    # The clean run; then halted before its first line, and so on: what the next attempt saw, then the zombie.
    assert seen[:3] == [
        (1, 1, True, True, True), (2, 2, True, True, True), (1, 1, False, False, False),
    ]  # fmt: skip


def test_calls_that_a_handler_enqueues_are_compared(rehearse, registry, jobq):
    follow = job(name="follow", registry=registry)(lambda order: None)

    @job(name="first", registry=registry)
    def first(order, once):
        (follow.options(mid=f"follow-{order}") if once else follow).enqueue(order)
        shop.put(order, "over")

    rehearse(first, 17, True)
    assert jobq.all_enqueued() == []
    with pytest.raises(AssertionError, match=r"run twice: enqueued calls has 2 items, not 1"):
        rehearse(first, 17, False)
    rehearse(first, 17, False, allow=["enqueued"])
    rehearse(first, 17, kwargs={"once": True})


def test_async_handler_is_tried_too(rehearse, registry):
    @job(name="sleeps", registry=registry)
    async def sleeps(order):
        import asyncio

        shop.append(order)
        await asyncio.sleep(0)
        shop.put(order, "over")

    with pytest.raises(AssertionError, match=r"1 of 9 interruptions .*; 8 don"):
        rehearse(sleeps, 17, within=[sleeps.function])

    @job(name="safe", registry=registry)
    async def safe(order):
        import asyncio

        shop.upsert(order, 1)
        await asyncio.sleep(0)
        shop.put(order, "over")

    assert rehearse(safe, 17).findings == []


def test_process_is_really_killed(registry, jobq, tmp_path):
    path = tmp_path / "rows"

    attempts = set()

    @job(name="writes", registry=registry)
    def writes(order):
        attempts.add(current().attempt)
        try:
            with path.open("a") as file:
                file.write(f"{order}\n")
            done = True
        finally:
            (tmp_path / "closed").write_text("")
        assert done

    with pytest.raises(
        AssertionError, match=r"killed after line \d+ `done = True`: observe\(\) has 2 items"
    ):
        jobq.rehearse(
            writes, 17, faults=["killed"], fork=True, within=[writes.function],
            before=lambda: path.write_text(""), observe=lambda: path.read_text().split(),
        )  # fmt: skip
    # In this process: of the clean run, and after each kill.
    assert attempts == {1, 2}


class Store:
    """Two rows of one transaction on a connection of its own; a cycle keeps it from being released at once."""

    def __init__(self, path):
        self.itself = self
        self.db = sqlite3.connect(path, timeout=0)

    def put(self, order):
        for part in (1, 2):
            self.db.execute("INSERT INTO rows VALUES (?)", (f"{order}.{part}",))


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_killed_attempt_leaves_no_transaction_when_the_job_uses_sqlite(
    registry, jobq, tmp_path, shared
):
    path = tmp_path / "shop.db"
    kept = Store(path)
    kept.db.execute("CREATE TABLE rows (name UNIQUE)")

    @job(name="writes", registry=registry)
    def writes(order):
        store = kept if shared else Store(path)
        if not store.db.execute("SELECT 1 FROM rows").fetchone():
            store.put(order)
        store.db.commit()
        if not shared:
            store.db.close()

    def reset():
        kept.db.execute("DELETE FROM rows")
        kept.db.commit()

    def rows():
        return sorted(kept.db.execute("SELECT name FROM rows").fetchall())

    done = jobq.rehearse(writes, 17, faults=["killed"], before=reset, observe=rows)
    assert (done.findings, "rolled back" in done.killing) == ([], True)
    kept.db.close()


def test_report_says_how_attempts_were_killed(rehearse, registry):
    @job(name="send", registry=registry)
    def send(order):
        shop.send(order)
        shop.put(order, "over")

    with pytest.raises(AssertionError, match=r"ended by an exception in this process.*fork=True"):
        rehearse(send, 17, within=[send.function])


def test_many_lines_are_interrupted_at_some_points(rehearse, registry):
    @job(name="long", registry=registry)
    def long(count):
        for number in range(count):
            shop.put(number, 1)

    assert rehearse(long, 300, faults=["killed"], points=7).trials == 7
    assert rehearse(long, 300, faults=["killed", "killed"], points=10_000).trials == 600


def test_trials_that_make_no_sense_are_errors(rehearse, registry):
    plain = job(name="plain", registry=registry)(lambda: None)
    fails = job(name="fails", registry=registry)(lambda: 1 / 0)
    for options, why in (
        ({"faults": ["thrice"]}, "fault 'thrice' is unknown; use twice, killed"),
        ({"faults": ["reordered"]}, r"pass other=plain\.args"),
        ({"points": 0}, "points=0 is too small"),
        ({"within": [os]}, "no line of plain was seen"),
    ):
        with pytest.raises(ConfigError, match=why):
            rehearse(plain, **options)
    with pytest.raises(TypeError, match="too many positional"):
        rehearse(plain, 1)
    with pytest.raises(
        AssertionError,
        match=r"fails isn't done even without a fault, but ends as .*: ZeroDivisionError",
    ):
        rehearse(fails)
