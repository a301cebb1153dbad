"""Every promise has a check that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.promises import CHECKS, Check

TESTS = Path(__file__).parents[1]


def test_every_promise_has_a_check() -> None:
    named = {check.promise for check in CHECKS}

    last = {"I": 20, "K": 10, "L": 6, "M": 3, "N": 2, "P": 7, "R": 2, "S": 1}
    assert named == {f"{kind}{n}" for kind in last for n in range(1, last[kind] + 1)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.promise} {check.meaning}")
def test_the_check_of_a_promise_is_where_the_table_says(check: Check) -> None:
    assert check.words in (TESTS / check.path).read_text(encoding="utf-8")
