"""Starting a flow, where no worker is there to take it on, and maps of items that nobody can send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobq import Flow
from jobq.errors import CodecError
from jobq.flows import starting
from jobq.flows.listing import failed_members, flow_page
from jobq.flows.run import FlowRun
from jobq.flows.types import PER_CHUNK
from tests.lifecycle.jobs_in_flows import load


def test_a_started_flow_waits_longer_for_a_worker_than_an_hour(
    client: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    """Also where the starter can't take the begin to it: much may lie before it in the outbox."""
    monkeypatch.setattr(starting, "drain_soon", lambda *_: None)
    flow = Flow("import", "7", client=client)
    flow.step(load, 1)
    run = flow.start()
    assert run.status().state == "open"
    lives = {key: redis.pttl(key) for key in redis.keys("jobq:flow:*")}
    assert lives and min(lives.values()) > 300 * 86_400_000, lives


@pytest.mark.parametrize("nbefore", [0, PER_CHUNK + 1, 2 * PER_CHUNK])
@pytest.mark.parametrize(("bad", "error"), [((1, 2), TypeError), ({1, 2}, CodecError)])
def test_an_item_that_no_call_takes_leaves_no_map_open(
    client: Any, nbefore: int, bad: Any, error: type[Exception]
):
    """The members before it run; then the map has failed, and says why."""

    def items() -> Iterator[Any]:
        yield from range(nbefore)
        yield bad
        yield from range(PER_CHUNK)

    flow = Flow("import", "7", client=client)
    rows = flow.map(load, items(), name="rows")
    flow.step(load.args(1), after=rows, name="after")
    flow.step(load.args(2), after=rows, when="failed", name="alert")
    with pytest.raises(error):
        flow.start()
    run = FlowRun("import", "7", client=client)
    view = run.status()
    sent = nbefore // PER_CHUNK * PER_CHUNK
    assert view.by_name["rows"].facts.sealed
    assert (view.by_name["rows"].facts.size, view.dead) == (sent + 1, 1)
    [failed] = failed_members(client, view, 5)
    assert failed.mid == f"~import:7.rows.{sent}"
    assert failed.reason.startswith(error.__name__)
    if not sent:
        states = {one.name: one.state for one in view.steps}
        assert states == {"rows": "failed", "after": "skipped", "alert": "running"}


def test_an_iterable_that_breaks_off_leaves_its_map_to_the_same_start_again(client: Any):
    class Away(Exception):
        pass

    def flow(breaks: bool) -> Flow:
        def items() -> Iterator[int]:
            for number in range(600):
                if breaks and number == 300:
                    raise Away
                yield number

        found = Flow("import", "7", client=client)
        found.map(load, items(), name="rows")
        return found

    with pytest.raises(Away):
        flow(True).start()
    view = FlowRun("import", "7", client=client).status()
    assert (view.by_name["rows"].facts.size, view.by_name["rows"].facts.sealed) == (250, False)
    rows = flow(False).start().status().by_name["rows"].facts
    assert (rows.size, rows.sealed, rows.dead) == (600, True, 0)


def test_sub_flows_are_listed_too(client: Any):
    deep, inner, outer = (Flow(name, "7", client=client) for name in ("deep", "inner", "outer"))
    deep.step(load, 1)
    inner.flow(deep)
    outer.flow(inner)
    outer.start()
    rows = {row.flow: row.view for row in flow_page(client).rows}
    assert rows.keys() == {"outer:7", "inner:7", "deep:7"}
    assert {name: view and view.state for name, view in rows.items()} == dict.fromkeys(
        rows, "running"
    )
