"""Announcements to a flow, and deletions by a drainer, at durability disk and replicas=n."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobq import Flow
from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.errors import NotDurableError
from jobq.flows.draining import PASS_OVER_NS, Drainer
from jobq.flows.run import FlowRun
from jobq.queue import durability
from jobq.queue.types import Ending
from tests.flows.flowing import Flowing, call_of, step
from tests.lifecycle.jobs_in_flows import load

pytestmark = pytest.mark.one_server
F = "import:7"
#: No server here is honest under everysec, so these write always and are asked nevertheless.
NEVER_AFTER_FSYNC = {"_answers_after_fsync": lambda *_: False}


@pytest.fixture
def at(server: Any) -> Iterator[Callable[..., Client]]:
    """at(level): a client that waits for it."""
    made: list[Client] = []

    def connected(level: str, within_s: float) -> Client:
        settings = ServerSettings(url=server.url, durability=level, durable_within_s=within_s)
        made.append(connect(settings=settings))
        return made[-1]

    yield connected
    for one in made:
        one.close()


@pytest.fixture
def waits(redis: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return how many times WAITAOF was called."""
    for name, value in NEVER_AFTER_FSYNC.items():
        monkeypatch.setattr(durability, name, value)
    redis.config_set("appendfsync", "always")
    yield lambda: int(redis.info("commandstats").get("cmdstat_waitaof", {}).get("calls", 0))
    redis.config_set("appendonly", "no")
    redis.config_set("appendfsync", "everysec")


def test_entries_are_deleted_at_disk_once_waitaof_confirms_what_their_flow_took_in(
    client: Client, redis: Any, at: Any, waits: Any
):
    flowing, now = Flowing(client), [0]
    store = flowing.start(F, step("rows", kind="map", source="items"), step("b", "rows"))
    store.put_items("rows", "low", 0, [call_of("0"), call_of("1"), call_of("2")])
    flowing.drain()
    low = flowing.queues["low"]
    for one in low.dequeue(2).messages:
        low.finish([Ending(mid=one.mid, token=one.token)])
    late = Drainer(at("disk", 4), lambda: now[0])
    assert late.drain("low") == 0
    assert (flowing.facts(F).steps[0].done, len(low.flow_outbox())) == (2, 2)
    redis.config_set("appendonly", "yes")
    now[0] += PASS_OVER_NS + 1
    before = waits()
    assert late.drain("low") == 2
    assert (flowing.left(), waits() - before) == ([], 1)
    assert flowing.work() == [f"~{F}.r1.rows.2", f"~{F}.r1.b.0"]


def test_start_signal_retry_and_cancel_wait_and_take_effect_when_they_are_called_again(
    client: Client, at: Any
):
    """There is no replica, so confirmations fail. Each was accepted, and is harmless to repeat."""
    alone = at("replicas=1", 0.01)
    run = FlowRun("import", "7", client=alone)

    def started(by: Client) -> None:
        flow = Flow("import", "7", client=by)
        flow.wait(name="gate", after=flow.step(load, 1, name="a"))
        flow.start()

    with pytest.raises(NotDurableError, match="import:7"):
        started(alone)
    assert run.status().state == "open"
    started(client)
    for call in (lambda: run.signal("gate", 1), run.retry, run.cancel):
        with pytest.raises(NotDurableError):
            call()
        assert run.status().state == "running"
