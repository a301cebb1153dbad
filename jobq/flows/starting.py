"""Start a flow: store it, announce it, and enqueue the items of its maps as they are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import sleep
from typing import Any, TypeVar

import msgspec

from jobq.client.clock import wall
from jobq.client.connection import Client
from jobq.client.pipelining import run_all
from jobq.errors import (
    ConfigError,
    FlowClosedError,
    FlowConflictError,
    KeyFullError,
    ResultTimeoutError,
)
from jobq.flows.announcing import announce, client_of, queue_at
from jobq.flows.contents import kept_call
from jobq.flows.definition import (
    Definition,
    FlowStep,
    MapStep,
    Step,
    SubFlowStep,
    TimerStep,
    WaitStep,
)
from jobq.flows.draining import Drainer
from jobq.flows.identity import member_mid, parts_of_run, without_run
from jobq.flows.listing import put_on_list
from jobq.flows.references import FlowInput, ResultOf, header_of
from jobq.flows.rights import refresh
from jobq.flows.run import FlowRun, LongerPauses, drain_soon
from jobq.flows.sending import Sending, StepSender
from jobq.flows.state import FlowFacts
from jobq.flows.store import FlowStore
from jobq.flows.types import LONG_LIFE_MS, PER_CHUNK, Reserved, StoredFlow, StoredStep
from jobq.jobs.codec import FLOW_HEADER, CallEncoder
from jobq.jobs.job import Job
from jobq.jobs.signing import seal_of
from jobq.jobs.timer import TIMER
from jobq.queue.durability import SharedConfirmation

T = TypeVar("T")
_log = logging.getLogger("jobq.flows")
#: How long the start of a map waits for room in the full line of a key.
FULL_S = 30.0
#: Maximum bytes of the stored items of a flow's waiting maps.
MAX_ITEMS_BYTES = 8 << 20
#: How long a result stays with its message. Usually, a drainer moves it to the flow long before that.
RESULT_S = 86_400.0


def started(flow: Definition) -> FlowRun:
    """Start a checked definition."""
    client = client_of(flow.client)
    confirmation = SharedConfirmation(client)
    planned = Planned(client, flow, confirmation=confirmation)
    refresh(client, planned.queues)
    run = FlowRun(flow.name, flow.id, client=client)
    planned.check_subs()
    if planned.store() == "over":
        return run
    confirmation.check(f"flow {flow.flow_id} is stored")
    announce(client, flow.home, "begin", planned.run)
    # Now the flow is accepted: it may wait for a worker for a year.
    planned.keep()
    for flow_id in planned.flow_ids:
        put_on_list(client, flow_id)
    drain_soon(client, flow.home)
    for step in flow.steps.values():
        if isinstance(step, MapStep) and source_of(step) == "stream":
            add_members(client, planned.run, step, flow.home)
            drain_soon(client, flow.home)
    return run


class Planned:
    """A definition in its stored form, with its sub-flows.

    Args:
        above: The parent flow, if this is a sub-flow.
        step: Name of the parent's step for this sub-flow.
    """

    def __init__(
        self,
        client: Client,
        flow: Definition,
        above: Planned | None = None,
        step: str = "",
        *,
        confirmation: SharedConfirmation,
    ) -> None:
        self._client, self._flow, self._above, self._step = client, flow, above, step
        self._store = FlowStore(client, flow.flow_id, confirmation)
        self.steps = tuple(
            [
                stored_step(client, flow.flow_id, flow.home, step, is_sub=above is not None)
                for step in in_order(flow.steps)
            ]
        )
        self.subs = [
            Planned(client, step.sub, self, step.name, confirmation=confirmation)
            for step in flow.steps.values()
            if isinstance(step, SubFlowStep)
        ]

    @property
    def queues(self) -> list[str]:
        """All queues of the flow and its sub-flows."""
        names = dict.fromkeys([self._flow.home, *(step.queue for step in self.steps if step.queue)])
        for sub in self.subs:
            names |= dict.fromkeys(sub.queues)
        return list(names)

    @property
    def run(self) -> str:
        """The flow's id. It includes the run id once the flow is stored."""
        return self._store.run

    @property
    def flow_ids(self) -> list[str]:
        """The ids of all sub-flows, and then the id of this flow."""
        return [*(flow_id for sub in self.subs for flow_id in sub.flow_ids), self._flow.flow_id]

    def check_subs(self) -> None:
        """Raise FlowConflictError if the id of a sub-flow is in use. Call this before storing any flow.

        A sub-flow of another flow or an earlier run would never report its outcome to this run. If another process
        stores a sub-flow after this check, `store` raises the error.
        """
        subs = [nested for sub in self.subs for nested in sub.with_subs()]
        calls = [nested._store.facts_call() for nested in subs]
        for sub, facts in zip(subs, run_all(self._client, calls) if calls else (), strict=True):
            if facts is None:
                continue
            is_left = facts.state == "running" and self._store.facts() is None
            if is_left or without_run(facts.parent) != sub._place:
                raise sub._taken(facts)

    def with_subs(self) -> Iterator[Planned]:
        """Yield this flow and all its sub-flows."""
        yield self
        for sub in self.subs:
            yield from sub.with_subs()

    @property
    def _place(self) -> str:
        """Return the `flow.step` in the parent that runs this flow as a sub-flow; '' without a parent."""
        return f"{self._above._flow.flow_id}.{self._step}" if self._above else ""

    def keep(self) -> None:
        """Store the flow like a sub-flow, which is kept for up to a year before it begins."""
        store = FlowStore(self._client, self._flow.flow_id)
        store.create(self._record()._replace(life_ms=LONG_LIFE_MS))

    def _record(self) -> StoredFlow:
        flow, above = self._flow, self._above
        keep_ms, run_id = round(flow.keep_s * 1000), (above or self)._store.run_id
        stored = StoredFlow(self.steps, flow.hash, flow.home, keep_ms, run_id=run_id)
        if above is None:
            return stored
        return stored._replace(parent=f"{above.run}.{self._step}", life_ms=LONG_LIFE_MS)

    def store(self) -> str:
        """Store the flow; return 'created', 'same' (already stored) or 'over' (already stored and ended).

        The parent is stored first, because sub-flows contain the parent's run id. After an error, stored flows never
        begin. Raises FlowConflictError if the id belongs to another definition or to another flow's sub-flow.
        """
        flow = self._flow
        outcome = self._store.create(self._record())
        if outcome == "conflict":
            raise FlowConflictError(
                f"flow {flow.flow_id} was already started with different steps; use another id"
            )
        if outcome == "taken":
            raise self._taken(FlowStore(self._client, flow.flow_id).facts())
        if outcome == "over":
            return outcome
        for sub in self.subs:
            sub.store()
        for step in flow.steps.values():
            if isinstance(step, MapStep) and source_of(step, bool(self._above)) == "items":
                put_items(self._client, self._store, step)
        return outcome

    def _taken(self, there: FlowFacts | None) -> FlowConflictError:
        flow = self._flow.flow_id
        as_what = f"as a step of {there.parent}" if there and there.parent else "on its own"
        kept = f", {as_what}, and is {there.state}" if there else ""
        return FlowConflictError(
            f"flow {self._place.partition('.')[0]} can't have {flow} as a step, because that flow is already "
            f"stored{kept}; use other ids, or delete that flow once it has ended: jobq flow delete {flow}"
        )


