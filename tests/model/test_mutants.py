"""The explorer notices each fault of mutants.txt, within seconds.

One whose text has left the Lua, or stands there twice, is an error and no pass.
"""

from __future__ import annotations

import pytest

from tests.model.explorer import Explorer
from tests.model.machine import Machine, Mutation
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES, shortened

BY_NAME = {scope.name: shortened(scope) for scope in SCOPES}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_explorer_finds_the_fault_when_it_is_sown(mutant: Mutation) -> None:
    result = Explorer(BY_NAME[mutant.scope], mutant).run()

    assert result.violation, f"{mutant.name} survived {result}"
    assert result.trace
    assert "LuaError" not in result.violation, "the mutant broke the script instead of the promise"


def test_mutants_have_names_of_their_own_when_they_are_listed() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


def test_a_mutant_is_an_error_when_its_text_has_left_the_lua() -> None:
    with pytest.raises(ValueError, match="no script holds the pattern"):
        Machine([Mutation("gone", "redis.call('NOTHING')", "", "")])


def test_a_mutant_is_an_error_when_its_text_is_not_unique_in_a_script() -> None:
    with pytest.raises(ValueError, match="isn't unique"):
        Machine([Mutation("ambiguous", "redis.call('", "", "")])


def test_a_mutant_is_an_error_when_it_changes_nothing() -> None:
    assert all(mutant.before and mutant.before != mutant.after for mutant in MUTANTS)
