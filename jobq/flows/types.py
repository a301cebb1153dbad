"""Values that the scripts of flows take and return."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.flows.state import Edge, Kind

#: Actions of a drainer for a step.
Todo = Literal["send", "map", "flow", "cancel", "revive", "drop", "parent", "subs"]

#: Number of messages in one chunk of a map.
PER_CHUNK = 250
#: Maximum number of steps in one call, and in a flow.
MAX_STEPS, MAX_STEPS_OF_A_FLOW = 1_000, 10_000
#: How long a sub-flow, and an announced flow, waits to begin.
LONG_LIFE_MS = 366 * 86_400_000
#: Why a member whose message is gone isn't retried.
PURGED = (
    "its message was purged or has expired, so it can't be retried; start the flow with another id"
)
#: Maximum bytes of a result, and of all results of a flow.
MAX_RESULT_BYTES, MAX_RESULTS_BYTES = 64 << 10, 64 << 20


class StoredStep(NamedTuple):
    """The stored form of a step. It refers only to earlier steps, so that a step can't wait for itself.

    Attributes:
        queue: Queue of the step's messages, or of a wait's timer; '' for a flow.
        source: For a map, `stream` (its producer adds the members), `items` (stored members) or `=step` (it waits for
            that step's result). For a flow, the id of the other flow. Otherwise ''.
        call: Content of the message; for a map, the template of its members. For a wait, content of its timer, or b''
            without a timer.
        options: A JSON object: `job`, and `delay`, `at`, `lease`, `key`, `ordered` as in Queue.enqueue; scripts pass it
            on unchanged.
    """

    name: str
    kind: Kind
    queue: str
    after: tuple[Edge, ...] = ()
    source: str = ""
    options: bytes = b"{}"
    call: bytes = b""


class StoredFlow(NamedTuple):
    """The stored form of a flow.

    Attributes:
        definition: A hash of the definition, to detect a different flow with the same id.
        home: The queue through which the flow receives its signals, such as begin, cancel and retry.
        parent: The `flow.run_id.step` that runs this flow as a sub-flow, or ''.
        life_ms: How long the flow is stored if it doesn't begin.
        run_id: The run to begin if no flow with this id exists.
    """

    steps: tuple[StoredStep, ...]
    definition: str
    home: str
    keep_ms: int
    parent: str = ""
    life_ms: int = 3_600_000
    run_id: str = ""


class FlowChange(NamedTuple):
    """A change to a flow, for `FlowStore.apply`.

    Attributes:
        kind: `done`, `dead` or `cancelled` for a member, `signal` or `retry` for a step, or `begin`, `cancel` or `look`
            for the flow.
        detail: The result of a done member, the value of a signal, or the reason why a member is dead; else None.
        entry: Id of the change's outbox entry, or ''. The flow uses the id to ignore repeated and outdated changes.
        members: Numbers of several done members without results; replaces `number`.
    """

    kind: str
    step: str = ""
    number: int = 0
    detail: bytes | None = None
    entry: str = ""
    members: tuple[int, ...] = ()


class TodoItem(NamedTuple):
    """An item that a flow must send, such as a message of a step.

    Attributes:
        again: Whether an earlier call returned the item. If so, another process may have sent the item.
        stamp: Number that identifies the item; pass it to `FlowStore.sent`.
        step: Name of the step; '' if the item is for the parent flow, `%` if it is for sub-flows that haven't begun.
            For the parent flow, `source` is the parent's `flow.run_id.step`, and `options` is this flow's state.
    """

    step: str
    todo: Todo
    stamp: int
    again: bool
    kind: str
    queue: str
    source: str
    options: bytes
    call: bytes


class Applied(NamedTuple):
    """Result of applying changes to a flow.

    Attributes:
        refused: Number of changes for members that the flow doesn't have.
        more: Whether there are more items to send than `todo` has.
        run_id: Id of the flow's run.
        state: '' for a missing flow.
    """

    state: str
    refused: int
    todo: tuple[TodoItem, ...]
    more: bool
    run_id: str = ""


class Reserved(NamedTuple):
    """The numbers reserved for the members of a chunk.

    Attributes:
        outcome: `new`, `doubt` (reserved before, so members may already be enqueued), `added`, `sealed`, `closed` (the
            flow has ended or is missing), or `other` (the count differs from an earlier call, or a chunk was left out).
        first: Number of the chunk's first member.
        chunks: Number of chunks reserved so far; all but the last are enqueued.
    """

    outcome: str
    first: int
    chunks: int


class MemberPage(NamedTuple):
    """A page of member numbers. `cursor` is the start of the next page; -1 on the last page."""

    numbers: tuple[int, ...]
    cursor: int
