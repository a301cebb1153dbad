"""Every interleaving of the scopes of topics, on the scripts as they are; and faults that must be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.machine import Mutation
from tests.model.mutants import parsed
from tests.model.topic.explorer import Explorer
from tests.model.topic.scopes import SCOPES
from tests.model.topic.world import Scope

pytestmark = pytest.mark.timeout(1800)
BY_NAME = {scope.name: scope for scope in SCOPES}
_COMMENT, *_BLOCKS = Path(__file__).with_name("mutants.txt").read_text().split("\n\n")
MUTANTS = tuple(parsed(block.strip("\n")) for block in _BLOCKS)


@pytest.mark.parametrize("scope", SCOPES, ids=BY_NAME)
def test_every_interleaving_keeps_the_promises_of_a_topic(
    scope: Scope, record_property: Callable[[str, object], None]
) -> None:
    result = Explorer(scope).run()

    record_property("summary", f"the explorer of topics, {result}")
    assert not result.violation, result
    assert result.states > 1_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_explorer_of_topics_finds_the_fault_when_it_is_sown(mutant: Mutation) -> None:
    result = Explorer(BY_NAME[mutant.scope], mutant).run()

    assert result.violation, f"{mutant.name} survived {result}"
    assert result.trace
    assert "LuaError" not in result.violation, "the mutant broke the script instead of the promise"
