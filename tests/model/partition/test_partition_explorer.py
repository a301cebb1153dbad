"""No interleaving of a change of partitions breaks P1 to P7; each fault that is sown is noticed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.model.explored import Explored
from tests.model.machine import Mutation
from tests.model.mutants import parsed
from tests.model.partition import ticking
from tests.model.partition.explorer import Explorer
from tests.model.partition.scopes import SCOPES as OF_MESSAGES
from tests.model.partition.ticking import TickExplorer, TickScope
from tests.model.partition.world import Scope

#: The larger scopes take up to an hour each.
pytestmark = pytest.mark.timeout(14_400 if os.environ.get("JOBQ_MODEL") == "large" else 600)
SCOPES: tuple[Scope | TickScope, ...] = (*OF_MESSAGES, *ticking.SCOPES)
#: These cost more than 5 s of CPU. Their faults are found sooner.
LONG = {"ordered keys with delays", "newer content with another key"}
BY_NAME = {scope.name: scope for scope in SCOPES}
_COMMENT, *_BLOCKS = (
    Path(__file__).with_name("mutants.txt").read_text().removesuffix("\n").split("\n\n")
)
NAMES = {mutant.name: mutant for mutant in map(parsed, _BLOCKS)}


def explored(name: str) -> Explored:
    """Explore the scope of a fault with it."""
    return explorer(BY_NAME[NAMES[name].scope], NAMES[name]).run()


def explorer(scope: Scope | TickScope, mutation: Mutation | None = None) -> Any:
    """Return the explorer of a scope."""
    if isinstance(scope, TickScope):
        return TickExplorer(scope, mutation)
    return Explorer(scope, mutation)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(scope, id=scope.name, marks=[pytest.mark.long] if scope.name in LONG else [])
        for scope in SCOPES
    ],
)
def test_no_interleaving_breaks_a_promise(scope: Scope | TickScope) -> None:
    result = explorer(scope).run()

    assert not result.violation, str(result)


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_of_partitions_finds_the_fault_when_it_is_sown(name: str) -> None:
    result = explored(name)

    assert result.violation, f"{name} survived {result}"
    assert "LuaError" not in result.violation, result.violation


def test_every_scope_has_a_fault_when_it_is_listed() -> None:
    assert {mutant.scope for mutant in NAMES.values()} == set(BY_NAME)
