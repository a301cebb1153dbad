"""The layers around enqueue and run."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.jobs import middleware
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import decode_result
from jobq.queue.types import Ending, Message


class Noting:
    """Notes when it is entered and left."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def enqueue(self, outgoing: Any, next: Any) -> Any:
        self.notes.append(f"{self.name} enqueues {len(outgoing.calls)}")
        outgoing.headers[self.name] = "1"
        return next(outgoing)

    def run(self, context: Any, next: Any) -> Any:
        self.notes.append(f"> {self.name} {context.mid}")
        try:
            return next()
        finally:
            self.notes.append(f"< {self.name}")

    async def arun(self, context: Any, next: Any) -> Any:
        self.notes.append(f"> {self.name} {context.mid}")
        try:
            return await next()
        finally:
            self.notes.append(f"< {self.name}")


def test_first_added_is_outermost_and_the_registry_lies_within(
    registry: Registry, run: Callable[..., Ending]
):
    notes: list[str] = []
    registry.middleware.add(Noting("inner", notes))
    middleware.add(Noting("first", notes))
    middleware.add(Noting("second", notes))
    run(job(name="f", registry=registry)(lambda: notes.append("job")))
    assert notes == [
        "> first mid-1",
        "> second mid-1",
        "> inner mid-1",
        "job",
        "< inner",
        "< second",
        "< first",
    ]


def test_async_jobs_pass_the_same_layers(registry: Registry, message: Callable[..., Message]):
    notes: list[str] = []
    middleware.add(Noting("a", notes))

    async def body() -> None:
        notes.append("job")

    executor = Executor(registry)
    call = executor.resolve("low", message(job(name="f", registry=registry)(body)))
    assert isinstance(call, Call)
    assert asyncio.run(executor.arun(call)).outcome == "done"
    assert notes == ["> a mid-1", "job", "< a"]


def test_middleware_sees_errors_and_may_change_the_outcome(
    registry: Registry, run: Callable[..., Ending]
):
    class Forgiving:
        arun = None

        def run(self, context: Any, next: Any) -> Any:
            try:
                return next()
            except ValueError:
                return "forgiven"

    def fail() -> None:
        raise ValueError

    registry.middleware.add(Forgiving())
    assert (
        decode_result(run(job(name="f", registry=registry, result_ttl=1)(fail)).result, "f", "m")
        == "forgiven"
    )


def test_middleware_that_breaks_is_a_failure_of_the_attempt(
    registry: Registry, run: Callable[..., Ending]
):
    class Broken:
        arun = None

        def run(self, context: Any, next: Any) -> Any:
            raise RuntimeError("broken")

    registry.middleware.add(Broken())
    assert run(job(name="f", registry=registry)(lambda: 1)).outcome == "retry"


def test_middleware_may_skip_the_job(registry: Registry, run: Callable[..., Ending]):
    class Skipping:
        arun = None

        def run(self, context: Any, next: Any) -> Any:
            return None

    registry.middleware.add(Skipping())
    assert run(job(name="f", registry=registry)(lambda: 1 / 0)).outcome == "done"


def test_middleware_sees_a_result_that_cannot_be_stored(
    registry: Registry, run: Callable[..., Ending]
):
    seen = []

    class Watching:
        arun = None

        def run(self, context: Any, next: Any) -> Any:
            try:
                return next()
            except Exception as error:
                seen.append((type(error).__name__, context.decide(error).outcome))
                raise

    registry.middleware.add(Watching())
    run(job(name="f", registry=registry, result_ttl=1)(lambda: {1}))
    assert seen == [("ResultRefusedError", "dead")]


def test_half_a_middleware_is_refused():
    class OnlyRun:
        def run(self, context: Any, next: Any) -> Any:
            return next()

    with pytest.raises(ConfigError, match="add arun"):
        middleware.add(OnlyRun())
    with pytest.raises(ConfigError, match="is not a middleware"):
        middleware.add(object())


def test_adding_twice_and_removing():
    notes = Noting("a", [])
    middleware.add(notes)
    middleware.add(notes)
    assert middleware.everywhere.layers == (notes,)
    middleware.remove(notes)
    middleware.remove(notes)
    assert middleware.everywhere.layers == ()


def test_awaited_middleware_joins_once_its_module_is_imported(monkeypatch: pytest.MonkeyPatch):
    provider = types.ModuleType("provider_of_middleware")
    provider.middleware = Noting("late", [])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, provider.__name__, provider)
    middleware.everywhere.add_when_imported("awaited_library", provider.__name__)
    middleware.everywhere.add_imported()
    assert middleware.everywhere.layers == ()
    monkeypatch.setitem(sys.modules, "awaited_library", types.ModuleType("awaited_library"))
    middleware.everywhere.add_imported()
    middleware.everywhere.add_imported()
    assert middleware.everywhere.layers == (provider.middleware,)


def test_registry_with_middlewares_of_its_own_shares_nothing():
    notes: list[str] = []
    middleware.add(Noting("all", notes))
    apart = Registry(middleware.Middlewares())
    assert Registry().middleware.all_layers() == middleware.everywhere.layers != ()
    assert apart.middleware.all_layers() == ()
