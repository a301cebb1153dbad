"""Each death adds a message, by which a worker calls on_dead of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.errors import ConfigError, Dead
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.deaths import ON_DEAD, DeadCall
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Ending, Lease, Message


@pytest.fixture
def told() -> list[DeadCall]:
    return []


@pytest.fixture
def registry(told: list[DeadCall]) -> Registry:
    """The job `dies`, whose deaths are in `told`, and `plain`, which has no on_dead."""
    found = Registry(Middlewares())

    def give_up(*args: Any, **kwargs: Any) -> None:
        raise Dead("enough")

    job(name="dies", registry=found, on_dead=told.append)(give_up)
    job(name="plain", registry=found)(give_up)
    return found


@pytest.fixture
def run(queue: Queue, registry: Registry) -> Callable[..., list[str]]:
    """run(): the outcomes of all that is ready, as a worker with that registry has them."""

    def work(jobs: Registry = registry) -> list[str]:
        def find(name: str, dead_id: str, lease: Lease) -> DeadMessage | None:
            return next(iter(queue.admin.dead(mid=dead_id)), None)

        runner = Executor(jobs, hooks=RunHooks(find_dead=find))
        outcomes = []
        while messages := queue.dequeue().messages:
            call = runner.resolve("low", messages[0])
            ending = runner.run(call) if isinstance(call, Call) else call
            queue.finish([ending])
            outcomes.append(ending.outcome)
        return outcomes

    return work


def test_a_dead_message_is_told_of_with_its_call_and_reason(
    queue: Queue, run: Any, told: list[DeadCall]
):
    queue.admin.call_on_dead()
    headers = {"tenant": "acme"}
    queue.enqueue(encode("dies", [1, "ü"], {"b": 2}, 5, headers), mid='m"\\#ü')
    assert run() == ["dead", "done"]
    [died] = told
    [dead] = queue.admin.dead()
    assert (died.job, died.mid, died.queue, died.args, died.kwargs) == (
        "dies", 'm"\\#ü', "low", [1, "ü"], {"b": 2},
    )  # fmt: skip
    assert (died.headers, died.enqueued_at, died.attempts, died.crashes) == (headers, 5, 1, 0)
    assert (died.reason, died.died_at, died.dead_id) == ("enough", dead.died_at, dead.dead_id)
    assert queue.admin.fsck() == []


def test_jobs_without_on_dead_and_unreadable_messages_end_quietly(
    queue: Queue, run: Any, told: list[DeadCall]
):
    queue.admin.call_on_dead()
    queue.enqueue(encode("plain"))
    queue.enqueue(b"rubbish")
    queue.enqueue(ON_DEAD + b'forged#1"]}')
    queue.enqueue(ON_DEAD + b'1",2]}')
    assert sorted(run()) == ["dead", "dead", "done", "done", "done", "done"]
    assert told == [] and queue.admin.counts().messages == queue.admin.counts().done


def test_a_queue_without_such_jobs_has_no_such_messages(queue: Queue, run: Any):
    queue.enqueue(encode("plain"))
    assert run() == ["dead"]


@pytest.mark.parametrize("newer", [False, True])
def test_a_lease_that_ended_once_too_often_is_told_of_once(
    queue: Queue, at: Any, newer: bool, told: list[DeadCall], registry: Registry
):
    queue.admin.call_on_dead()
    queue.enqueue(encode("dies"), mid="m", now=at(0))
    queue.dequeue(lease=1, now=at(0))
    if newer:
        queue.enqueue(encode("plain"), mid="m", on_conflict="requeue", now=at(1))
    queue.admin.collect(crash_limit=1, now=at(2_000))
    handed = queue.dequeue(10, now=at(3_000)).messages
    assert [message.mid.partition(":")[0] for message in handed] == ["on_dead", "m"][: 1 + newer]
    [dead] = queue.admin.dead()
    assert handed[0].content == ON_DEAD + dead.dead_id.encode() + b'"]}'
    assert dead.ncrashes == 1


def test_a_message_that_was_revived_is_not_told_of(queue: Queue, run: Any, told: list[DeadCall]):
    queue.admin.call_on_dead()
    queue.enqueue(encode("dies"), mid="m")
    [held] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=held.token, outcome="dead", reason="why")])
    [dead] = queue.admin.dead()
    queue.admin.revive(dead.dead_id)
    queue.admin.pause()
    queue.admin.resume()
    assert run() == ["done", "dead", "done"]
    assert [one.reason for one in told] == ["enough"]


def test_a_worker_without_the_job_leaves_it_to_others(queue: Queue, run: Any, registry: Registry):
    queue.admin.call_on_dead()
    queue.enqueue(encode("dies"), mid="m")
    [held] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=held.token, outcome="dead", reason="why")])
    other = Registry(Middlewares())
    job(name="else", registry=other)(lambda: None)
    assert run(other)[0] == "unknown"


def test_its_own_death_is_told_to_nobody(queue: Queue, run: Any):
    queue.admin.call_on_dead()
    failing = Registry(Middlewares())

    def fail(*args: Any) -> None:
        raise Dead("again")

    job(name="dies", registry=failing, on_dead=fail)(fail)
    queue.enqueue(encode("dies"))
    assert run(failing) == ["dead", "dead"]
    assert len(queue.admin.dead()) == 2


def test_a_job_or_a_function_may_be_given_and_nothing_else():
    registry = Registry(Middlewares())
    report = job(name="report", registry=registry, retries=2)(lambda died: None)
    first = job(name="first", registry=registry, on_dead=report)(lambda: None)
    assert first.settings.on_dead is report
    second = job(name="second", registry=registry, on_dead=lambda died: None)(lambda: None)
    assert (
        isinstance(second.settings.on_dead, Job)
        and second.settings.on_dead.name == "second.on_dead"
    )
    assert "second.on_dead" in registry
    with pytest.raises(ConfigError, match="on_dead='x' can't be called"):
        job(name="third", registry=registry, on_dead="x")(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="is an option of a job"):
        first.options(on_dead=report)  # type: ignore[call-arg]


def test_where_nothing_finds_the_dead_it_ends(registry: Registry):
    message = Message("on_dead:m#1", ON_DEAD + b'm#1"]}', 1, 0, 1, "", "c.1.0", 0)
    ending = Executor(registry).resolve("low", message)
    assert isinstance(ending, Ending) and ending.outcome == "done"