def stored_step(
    client: Client, flow_id: str, home: str, step: FlowStep, *, is_sub: bool = False
) -> StoredStep:
    """Return the stored form of a step.

    Args:
        home: Queue that receives the flow's signals.
        is_sub: Whether the flow is a step of another flow.
    """
    made = StoredStep(step.name, step.kind, step.queue, step.edges)
    where = (step.queue or home, member_mid(flow_id, step.name))
    if isinstance(step, Step):
        job = keeping(step.job, step.keeps_results)
        call = kept_call(client, where, job, step.args, step.kwargs, headers_of(step, home))
        return made._replace(options=options_of(step.job, step.options), call=call)
    if isinstance(step, MapStep):
        job = keeping(step.job, step.keeps_results)
        call = kept_call(client, where, job, headers=dict(job.settings.headers))
        options = options_of(step.job, step.options)
        return made._replace(source=source_of(step, is_sub), options=options, call=call)
    if isinstance(step, SubFlowStep):
        return made._replace(source=step.sub.flow_id)
    if isinstance(step, TimerStep):
        options, call = options_of(TIMER, {"at": step.at_s}), kept_call(client, where, TIMER)
        return made._replace(queue=home, options=options, call=call)
    if isinstance(step, WaitStep) and step.timeout_s is not None:
        options, call = (
            options_of(TIMER, {"delay": step.timeout_s}),
            kept_call(client, where, TIMER),
        )
        return made._replace(queue=home, options=options, call=call)
    return made._replace(queue=home)


