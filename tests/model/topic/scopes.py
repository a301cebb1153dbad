"""What is exhausted for topics. Each is closed by its budgets alone; time, polls and commits have none."""

from __future__ import annotations

from tests.model.topic.world import Scope

SCOPES = (
    Scope(
        "two readers share a group",
        {"append": 2, "forget": 1, "release": 1},
        shapes=("m", "m m"),
    ),
    Scope(
        "three readers, committed by the next poll",
        {"append": 2, "forget": 1},
        shapes=("m m",),
        readers="ABC",
        auto=True,
        counts=(1,),
    ),
    Scope(
        "moved, trimmed and paused under its readers",
        {"append": 2, "forget": 0, "seek": 1, "trim": 1, "pause": 2},
        shapes=("m m",),
        counts=(1, 3),
    ),
    Scope(
        "compaction beside appends and readers",
        {"append": 2, "trim": 1, "compaction": 2},
        shapes=("mk1 mk1", "mk1 mk2", "k1 m"),
        readers="A",
        counts=(2,),
        parts=False,
    ),
)
