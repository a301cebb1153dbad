"""Small changes of partitions, each with a rare event. JOBQ_MODEL=large allows one enqueue more."""

from __future__ import annotations

import os
from dataclasses import replace

from tests.model.partition.world import Scope
from tests.model.scopes import KEYED, ORDERED, PLAIN, REQUEUE, UNIQUE

LATER = replace(KEYED, delay=3)
_B = replace(ORDERED, key="B")
_SMALL = (
    Scope("plain mids", {"plain": PLAIN}, {"enqueue": 2, "fail": 1}, ("done", "retry"), ("m1",)),
    Scope(
        "unique, and newer content",
        {"unique": UNIQUE, "requeue": replace(REQUEUE, dedupe=2)},
        {"enqueue": 3},
        mids=("m1",),
        producers=1,
        knows=True,
    ),
    Scope(
        "an ordered key",
        {"ordered": ORDERED},
        {"enqueue": 2, "fail": 1},
        ("done", "retry"),
        producers=1,
        knows=True,
    ),
    Scope(
        "a key with a delay",
        {"later": LATER, "keyed": KEYED},
        {"enqueue": 3},
        producers=1,
        knows=True,
        paired=True,
    ),
    Scope(
        "dead and revived",
        {"plain": PLAIN},
        {"enqueue": 2, "fail": 1, "revive": 1},
        ("done", "dead"),
        ("m1",),
        producers=1,
    ),
    Scope(
        "taken out and put back",
        {"plain": PLAIN},
        {"enqueue": 2, "take": 1, "put": 1},
        mids=("m1",),
        producers=1,
    ),
    Scope(
        "a held key",
        {"ordered": ORDERED},
        {"enqueue": 2, "hold": 1},
        mids=("m1",),
        producers=1,
        knows=True,
    ),
    Scope(
        "a lost worker",
        {"ordered": ORDERED},
        {"enqueue": 2, "lose": 1},
        producers=1,
        knows=True,
    ),
    Scope(
        "a key at its maximum",
        {"keyed": KEYED},
        {"enqueue": 2, "fail": 1},
        ("done", "retry"),
        producers=1,
        knows=True,
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "delays of a key at its maximum",
        {"later": replace(KEYED, delay=2), "keyed": KEYED},
        {"enqueue": 3},
        producers=1,
        knows=True,
        paired=True,
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "a key with a rate",
        {"later": replace(KEYED, delay=1), "keyed": KEYED},
        {"enqueue": 2},
        producers=1,
        knows=True,
        paired=True,
        rule=("", 1, 3, "", ""),
    ),
    Scope(
        "ordered keys with delays",
        {"A": replace(ORDERED, delay=1), "B": replace(_B, delay=1), "now": _B},
        {"enqueue": 3},
        mids=("m1", "m2", "m3"),
        producers=1,
        knows=True,
        paired=True,
        once=True,
        rule=(1, "", "", "", ""),
        lists_one=True,
    ),
    Scope(
        "newer content with another key",
        {
            "A": replace(KEYED, requeue=1),
            "B": replace(KEYED, key="B", requeue=1),
            "now": replace(KEYED, key="B"),
        },
        {"enqueue": 3},
        mids=("m1", "m1", "m2"),
        producers=1,
        knows=True,
        paired=True,
        once=True,
        rule=(1, "", "", "", ""),
    ),
    Scope(
        "a partition without its data",
        {"plain": PLAIN, "later": LATER},
        {"enqueue": 2, "wipe": 1},
        producers=1,
        knows=True,
        paired=True,
    ),
)


def _larger(scope: Scope) -> Scope:
    return replace(scope, budget={**scope.budget, "enqueue": scope.budget["enqueue"] + 1})


SCOPES = tuple(map(_larger, _SMALL)) if os.environ.get("JOBQ_MODEL") == "large" else _SMALL
