"""What goes into a flow's slot and comes out of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.flows.state import Edge, Kind

#: What a drainer does about a step.
Todo = Literal["send", "map", "flow", "cancel", "revive", "drop", "parent", "subs"]

#: Messages of one chunk of a map.
PER_CHUNK = 250
#: Steps of one call, and of a flow.
MAX_STEPS, MAX_STEPS_OF_A_FLOW = 1_000, 10_000
#: How long a sub-flow, and a flow that was announced, waits for its begin.
LONG_LIFE_MS = 366 * 86_400_000
#: Why a member whose message is gone isn't retried.
PURGED = (
    "its message was purged or has expired, so it can't be retried; start the flow under another id"
)
#: Bytes of a result, and of all results of a flow.
MAX_RESULT_BYTES, MAX_RESULTS_BYTES = 64 << 10, 64 << 20


class StoredStep(NamedTuple):
    """A step as it is stored. It names only steps before it, so that no step waits for itself.

    queue: where its messages run; of a flow '', of a wait where its timer waits. source: of a map `stream` (its
    producer adds the members), `items` (they are stored) or `=step` (the result of that step, which it waits for); of
    a flow the id of the other flow; else ''. call: bytes of the message; of a wait those of its timer, b'' without
    one; of a map what a member is made from. options: a JSON object: `job`, and `delay`, `at`, `lease`, `key`,
    `ordered` as Queue.enqueue takes them; scripts pass it on.
    """

    name: str
    kind: Kind
    queue: str
    after: tuple[Edge, ...] = ()
    source: str = ""
    options: bytes = b"{}"
    call: bytes = b""


class StoredFlow(NamedTuple):
    """A whole flow as it is stored.

    definition: a hash of what it means, so that another flow of the same id is noticed. home: the queue whose
    flow-outbox takes begin, signals, cancel and retry. parent: `flow.run_id.step` that this flow is the step of, or ''.
    life_ms: how long it waits for its begin. run_id: of the run that begins if no flow of this id is there.
    """

    steps: tuple[StoredStep, ...]
    definition: str
    home: str
    keep_ms: int
    parent: str = ""
    life_ms: int = 3_600_000
    run_id: str = ""


class FlowChange(NamedTuple):
    """One thing that happened to a flow, for `FlowStore.apply`.

    kind: done, dead or cancelled of a member; begin, cancel, look; signal or retry of a step. detail: the result of a
    done member, the value of a signal; None without one. entry: id of the entry that says it, so that no word is taken
    twice, and no end that came before a retry; '' for what no entry says. members: numbers of several that are done
    without results, in place of `number`.
    """

    kind: str
    step: str = ""
    number: int = 0
    detail: bytes | None = None
    entry: str = ""
    members: tuple[int, ...] = ()


class TodoItem(NamedTuple):
    """What is to be sent. again: it was answered before, so another drainer may have sent it. stamp: for `sent`.

    step: '' for the word to the parent; then source is the parent's `flow.run_id.step` and options this flow's state,
    as for the words to sub-flows that have not begun, which have no step's name either.
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
    """What came of entries. state: '' for a flow that is gone. refused: entries that the flow doesn't know.

    more: not all of what is to be sent is in `todo`. run_id: of the flow.
    """

    state: str
    refused: int
    todo: tuple[TodoItem, ...]
    more: bool
    run_id: str = ""


class Reserved(NamedTuple):
    """The numbers of a chunk. outcome: `new`, `doubt` (reserved before; some of it may be enqueued), `added`, `sealed`
    or `closed` (the flow is over, cancelled or gone), `other` (another count than before, or a chunk was left out).

    first: number of its first member. chunks: reserved so far; all but the last one are enqueued.
    """

    outcome: str
    first: int
    chunks: int


class MemberPage(NamedTuple):
    """Indexes of members, and where the next page begins; -1 behind the last one."""

    numbers: tuple[int, ...]
    cursor: int
