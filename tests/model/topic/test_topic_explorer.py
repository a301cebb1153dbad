"""Every interleaving of the scopes of topics, on the scripts as they are; and faults that must be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.breadth_first import ENOUGH
from tests.model.explored import Explored
from tests.model.mutants import parsed
from tests.model.topic.explorer import Explorer
from tests.model.topic.scopes import SCOPES
from tests.model.topic.world import Scope

pytestmark = pytest.mark.timeout(1800)
#: Steps of the short form: one more than the longest way to a fault.
DEPTH = 9
BY_NAME = {scope.name: scope for scope in SCOPES}
_COMMENT, *_BLOCKS = Path(__file__).with_name("mutants.txt").read_text().split("\n\n")
NAMES = {mutant.name: mutant for mutant in (parsed(block.strip("\n")) for block in _BLOCKS)}


def explored(name: str) -> Explored:
    """Explore the scope of a fault with it, one step less than without."""
    return Explorer(BY_NAME[NAMES[name].scope], NAMES[name], depth=DEPTH - 1).run()


@pytest.mark.parametrize(
    "depth", [DEPTH, pytest.param(None, marks=pytest.mark.long)], ids=["short", "exhausted"]
)
@pytest.mark.parametrize("scope", SCOPES, ids=BY_NAME)
def test_every_interleaving_keeps_the_promises_of_a_topic(
    scope: Scope, depth: int | None, record_property: Callable[[str, object], None]
) -> None:
    result = Explorer(scope, depth=depth).run()

    record_property("summary", f"the explorer of topics, {result}")
    assert not result.violation, result
    assert result.transitions >= ENOUGH


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_of_topics_finds_the_fault_when_it_is_sown(name: str) -> None:
    result = explored(name)

    assert result.violation, f"{name} survived {result}"
    assert result.trace
    assert "LuaError" not in result.violation, "the mutant broke the script instead of the promise"
