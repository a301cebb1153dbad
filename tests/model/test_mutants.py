"""The explorer notices each fault of mutants.txt.

One whose text has left the Lua is an error, not a pass.
"""

from __future__ import annotations

import pytest

from tests.model.explorer import Explorer
from tests.model.machine import Mutation
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES

BY_NAME = {scope.name: scope for scope in SCOPES}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_explorer_finds_the_fault_when_it_is_sown(mutant: Mutation) -> None:
    result = Explorer(BY_NAME[mutant.scope], mutant).run()

    assert result.violation, f"{mutant.name} survived {result}"
    assert "LuaError" not in result.violation, "the mutant broke the script instead of the promise"
