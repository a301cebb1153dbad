"""Fill results of steps into the arguments of later steps. Executors do this before a job runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from msgspec import structs

from jobq.client.connection import Client
from jobq.errors import CodecError, JobFailedError, ResultNotStoredError
from jobq.flows.announcing import queue_at
from jobq.flows.identity import MAX_NUMBER_LENGTH, member_of
from jobq.flows.references import FlowInput, inputs_in, put_in
from jobq.flows.state import FlowFacts, StepFacts
from jobq.flows.store import FlowStore
from jobq.jobs.codec import FLOW_HEADER
from jobq.jobs.context import Call
from jobq.jobs.results import decode_result
from jobq.jobs.signing import opened, seal_of, shown_text
from jobq.queue.types import Lease

#: Number of results per read.
PER_READ = 500
#: Maximum number of dead members whose error is looked up.
MAX_REASONS = 100
_NOT_READ = " (errors are read for the first {most} only; jobq why {mid} shows this error)"


class FlowInputs:
    """Inserts results of earlier steps into the arguments of members. Threads may share an instance."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, call: Call) -> Call:
        """Return a member's call with its arguments filled in; return other calls unchanged.

        Raises CodecError if a header or a result can't be read, and ResultNotStoredError if a result is missing. Raises
        UnavailableError if another server may still have the result.
        """
        member = member_of(call.message.mid)
        if member is None or FLOW_HEADER not in call.headers:
            return call
        inputs = inputs_in(call.headers[FLOW_HEADER])
        try:
            return self._filled(call, member.run, inputs)
        except ResultNotStoredError:
            self._client.look_again()
        try:
            return self._filled(call, member.run, inputs)
        except ResultNotStoredError as error:
            lease = Lease(call.message.mid, call.message.token)
            queue_at(self._client, call.queue).check_lease(lease, str(error))
            raise

    def _filled(self, call: Call, run: str, inputs: Sequence[FlowInput]) -> Call:
        results = StepResults(self._client, run)
        args, kwargs = deepcopy(call.args), deepcopy(call.kwargs)
        put_in(args, kwargs, [(input_, results.of(input_)) for input_ in inputs])
        return structs.replace(call, args=args, kwargs=kwargs)


class StepResults:
    """Results of the steps of one flow.

    Args:
        run: The flow with its run id.
    """

    def __init__(self, client: Client, run: str) -> None:
        self._client, self._store = client, FlowStore(client, run)
        self.flow = self._store.flow
        self._facts: FlowFacts | None = None

    def of(self, input_: FlowInput) -> Any:
        """Return the result to which an argument refers."""
        if input_.what in ("failures", "results"):
            facts = self._step(input_.step)
            if not facts.sealed or facts.ended < facts.size:
                # The steps had ended before the member began, but this server doesn't have that state.
                raise ResultNotStoredError(
                    f"step {input_.step} of flow {self.flow}: only {facts.ended} of {facts.size} members have ended"
                )
        if input_.what == "failures":
            return self.failures(input_.step)
        if input_.what == "results":
            return self.results(input_.step, input_.queue)
        if input_.what == "value":
            return self.value(input_.step, input_.queue)
        return self.result(input_.step, input_.queue)

    def result(self, step: str, queue: str) -> Any:
        """Return a step's result.

        Args:
            queue: Queue where the step ran.
        """
        return self._opened(step, 0, queue, self._only(step))

    def value(self, step: str, home: str) -> Any:
        """Return the value of the signal for which a step waited.

        Args:
            home: Queue that received the signal.
        """
        mid, seal, text = self._store.member(step).mid, seal_of(self._client), self._only(step)
        if seal is not None:
            text = seal.of("result").open_text(home, mid, text.decode("utf-8", "replace")).encode()
        return decode_result(text, step, mid)

    def _only(self, step: str) -> bytes:
        name = f"{step}:0"
        stored = self._store.results([name]).get(name)
        if stored is None:
            raise ResultNotStoredError(
                f"step {step} of flow {self.flow} has no stored result: it isn't done, the flow was deleted, or no "
                f"step uses its result and its job isn't declared with result_ttl="
            )
        return stored

    def results(self, step: str, queue: str) -> list[Any]:
        """Return the results of a map's members, in order. Members without a stored result are left out."""
        size = self._step(step).size
        return [
            self._opened(step, number, queue, stored) for number, stored in self._stored(step, size)
        ]

    def failures(self, step: str) -> list[dict[str, Any]]:
        """Return up to 1,000 dead members of a step. For the first 100, the reason is the latest error.

        For the others, the reason explains how to look up the error.
        """
        whys: dict[int, str] = {}
        for name, why in self._store.failures().items():
            named, _, text = name.rpartition(":")
            if named == step and text.isdecimal() and len(text) <= MAX_NUMBER_LENGTH:
                whys[int(text)] = why
        queue = self._step(step).queue if whys else ""
        members: list[dict[str, Any]] = []
        for number in sorted(whys):
            mid = self._store.member(step, number).mid
            if queue and len(members) < MAX_REASONS:
                why = self._reason(queue, mid) or whys[number]
            else:
                why = whys[number] + (_NOT_READ.format(most=MAX_REASONS, mid=mid) if queue else "")
            members.append({"index": number, "mid": mid, "reason": why})
        return members

    def _reason(self, queue: str, mid: str) -> str:
        died = queue_at(self._client, queue).admin.dead(mid=mid)
        if not died or not died[0].reason:
            return ""
        return shown_text(seal_of(self._client), "reason", queue, mid, died[0].reason)

    def _stored(self, step: str, size: int) -> Iterator[tuple[int, bytes]]:
        for start in range(0, size, PER_READ):
            numbers = range(start, min(size, start + PER_READ))
            results = self._store.results([f"{step}:{number}" for number in numbers])
            for number in numbers:
                stored = results.get(f"{step}:{number}")
                if stored is not None:
                    yield number, stored

    def _step(self, name: str) -> StepFacts:
        if self._facts is None:
            self._facts = self._store.facts()
        steps = self._facts.steps if self._facts is not None else ()
        step = next((step for step in steps if step.name == name), None)
        if step is None:
            raise ResultNotStoredError(f"flow {self.flow} has no step {name}, or it was deleted")
        return step

    def _opened(self, step: str, number: int, queue: str, stored: bytes) -> Any:
        mid = self._store.member(step, number).mid
        seal = seal_of(self._client)
        content = opened(seal and seal.of("result"), queue, mid, stored)
        try:
            return decode_result(content, step, mid)
        except JobFailedError as error:
            raise CodecError(str(error)) from error
