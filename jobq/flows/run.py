"""A started flow: its status, and signals to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload
from weakref import WeakSet

from jobq.client.connection import Client
from jobq.client.numbered_calls import is_denied
from jobq.client.threads import in_thread
from jobq.config import duration_s
from jobq.durations import Duration, listed
from jobq.errors import (
    ConfigError,
    FlowClosedError,
    JobFailedError,
    JobqError,
    ResultNotStoredError,
    ResultTimeoutError,
)
from jobq.flows.announcing import SEPARATOR, Word, announce, client_of
from jobq.flows.definition import FlowStep, MapStep, Step
from jobq.flows.draining import Drainer
from jobq.flows.identity import checked_step, flow_id, member_mid
from jobq.flows.inputs import StepResults
from jobq.flows.state import FLOW_OVER, STEP_OVER, FlowView, StepView, step_sentence
from jobq.flows.store import FlowStore
from jobq.jobs.codec import MEMBER_SIGN
from jobq.jobs.queues import ClientLike
from jobq.jobs.results import encode_result
from jobq.jobs.signing import seal_of

R = TypeVar("R")

#: Maximum outbox entries that a producer delivers, including other producers' entries before its own.
MAX_ENTRIES = 512
#: Clients whose users may not deliver announced signals to flows.
_MAY_NOT_DRAIN: WeakSet[Client] = WeakSet()
#: First and longest pause between two reads of a flow.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0


class FlowRun:
    """The flow with this name and id. Any process may have started it."""

    def __init__(self, name: str, id: str, *, client: ClientLike | None = None) -> None:
        self.name, self.id = name, id
        self.flow_id = flow_id(name, id)
        self._client = client_of(client)
        self._store = FlowStore(self._client, self.flow_id)

    def status(self) -> FlowView:
        """Return the flow's state, steps and pending dependencies.

        Raises FlowClosedError if the flow is missing or was never started.
        """
        facts = self._store.facts()
        if facts is None:
            raise FlowClosedError(
                f"flow {self.flow_id} doesn't exist; it was never started, or it ended and is no longer kept"
            )
        return FlowView(facts)

    def signal(self, step: str, value: Any = None) -> None:
        """Send a signal to the wait step with this name, to complete the step.

        An early signal takes effect when its wait begins, and only the first signal has an effect. Raises ConfigError
        if the flow has no such wait, FlowClosedError if the flow has ended.

        Args:
            value: Any JSON value of up to 64 KiB, for steps that use it.
        """
        view = self._running(f"can't be signalled: {step}")
        waits = [step.name for step in view.steps if step.facts.kind == "wait"]
        if step not in waits:
            raise ConfigError(
                f"flow {self.flow_id} has no wait named {step!r:.80}; it has {listed(waits) or 'none'}"
            )
        mid = member_mid(view.facts.run, step)
        text = encode_result(value, f"signal {step}", MEMBER_SIGN).decode()
        home, seal = view.facts.queue, seal_of(self._client)
        if seal is not None:
            text = seal.of("result").close_text(home, mid, text)
        self._say(view, "signal", f"{step}{SEPARATOR}{text}")

    def cancel(self) -> None:
        """Cancel the flow: enqueue no more steps, and cancel waiting messages.

        Workers notice the cancellation of running messages when they next renew their leases.
        """
        view = self.status()
        if view.facts.state != "cancelled":
            self._say(view, "cancel")

    def retry(self, step: FlowStep | str | None = None) -> None:
        """Revive the dead members of one step, or of all steps. Later steps run once their dependencies are done.

        This call revives up to 25,000 members; workers revive the others. Raises FlowClosedError if the flow was
        cancelled.
        """
        name = step.name if isinstance(step, FlowStep) else step
        view = self.status()
        if name is not None and checked_step(name) not in view.by_name:
            raise ConfigError(f"flow {self.flow_id} has no step {name!r}; it has {_names(view)}")
        if view.state == "cancelled":
            raise FlowClosedError(
                f"flow {self.flow_id} is cancelled and can't be retried; start it with another id"
            )
        self._say(view, "retry", name or "")

    def wait(self, timeout: Duration | None = None) -> FlowView:
        """Wait until the flow ends, and return it; raise ResultTimeoutError after `timeout`.

        The flow is polled often at first, and later once a second.
        """
        pauses = LongerPauses(timeout)
        while (view := self.status()).state not in FLOW_OVER:
            time.sleep(pauses.next_s(lambda: f"flow {self.flow_id} still {_waits(view)}"))
        return view

    @overload
    def result(self, step: Step[R], timeout: Duration | None = None) -> R: ...
    @overload
    def result(self, step: MapStep[R], timeout: Duration | None = None) -> list[R]: ...
    @overload
    def result(self, step: FlowStep | str, timeout: Duration | None = None) -> Any: ...
    def result(self, step: FlowStep | str, timeout: Duration | None = None) -> Any:
        """Wait up to `timeout` for a step's result and return it.

        A map's result is a list, and a wait's result is the value of its signal. If you pass a step object, its job's
        return annotation decodes the result. If you pass a step's name, the result is plain JSON.

        Raises ResultNotStoredError if the step doesn't keep results: declare the job with result_ttl=, pass the result
        to another step, or use results=True for a map. Raises JobFailedError if the step failed, was skipped or was
        cancelled, and ResultTimeoutError at the timeout.
        """
        pauses = LongerPauses(timeout)
        while not (over := self._result_if_over(step)):
            time.sleep(pauses.next_s(lambda: self._no_result(step)))
        return over[0]

    def _result_if_over(self, step: FlowStep | str) -> tuple[Any] | None:
        if isinstance(step, FlowStep) and step.kind in ("step", "map") and not step.keeps_results:
            raise ResultNotStoredError(
                f"step {step.name} of flow {self.flow_id} doesn't keep its result; "
                f"{'pass results=True to the map' if step.kind == 'map' else 'declare its job with result_ttl=…'}"
            )
        view, name = self.status(), _name(step)
        step_view = view.by_name.get(name)
        if step_view is None:
            raise ConfigError(
                f"flow {self.flow_id} has no step {name!r:.80}; it has {_names(view)}"
            )
        if step_view.state not in STEP_OVER and view.state not in FLOW_OVER:
            return None
        plain = self._result(view, step_view)
        types = step.job.types if isinstance(step, Step | MapStep) else None
        if types is None:
            return (plain,)
        many = step_view.facts.kind == "map"
        return (
            [types.decoded_result(item) for item in plain] if many else types.decoded_result(plain),
        )

    def _no_result(self, step: FlowStep | str) -> str:
        return f"no result of step {_name(step)} of flow {self.flow_id}"

    def _result(self, view: FlowView, step_view: StepView) -> Any:
        results, name = StepResults(self._client, view.facts.run), step_view.name
        if step_view.state != "done":
            said = f"step {name} of flow {self.flow_id}"
            if dead := results.failures(name):
                reason = dead[0]["reason"].partition("\n")[0]
                raise JobFailedError(f"{said} is {step_view.state}: {reason} ({dead[0]['mid']})")
            sentence = step_sentence(view, name) or step_view.state
            raise JobFailedError(f"{said} {'is ' * (step_view.state != 'waiting')}{sentence}")
        home = view.facts.queue
        if step_view.facts.kind == "wait":
            return results.value(name, home)
        if step_view.facts.kind == "map":
            return results.results(name, step_view.facts.queue)
        if step_view.facts.kind == "step":
            return results.result(name, step_view.facts.queue)
        return None

    # The same methods, without blocking an event loop.

    async def astatus(self) -> FlowView:
        """Run `status` in a thread, without blocking the event loop."""
        return await in_thread(self.status)

    async def asignal(self, step: str, value: Any = None) -> None:
        """Run `signal` in a thread, without blocking the event loop."""
        await in_thread(self.signal, step, value)

    async def acancel(self) -> None:
        """Run `cancel` in a thread, without blocking the event loop."""
        await in_thread(self.cancel)

    async def aretry(self, step: FlowStep | str | None = None) -> None:
        """Run `retry` in a thread, so that the event loop isn't blocked."""
        await in_thread(self.retry, step)

    async def await_end(self, timeout: Duration | None = None) -> FlowView:
        """Wait without blocking the event loop; see `wait`. Cancelling ends the wait."""
        pauses = LongerPauses(timeout)
        while (view := await self.astatus()).state not in FLOW_OVER:
            await asyncio.sleep(pauses.next_s(lambda: f"flow {self.flow_id} still {_waits(view)}"))
        return view

    @overload
    async def aresult(self, step: Step[R], timeout: Duration | None = None) -> R: ...
    @overload
    async def aresult(self, step: MapStep[R], timeout: Duration | None = None) -> list[R]: ...
    @overload
    async def aresult(self, step: FlowStep | str, timeout: Duration | None = None) -> Any: ...
    async def aresult(self, step: FlowStep | str, timeout: Duration | None = None) -> Any:
        """Wait for a result without blocking the event loop; see `result`. Cancelling ends the wait."""
        pauses = LongerPauses(timeout)
        while not (over := await in_thread(self._result_if_over, step)):
            await asyncio.sleep(pauses.next_s(lambda: self._no_result(step)))
        return over[0]

    def _running(self, what: str) -> FlowView:
        view = self.status()
        if view.state in FLOW_OVER:
            raise FlowClosedError(f"flow {self.flow_id} is {view.state}; it {what}")
        return view

    def _say(self, view: FlowView, word: Word, detail: str = "") -> None:
        home = view.facts.queue
        announce(self._client, home, word, view.facts.run, detail)
        drain_soon(self._client, home)

    def __repr__(self) -> str:
        return f"FlowRun({self.name!r}, {self.id!r})"


