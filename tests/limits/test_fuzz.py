"""Whatever arguments and keys a script of limits is given: an error changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jobq import RateLimit
from jobq.client.functions import scripts
from tests import hostile
from tests.hostile import Call, Raw

SCRIPTS = {script.name: script for script in scripts() if script.area == "limit"}
CALLER = "fuzzfuzzfuzzfuzz"
START = "jobq:limit:{x}:"


@pytest.fixture
def good(client: Any, at: Any) -> dict[str, Call]:
    """A good call of each script, on a name that is used in every way."""
    limit, spread = RateLimit("x", "5/m"), RateLimit("x", "20000/m")
    limit.try_acquire(2, now=at(0))
    spread.try_acquire(900, now=at(70_000))
    limit.try_acquire(2, now=at(140_000))
    calls = limit.calls
    calls.perform(
        calls.run_steps("enter", {"now": at(140_000), "most": 5, "lease_ms": 50_000, "token": "a"})
    )
    calls.perform(
        calls.run_steps("enter", {"now": at(0), "most": 5, "lease_ms": 500, "token": "gone"})
    )
    calls.perform(calls.run_steps("hold", {"now": at(0), "hold_ms": 5_000}))
    numbered = (CALLER, 7)
    rate = (5, 60_000, 1_000)
    args = {
        "enter": ((at(140_000), 5, 1_000, "token"), (0, 1, 2)),
        "hold": ((at(140_000), 1_000), (0, 1)),
        "leave": (("token",), ()),
        "look": ((at(140_000), *rate), (0, 1, 2, 3)),
        "renew": ((at(140_000), 5, 1_000, "token", "gone"), (0, 1, 2)),
        "set": ((5, 60_000), (0, 1)),
        "settle": ((*numbered, at(140_000), 1, *rate), (1, 2, 3, 4, 5, 6)),
        "take": ((*numbered, at(140_001), 1, *rate, 3_600_000), (1, 2, 3, 4, 5, 6, 7)),
    }  # fmt: skip
    return {
        name: Call(
            tuple(START + (one if one != "last_call" else f"call:{CALLER}") for one in SCRIPTS[name].keys),
            given, numbers,
        )
        for name, (given, numbers) in args.items()
    }  # fmt: skip


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)
