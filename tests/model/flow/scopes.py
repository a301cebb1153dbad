"""Small flows, each with a rare event. JOBQ_MODEL=large explores the larger ones too."""

from __future__ import annotations

import os

from tests.model.flow.world import Scope, StepOf

ONE, CHAIN = (StepOf("a"),), (StepOf("a"), StepOf("b", "H", edges="a:done"))
STREAM = StepOf("m", kind="map", source="stream", size=2)
STORED = StepOf("m", "H", kind="map", source="items", edges="a:done", size=2)
JOIN = (StepOf("a"), StepOf("b", "H"), StepOf("c", edges="a:done,b:done"))
FORK = (StepOf("a"), StepOf("b", "H", edges="a:failed"), StepOf("c", edges="a:ended"))
WAITS = (StepOf("w", kind="wait", timed=True), StepOf("b", "H", edges="w:done"))
BEHIND = (StepOf("a"), StepOf("w", kind="wait", edges="a:done"))
KEPT = (StepOf("a", kept=True), StepOf("b", "H", edges="a:done"))
LISTS = (StepOf("a", kept=True), StepOf("m", "H", kind="map", source="=a", edges="a:done", size=2))
#: A step that is a flow, and a step after it.
NESTED = (StepOf("s", kind="flow"), StepOf("b", edges="s:done"))
BETWEEN = (StepOf("a"), StepOf("s", kind="flow", edges="a:done"), StepOf("b", "H", edges="s:ended"))
SIGNALLED = (*BEHIND, StepOf("s", kind="flow", edges="w:done"))
LATER = (StepOf("a"), StepOf("s", kind="flow", edges="a:done"))
ON_FAILURE = (StepOf("a"), StepOf("s", kind="flow", edges="a:failed"))
SUB, SUB_CHAIN = (StepOf("x"),), (StepOf("x"), StepOf("y", "H", edges="x:done"))
SMALL = (
    Scope("a step, outages of any length", (StepOf("a", "H"),), {"kill": 1, "forget": 1}),
    Scope("a join", JOIN, {"die": 1}, drainers=1),
    Scope("a step that is retried", ONE, {"die": 1, "kill": 1, "retry": 1}, drainers=1),
    Scope("a chain with forgers", CHAIN, {"forge": 1, "kill": 0}, drainers=1),
    Scope(
        "a chain that dies and is revived", CHAIN, {"die": 1, "kill": 1, "revive": 1}, drainers=1
    ),
    Scope("a fork by how it ended", FORK, {"die": 1, "kill": 1}, drainers=1),
    Scope("a streamed map", (STREAM,), {"kill": 1, "stop": 1, "die": 1}, drainers=1),
    Scope("a stored map", (StepOf("a"), STORED), {"kill": 1}, drainers=1),
    Scope("a map, two drainers", (STORED._replace(edges="", size=1),), {"kill": 1}),
    Scope("a wait with a timeout", WAITS, {"signal": 1, "kill": 1}, drainers=1),
    Scope("a wait that is signalled, two drainers", WAITS[:1], {"signal": 1}),
    Scope("a wait behind a step", BEHIND, {"signal": 1, "kill": 1}, drainers=1),
    Scope("a chain that is cancelled", CHAIN, {"cancel": 1, "kill": 1, "die": 1}, drainers=1),
    Scope("a step that is cancelled, two drainers", ONE, {"cancel": 1, "kill": 1}),
    Scope("a streamed map that is cancelled", (STREAM,), {"cancel": 1}, drainers=1),
    Scope("a result", KEPT, {"kill": 1}, drainers=1),
    Scope("a result, two drainers", KEPT[:1], {"kill": 1}),
    Scope("a result of the second run", KEPT, {"die": 1, "kill": 1, "revive": 1}, drainers=1),
    Scope("a map of a result", LISTS, {"kill": 1}, drainers=1),
    Scope("a chain that is started again", CHAIN, {"restart": 1, "kill": 1}, drainers=1),
    Scope(
        "a step that is cancelled and started again",
        ONE,
        {"restart": 1, "cancel": 1, "kill": 1},
        drainers=1,
    ),
    Scope("a sub-flow", NESTED, {"die": 1, "kill": 1}, drainers=1, sub=SUB_CHAIN),
    Scope("a sub-flow with forgers", NESTED, {"forge": 1}, drainers=1, sub=SUB),
    Scope("a sub-flow that is revived", NESTED, {"die": 1, "revive": 1}, drainers=1, sub=SUB),
    Scope("a sub-flow that is retried", NESTED, {"die": 1, "retry": 1}, drainers=1, sub=SUB),
    Scope(
        "a sub-flow that is retried after a kill",
        NESTED[:1],
        {"die": 1, "kill": 1, "retry": 1},
        drainers=1,
        sub=SUB,
    ),
    Scope("a sub-flow that is cancelled", NESTED, {"cancel": 1}, drainers=1, sub=SUB),
    Scope("a sub-flow that is cancelled early", LATER, {"cancel": 1}, drainers=1, sub=SUB),
    Scope("a sub-flow that is skipped", SIGNALLED, {"die": 1, "retry": 1}, drainers=1, sub=SUB),
    Scope("a sub-flow for failures", ON_FAILURE, {"die": 1, "kill": 1}, drainers=1, sub=SUB),
)
LARGE = (
    Scope("a step that is retried, two drainers", ONE, {"die": 1, "kill": 1, "retry": 1}),
    Scope("a chain that is started again, two drainers", CHAIN, {"restart": 1, "kill": 1}),
    Scope("a step that is retried and started again", ONE, {"die": 1, "retry": 1, "restart": 1}),
    Scope(
        "a streamed map that is cancelled, deaths", (STREAM,), {"cancel": 1, "kill": 1}, drainers=1
    ),
    Scope("a chain, outages of any length", CHAIN, {"kill": 1, "forget": 1, "lose": 1}),
    Scope(
        "a chain that dies and is revived, two drainers", CHAIN, {"die": 1, "kill": 1, "revive": 1}
    ),
    Scope("a chain that is retried", CHAIN, {"die": 1, "kill": 1, "retry": 1}),
    Scope("a map of two chunks, two drainers", (STORED._replace(edges=""),), {"kill": 1}),
    Scope("a stored map, two drainers", (StepOf("a"), STORED), {"kill": 1}),
    Scope("a streamed map, two drainers", (STREAM,), {"kill": 1, "stop": 1, "die": 1, "revive": 1}),
    Scope("a wait with a timeout, two drainers", WAITS, {"signal": 1, "kill": 1}),
    Scope("a chain that is cancelled, two drainers", CHAIN, {"cancel": 1, "kill": 1}),
    Scope("a result, outages of any length", KEPT, {"die": 1, "kill": 1, "forget": 1, "lose": 1}),
    Scope("a map of a result, two drainers", LISTS, {"kill": 1}),
    Scope("a sub-flow between steps", BETWEEN, {"die": 1, "kill": 1}, sub=SUB_CHAIN),
    Scope("a sub-flow, two drainers", NESTED, {"die": 1, "kill": 1, "revive": 1}, sub=SUB),
    Scope(
        "a sub-flow that is retried and revived",
        NESTED,
        {"die": 1, "kill": 1, "revive": 1, "retry": 1},
        drainers=1,
        sub=SUB,
    ),
    Scope("a sub-flow that is cancelled, two drainers", NESTED, {"cancel": 1, "kill": 1}, sub=SUB),
)
ALL = SMALL + LARGE
SCOPES = ALL if os.environ.get("JOBQ_MODEL") == "large" else SMALL
