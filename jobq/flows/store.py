"""The stored state of one flow: one method per script in lua/flow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast, get_args

from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall, moment
from jobq.client.scripts import Argument, load
from jobq.errors import ConfigError
from jobq.flows import keys, rights
from jobq.flows.identity import Member, checked_step, new_run_id, parts_of_run, run_of
from jobq.flows.state import FLOW_STATES, Edge, FlowFacts, Kind, StepFacts, When
from jobq.flows.types import (
    MAX_STEPS,
    MAX_STEPS_OF_A_FLOW,
    PER_CHUNK,
    Applied,
    FlowChange,
    MemberPage,
    Reserved,
    StoredFlow,
    StoredStep,
    Todo,
    TodoItem,
)
from jobq.queue.durability import SharedConfirmation

T = TypeVar("T")
#: Maximum number of changes, members or fields per call.
PER_CALL = 1_000
#: Maximum done members per call; each change that names a member counts.
MAX_DONE = 2_000
#: Maximum number of pending items in a reply.
MAX_TODO = 64
_WHENS: frozenset[str] = frozenset(get_args(When))
_KINDS: frozenset[str] = frozenset(get_args(Kind))
_TODOS: frozenset[str] = frozenset(get_args(Todo))
_PARENT = "^"
_FIELDS = 9
#: Upper bound of a delay, a time or a lease, in seconds.
MAX_SECONDS = 1e12


def _kind_and_step(change: FlowChange) -> tuple[str, str]:
    """Return the fields by which changes are grouped. The kind `result` means `done` with a result."""
    has_result = change.kind == "done" and change.detail is not None
    return "result" if has_result else change.kind, change.step


class FlowStore:
    """The stored state of the flow `run`, a `name:id.run_id` or `name:id`. Each call is harmless to repeat.

    Threads may share it, except for `create`, which sets `run_id` to the run that it finds or begins. For tests, most
    methods take `now`, epoch ms, instead of the server's clock.

    Attributes:
        run_id: Id of the run; '' for any run. A stored flow with another run id counts as missing.
        confirmation: Confirms the writes of several calls together. Threads must not share a store with a confirmation.
    """

    def __init__(
        self, client: Client, run: str, confirmation: SharedConfirmation | None = None
    ) -> None:
        self.client = client
        self.flow, self.run_id = parts_of_run(run)
        self.prefix = keys.base(client.namespace, self.flow)
        mark = f"{self.prefix}{keys.MARK}"
        self._by = None if confirmation is None else confirmation.by(mark)

    @property
    def run(self) -> str:
        """Return the flow's id with the run id, in the form used in message ids."""
        return run_of(self.flow, self.run_id)

    def create(self, record: StoredFlow, *, now: int | None = None) -> str:
        """Store a flow. The flow begins when it gets the signal 'begin'.

        Returns 'created', or, for a flow that is already stored, 'same', 'over' (it has ended), 'conflict' (it has
        another definition) or 'taken' (it belongs to another flow).
        """
        record = record._replace(steps=tuple(rights.proven(self.client, self.flow, record.steps)))
        outcome, self.run_id = self._ask(self.create_call(record, now=now))
        return outcome

    def create_call(
        self, record: StoredFlow, *, now: int | None = None
    ) -> ScriptCall[tuple[str, str]]:
        """Return the script call that `create` makes, so that it can be sent with other calls.

        The call returns the outcome and the run id.
        """
        head = (
            self._now(now), record.run_id or new_run_id(), record.definition, record.home, record.keep_ms,
            record.parent, record.life_ms,
        )  # fmt: skip
        args = (*head, *_rows(record.steps))
        return self._call("create", args, lambda reply: (_text(reply[0]), _text(reply[2])))

    def add_steps(
        self,
        steps: Sequence[StoredStep],
        *,
        now: int | None = None,
    ) -> str:
        """Add steps to a running flow; return 'added', 'closed', 'full', or 'conflict' if a different step exists.

        Ready steps start when a drainer next applies changes to the flow.
        """
        steps = rights.proven(self.client, self.flow, steps)
        return self._ask(self.add_steps_call(steps, now=now))

    def add_steps_call(
        self,
        steps: Sequence[StoredStep],
        *,
        now: int | None = None,
    ) -> ScriptCall[str]:
        """Return the script call that `add_steps` makes, so that it can be sent with other calls."""
        args = (self._now(now), self.run_id, *_rows(steps))
        return self._call("add", args, lambda reply: _text(reply[0]))

    def put_items(self, step: str, queue: str, chunk: int, contents: Sequence[bytes]) -> str:
        """Store one chunk of a map's calls, before the map's dependencies are done.

        Returns 'ok', 'full' (a flow stores at most 8 MiB) or 'closed'.
        """
        proof = rights.proof_of_items(self.client, self.flow, step, queue, chunk, contents)
        args = (checked_step(step), chunk, packed_items((proof, *contents)))
        return self._ask(self._call("put", args, lambda reply: _text(reply[0])))

    def items(self, step: str, queue: str, chunk: int) -> Sequence[bytes]:
        """Return the stored calls of a chunk; [] after the last chunk.

        Raises ConfigError if the chunk doesn't prove that its author may write to `queue`.
        """
        [packed] = self._read("items", [f"{step}:{chunk}"])
        stored = [] if packed is None else unpacked_items(packed)
        return rights.check_items(self.client, self.flow, step, queue, chunk, stored)

    def reserve(self, step: str, chunk: int, count: int, *, now: int | None = None) -> Reserved:
        """Reserve numbers for the members of the next chunk, and record that all earlier chunks are enqueued."""
        return self._ask(self.reserve_call(step, chunk, count, now=now))

    def reserve_call(
        self, step: str, chunk: int, count: int, *, now: int | None = None
    ) -> ScriptCall[Reserved]:
        """Return the script call that `reserve` makes, so that it can be sent with other calls."""
        args = (self._now(now), self.run_id, step, chunk, count)
        return self._call(
            "reserve", args, lambda reply: Reserved(_text(reply[0]), *map(int, reply[1:3]))
        )

    def seal(self, step: str, chunks: int, *, now: int | None = None) -> str:
        """Record that a map is complete: all of its `chunks` chunks are enqueued.

        Returns 'ok', 'closed', 'sealed' (the map was already sealed with another number of chunks) or 'other' (another
        number of chunks is reserved). After this call, send the signal 'look', so that a drainer starts ready steps.
        """
        return self._ask(self.seal_call(step, chunks, now=now))

    def seal_call(self, step: str, chunks: int, *, now: int | None = None) -> ScriptCall[str]:
        """Return the script call that `seal` makes, so that it can be sent with other calls."""
        return self._call(
            "seal", (self._now(now), self.run_id, step, chunks), lambda reply: _text(reply[0])
        )

    def apply(
        self, source: str, changes: Sequence[FlowChange], *, now: int | None = None
    ) -> Applied:
        """Apply up to 1,000 changes with up to 2,000 done members.

        Changes for another run of the flow are ignored. Failures from before a member's retry are also ignored.

        Args:
            source: `q` and the queue from which the changes were read, or `f` and a flow.
        """
        rows: list[Argument] = []
        for (kind, step), some in groupby(changes, key=_kind_and_step):
            if kind == "done":
                numbers = [number for item in some for number in item.members or (item.number,)]
                rows += (kind, step, _ranges(numbers), "", b"")
            else:
                for item in some:
                    rows += (kind, step, item.number, item.entry, item.detail or b"")
        args = (self._now(now), self.run_id, source, MAX_TODO, *rows)
        return self._ask(self._call("apply", args, _applied))

    def sent(self, items: Iterable[TodoItem], *, now: int | None = None) -> Applied:
        """Delete sent items; return the remaining items."""
        rows = [part for item in items for part in (item.step or _PARENT, item.stamp)]
        return self._ask(
            self._call("sent", (self._now(now), self.run_id, MAX_TODO, *rows), _applied)
        )

    def page(self, step: str, what: str, cursor: int = 0, limit: int = PER_CHUNK) -> MemberPage:
        """Return a page of member numbers. An empty page isn't always the last page.

        Args:
            what: `live` selects unfinished and retried members. `failed` selects members with an outcome other than
                done. `revive` selects `failed` members not yet reached by the latest retry.
        """
        reply = self._ask(self._call("page", (step, what, cursor, limit), list))
        return MemberPage(tuple(map(int, reply[1:])), int(reply[0]))

    def retried(
        self,
        step: str,
        numbers: Sequence[int],
        *,
        stamp: int = 0,
        cursor: int = 0,
        mark: str = "",
        now: int | None = None,
    ) -> int:
        """Record that these members will be revived; return how many of them had failed.

        Returns -1 if the item with this stamp is no longer needed.

        Args:
            stamp: Stamp of the item that requests the retry.
            cursor: Failed members with smaller numbers have been revived.
            mark: An outbox entry of the step's queue. Failures in earlier entries don't affect the new run.
        """
        args = (self._now(now), self.run_id, step, stamp, cursor, mark, *numbers)
        return self._ask(self._call("retried", args, lambda reply: int(reply[0])))

    def results(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the existing results by `step:number`."""
        return self._existing("results", names)

    def calls(self, steps: Sequence[str]) -> dict[str, bytes]:
        """Return the calls of these steps."""
        return self._existing("calls", steps)

    def failures(self) -> dict[str, str]:
        """Return why members failed: a reason for each `step:number`, at most 1,000 reasons."""
        flat = self._read("failed", ())
        return {
            _text(name): _text(why) for name, why in zip(flat[::2], flat[1::2], strict=True)
        }  # fmt: skip

    def facts(self, *, now: int | None = None) -> FlowFacts | None:
        """Return the stored facts; None for a missing flow."""
        return self._ask(self.facts_call(now=now))

    def facts_call(self, *, now: int | None = None) -> ScriptCall[FlowFacts | None]:
        """Return the script call that `facts` makes, so that it can be sent with other calls."""
        return self._call("look", (self._now(now),), self._facts_in)

    def _facts_in(self, reply: Sequence[Any]) -> FlowFacts | None:
        facts = facts_in(self.flow, reply)
        return facts if facts and self.run_id in ("", facts.run_id) else None

    def member(self, step: str, number: int = 0) -> Member:
        """Return the member `number` of a step in this run."""
        return Member(self.flow, step, number, self.run_id)

    def set_life(self, parent: str, stamp: int, life_ms: int) -> str:
        """Set how long a sub-flow is kept before it begins. Returns 'ok', 'older' or 'other'; see lua/flow/life.lua.

        Args:
            parent: The parent's step, as `flow.run_id.step`.
            stamp: Stamp of the parent's pending item. The call with the highest stamp wins.
        """
        return self._ask(
            self._call("life", (parent, stamp, life_ms), lambda reply: _text(reply[0]))
        )

    def remove(self) -> str:
        """Delete a flow unless it is running. Returns 'removed', 'running' or 'gone'."""
        return self._ask(self._call("remove", (), lambda reply: _text(reply[0])))

    def _ask(self, call: ScriptCall[T]) -> T:
        return self.client.ask(call, self._by if call.script.writes else None)

    def _now(self, now: int | None) -> Argument:
        clock = self.client.clock
        return clock() if now is None and clock is not None else moment(now)

    def _call(self, name: str, args: Sequence[Argument], read: Callable[[Any], T]) -> ScriptCall[T]:
        script = load("flow", name)
        return ScriptCall(script, tuple(self.prefix + key for key in script.keys), args, read)

    def _read(self, what: str, names: Sequence[str]) -> list[Any]:
        return self._ask(self._call("read", (what, *names), lambda reply: reply[1:]))

    def _existing(self, what: str, names: Sequence[str]) -> dict[str, bytes]:
        return {
            name: value
            for some in (names[at : at + PER_CALL] for at in range(0, len(names), PER_CALL))
            for name, value in zip(some, self._read(what, some), strict=True)
            if value is not None
        }


def _ranges(numbers: list[int]) -> str:
    """Return numbers as ranges, such as `0-63,70`, which the script `apply` handles cheaply."""
    numbers.sort()
    parts, first, last = [], numbers[0], numbers[0] - 1
    for number in numbers:
        if number != last + 1:
            parts.append(f"{first}-{last}" if first < last else f"{first}")
            first = number
        last = number
    parts.append(f"{first}-{last}" if first < last else f"{first}")
    return ",".join(parts)


def packed_items(contents: Iterable[bytes]) -> bytes:
    """Join the encoded calls of a chunk. Each call is preceded by its length."""
    return b"".join(len(content).to_bytes(4, "big") + content for content in contents)


def unpacked_items(packed: bytes) -> list[bytes]:
    """Split the result of `packed_items` into its members, without an incomplete last member."""
    members, at = [], 0
    while at + 4 <= len(packed):
        end = at + 4 + int.from_bytes(packed[at : at + 4], "big")
        if end > len(packed):
            break
        members.append(packed[at + 4 : end])
        at = end
    return members


def _rows(steps: Sequence[StoredStep]) -> list[Argument]:
    if len(steps) > MAX_STEPS:
        raise ConfigError(
            f"{len(steps):,} steps are too many for one call; pass at most {MAX_STEPS:,}, or map similar steps"
        )
    return [
        part
        for step in steps
        for part in (
            checked_step(step.name), step.kind, step.queue, step.source,
            ",".join(f"{edge.step}:{edge.when}" for edge in step.after), step.options, step.call,
        )
    ]  # fmt: skip


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _applied(reply: list[Any]) -> Applied:
    state, refused, more, run_id, *flat = reply
    items = []
    for at in range(0, len(flat), _FIELDS):
        name, todo, stamp, again, kind, queue, source, options, call = flat[at : at + _FIELDS]
        if _text(todo) in _TODOS:
            items.append(
                TodoItem(
                    "" if _text(name) == _PARENT else _text(name), cast("Todo", _text(todo)), int(stamp),
                    again == b"1", _text(kind), _text(queue), _text(source), options, call,
                )
            )  # fmt: skip
    return Applied(_text(state), int(refused), tuple(items), bool(more), _text(run_id))


# Reads for people. Any user who can write to the server may have written the values.


def facts_in(flow: str, reply: Sequence[Any]) -> FlowFacts | None:
    """Parse the facts in a reply of `look`; return None for a missing or unreadable flow."""
    if len(reply) < 4:
        return None
    meta, steps, todo = map(_fields, reply[1:4])
    name, _, given = flow.partition(":")
    state = _text(meta.get("state", b""))
    # A damaged list may contain a step several times.
    names = list(dict.fromkeys(_text(steps.get("*", b"")).split(",")))[: 2 * MAX_STEPS_OF_A_FLOW]
    return FlowFacts(
        name=name,
        id=given,
        now_ms=int(reply[0]),
        steps=tuple(
            step for name in names if name and (step := _step(name, meta, steps, todo)) is not None
        ),
        state=state if state in FLOW_STATES else "open",
        queue=_text(meta.get("home", b"")),
        created_at=_number(meta.get("created")),
        ended_at=_number(meta.get("over")),
        keep_ms=_number(meta.get("keep")),
        refused=_number(meta.get("refused")),
        parent=_text(meta.get("parent", b"")),
        run_id=_text(meta.get("run", b"")),
    )


def _step(
    name: str, meta: Mapping[str, bytes], steps: Mapping[str, bytes], todo: Mapping[str, bytes]
) -> StepFacts | None:
    parts = steps.get(name, b"").split(b"\x1f", 4)
    if len(parts) != 5 or _text(parts[0]) not in _KINDS:
        return None
    kind, queue, source, edges = map(_text, parts[:4])
    counts = [_number(part) for part in meta.get(f"n:{name}", b"").split(b",")]
    counts += [0] * (11 - len(counts))
    size, ndone, nended, sealed, ready_at, ended_at, _, added_at, nretried, cut, revived = counts[
        :11
    ]
    bad = max(0, nended - ndone - nretried)
    dead = min(bad, cut - 1) if cut else bad
    options, waits = _options(parts[4]), name in todo
    return StepFacts(
        name=name,
        kind=cast("Kind", kind),
        queue=queue,
        job=_text(options.get("job") or ""),
        after=tuple(_edges(edges)),
        size=size,
        sealed=sealed == 1,
        done=ndone,
        ended=nended,
        dead=dead,
        cancelled=bad - dead,
        cut=cut > 0,
        retried=nretried,
        sent=ready_at > 0 and not waits,
        todo=waits,
        reviving=todo.get(name, b"").startswith(b"revive,"),
        revived=revived,
        due_at=_due_at(options, ready_at),
        flow=source if kind == "flow" else "",
        added_at=added_at,
        ready_at=ready_at,
        ended_at=ended_at,
        key=_text(options.get("key") or ""),
    )


def _edges(text: str) -> Iterable[Edge]:
    for part in filter(None, text.split(",")):
        step, _, when = part.partition(":")
        if when in _WHENS:
            yield Edge(step, cast("When", when))


def _due_at(options: Mapping[str, Any], ready_at: int) -> int:
    at, delay = _seconds(options.get("at")), _seconds(options.get("delay"))
    if at is not None:
        return round(at * 1000)
    return ready_at + round(delay * 1000) if delay is not None and ready_at else 0


def _seconds(value: Any) -> float | None:
    """Return `value` if it is a valid number of seconds; None otherwise, for example for infinity and NaN."""
    return value if isinstance(value, int | float) and 0 <= value < MAX_SECONDS else None


def _options(raw: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _fields(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=False)}


def _number(raw: bytes | None) -> int:
    return int(raw) if raw and raw.isdigit() and len(raw) <= 16 else 0