def in_order(steps: dict[str, FlowStep]) -> list[FlowStep]:
    """Return the steps so that each comes after its dependencies. The dependencies must not form a cycle."""
    order: dict[str, FlowStep] = {}
    left = list(steps.values())
    while left:
        ready = [
            step for step in left if all(name in order or name not in steps for name in step.after)
        ]
        order.update((step.name, step) for step in ready)
        left = [step for step in left if step.name not in order]
    return list(order.values())


def source_of(step: MapStep[Any], is_sub: bool = False) -> str:
    """Return where a map's items come from; see `StoredStep.source`."""
    if isinstance(step.items, ResultOf):
        return f"={step.items.name}"
    if is_sub:
        step.refuse_keys_of_arguments()
    if is_sub and not isinstance(step.items, list | tuple):
        raise ConfigError(
            f"map {step.name!r} starts when its sub-flow starts, so its items must be stored; pass a list, or the "
            f"result of a step that returns a list"
        )
    return "items" if step.after or is_sub else "stream"


def options_of(job: Job[..., Any], options: dict[str, Any]) -> bytes:
    """Encode the options of a step for the flow's storage."""
    return msgspec.json.encode({"job": job.name, **options}, order="sorted")


def keeping(job: Job[..., Any], keeps_results: bool) -> Job[..., Any]:
    """Return the job with result storage turned on or off."""
    if job.settings.stores_result == keeps_results:
        return job
    return job.options(result_ttl=RESULT_S if keeps_results else None)


def headers_of(step: Step[Any], home: str) -> dict[str, str]:
    """Return the headers of a step's call. The header `flow` lists the arguments to fill with results."""
    headers = dict(step.job.settings.headers)
    if step.inputs:
        inputs = [
            FlowInput(path, ref.name, ref.what, ref.step.queue or home) for path, ref in step.inputs
        ]
        headers[FLOW_HEADER] = header_of(inputs)
    return headers


# Members of maps.


def put_items(client: Client, store: FlowStore, step: MapStep[Any]) -> None:
    """Store the calls of a map whose dependencies aren't done."""
    size = 0
    job = keeping(step.job, step.keeps_results)
    headers = dict(job.settings.headers)
    for chunk, calls in enumerate(chunks(step.calls(step.items))):
        contents = []
        for number, (args, kwargs) in enumerate(calls, chunk * PER_CHUNK):
            mid = member_mid(store.flow, step.name, number)
            contents.append(kept_call(client, (step.queue, mid), job, args, kwargs, headers))
        size += sum(map(len, contents))
        if size > MAX_ITEMS_BYTES:
            _too_long(step)
        if store.put_items(step.name, step.queue, chunk, contents) == "full":
            _too_long(step)


def _too_long(step: MapStep[Any]) -> None:
    raise ConfigError(
        f"the items of map {step.name!r} and other waiting maps take more than {MAX_ITEMS_BYTES >> 20} MiB; let an "
        "earlier step return the items, or let a running step add the map"
    )


