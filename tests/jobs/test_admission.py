"""Checks before a job starts."""

from __future__ import annotations

import asyncio

import pytest

from jobq import ConcurrencyLimit, RateLimit
from jobq.errors import ConfigError, ScriptError, UnavailableError
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Message


class Answer:
    """An admission that records its end."""

    def __init__(self, limit, granted):
        self.limit, self.granted, self.retry_after = limit, granted, 7.0

    def undo(self):
        """Record `undo`; see Admitted.undo."""
        self.limit.seen.append(f"{self.limit.name} undone")

    def leave(self):
        """Record `leave`; see Admitted.leave."""
        self.limit.seen.append(f"{self.limit.name} left")

    async def aundo(self):
        """Record `aundo`; see `undo`."""
        self.undo()

    async def aleave(self):
        """Record `aleave`; see `leave`."""
        self.leave()


class Fake:
    """A limit that answers as the test says."""

    def __init__(self, name, seen, rank=1, answer=True):
        self.name, self.seen, self.rank, self.answer = name, seen, rank, answer

    def admit(self, call, worker):
        """Admit or reject; see JobLimit.admit."""
        self.seen.append(f"{self.name} asked")
        if isinstance(self.answer, Exception):
            raise self.answer
        return Answer(self, self.answer)

    async def aadmit(self, call, worker):
        """Admit or reject; see `admit`."""
        return self.admit(call, worker)


@pytest.fixture
def seen():
    return []


@pytest.fixture(params=["sync", "async"])
def run(request, seen):
    """run(limits): the ending of a job with these limits."""

    def ended(limits):
        registry = Registry()

        def plain() -> None:
            seen.append("runs")

        async def on_loop() -> None:
            seen.append("runs")

        function = plain if request.param == "sync" else on_loop
        job(name="j", registry=registry, limits=limits)(function)
        executor = Executor(registry)
        call = executor.resolve("low", Message("m", b'{"job":"j"}', 1, 0, 1, "g", "t", 0))
        if request.param == "sync":
            return executor.run(call)
        return asyncio.run(executor.arun(call))

    return ended


def test_slots_are_asked_first_then_by_name_and_left_after_the_run(run, seen):
    ending = run([Fake("b", seen), Fake("a", seen), Fake("c", seen, rank=0)])
    assert seen == ["c asked", "a asked", "b asked", "runs", "c left", "a left", "b left"]
    assert ending.outcome == "done"


def test_what_was_granted_is_taken_back_when_a_later_one_refuses(run, seen):
    ending = run([Fake("a", seen), Fake("b", seen, answer=False), Fake("c", seen)])
    assert seen == ["a asked", "b asked", "a undone"]
    assert (ending.outcome, ending.backoff) == ("snooze", 7.0)


@pytest.mark.parametrize(("error", "wait_s"), [(UnavailableError(), 1.0), (ScriptError("x"), 5.0)])
def test_a_job_waits_while_a_limit_cannot_be_asked(run, seen, error, wait_s):
    ending = run([Fake("a", seen), Fake("b", seen, answer=error)])
    assert seen == ["a asked", "b asked", "a undone"]
    assert (ending.outcome, ending.backoff) == ("snooze", wait_s)


@pytest.mark.parametrize("limits", [None, "stripe", [1], RateLimit("x", "1/s")])
def test_limits_must_be_a_list_of_limits(limits):
    with pytest.raises(ConfigError, match="is not a list of RateLimit"):
        job(name="j", registry=Registry(), limits=limits)(lambda: None)


def test_job_has_no_limits_when_the_list_is_empty():
    assert job(name="j", registry=Registry(), limits=[])(lambda: None).settings.limits == ()


def test_limits_belong_to_the_job(seen):
    made = job(name="j", registry=Registry(), limits=[ConcurrencyLimit("s", 1)])(lambda: None)
    with pytest.raises(ConfigError, match="is an option of a job"):
        made.options(limits=[])
