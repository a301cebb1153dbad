"""Runs calls of a batch job together, without a server. Each call gets its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any

from msgspec import structs

from jobq.jobs.admission import Admitted, aadmit, admit
from jobq.jobs.calls import BatchContext, BatchedCall, Calls
from jobq.jobs.codec import FLOW_HEADER
from jobq.jobs.context import Call, failure_log, running
from jobq.jobs.executor import Asked, Executor, Meter, cancelled_from_outside, stops
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
        """Run calls of one batch job in a copy of the context. Raises the same exceptions as `run`.

        Args:
            take: Called with the index and `Ending` of each ended call. After an interruption, it may be called again
                with the same arguments.
            told_to_stop: Returns whether the worker asked the job to stop.
            is_lost: Returns whether a call has lost its lease. The job's function may check this.
        """
        context = copy_context()
        if self._copies_decimal:
            context.run(self._own_decimal)
        context.run(self._run_calls, calls, take, told_to_stop, is_lost)

    def run_together(self, calls: Sequence[Call]) -> list[Ending]:
        """Run calls of one batch job; return their outcomes in the same order."""
        endings: dict[int, Ending] = {}
        self.run_calls(calls, endings.__setitem__)
        return [endings[position] for position in range(len(calls))]

    async def arun_together(self, calls: Sequence[Call]) -> list[Ending]:
        """Run calls of one async batch job; return their outcomes in the same order."""
        endings: dict[int, Ending] = {}
        await self.arun_calls(calls, endings.__setitem__)
        return [endings[position] for position in range(len(calls))]

    def _run_calls(
        self, calls: Sequence[Call], take: TakeEnding, told_to_stop: Asked | None, is_lost: IsLost
    ) -> None:
        held: list[Admitted] = []
        run = _BatchRun(self, calls, take, told_to_stop, is_lost)
        try:
            for position, call in enumerate(calls):
                whole = self._filled(call) if FLOW_HEADER in call.headers else call
                run.add(
                    position,
                    whole,
                    whole if isinstance(whole, Ending) else admit(whole, self.worker, held),
                )
            run.run()
        finally:
            for slot in held:
                slot.leave()

    async def arun_calls(
        self,
        calls: Sequence[Call],
        take: TakeEnding,
        told_to_stop: Asked | None = None,
        is_lost: IsLost = _never,
    ) -> None:
        """Run calls of an async batch job on this thread's event loop; see `run_calls`."""
        held: list[Admitted] = []
        run = _BatchRun(self, calls, take, told_to_stop, is_lost)
        self._own_decimal()
        try:
            for position, call in enumerate(calls):
                whole = await self._afilled(call) if FLOW_HEADER in call.headers else call
                run.add(
                    position,
                    whole,
                    whole if isinstance(whole, Ending) else await aadmit(whole, self.worker, held),
                )
            await run.arun()
        finally:
            for slot in held:
                await slot.aleave()


