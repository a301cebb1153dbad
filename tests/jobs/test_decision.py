"""A job's rules applied to an error."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.errors import ConfigError, Dead, JobTimeout, Retry, Snooze
from jobq.jobs.retry import Decision, Rules, checked_filter, fixed, listed


def rules(**more: Any) -> Rules:
    return Rules(retries=2, policy=fixed(10), **more)


def test_error_is_retried_by_the_policy_until_retries_are_used_up():
    outcomes = [rules().decide(failures, ValueError()).outcome for failures in (1, 2, 3, 4)]
    assert outcomes == ["retry", "retry", "dead", "dead"]
    assert rules().decide(1, ValueError()) == Decision("retry", 10)


@given(st.integers(0, 50), st.integers(1, 100))
def test_attempts_never_exceed_retries_plus_one(retries: int, failures: int):
    decision = Rules(retries=retries).decide(failures, ValueError())
    assert (decision.outcome == "retry") == (failures <= retries)


def test_retry_costs_an_attempt_and_chooses_its_own_wait():
    assert rules().decide(1, Retry(3)) == Decision("retry", 3)
    assert rules().decide(1, Retry(timedelta(minutes=1))) == Decision("retry", 60)
    assert rules().decide(1, Retry()) == Decision("retry", 10)
    assert rules().decide(3, Retry(3)).outcome == "dead"


def test_snooze_goes_on_beyond_the_limit():
    assert rules().decide(99, Snooze(5)) == Decision("snooze", 5)


def test_dead_is_dead_at_once():
    assert rules().decide(1, Dead("no")).outcome == "dead"


def test_waits_asked_for_are_bounded():
    assert rules().decide(1, Retry(-1)).after_s == 0
    assert rules().decide(1, Snooze(1e30)).after_s == 315_360_000


def test_wait_is_the_same_in_every_form():
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for after in ("10m", 600, 600.0, timedelta(minutes=10)):
        assert rules().decide(1, Retry(after)) == Decision("retry", 600)
        assert rules().decide(1, Snooze(after)) == Decision("snooze", 600)
    assert 3500 < rules().decide(1, Retry(in_an_hour)).after_s <= 3600
    assert rules().decide(1, Snooze("Sun, 06 Nov 1994 08:49:37 GMT")) == Decision("snooze", 0)


@pytest.mark.parametrize("after", ["soon", "", float("nan"), True, [5], b"5", "12:00:00", 10**400])
def test_nonsense_is_refused_when_it_is_made(after: Any):
    for kind in (Retry, Snooze):
        with pytest.raises(ConfigError, match="is not a duration"):
            kind(after)


@pytest.mark.parametrize("made", [Retry("1m", "busy"), Retry(), Snooze("1m"), Dead("no")])
def test_outcome_survives_a_copy_from_another_process(made: Any):
    made.add_note("from a pool")
    copied = pickle.loads(pickle.dumps(made))
    assert (type(copied), str(copied), vars(copied)) == (type(made), str(made), vars(made))


@given(st.integers(0, 50), st.integers(1, 10_000))
def test_rules_by_count_never_fail(retries: int, failures: int):
    decision = Rules(retries=retries).by_count(failures, ValueError())
    assert decision.outcome == ("retry" if failures <= retries else "dead")
    assert 0 <= decision.after_s <= 3600


def test_error_not_in_retry_on_dies_at_once():
    picky = rules(retry_on=(ConnectionError, TimeoutError))
    assert picky.decide(1, ConnectionResetError()).outcome == "retry"
    assert picky.decide(1, ValueError()).outcome == "dead"
    assert picky.decide(1, JobTimeout()).outcome == "dead"
    assert picky.decide(1, Retry(1)).outcome == "retry"


def test_error_in_dead_on_dies_at_once_even_when_in_retry_on():
    picky = rules(retry_on=(OSError,), dead_on=(FileNotFoundError,))
    assert picky.decide(1, FileNotFoundError()).outcome == "dead"
    assert picky.decide(1, PermissionError()).outcome == "retry"


def test_filter_may_be_a_function_of_the_error():
    picky = rules(dead_on=lambda error: "forbidden" in str(error))
    assert picky.decide(1, ValueError("forbidden")).outcome == "dead"
    assert picky.decide(1, ValueError("busy")).outcome == "retry"


def test_timeout_ends_by_policy():
    assert rules().decide(1, JobTimeout()) == Decision("retry", 10)


def test_policy_that_gives_up_ends_the_message():
    assert (
        Rules(retries=9, policy=listed([1])).decide(2, ValueError()).why
        == "the retry policy gave up"
    )


@pytest.mark.parametrize("value", [ValueError, (ValueError,), [ValueError, OSError], {OSError}])
def test_filter_takes_classes_in_any_collection(value: Any):
    checked = checked_filter("retry_on", value)
    assert isinstance(checked, tuple)


@pytest.mark.parametrize("value", [(), "ValueError", 3, (ValueError, 3), int, (int,)])
def test_filter_refuses_what_names_no_errors(value: Any):
    with pytest.raises(ConfigError, match="is not a selection of errors"):
        checked_filter("retry_on", value)
