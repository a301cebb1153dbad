"""No interleaving of a small flow breaks F1 to F8; each fault that is sown is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.model.explored import Explored
from tests.model.flow.explorer import Explorer
from tests.model.flow.scopes import ALL, SCOPES
from tests.model.flow.world import Scope
from tests.model.mutants import parsed

#: The larger scopes take up to an hour each.
pytestmark = pytest.mark.timeout(14_400 if os.environ.get("JOBQ_MODEL") == "large" else 600)
BY_NAME = {scope.name: scope for scope in ALL}
#: Of drainers and queues: fault, scope.
FAULTS = {
    "dead mids are accepted": "a chain that dies and is revived",
    "nobody looks": "a step, outages of any length",
    "members are accepted again": "a map, two drainers",
    "steps are accepted again": "a step that is cancelled, two drainers",
    "a timer is only cancelled": "a wait that is signalled, two drainers",
    "how members ended is not read": "a map, two drainers",
    "entries are deleted first": "a stored map",
    "results are deleted first": "a result",
    "what is sent is forgotten first": "a sub-flow",
    "a sub-flow is told once": "a sub-flow that is revived",
    "a retry is not marked": "a sub-flow that is retried",
    "a retry marks no entry": "a step that is retried",
    "a retry leaves what is to be told": "a sub-flow that is retried after a kill",
}
_COMMENT, *_BLOCKS = (
    Path(__file__).with_name("mutants.txt").read_text().removesuffix("\n").split("\n\n")
)
MUTANTS = {mutant.name: mutant for mutant in map(parsed, _BLOCKS)}
NAMES = (*FAULTS, *MUTANTS)


def explored(name: str) -> Explored:
    """Explore the scope of a fault with it."""
    mutant = MUTANTS.get(name)
    scope = BY_NAME[mutant.scope if mutant else FAULTS[name]]
    return Explorer(scope, mutant, "" if mutant else name).run()


@pytest.mark.parametrize("scope", SCOPES, ids=[scope.name for scope in SCOPES])
def test_no_interleaving_breaks_a_promise(scope: Scope) -> None:
    result = Explorer(scope).run()

    assert not result.violation, str(result)


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_of_flows_finds_the_fault_when_it_is_sown(name: str) -> None:
    result = explored(name)

    assert result.violation, f"{name} survived {result}"
    assert "LuaError" not in result.violation, result.violation