def add_members(client: Client, run: str, step: MapStep[Any], home: str) -> None:
    """Enqueue a map's members while its items are read. Members from an earlier, interrupted call are skipped.

    If an item can't become a call, the map fails. If the iterable itself raises an exception, the map stays open. If
    too many messages of the map's key are waiting, the call waits. It raises KeyFullError after half a minute without
    progress. After either exception, repeat the call to continue.

    Args:
        run: The flow with its run id.
    """
    rows, queue = MemberRows(client, run, step), queue_at(client, step.queue)
    confirmation = SharedConfirmation(client)
    sender = StepSender(Sending(client, _always, Drainer(client).unapplied, confirmation), run)
    store, (flow, _) = sender.store, parts_of_run(run)
    reserved = count = 0
    for chunk, items in enumerate(chunks(step.items)):
        count = chunk + 1
        if count < reserved:
            continue
        try:
            contents = rows.of(chunk, items)
        except Exception as error:
            sender.fail_map(step.queue, step.name, f"{type(error).__name__}: {error}")
            announce(client, home, "look", run)
            drain_soon(client, home)
            raise
        reply = _when_there_is_room(
            lambda chunk=chunk, contents=contents: sender.add_chunk(  # type: ignore[misc]
                queue, step.name, chunk, contents, rows.options
            ),
            f"map {step.name} of flow {flow}",
        )
        reserved = reply.chunks
        if reply.outcome in ("closed", "sealed", "other"):
            _refuse(store, step, reply.outcome)
            return
    sealed = store.seal(step.name, count)
    if sealed != "ok":
        _refuse(store, step, sealed)
    confirmation.check(f"map {step.name} of flow {flow} is complete")
    announce(client, home, "look", run)


def _when_there_is_room(enqueue: Callable[[], Reserved], what: str) -> Reserved:
    """Call `enqueue`, and repeat the call while too many messages of the key are waiting.

    Raises KeyFullError if no message could be enqueued for FULL_S.
    """
    left, pauses = 0, LongerPauses(FULL_S)
    while True:
        try:
            return enqueue()
        except KeyFullError as error:
            if error.left != left:
                pauses = LongerPauses(FULL_S)
            if not left:
                _log.warning("%s is waiting for room: %s", what, error)
            left = error.left
            try:
                pause_s = pauses.next_s(str)
            except ResultTimeoutError:
                raise KeyFullError(
                    f"{what} was blocked for {FULL_S:g} s, because at most {error.most:,} messages may wait for the "
                    f"key {error.key}. Earlier members are enqueued; start the same flow again to continue, or raise "
                    f"the limit", error.key, error.most,
                ) from error  # fmt: skip
            sleep(pause_s)


def _always() -> bool:
    return True


def _refuse(store: FlowStore, step: MapStep[Any], outcome: str) -> None:
    if outcome == "sealed":
        return
    if outcome == "closed":
        raise FlowClosedError(
            f"flow {store.flow} has ended or was cancelled, so nothing can be added to map {step.name}"
        )
    raise FlowConflictError(
        f"map {step.name} of flow {store.flow} was started with different items; start it again with the same items, "
        f"or cancel it and start another flow"
    )


class MemberRows:
    """Builds the messages of one map's members."""

    def __init__(self, client: Client, run: str, step: MapStep[Any]) -> None:
        self._client, self._run, self._step = client, run, step
        self._job = keeping(step.job, step.keeps_results)
        headers = dict(self._job.settings.headers)
        limit = client.settings.max_content
        self._encode = CallEncoder(self._job.name, headers, self._job.overrides, limit)
        self._seal = seal_of(client)
        named = self._job.queue_options.items()
        #: Options for enqueueing the messages.
        self.options = {name: value for name, value in named if name != "key"}

    def of(self, chunk: int, items: Sequence[Any]) -> list[Any]:
        """Build the messages for one chunk of items."""
        first = chunk * PER_CHUNK
        calls = self._step.calls(items, first)
        return [
            self._row(number, args, kwargs) for number, (args, kwargs) in enumerate(calls, first)
        ]

    def _row(self, number: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        mid = member_mid(self._run, self._step.name, number)
        now = wall.ms()
        content = self._encode(*self._job.encoded(args, kwargs), now)
        if self._seal is not None:
            content = self._seal.close_call(self._step.queue, mid, content, self._job.due_ms(now))
        if self._job.settings.key is None:
            return mid, content
        return mid, content, self._job.key_of(args, kwargs)


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items, PER_CHUNK at a time."""
    left = iter(items)
    while part := list(islice(left, PER_CHUNK)):
        yield part
