"""Former names of a job: its messages find it, and two jobs never share a name."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.errors import ConfigError, JobAlreadyRegisteredError
from jobq.jobs.codec import encode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue


def receipt(order: int) -> int:
    return order


def other(order: int) -> int:
    return -order


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.mark.one_server
def test_message_of_the_old_name_runs_when_a_job_has_taken_it_over(
    queue: Queue, registry: Registry
):
    job(name="new", aliases=["old", "older"], registry=registry)(receipt)
    queue.enqueue_many([(name, encode(name, [7])) for name in ("old", "older", "new")])
    executor = Executor(registry, worker="w")
    for message in queue.dequeue(3).messages:
        ending = executor.run(executor.resolve("low", message))
        assert (ending.outcome, ending.record.split("\x1f")[0]) == ("done", "new")
    assert registry.names() == ["new"] and len(registry) == len(list(registry)) == 1
    assert registry.known_names() == ["new", "old", "older"] and "old" in registry
    assert registry.get("old").name == "new"


def test_alias_goes_when_the_module_is_loaded_again_without_it(registry: Registry):
    for aliases in (["old"], []):
        job(name="new", aliases=aliases, registry=registry)(receipt)
    assert registry.known_names() == ["new"]


@pytest.mark.parametrize("aliases", [["new"], ["taken"], ["alias"]])
def test_alias_is_rejected_when_it_is_the_name_of_a_job(registry: Registry, aliases: Any):
    job(name="taken", aliases=["alias"], registry=registry)(other)
    with pytest.raises(JobAlreadyRegisteredError, match=aliases[0]):
        job(name="new", aliases=aliases, registry=registry)(receipt)
    assert registry.known_names() == ["alias", "taken"]


def test_name_is_rejected_when_another_job_has_it_as_its_alias(registry: Registry):
    job(name="new", aliases=["old"], registry=registry)(receipt)
    with pytest.raises(JobAlreadyRegisteredError, match="is an alias of job"):
        job(name="old", registry=registry)(other)


@pytest.mark.parametrize("aliases", [3, [3], [""], ["a b"], ["x" * 201], ["x"] * 21, {"a": 1}])
def test_aliases_are_names(registry: Registry, aliases: Any):
    with pytest.raises(ConfigError):
        job(name="new", aliases=aliases, registry=registry)(receipt)
