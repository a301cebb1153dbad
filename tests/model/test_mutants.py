"""The explorer notices each fault of mutants.txt in the short form of its scope, and even one step before its end.

One whose text has left the Lua, or stands there twice, is an error, not a pass.
"""

from __future__ import annotations

import pytest

from tests.model.explored import Explored
from tests.model.explorer import Explorer
from tests.model.machine import Machine, Mutation
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES, smaller

BY_NAME = {scope.name: smaller(scope) for scope in SCOPES}
NAMES = {mutant.name: mutant for mutant in MUTANTS}


def explored(name: str) -> Explored:
    """Explore the scope of a fault with it."""
    mutant = NAMES[name]
    scope = BY_NAME[mutant.scope]
    return Explorer(scope, mutant, depth=scope.depth - 1).run()


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_finds_the_fault_when_it_is_sown(name: str) -> None:
    result = explored(name)

    assert result.violation, f"{name} survived {result}; it may need a scope of more depth"
    assert result.trace
    assert "LuaError" not in result.violation, "the mutant broke the script instead of the promise"


def test_mutants_have_names_of_their_own_when_they_are_listed() -> None:
    assert len(NAMES) == len(MUTANTS) >= 12


def test_every_scope_has_a_fault_when_it_is_listed() -> None:
    assert {mutant.scope for mutant in MUTANTS} == {scope.name for scope in SCOPES}


def test_a_mutant_is_an_error_when_its_text_has_left_the_lua() -> None:
    with pytest.raises(ValueError, match="no script holds the pattern"):
        Machine([Mutation("gone", "redis.call('NOTHING')", "", "")])


def test_a_mutant_is_an_error_when_its_text_is_not_unique_in_a_script() -> None:
    with pytest.raises(ValueError, match="isn't unique"):
        Machine([Mutation("ambiguous", "redis.call('", "", "")])


def test_a_mutant_is_an_error_when_it_changes_nothing() -> None:
    assert all(mutant.before and mutant.before != mutant.after for mutant in MUTANTS)
