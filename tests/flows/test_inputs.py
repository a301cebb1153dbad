"""Results of steps as arguments: what a server lacks that isn't the one which handed the member out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jobq import Flow, job
from jobq.client.connection import Client, connect
from jobq.errors import ResultNotStoredError, UnavailableError
from jobq.flows.inputs import FlowInputs
from jobq.flows.store import FlowStore
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.registry import Registry
from tests.flows.flowing import Flowing

pytestmark = pytest.mark.one_server
registry = Registry()


@job(registry=registry, queue="low", result_ttl=60)
def made(number: int) -> int:
    return number


@job(registry=registry, queue="high")
def used(numbers: Any, failures: Any = None) -> None:
    """Take the results of steps."""


@pytest.fixture
def elsewhere(server: Any, client: Client) -> Iterator[Client]:
    """A client of a server that was the master before: it answers, and lacks what came later."""
    stale = connect(settings=replace(client.settings, url=f"{server.url}?db=1"))
    yield stale
    stale.command("FLUSHDB", routed_by="")
    stale.close()


def member(client: Client, *, is_map: bool) -> Call:
    """The call of the last step of a flow, as its queue hands it out."""
    flow, flowing = Flow("import", "7", client=client), Flowing(client)
    taken = flow.map(made, [1, 2, 3], results=True) if is_map else flow.step(made, 1)
    flow.step(used, taken.results if is_map else taken.result)
    flow.start()
    queue, executor = flowing.queues["low"], Executor(registry)
    flowing.drain()
    for message in queue.dequeue(9).messages:
        call = executor.resolve("low", message)
        assert isinstance(call, Call)
        queue.finish([executor.run(call)])
    flowing.drain()
    [last] = flowing.queues["high"].dequeue(1).messages
    call = executor.resolve("high", last)
    assert isinstance(call, Call)
    return call


def copied(client: Client, key: str, to: Client) -> None:
    """Bring a hash to another server, as its replica had it."""
    reply = client.command("HGETALL", key)
    to.command("HSET", key, *reply)


@pytest.mark.parametrize("is_map", [False, True])
def test_missing_result_is_believed_only_of_the_server_that_handed_the_member_out(
    client: Client, elsewhere: Client, is_map: bool
):
    call = member(client, is_map=is_map)
    with pytest.raises(UnavailableError, match="have the lease"):
        FlowInputs(elsewhere)(call)
    assert FlowInputs(client)(call).args[0] == ([1, 2, 3] if is_map else 1)
    client.command("DEL", FlowStore(client, "import:7").prefix + ("meta" if is_map else "results"))
    with pytest.raises(ResultNotStoredError):
        FlowInputs(client)(call)


def test_results_of_a_map_that_is_not_over_at_a_server_are_no_results(
    client: Client, elsewhere: Client
):
    call = member(client, is_map=True)
    store = FlowStore(client, "import:7")
    for key in ("meta", "steps", "results"):
        copied(client, store.prefix + key, elsewhere)
    # Its replica had two of three ends.
    [counts] = client.command("HMGET", f"{store.prefix}meta", "n:made")
    fewer = b",".join([counts.split(b",")[0], b"2", b"2", *counts.split(b",")[3:]])
    elsewhere.command("HSET", f"{store.prefix}meta", "n:made", fewer)
    elsewhere.command("HDEL", f"{store.prefix}results", "made:2")
    with pytest.raises(UnavailableError, match="only 2 of 3 members"):
        FlowInputs(elsewhere)(call)


def test_member_whose_input_is_missing_runs_once_it_is_there(client: Client):
    call = member(client, is_map=False)
    store = FlowStore(client, "import:7")
    executor = Executor(registry, hooks=RunHooks(fill_inputs=FlowInputs(client)))
    kept = client.command("HGET", f"{store.prefix}results", "made:0")
    client.command("HDEL", f"{store.prefix}results", "made:0")
    ending = executor.run(call)
    assert (ending.outcome, ending.backoff is not None) == ("retry", True)
    client.command("HSET", f"{store.prefix}results", "made:0", kept)
    assert executor.run(call).outcome == "done"
