"""Retry policies: pure functions of (failures, error)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.errors import ConfigError
from jobq.jobs import retry

ERROR = ValueError()
seconds = st.floats(0, 1e6)
failures = st.integers(1, 10_000)


def first(policy: retry.Policy, n: int = 4) -> list[Any]:
    return [policy(failure, ERROR) for failure in range(1, n + 1)]


def test_fixed_waits_the_same_each_time():
    assert first(retry.fixed(10)) == [10, 10, 10, 10]
    assert first(retry.fixed("1m"), 1) == first(retry.fixed(timedelta(minutes=1)), 1) == [60]


def test_linear_grows_by_its_step_up_to_its_maximum():
    assert first(retry.linear(10, max=25)) == [10, 20, 25, 25]


def test_exponential_grows_by_its_factor_up_to_its_maximum_when_without_jitter():
    assert first(retry.exponential(5, 3, max=100, jitter="none")) == [5, 15, 45, 100]


def test_listed_gives_up_after_its_last_wait():
    assert first(retry.listed([1, "30s", timedelta(minutes=5)])) == [1, 30, 300, None]


@given(seconds, st.floats(1, 10), seconds, failures, st.floats(0, 1, exclude_max=True))
def test_full_jitter_stays_between_zero_and_the_ceiling(
    base: float, factor: float, cap: float, failure: int, drawn: float
):
    policy = retry.exponential(base, factor, cap, random=lambda: drawn)
    wait = policy(failure, ERROR)
    assert 0 <= wait <= policy.ceiling(failure) <= cap
    assert wait == policy.ceiling(failure) * drawn


@given(seconds, st.floats(1, 10), seconds, failures)
def test_ceiling_never_falls_as_failures_add_up(
    base: float, factor: float, cap: float, failure: int
):
    policy = retry.exponential(base, factor, cap)
    assert policy.ceiling(failure) <= policy.ceiling(failure + 1)
    steps = retry.linear(base, cap)
    assert steps(failure, ERROR) <= steps(failure + 1, ERROR) <= cap


def test_full_jitter_spreads_evenly_by_default():
    policy = retry.exponential(1000, 1)
    drawn = [policy(1, ERROR) for _ in range(2000)]
    assert min(drawn) < 100 and max(drawn) > 900
    assert 400 < sum(drawn) / len(drawn) < 600


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (None, None),
        (3, 3.0),
        (timedelta(seconds=2), 2.0),
        (-5, 0.0),
        (float("inf"), retry.MAX_S),
        (1e300, retry.MAX_S),
    ],
)
def test_answer_of_a_function_becomes_bounded_seconds(answer: Any, wait: float | None):
    assert retry.wait_s(lambda failures, error: answer, 1, ERROR) == wait


@pytest.mark.parametrize("answer", ["soon", float("nan"), True, [1]])
def test_nonsense_of_a_function_is_refused(answer: Any):
    with pytest.raises(ConfigError, match="retry policy returned"):
        retry.wait_s(lambda failures, error: answer, 1, ERROR)


@pytest.mark.parametrize(
    "make",
    [
        lambda: retry.fixed(-1),
        lambda: retry.fixed("soon"),
        lambda: retry.linear(float("nan")),
        lambda: retry.exponential(factor=0.5),
        lambda: retry.exponential(factor=float("inf")),
        lambda: retry.exponential(jitter="some"),  # type: ignore[arg-type]
        lambda: retry.listed([1, -1]),
    ],
)
def test_policy_refuses_numbers_that_make_no_sense(make: Callable[[], object]):
    with pytest.raises(ConfigError):
        make()