class _BatchRun:
    """Runs a batch job's function once, and reports the outcome of each call."""

    def __init__(
        self,
        executor: BatchExecutor,
        owners: Sequence[Call],
        take: TakeEnding,
        told_to_stop: Asked | None,
        is_lost: IsLost,
    ) -> None:
        self._executor, self._take, self._told_to_stop = executor, take, told_to_stop
        self._owners, self._is_lost = owners, is_lost
        # Admitted calls, and their positions in the batch as it was fetched.
        self._members: list[Call] = []
        self._positions: list[int] = []
        self._delivered: set[int] = set()
        self._thread = threading.get_ident()
        self._spent: Callable[[], int] = thread_time_ns
        self._cpu = self._started = 0
        self._lock, self._is_over = threading.RLock(), False

    def add(self, position: int, call: Call | Ending, waits: Ending | None) -> None:
        """Add a call to the batch. If the call must wait, report `waits` as its outcome instead."""
        if waits is not None:
            self._take(position, waits)
        elif isinstance(call, Call):
            self._members.append(call)
            self._positions.append(position)

    def run(self) -> None:
        """Call the function, and then report the outcomes of all calls that are still open."""
        if not self._members:
            return
        context, executor = self._begin(), self._executor
        entered = running.set(context)
        try:
            try:
                value = around_run(executor.layers, "run", context, self._called)
            finally:
                self._close()
            executor.home.only()
            self._end_open(self._results(value))
        except BaseException as error:
            executor.home.only(error)
            if stops(error, self._told_to_stop):
                raise
            self._fail_open(error)
        finally:
            running.reset(entered)
        self._deliver_rest()

    async def arun(self) -> None:
        """Await the function, and then report the outcomes of all calls that are still open."""
        if not self._members:
            return
        meter = Meter()
        self._spent = lambda: meter.ns
        context, executor = self._begin(), self._executor
        entered = running.set(context)
        try:
            inner = partial(self._acalled, meter)
            try:
                value = await around_run(executor.layers, "arun", context, inner)
            finally:
                self._close()
            executor.home.only()
            self._end_open(self._results(value))
        except BaseException as error:
            executor.home.only(error)
            told = self._told_to_stop
            if stops(error, told) or cancelled_from_outside(error, told):
                raise
            self._fail_open(error)
        finally:
            running.reset(entered)
        self._deliver_rest()

    def _begin(self) -> BatchContext:
        executor, log = self._executor, self._executor.hooks.log
        contexts = [executor.context_of(call, BatchedCall) for call in self._members]
        for position, member in zip(self._positions, contexts, strict=True):
            member.is_lost = partial(self._is_lost, position)
        self.calls: Calls[...] = Calls(contexts, self._on_end, self._lock, lambda: self._is_over)
        if log is not None:
            for call in self._members:
                log.started(call)
        self._started, self._cpu = perf_counter_ns(), self._spent()
        return BatchContext(self._members[0], self.calls, executor.worker, self._owners)

    def _close(self) -> None:
        """Reject further outcomes. Then wait for threads that are reporting an outcome."""
        self._is_over = True
        with self._lock:
            pass

    def _whole(self) -> Call:
        return structs.replace(self._members[0], args=[self.calls], kwargs={})

    def _called(self) -> Any:
        """Call the function within its timeout. If it forks and returns in the child process, end the child process."""
        executor, settings = self._executor, self._members[0].job.settings
        timeout, soft_timeout = settings.timeout, executor.hooks.soft_timeout
        limited = timeout is not None and soft_timeout is not None
        with soft_timeout(timeout) if limited else nullcontext():  # type: ignore[misc, arg-type]
            value = executor.called(self._whole())
        self._results(value)  # also here, so that middleware sees the failure
        return value

    async def _acalled(self, meter: Meter) -> Any:
        value = await self._executor.acalled(self._whole(), meter)
        self._results(value)
        return value

    def _results(self, value: Any) -> Sequence[Any] | None:
        """Return the results of all calls; None if the function returned None, or if results aren't stored."""
        if value is None or not any(call.job.settings.stores_result for call in self._members):
            return None
        count = len(self.calls)
        if not isinstance(value, list | tuple) or len(value) != count:
            what = (
                f"{len(value)} results" if isinstance(value, list | tuple) else type(value).__name__
            )
            raise ResultRefusedError(
                f"{self._members[0].job.name} returned {what} for {count} calls; return a list with one result per "
                f"call, in the order of the calls, or end each call with calls.done(i, result)"
            )
        return value

    def _end_open(self, results: Sequence[Any] | None) -> None:
        for index in self.calls.open:
            self.calls.results[index] = None if results is None else results[index]

    def _fail_open(self, error: BaseException) -> None:
        if not self.calls.open:
            name = self._members[0].job.name
            failure_log.error("%s raised after all its calls had ended: %s", name, summary(error))
        for index in self.calls.open:
            self.calls.errors[index] = error

    def _deliver_rest(self) -> None:
        for index in range(len(self.calls)):
            if index not in self._delivered:
                self._deliver(index)

    def _on_end(self, index: int, is_last: bool) -> None:
        # The last call ends only with the function, because its lease and timeouts apply to the function.
        if not is_last:
            self._deliver(index)

    def _deliver(self, index: int) -> None:
        entered = running.set(self.calls[index])
        try:
            ending = self._ending(index)
        finally:
            running.reset(entered)
        # In this order: a timeout that interrupts between these lines must not lose the ending.
        self._take(self._positions[index], ending)
        self._delivered.add(index)

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
        """Return the CPU time since the previous outcome. After the run, divide this time among the remaining calls."""
        if threading.get_ident() != self._thread:
            return 0
        now, count = self._spent(), 1
        if not self.calls.open:
            count = max(1, len(self.calls) - len(self._delivered))
        spent = (now - self._cpu) // count
        self._cpu += spent
        return spent