def drain_soon(client: Client, home: str) -> None:
    """Try to deliver a queue's signals to their flows immediately. If that fails, a worker delivers them later.

    A client without the necessary rights tries only once, because the server logs each rejection.
    """
    if client in _MAY_NOT_DRAIN:
        return
    try:
        Drainer(client).drain(home, MAX_ENTRIES)
    except JobqError as error:
        if is_denied(error):
            _MAY_NOT_DRAIN.add(client)


class LongerPauses:
    """Pauses between polls that become longer, up to a deadline."""

    def __init__(self, timeout: Duration | None) -> None:
        self._timeout_s = None if timeout is None else duration_s(timeout)
        self._until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        self._pause_s = FIRST_PAUSE_S

    def next_s(self, what: Callable[[], str]) -> float:
        """Return the seconds until the next poll.

        After the timeout, raise ResultTimeoutError with the text of `what()`.
        """
        pause_s = self._pause_s
        if self._until is not None:
            pause_s = min(pause_s, self._until - time.monotonic())
            if pause_s <= 0:
                raise ResultTimeoutError(f"{what()} within {self._timeout_s:g} s")
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 1.5)
        return pause_s


def _name(step: FlowStep | str) -> str:
    return step.name if isinstance(step, FlowStep) else step


def _names(view: FlowView) -> str:
    return listed([step.name for step in view.steps])


def _waits(view: FlowView) -> str:
    waits = listed([wait.sentence for wait in view.waits_for])
    return f"waits for {waits}; it did not end" if waits else "runs; it did not end"
