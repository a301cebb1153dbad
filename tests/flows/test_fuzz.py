"""Whatever arguments and keys a script of flows is given: an error changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.functions import scripts
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow
from tests import hostile
from tests.flows.flowing import RUN, step
from tests.hostile import Call, Raw

SCRIPTS = {script.name: script for script in scripts() if script.area == "flow"}
FLOW = "x:1"
NOW = 1_700_000_000_000
NEW = ("s9", "step", "low", "", "a:done,b:ended", "{}", "call")


@pytest.fixture
def good(client: Any) -> dict[str, Call]:
    """A good call of each script, on a flow in the midst of everything."""
    store = FlowStore(client, FLOW)
    steps = (
        step("a"), step("b", "a"), step("gate", kind="wait"), step("rows", kind="map", source="stream"),
        step("some", "b", kind="map", source="items"), step("c", "a", when="failed"), step("d", "rows"),
    )  # fmt: skip
    store.create(StoredFlow(steps, "hash", "low", 60_000, parent="big:1.r1.part", run_id=RUN))
    store.put_items("some", "low", 0, [b"one", b"two"])
    store.apply("qlow", [FlowChange("begin")])
    store.reserve("rows", 0, 250)
    changes = [FlowChange("done", "rows", one, b"r") for one in range(200)]
    store.apply("qlow", [*changes, FlowChange("dead", "rows", 200), FlowChange("dead", "a")])
    store.retried("rows", [200])
    args: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
        "add": ((NOW, RUN, *NEW), (0,)),
        "apply": (
            (NOW, RUN, "qlow", 64, "done", "rows", 201, "", "", "dead", "rows", 202, "5-0", "", "retry", "", 0, "6-0",
             "", "signal", "gate", 0, "", "yes", "cancel", "", 0, "", ""),
            (0, 3, 6, 11),
        ),
        "create": ((NOW, "r2", "hash", "low", 1_000, "", 1_000, *NEW[:4], "", *NEW[5:]), (0, 4, 6)),
        "life": (("big:1.r1.part", 2, 1_000), (1, 2)),
        "look": ((NOW,), (0,)),
        "page": (("rows", "live", 0, 100), (2, 3)),
        "put": (("some", 1, "packed"), (1,)),
        "read": (("results", "rows:1", "a:0"), ()),
        "remove": ((), ()),
        "reserve": ((NOW, RUN, "rows", 1, 250), (0, 3, 4)),
        "retried": ((NOW, RUN, "rows", 0, 0, "4-0", 200, 201), (0, 3, 4, 6, 7)),
        "seal": ((NOW, RUN, "rows", 1), (0, 3)),
        "sent": ((NOW, RUN, 64, "gate", 2, "c", 3), (0, 2, 4, 6)),
    }  # fmt: skip
    return {
        name: Call(tuple(store.prefix + key for key in SCRIPTS[name].keys), given, numbers)
        for name, (given, numbers) in args.items()
    }


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)
