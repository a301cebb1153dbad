"""The scopes: what is exhausted.

Each is closed by its budgets alone; time, dequeues, extends and releases have none.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tests.model.world import Flavour, Scope

PLAIN = Flavour()
UPDATE = Flavour(update=1)
REQUEUE = Flavour(requeue=1)
BOTH = Flavour(update=1, requeue=1)
LATER = Flavour(delay=4)
MOVE_LATER = Flavour(delay=3, update=1)
MOVE_SOONER = Flavour(delay=0, update=1)
REQUEUE_LATER = Flavour(delay=3, requeue=1)
DEDUPED = Flavour(dedupe=2)
LONG = Flavour(lock=6)
SHORT = Flavour(lock=2, update=1)

UNIQUE = Flavour(again="done")
UNTIL_START = Flavour(again="start")
NEWEST = Flavour(again="start", update=1)
THROTTLED = Flavour(again="done", dedupe="@6")
DEBOUNCED = Flavour(again="start", update=1, delay=3, at_most=5)

ALL = ("extend", "release", "collect")

KEYED = Flavour(key="A")
ORDERED = Flavour(key="A", ordered=True)

#: NEXT: of those that are enqueued in the order of their numbers.
MEMBER, NEXT = Flavour(again="member"), Flavour(again="next")

SCOPES = (  # the longest first
    Scope(
        "several in one call",
        {"both": BOTH, "move later": MOVE_LATER},
        {"enqueue": 2, "fail": 1, "forget": 0},
        mids=("m1", "m2"),
        batches=("m1,m2", "m1,m1", "m1,m2,m1"),
        hold_cap=2,
        limit=2,
        endings=("done", "again"),
        actions=(),
    ),
    Scope(
        "two mids, two at once",
        {"both": BOTH},
        {"enqueue": 2, "fail": 1, "forget": 1},
        mids=("m1", "m2"),
        hold_cap=2,
        limit=2,
        endings=("done", "retry", "dead", "release"),
        actions=ALL,
        depth=8,
    ),
    Scope(
        "resting and waking",
        {"both": BOTH, "move later": Flavour(delay=40, update=1)},
        {"enqueue": 2, "fail": 1, "pause": 2, "forget": 1},
        mids=("m1", "m2"),
        endings=("done", "retry"),
        actions=("more",),
        lease=20,
        backoff=10,
        margin=0,
        pause_ms=15,
        idle=True,
        depth=7,
    ),
    Scope(
        "upkeep one mid at a time",
        {"both": BOTH},
        {"enqueue": 3, "fail": 1, "forget": 0},
        mids=("m1", "m2"),
        batches=("m1,m2",),
        endings=("done", "retry"),
        actions=(),
        lap=1,
    ),
    Scope(
        "dedupe and cancel",
        {"deduped": DEDUPED, "both": BOTH, "requeue later": REQUEUE_LATER},
        {"enqueue": 3, "fail": 2, "cancel": 2, "forget": 1},
        remembers=True,
        endings=("done", "snooze"),
        actions=ALL,
        depth=8,
    ),
    Scope(
        "calls late, repeated, closed",
        {"both": BOTH},
        {"enqueue": 2, "fail": 1, "forget": 1, "close": 1},
        endings=("done", "crashed"),
        actions=("extend", "release", "more"),
        calls=True,
        depth=8,
    ),
    Scope(
        "refused calls, repeated",
        {"plain": PLAIN, "requeue": REQUEUE},
        {"enqueue": 3, "fail": 1, "forget": 0},
        mids=("m1",),
        endings=("done", "retry"),
        actions=(),
        calls=True,
    ),
    Scope(
        "newer content against every ending",
        {"plain": PLAIN, "update": UPDATE, "requeue": REQUEUE},
        {"enqueue": 3, "fail": 3, "forget": 2},
        hold_cap=2,
        endings=("done", "retry", "dead", "crashed"),
        actions=ALL,
    ),
    Scope(
        "delays and backoffs, moved both ways",
        {
            "later": LATER,
            "move later": MOVE_LATER,
            "move sooner": MOVE_SOONER,
            "requeue later": REQUEUE_LATER,
        },
        {"enqueue": 4, "fail": 2, "forget": 1},
        endings=("done", "retry", "again"),
        actions=ALL,
    ),
    Scope(
        "clear under running jobs",
        {"plain": PLAIN, "both": BOTH},
        {"enqueue": 3, "fail": 0, "forget": 1, "clear": 1},
        mids=("m1", "m2"),
        actions=("extend", "collect"),
    ),
    Scope(
        "dead, revived, cancelled",
        {"plain": PLAIN, "requeue": REQUEUE},
        {"enqueue": 2, "fail": 3, "forget": 1, "revive": 1, "cancel": 1},
        endings=("done", "dead", "crashed", "expired"),
        actions=("extend", "collect"),
    ),
    Scope(
        "three workers, own lock lengths",
        {"long": LONG, "short": SHORT, "both": BOTH},
        {"enqueue": 3, "fail": 2, "forget": 2},
        workers="ABC",
        endings=("done", "crashed"),
        actions=ALL,
    ),
    Scope(
        "workers without the job",
        {"both": BOTH, "requeue": REQUEUE},
        {"enqueue": 2, "fail": 3, "forget": 1},
        endings=("done", "retry", "unknown"),
        actions=ALL,
    ),
    Scope(
        "one of the dead is kept",
        {"plain": PLAIN},
        {"enqueue": 3, "fail": 2, "forget": 1, "revive": 1},
        endings=("done", "dead", "crashed"),
        mids=("m1", "m2"),
        crash_limit=1,
        actions=("collect",),
        dead_max=1,
    ),
    Scope(
        "a message for each death",
        {"plain": PLAIN, "requeue": REQUEUE},
        {"enqueue": 2, "fail": 2, "forget": 2, "revive": 1, "cancel": 1},
        endings=("done", "dead", "crashed"),
        actions=("collect", "more"),
        crash_limit=1,
        on_dead=True,
    ),
    Scope(
        "taken out and put back",
        {"long, later": replace(LATER, lock=6), "both": BOTH},
        {"enqueue": 2, "fail": 1, "forget": 0, "take": 1, "put": 1},
        remembers=True,
        endings=("done", "retry"),
        actions=(),
    ),
    Scope(
        "the dead taken out, revived, put back",
        {"plain": PLAIN},
        {"enqueue": 2, "fail": 2, "forget": 0, "take": 2, "put": 1},
        endings=("dead", "retry"),
        actions=(),
        depth=10,
    ),
    Scope(
        "keys taken out and put back",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 1, "forget": 0, "take": 1, "put": 1},
        workers="A",
        mids=("m1", "m2"),
        endings=("done", "hold"),
        actions=(),
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "edited, and edited back",
        {"plain": PLAIN, "update": UPDATE},
        {"enqueue": 2, "fail": 2, "forget": 0, "checkpoint": 1, "edit": 1},
        workers="A",
        endings=("done", "retry"),
        actions=("release",),
    ),
    Scope(
        "run now, or later",
        {"later": LATER, "plain": PLAIN, "keyed": KEYED},
        {"enqueue": 2, "fail": 1, "forget": 1, "move": 2},
        endings=("done", "retry"),
        actions=(),
    ),
    Scope(
        "checkpoints",
        {"update": UPDATE, "requeue": REQUEUE},
        {"enqueue": 2, "fail": 2, "forget": 1, "checkpoint": 2, "report": 1, "cancel": 1},
        tracebacks=True,
        endings=("done", "retry", "dead"),
        actions=("collect",),
    ),
    Scope(
        "unique until done or started",
        {"unique": UNIQUE, "until start": UNTIL_START, "newest": NEWEST},
        {"enqueue": 3, "fail": 2, "cancel": 1, "forget": 1},
        batches=("m1,m1",),
        endings=("done", "retry", "dead", "crashed"),
        actions=("extend", "collect"),
    ),
    Scope(
        "throttled",
        {"throttled": THROTTLED, "unique": UNIQUE},
        {"enqueue": 3, "fail": 2, "cancel": 1, "forget": 1},
        endings=("done", "retry", "dead"),
        actions=("extend", "collect"),
    ),
    Scope(
        "debounced",
        {"debounced": DEBOUNCED},
        {"enqueue": 4, "fail": 1, "cancel": 1, "forget": 1},
        endings=("done", "retry"),
        actions=("collect",),
        backoff=9,
        depth=10,
    ),
    Scope(
        "due one mid at a time",
        {"later": LATER, "deduped later": replace(DEDUPED, delay=3)},
        {"enqueue": 2, "fail": 0, "forget": 0},
        mids=("m1", "m2"),
        batches=("m1,m2",),
        actions=("collect",),
        lap=1,
    ),
    Scope(
        "ticks that skip while a run is under way",
        {"both": BOTH},
        {"enqueue": 0, "fail": 1, "forget": 1},
        mids=("m1", "m2", "m3"),
        endings=("done", "retry"),
        actions=("collect",),
        ticks=(1, 2, 6),
        overlap="skip",
    ),
    Scope(
        "ticks that wait for the run before",
        {"both": BOTH},
        {"enqueue": 0, "fail": 1, "forget": 0},
        mids=("m1", "m2", "m3"),
        endings=("done", "retry"),
        actions=("collect",),
        ticks=(1, 2, 6),
        overlap="queue",
    ),
    Scope(
        "ticks that cancel the run before",
        {"both": BOTH},
        {"enqueue": 0, "fail": 1, "forget": 0},
        mids=("m1", "m2", "m3"),
        endings=("done", "retry"),
        actions=("collect",),
        ticks=(1, 2, 6),
        overlap="cancel",
        remembers=True,
    ),
    Scope(
        "ticks that run side by side",
        {"both": BOTH},
        {"enqueue": 0, "fail": 1, "forget": 0, "step_back": 1},
        mids=("m1", "m2"),
        endings=("done", "retry"),
        actions=(),
        ticks=(1, 3),
        overlap="allow",
    ),
    Scope(
        "ticks of a schedule whose times are edited",
        {"both": BOTH},
        {"enqueue": 0, "fail": 0, "forget": 0, "define": 2},
        mids=("m1", "m2"),
        actions=(),
        ticks=(1, 3),
        overlap="allow",
    ),
    Scope(
        "ticks of a key, of which one may wait",
        {"both": BOTH},
        {"enqueue": 0, "fail": 2, "forget": 0},
        workers="A",
        mids=("m1", "m2", "m3"),
        endings=("done", "hold"),
        actions=(),
        ticks=(1, 3, 5),
        overlap="allow",
        tick_key="A",
        rule=(1, "", "", "", 1),
    ),
    Scope(
        "ticks of a key that wait for the run before",
        {"both": BOTH},
        {"enqueue": 0, "fail": 1, "forget": 0},
        mids=("m1", "m2", "m3"),
        endings=("done", "hold"),
        actions=(),
        ticks=(1, 2, 6),
        overlap="queue",
        tick_key="A",
    ),
    Scope(
        "keys, one at a time each",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 1, "forget": 1},
        workers="A",
        mids=("m1", "m2"),
        hold_cap=2,
        endings=("done", "hold"),
        actions=(),
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "keys cancelled and changed",
        {"keyed": KEYED, "of another": Flavour(key="B", requeue=1)},
        {"enqueue": 2, "cancel": 1, "fail": 0, "forget": 0},
        workers="A",
        mids=("m1", "m2"),
        actions=(),
        hold_cap=2,
        limit=2,
    ),
    Scope(
        "keys that update and come back",
        {
            "keyed": replace(KEYED, update=1),
            "later": replace(KEYED, delay=3, update=1),
            "moved": Flavour(key="B", requeue=1),
        },
        {"enqueue": 3, "fail": 1, "forget": 1, "revive": 1},
        workers="A",
        endings=("done", "dead"),
        actions=(),
    ),
    Scope(
        "a line in order",
        {"ordered": ORDERED},
        {"enqueue": 2, "fail": 2, "forget": 1},
        mids=("m1", "m2"),
        endings=("done", "retry", "crashed", "snooze", "hold", "unknown"),
        actions=("release", "more"),
        limit=2,
        hold_cap=2,
        workers="A",
    ),
    Scope(
        "keys in turn, also those that crash",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 1, "forget": 0},
        mids=("m1", "m2"),
        endings=("done", "crashed"),
        actions=("release",),
        limit=2,
        hold_cap=2,
        workers="A",
    ),
    Scope(
        "keys in turn, with more in each line than one turn takes",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 0, "forget": 0},
        mids=("m1", "m2", "m3", "m4"),
        batches=("m1,m2,m3", "m2,m3,m4"),
        endings=("done",),
        actions=(),
        workers="A",
    ),
    Scope(
        "a key at its maximum, and another behind it",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 0, "forget": 0},
        workers="A",
        mids=("m1", "m2", "m3"),
        batches=("m1,m2",),
        actions=(),
        hold_cap=2,
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "keys whose jobs hold them for long, and briefly",
        {"keyed": KEYED},
        {"enqueue": 2, "fail": 3, "forget": 0},
        workers="A",
        mids=("m1", "m2"),
        hold_cap=2,
        limit=2,
        endings=("hold", "hold briefly"),
        actions=(),
    ),
    Scope(
        "keys that rest and wake",
        {"keyed": KEYED, "plain": PLAIN},
        {"enqueue": 2, "fail": 1, "forget": 0},
        mids=("m1", "m2"),
        endings=("done", "hold"),
        actions=("more",),
        workers="A",
        lease=20,
        backoff=10,
        margin=0,
        idle=True,
        most=1,
        rule=(1, 1, 30, "", ""),
    ),
    Scope(
        "members of flows",
        {"member": MEMBER},
        {"enqueue": 2, "fail": 2, "forget": 1, "cancel": 1, "revive": 1},
        mids=("~1",),
        remembers=True,
        endings=("done", "retry", "dead", "crashed", "expired"),
        actions=("collect", "more"),
    ),
    Scope(
        "members of a map",
        {"in order": NEXT, "again": MEMBER},
        {"enqueue": 3, "fail": 1, "forget": 1, "cancel": 0},
        workers="A",
        mids=("~m.0", "~m.1"),
        batches=("~m.0,~m.1",),
        endings=("done", "dead"),
        actions=("collect",),
    ),
    Scope(
        "members with a dedupe, calls repeated",
        {"deduped": replace(MEMBER, dedupe=2), "keyed, later": replace(MEMBER, delay=2, key="A")},
        {"enqueue": 2, "fail": 1, "forget": 1, "cancel": 1},
        workers="A",
        mids=("~1",),
        endings=("done", "dead"),
        actions=("more",),
        calls=True,
    ),
    Scope(
        "members taken out, put back, cleared",
        {"member": MEMBER},
        {"enqueue": 3, "fail": 2, "forget": 1, "take": 2, "put": 2, "clear": 1},
        workers="A",
        mids=("~1",),
        batches=("~1,~1",),
        endings=("done", "dead"),
        actions=(),
    ),
    Scope(
        "names that workers claim",
        {"plain": PLAIN},
        {"enqueue": 2, "fail": 1, "forget": 0, "claim": 4, "sign_off": 2},
        endings=("done", "retry"),
        actions=(),
    ),
    Scope(
        "a circle that is walked rarely",
        {"plain": PLAIN},
        {"enqueue": 3, "fail": 0, "forget": 1},
        mids=("m1", "m2"),
        actions=(),
        walks=(2, 3, 10, 1_000),
    ),
    Scope(
        "a long circle that is walked often",
        {"plain": PLAIN},
        {"enqueue": 1, "fail": 0, "forget": 1},
        mids=("m1", "m2", "m3"),
        batches=("m1,m2,m3",),
        actions=(),
        walks=(2, 3, 1, 1),
    ),
    Scope(
        "a clock that steps back",
        {"later": LATER, "both": BOTH},
        {"enqueue": 3, "fail": 1, "forget": 1, "step_back": 1},
        endings=("done", "retry"),
        actions=ALL,
    ),
)


#: Smaller budgets of the scopes that take longest. The mutants of these scopes are found with them,
#: and JOBQ_MODEL=large explores the full ones.
SMALLER = {
    "several in one call": {"fail": 0},
    "two mids, two at once": {"forget": 0},
}


def smaller(scope: Scope) -> Scope:
    """The scope as the tests explore it."""
    return replace(scope, budget={**scope.budget, **SMALLER.get(scope.name, {})})


def resized(scope: Scope, more: int) -> Scope:
    """Return the scope with this many enqueues more, or fewer."""
    if scope.ticks:
        return replace(scope, budget={**scope.budget, "fail": max(0, scope.budget["fail"] + more)})
    return replace(
        scope, budget={**scope.budget, "enqueue": max(1, scope.budget["enqueue"] + more)}
    )


def chosen() -> tuple[Scope, ...]:
    """JOBQ_MODEL=large, for a night, takes one enqueue more than the full budgets."""
    if os.environ.get("JOBQ_MODEL") == "large":
        return tuple(resized(scope, 1) for scope in SCOPES)
    return tuple(map(smaller, SCOPES))
