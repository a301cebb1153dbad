"""Every interleaving of the scopes in `scopes.py`, on the scripts as they are.

JOBQ_MODEL=small takes one enqueue less everywhere, for a look in passing; large one more.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.model.explorer import Explored, Explorer
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES, chosen, resized
from tests.model.world import Scope

#: Two minutes on two idle cores; machines are busy.
pytestmark = pytest.mark.timeout(1200)
ENOUGH = 800_000
PROCESSES = 2


def explored(scope: Scope) -> Explored:
    return Explorer(scope).run()


def test_every_interleaving_keeps_the_promise_when_the_scopes_are_exhausted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        results = list(pool.map(explored, chosen()))
    states, transitions = sum(r.states for r in results), sum(r.transitions for r in results)
    with capsys.disabled():
        print("", *results, sep="\n")
        print(f"in all: {states:,} states, {transitions:,} transitions", end=", ")
        print(f"{time.perf_counter() - started:.0f} s in {PROCESSES} processes")
    broken = [str(result) for result in results if result.violation]
    assert not broken, "\n\n".join(broken)
    assert transitions >= ENOUGH or os.environ.get("JOBQ_MODEL") == "small"


def test_both_lua_machines_reach_the_same_states_when_they_run_the_same_scope() -> None:
    scope = resized(next(scope for scope in SCOPES if scope.workers == "ABC"), -1)
    fast, reference = Explorer(scope).run(), Explorer(scope, lua="lua51").run()

    assert not fast.violation
    assert not reference.violation
    assert (fast.states, fast.kinds) == (reference.states, reference.kinds)


def test_a_violation_is_told_with_its_shortest_trace_when_a_fault_is_sown() -> None:
    fault = next(m for m in MUTANTS if m.name == "a retry stays in the circle")
    result = Explorer(next(s for s in SCOPES if s.name == fault.scope), fault).run()

    assert [step[0] for step in result.trace] == ["enqueue", "dequeue", "finish"]
    assert "VIOLATION I2" in str(result)
    assert "3. finish A 0 retry" in str(result)
