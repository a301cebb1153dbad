"""Run calls of a batch job together, each to its own outcome, without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any

from msgspec import structs

from jobq.jobs.admission import Admitted, admit
from jobq.jobs.calls import BatchContext, BatchedCall, Calls
from jobq.jobs.codec import FLOW_HEADER
from jobq.jobs.context import Call, failure_log, running
from jobq.jobs.executor import Asked, Executor, stops
from jobq.jobs.failure import summary
from jobq.jobs.middleware import Layers, around_run
from jobq.jobs.results import ResultRefusedError
from jobq.queue.types import Ending

#: Called with the position of a call and its ending, from any thread.
TakeEnding = Callable[[int, Ending], object]
#: Whether the lock of the call at a position is known to be lost.
IsLost = Callable[[int], bool]


def _never(position: int) -> bool:
    return False


class BatchExecutor(Executor):
    """Runs calls one by one, and calls of batch jobs together."""

    @property
    def layers(self) -> Layers:
        """The middleware around each run."""
        return self._outer.layers + self._inner.layers

    def run_calls(
        self,
        calls: Sequence[Call],
        take: TakeEnding,
        told_to_stop: Asked | None = None,
        is_lost: IsLost = _never,
    ) -> None:
        """Run calls of one batch job in a copy of the context. It raises the exceptions that `run` raises.

        Args:
            take: Gets each ending once it is known. The last call ends when the function has returned.
            told_to_stop: Returns whether the worker asked the job to stop.
            is_lost: Returns whether a call is lost, for the function to ask.
        """
        context = copy_context()
        if self._copies_decimal:
            context.run(self._own_decimal)
        context.run(self._run_calls, calls, take, told_to_stop, is_lost)

    def run_together(self, calls: Sequence[Call]) -> list[Ending]:
        """Run calls of one batch job; return their endings in the same order."""
        endings: dict[int, Ending] = {}
        self.run_calls(calls, endings.__setitem__)
        return [endings[position] for position in range(len(calls))]

    def _run_calls(
        self, calls: Sequence[Call], take: TakeEnding, told_to_stop: Asked | None, is_lost: IsLost
    ) -> None:
        held: list[Admitted] = []
        try:
            ready: dict[int, Call] = {}
            for position, call in enumerate(calls):
                whole = self._filled(call) if FLOW_HEADER in call.headers else call
                waits = whole if isinstance(whole, Ending) else admit(whole, self.worker, held)
                if waits is not None:
                    take(position, waits)
                elif isinstance(whole, Call):
                    ready[position] = whole
            if ready:
                _BatchRun(self, ready, take, told_to_stop, is_lost).run()
        finally:
            for slot in held:
                slot.leave()


class _BatchRun:
    """One run of a batch job's function, and the endings of its calls.

    Args:
        ready: The calls by their positions in the batch as it was fetched.
    """

    def __init__(
        self,
        executor: BatchExecutor,
        ready: Mapping[int, Call],
        take: TakeEnding,
        told_to_stop: Asked | None,
        is_lost: IsLost,
    ) -> None:
        self._executor, self._take, self._told_to_stop = executor, take, told_to_stop
        self._positions, self._members = list(ready), list(ready.values())
        contexts = [executor.context_of(call, BatchedCall) for call in self._members]
        for position, context in zip(self._positions, contexts, strict=True):
            context.is_lost = partial(is_lost, position)
        self.calls: Calls[...] = Calls(contexts, self._on_end)
        self._delivered: set[int] = set()
        self._thread = threading.get_ident()
        self._cpu = self._started = 0

    def run(self) -> None:
        """Call the function, and deliver the endings of its open calls."""
        executor, calls, log = self._executor, self.calls, self._executor.hooks.log
        job = self._members[0].job
        context = BatchContext(self._members[0], calls, executor.worker)
        layers = executor.layers
        entered = running.set(context)
        self._started, self._cpu = perf_counter_ns(), thread_time_ns()
        try:
            if log is not None:
                for call in self._members:
                    log.started(call)
            value = around_run(layers, "run", context, self._called)
            executor.home.only()
            self._end_open(self._results(value))
        except BaseException as error:
            executor.home.only(error)
            if stops(error, self._told_to_stop):
                raise
            if not calls.open:
                failure_log.error(
                    "%s raised after all its calls had ended: %s", job.name, summary(error)
                )
            for index in calls.open:
                calls.errors[index] = error
        finally:
            running.reset(entered)
        for index in range(len(calls)):
            if index not in self._delivered:
                self._deliver(index)

    def _called(self) -> Any:
        """Call the function within its timeout. Processes that it forks end here, outside the middleware."""
        executor, first = self._executor, self._members[0]
        timeout, soft_timeout = first.job.settings.timeout, executor.hooks.soft_timeout
        limited = timeout is not None and soft_timeout is not None
        with soft_timeout(timeout) if limited else nullcontext():  # type: ignore[misc, arg-type]
            value = executor.called(structs.replace(first, args=[self.calls], kwargs={}))
        self._results(value)  # also here, so that middleware sees the failure
        return value

    def _results(self, value: Any) -> Sequence[Any] | None:
        """Return the results of all calls; None if the function returned none, or if none are kept."""
        if value is None or not any(call.job.settings.stores_result for call in self._members):
            return None
        count = len(self.calls)
        if not isinstance(value, list | tuple) or len(value) != count:
            what = (
                f"{len(value)} results" if isinstance(value, list | tuple) else type(value).__name__
            )
            raise ResultRefusedError(
                f"{self._members[0].job.name} returned {what} for {count} calls; return a list with one result per "
                "call in their order, or end each call with calls.done(i, result)"
            )
        return value

    def _end_open(self, results: Sequence[Any] | None) -> None:
        for index in self.calls.open:
            self.calls.results[index] = None if results is None else results[index]

    def _on_end(self, index: int, is_last: bool) -> None:
        # While the function runs, one call of it runs too: its lease and its timeouts bind the function.
        if not is_last:
            self._deliver(index)

    def _deliver(self, index: int) -> None:
        entered = running.set(self.calls[index])
        try:
            ending = self._ending(index)
        finally:
            running.reset(entered)
        self._delivered.add(index)
        self._take(self._positions[index], ending)

    def _ending(self, index: int) -> Ending:
        executor, call = self._executor, self._members[index]
        error, result, cpu_ns = self.calls.errors.get(index), None, self._cpu_ns()
        if error is None and call.job.settings.stores_result:
            try:
                value = self.calls.results[index]
                result = call.job.encoded_result(value, call.message.mid)
            except ResultRefusedError as refused:
                error = refused
        if error is None:
            if executor.hooks.log is not None:
                executor.hooks.log.done(call, (perf_counter_ns() - self._started) / 1e9)
            ending = executor.done(call, result, self._started, cpu_ns)
        else:
            context = self.calls[index]
            ending = executor.failed(
                context, call, error, self._started, cpu_ns, self._told_to_stop
            )
        return executor.sealed(call, ending)

    def _cpu_ns(self) -> int:
        """Return this call's part of the CPU time since the previous end; at the end of the run an equal share."""
        if threading.get_ident() != self._thread:
            return 0
        now, count = thread_time_ns(), 1
        if not self.calls.open:
            count = max(1, len(self.calls) - len(self._delivered))
        spent = (now - self._cpu) // count
        self._cpu += spent
        return spent
