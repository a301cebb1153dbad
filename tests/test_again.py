"""tests/again.py: which failures stand."""

from __future__ import annotations

import pytest

from tests.again import MAX_COUNT, judge


@pytest.mark.parametrize(
    ("failed", "codes", "expected"),
    [
        (["a"], [0, 0], ""),
        (["a", "b"], [0, 0], ""),
        (["a"], [1], "failed again"),
        (["a"], [0, 1], "failed again"),
        ([], [], "no test did"),
        ([str(number) for number in range(MAX_COUNT + 1)], [], "more than"),
    ],
)
def test_failures_stand_unless_few_tests_pass_twice_alone(failed, codes, expected):
    runs = iter(codes)
    wrong = judge(failed, lambda ids: next(runs))
    assert expected in wrong if expected else wrong == ""
    assert next(runs, None) is None
