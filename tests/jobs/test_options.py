"""Options: valid options, and errors for invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq import retry
from jobq.errors import ConfigError
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job


@pytest.fixture
def send(registry: Registry) -> Job[..., Any]:
    return job(name="send", registry=registry, queue="low", headers={"a": "1"})(lambda: None)


def test_options_give_a_copy_and_leave_the_job_as_it_is(send: Job[..., Any], registry: Registry):
    changed = send.options(queue="high", delay="1m", headers={"b": "2"})
    assert (send.queue, send.queue_options, send.settings.headers) == ("low", {}, {"a": "1"})
    assert (changed.queue, changed.queue_options, changed.settings.headers) == (
        "high",
        {"delay": 60.0},
        {"a": "1", "b": "2"},
    )
    assert changed.name == send.name and type(changed) is type(send)
    assert registry.get("send") is send


def test_options_add_up(send: Job[..., Any]):
    twice = send.options(retries=1, delay=5).options(timeout=3, at=datetime(2030, 1, 1, tzinfo=UTC))
    assert (twice.overrides.retries, twice.overrides.timeout) == (1, 3.0)  # type: ignore[union-attr]
    assert twice.queue_options == {"at": 1893456000.0}
    assert send.options(delay=5).options(delay=None).queue_options == {}


@pytest.mark.parametrize("value", [30, 30.0, "30s", timedelta(seconds=30)])
def test_durations_come_in_three_forms(send: Job[..., Any], value: Any):
    assert send.options(timeout=value).settings.timeout == 30
    assert send.options(delay=value).queue_options == {"delay": 30}


@pytest.mark.parametrize(
    "options",
    [
        {"bogus": 1}, {"queue": "a{b}"}, {"queue": ""}, {"queue": 3}, {"mid": ""}, {"mid": "x" * 129}, {"mid": 3},
        {"expires_in": 0}, {"expires_in": "soon"}, {"retry_within": -1},
        {"delay": -1}, {"delay": "soon"}, {"delay": []}, {"delay": float("nan")}, {"delay": 1, "at": 1},
        {"at": datetime(2030, 1, 1)}, {"at": "tomorrow"}, {"at": True},
        {"can_update": True}, {"until": -1}, {"on_conflict": "replace"}, {"lease": 0}, {"lease": "2d"},
        {"key": ""}, {"key": "x" * 129}, {"key": "a\nb"}, {"key": 7}, {"key": str},
        {"ordered": 1}, {"ordered": True},
        {"headers": {"a": 1}}, {"headers": "x"}, {"retries": -1}, {"retries": True}, {"retries": None},
        {"timeout": 0}, {"hard_timeout": -1}, {"result_ttl": 0}, {"timeout": 9, "hard_timeout": 9},
    ],
    ids=str,
)  # fmt: skip
def test_option_that_makes_no_sense_is_refused_with_its_value(
    registry: Registry, options: dict[str, Any]
):
    send = job(name="send", registry=registry)(lambda: None)
    for say in (
        send.options,
        lambda **given: job(name="other", registry=registry, **given)(lambda: None),
    ):
        with pytest.raises(ConfigError) as refused:
            say(**options)
        name = "hard_timeout" if "hard_timeout" in options else next(iter(options))
        assert name in str(refused.value)
    assert "other" not in registry


@pytest.mark.parametrize(
    "options", [{"retry": 5}, {"retry_on": "x"}, {"dead_on": ()}, {"name": "a b"}], ids=str
)
def test_declaration_that_makes_no_sense_is_refused(registry: Registry, options: dict[str, Any]):
    with pytest.raises(ConfigError):
        job(registry=registry, **options)(lambda: None)


@pytest.mark.parametrize(
    "options",
    [{"retry": retry.fixed(1)}, {"retry_on": ValueError}, {"dead_on": OSError}, {"name": "x"}],
)
def test_what_only_code_can_say_is_refused_for_one_message(
    send: Job[..., Any], options: dict[str, Any]
):
    with pytest.raises(ConfigError, match="is an option of a job"):
        send.options(**options)


def test_list_of_waits_sets_how_often_unless_said_otherwise(registry: Registry):
    listed = job(name="a", registry=registry, retry=retry.listed([1, 2, 3]))(lambda: None)
    said = job(name="b", registry=registry, retry=retry.listed([1, 2, 3]), retries=1)(lambda: None)
    assert (listed.settings.nretries, said.settings.nretries) == (3, 1)
