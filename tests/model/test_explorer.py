"""Every interleaving of the scopes in `scopes.py`, on the scripts as they are.

What is exhausted: two workers (in one scope three) and one or two mids, of which the first is enqueued first: they
differ by their names alone, and the large form tries both. Producers enqueue, update and requeue, with and
without delays, dedupe backoffs and lock lengths of their own, one mid or several in a call. Workers dequeue, extend,
release, and finish as done, retry, dead, crashed or snooze, with and without asking for more; they crash, as do their
supervisors' calls, which come late, twice, or after the close. People cancel, revive, pause and clear. The clock moves
to every moment at which a lock or backoff ends and to the one before, and in one scope steps back; whoever looks
collects. These happen in any order. Only steps that start new work (enqueues, failures, crashes, cancels …) have a
budget; there is no other end to a path. Who has no more left of any budget than another who stood in the same state can
do nothing that the other couldn't, and is not followed. Each state is visited once, checked against `promises.py`, and
drained by one fair worker, which must bring whatever was accepted and not superseded to done or dead.

`make test` follows each path for `scope.depth` steps, and makes at least ENOUGH transitions: the mutants of a scope are
found one step before. `make test-all` continues until no state is new. The run ends with the scopes in words, their
states and transitions. Two scopes have smaller budgets here, in which their mutants are found. JOBQ_MODEL=large takes
the full budgets and one enqueue more, for a night.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.model.breadth_first import ENOUGH
from tests.model.explorer import Explorer
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES, chosen, resized
from tests.model.world import Scope

#: Machines are busy, and the large form takes a night.
pytestmark = pytest.mark.timeout(43_200 if os.environ.get("JOBQ_MODEL") == "large" else 3600)


@pytest.mark.parametrize(
    "short", [True, pytest.param(False, marks=pytest.mark.long)], ids=["short", "exhausted"]
)
@pytest.mark.parametrize("scope", chosen(), ids=lambda scope: scope.name)
def test_every_interleaving_keeps_the_promise(
    scope: Scope, short: bool, record_property: Callable[[str, object], None]
) -> None:
    result = Explorer(scope, depth=scope.depth if short else None).run()

    record_property("summary", f"the explorer, {result}")
    assert not result.violation, result
    assert result.transitions >= ENOUGH


def test_both_lua_machines_reach_the_same_states_when_they_run_the_same_scope() -> None:
    scope = resized(next(scope for scope in SCOPES if scope.workers == "ABC"), -1)
    fast = Explorer(scope, depth=scope.depth).run()
    reference = Explorer(scope, lua="lua51", depth=scope.depth).run()

    assert not fast.violation
    assert not reference.violation
    assert (fast.states, fast.kinds) == (reference.states, reference.kinds)


def test_a_violation_is_told_with_its_shortest_trace_when_a_fault_is_sown() -> None:
    fault = next(m for m in MUTANTS if m.name == "a retry stays in the circle")
    result = Explorer(next(s for s in SCOPES if s.name == fault.scope), fault).run()

    assert [step[0] for step in result.trace] == ["enqueue", "dequeue", "finish"]
    assert "VIOLATION I2" in str(result)
    assert "3. finish A 0 retry" in str(result)
