"""Runs one message and returns an `Ending`, without a server. A worker's child uses this for each message.

First call `resolve`, then `run` or `arun`. `resolve` never raises. `run` and `arun` raise only exceptions that
interrupt the attempt: KeyboardInterrupt, JobAborted and, in `arun`, the cancellation of the asyncio task. Any other
exception of a job, including SystemExit, is a failure, and the job's rules decide whether to retry the message.
"""

from __future__ import annotations

import asyncio
import decimal
import resource
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from os import getpid
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from jobq.client.clock import wall
from jobq.client.threads import in_thread
from jobq.errors import CodecError, ConfigError, JobAborted, JobTimeout, ResultNotStoredError
from jobq.events import ago_ms, attempt_record, in_utc, trace_id
from jobq.jobs.admission import FillInputs, arun_admitted, filled, run_admitted
from jobq.jobs.argument_types import DECODE
from jobq.jobs.attempt_log import AttemptLogs
from jobq.jobs.codec import FLOW_HEADER, MEMBER_SIGN, UnknownVersionError, decode
from jobq.jobs.context import Call, Checkpoint, Context, FlowOf, JobLines, ReportProgress, running
from jobq.jobs.deaths import ON_DEAD, FindDead, dead_call, dead_id_in
from jobq.jobs.endings import UnknownJobs, Unrunnable, failed_ending
from jobq.jobs.forks import ForkedProcessError, Home, leave
from jobq.jobs.functions import check_finished
from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares, around_run
from jobq.jobs.registry import Registry
from jobq.jobs.results import DONE, ended
from jobq.jobs.signing import MARK, Seal, opened
from jobq.queue.types import Ending, Lease, Message

#: Peak memory only ever grows, so it isn't measured after each of a thousand short jobs.
RSS_EVERY = 64
LONG_US = 5_000
#: Maximum size of a progress text before it is sealed. With its seal, it fits into the 8,192 bytes that the server
#: keeps.
PROGRESS_ROOM = 3_600

Asked = Callable[[], bool]
_ELSEWHERE = ForkedProcessError()
SoftTimeout = Callable[[float], AbstractContextManager[None]]
C = TypeVar("C", bound=Context)


class Meter:
    """Counts CPU time in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0


@types.coroutine
def _metered(
    coroutine: Coroutine[Any, Any, Any], meter: Meter, home: Home
) -> Generator[Any, Any, Any]:
    """Await `coroutine` and add its CPU time to `meter`.

    If a step of the coroutine forks, end the child after that step.
    """
    step: Any = coroutine.send
    pid = home.pid
    value: Any = None
    while True:
        if getpid() != pid:
            leave(_ELSEWHERE)
        started = thread_time_ns()
        try:
            awaited = step(value)
        except StopIteration as end:
            home.only()
            return end.value
        except BaseException as error:
            home.only(error)
            raise
        finally:
            meter.ns += thread_time_ns() - started
        if getpid() != pid:
            leave(_ELSEWHERE)
        try:
            value, step = (yield awaited), coroutine.send
        except BaseException as error:  # cancellation, and closing, belong to the coroutine
            value, step = error, coroutine.throw


class RunHooks(NamedTuple):
    """Functions that the worker passes to an executor. A missing function is None.

    Attributes:
        soft_timeout: Returns a context manager that raises JobTimeout in a sync job after the given seconds.
        lease_deadline: Returns the end of the running message's lease, in seconds of CLOCK_BOOTTIME.
        checkpoint: Stores and reads the checkpoints of jobs.
        attempt_logs: Stores the logs of jobs that declare keep_logs.
        find_dead: Finds the dead message for which on_dead must be called.
        fill_inputs: Inserts results of steps into the arguments of a member.
        flow_of: Returns the flow of a running member.
        on_failure: Called with the error of each failed attempt.
        log: Logs starts and ends.
        built_in: Jobs that can run although they aren't in the registry, by name.
        tracebacks: Whether to log and store the tracebacks of failed attempts.
        counted: Whether to report run times and CPU times.
    """

    soft_timeout: SoftTimeout | None = None
    report_progress: ReportProgress | None = None
    lease_deadline: Callable[[], float] | None = None
    checkpoint: Checkpoint | None = None
    attempt_logs: AttemptLogs | None = None
    find_dead: FindDead | None = None
    fill_inputs: FillInputs | None = None
    flow_of: FlowOf | None = None
    on_failure: Callable[[Call, BaseException], object] | None = None
    log: JobLines | None = None
    built_in: Mapping[str, Job[..., Any]] = {}
    tracebacks: bool = True
    counted: bool = False


class Executor:
    """Runs jobs of one registry in one child process.

    Attributes:
        worker: The worker's name in events.
        seal: Keys for signed or encrypted calls; None if the process has no keys.
        unknown_jobs: How long messages of unregistered jobs are retried.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        worker: str = "",
        seal: Seal | None = None,
        unknown_jobs: UnknownJobs | None = None,
        hooks: RunHooks | None = None,
    ) -> None:
        self.registry = registry
        self.worker = worker
        self.hooks = hooks or RunHooks()
        self._unrunnable = Unrunnable(worker, unknown_jobs or UnknownJobs())
        self._seal = seal
        self._inner = registry.middleware
        self._outer = self._inner.outer or Middlewares()
        self._outer.add_imported()
        #: The process where jobs run. Processes forked by jobs never leave `run` or `arun`.
        self.home = Home()
        #: Whether jobs would share a decimal context that a module has created, because copies of a context share
        #: values.
        self._copies_decimal = any(
            isinstance(value, decimal.Context) for value in copy_context().values()
        )
        self._rss_kib = 0
        self._runs = 0

    def resolve(self, queue: str, message: Message) -> Call | Ending:
        """Return the call in a message. If the message is unreadable or its job is unknown, return an `Ending`.

        This never raises an exception.
        """
        try:
            content = message.content
            if content.startswith(ON_DEAD):
                return self._on_dead(queue, message)
            if self._seal is not None or content.startswith(MARK):
                content = opened(self._seal, queue, message.mid, content)
            envelope = decode(content)
            if self._seal is not None and 0 < envelope.not_after < wall.ms():
                until = in_utc(envelope.not_after)
                why = (
                    f"the sealed call was valid until {until}; enqueue it again (JOBQ_CODEC_VALID)"
                )
                return self.refuse(queue, message, why)
            job = self.registry.find(envelope.job) or self.hooks.built_in.get(envelope.job)
            if job is None:
                why = f"no job {envelope.job!r:.200} here; is its module in --import?"
                return self._unrunnable.ending(queue, message, envelope.job, why, envelope.headers)
            if envelope.options is not None:
                job = job.with_overrides(envelope.options)
            args, kwargs = envelope.args, envelope.kwargs
            types = job.types
            if types is not None and types.used and FLOW_HEADER not in envelope.headers:
                # Arguments with results of steps are decoded once the results are inserted.
                args, kwargs = types.converted(args, kwargs, DECODE)
            call = Call(
                job,
                message,
                queue,
                args,
                kwargs,
                envelope.headers,
                envelope.enqueued_at,
                # Only producers that seal calls write not_after. Other producers can read only unsealed results.
                self._seal is not None and envelope.not_after > 0,
            )
            if envelope.options is not None and 0 < envelope.options.expires_at < wall.ms():
                return self.sealed(
                    call, self._unrunnable.expired(call, envelope.options.expires_at)
                )
            if (
                message.attempt > 1
                and job.settings.retry_within is not None
                and call.age_s > job.settings.retry_within
            ):
                return self.sealed(call, self._unrunnable.too_late(call))
            return call
        except Exception as error:
            return self._unresolved(queue, message, error)

    def _on_dead(self, queue: str, message: Message) -> Call | Ending:
        """Return the call of a dead message's on_dead function. If there is no function, return an `Ending`."""
        lease = Lease(message.mid, message.token)
        find = self.hooks.find_dead
        dead = find and find(queue, dead_id_in(message.content), lease)
        if not dead:
            return self._unrunnable.nothing(message)
        try:
            died = dead_call(self._seal, queue, dead)
        except CodecError:
            return self._unrunnable.nothing(message)
        job = self.registry.find(died.job)
        if job is None:
            why = f"no job {died.job!r:.200} here, so its on_dead can't be called"
            return self._unrunnable.ending(queue, message, died.job, why, died.headers)
        if job.settings.on_dead is None:
            return self._unrunnable.nothing(message)
        return Call(job.settings.on_dead, message, queue, [died], {}, died.headers, died.died_at)

    def _unresolved(self, queue: str, message: Message, error: Exception) -> Ending:
        try:
            if isinstance(error, UnknownVersionError):
                return self._unrunnable.ending(queue, message, "", str(error))
            if isinstance(error, CodecError | ConfigError):
                return self.refuse(queue, message, str(error))
        except Exception as broken:
            error = broken
        return self._unrunnable.broken(queue, message, error)

    def refuse(self, queue: str, message: Message, why: str) -> Ending:
        """Return an `Ending` that dead-letters a message instead of running it."""
        return self._unrunnable.unreadable(queue, message, why)

    def run(self, call: Call, told_to_stop: Asked | None = None) -> Ending:
        """Run a sync job, and return the attempt's `Ending`.

        The job runs in a copy of the context, so changes to context variables don't outlive the job.

        Args:
            told_to_stop: Returns whether the worker stopped the job. If not, a JobAborted error is a failure.
        """
        context = copy_context()
        if self._copies_decimal:
            context.run(self._own_decimal)
        return context.run(self._run, call, told_to_stop)

    def _run(
        self,
        call: Call,
        told_to_stop: Asked | None,
        *,
        admitted: bool = False,
        logged: bool = False,
    ) -> Ending:
        """Run a sync job.

        Args:
            admitted: Whether the job's limits have already admitted the call.
            logged: Whether this attempt already has a log.
        """
        if not admitted and (call.job.settings.limits or FLOW_HEADER in call.headers):
            ready = self._filled(call)
            return run_admitted(
                ready, self.worker, lambda filled: self._run(filled, told_to_stop, admitted=True)
            )
        hooks, settings = self.hooks, call.job.settings
        if settings.keep_logs is not None and not logged and hooks.attempt_logs is not None:
            with self._logged(call, hooks.attempt_logs):
                return self._run(call, told_to_stop, admitted=True, logged=True)
        # The code of `context_of`, repeated here to save a call for each job.
        report, keep = hooks.report_progress, hooks.checkpoint
        if call.sealed:
            report, keep = self._reporting(call), self._checkpointing(call)
        context = Context(call, report, hooks.lease_deadline, self.worker, keep, hooks.flow_of)
        job, log = call.job, hooks.log
        layers = self._outer.layers + self._inner.layers
        entered = running.set(context)
        cpu, started = thread_time_ns(), perf_counter_ns()
        try:
            if log is not None:
                log.started(call)
                started = perf_counter_ns()
            if layers or settings.timeout is not None:
                whole = settings.timeout is None and settings.result_ttl is None
                inner = partial(self.called if whole else self._limited, call)
                value = around_run(layers, "run", context, inner)
                self.home.only()
            else:
                value = self.called(call)
            result = None
            if settings.result_ttl is not None:
                result = job.encoded_result(value, call.message.mid)
            if log is not None:
                log.done(call, (perf_counter_ns() - started) / 1e9)
        except BaseException as error:
            self.home.only(error)
            if stops(error, told_to_stop):
                raise
            cpu_ns = thread_time_ns() - cpu
            return self.sealed(
                call, self.failed(context, call, error, started, cpu_ns, told_to_stop)
            )
        finally:
            running.reset(entered)
        ending = self.done(call, result, started, thread_time_ns() - cpu)
        return self.sealed(call, ending) if call.sealed else ending

    async def arun(
        self,
        call: Call,
        told_to_stop: Asked | None = None,
        *,
        admitted: bool = False,
        logged: bool = False,
    ) -> Ending:
        """Run an async job on this thread's event loop, concurrently with other jobs. Return the attempt's `Ending`.

        Args:
            told_to_stop: Returns whether the worker stopped the job. If not, a JobAborted or CancelledError is a
                failure.
            admitted: Whether the job's limits have already admitted the call.
            logged: Whether this attempt already has a log.
        """
        if not admitted and (call.job.settings.limits or FLOW_HEADER in call.headers):
            ready = await self._afilled(call)
            return await arun_admitted(
                ready, self.worker, lambda filled: self.arun(filled, told_to_stop, admitted=True)
            )
        hooks, settings = self.hooks, call.job.settings
        if settings.keep_logs is not None and not logged and hooks.attempt_logs is not None:
            with self._logged(call, hooks.attempt_logs):
                return await self.arun(call, told_to_stop, admitted=True, logged=True)
        context: Context = self.context_of(call)
        layers = self._outer.layers + self._inner.layers
        meter, log = Meter(), hooks.log
        self._own_decimal()
        entered = running.set(context)
        started = perf_counter_ns()
        try:
            if log is not None:
                log.started(call)
                started = perf_counter_ns()
            if layers or settings.timeout is not None:
                inner = partial(self._alimited, call, meter)
                value = await around_run(layers, "arun", context, inner)
            else:
                job = call.job.function(*call.args, **call.kwargs)
                value = await _metered(job, meter, self.home)
            self.home.only()
            check_finished(value, call.job.name)
            result = None
            if settings.stores_result:
                result = call.job.encoded_result(value, call.message.mid)
            if log is not None:
                log.done(call, (perf_counter_ns() - started) / 1e9)
        except BaseException as error:
            self.home.only(error)
            if stops(error, told_to_stop) or cancelled_from_outside(error, told_to_stop):
                raise
            return self.sealed(
                call, self.failed(context, call, error, started, meter.ns, told_to_stop)
            )
        finally:
            running.reset(entered)
        ending = self.done(call, result, started, meter.ns)
        return self.sealed(call, ending) if call.sealed else ending

    def context_of(self, call: Call, kind: type[C] = Context) -> C:  # type: ignore[assignment]
        """Return the context of a running job. If the call is sealed, the job's reports are also sealed."""
        hooks = self.hooks
        report, keep = hooks.report_progress, hooks.checkpoint
        if call.sealed:
            report, keep = self._reporting(call), self._checkpointing(call)
        return kind(call, report, hooks.lease_deadline, self.worker, keep, hooks.flow_of)

    def _own_decimal(self) -> None:
        """Give each job a decimal context of its own if jobs would otherwise share one."""
        if self._copies_decimal:
            decimal.setcontext(decimal.getcontext().copy())

    def _filled(self, call: Call) -> Call | Ending:
        """Insert results of steps into a call's arguments. If results aren't available, return an `Ending`."""
        try:
            whole = (
                filled(call, self.worker, self.hooks.fill_inputs) if _takes_results(call) else call
            )
            if isinstance(whole, Call) and FLOW_HEADER in call.headers:
                args, kwargs = call.job.decoded(whole.args, whole.kwargs)
                whole = structs.replace(whole, args=args, kwargs=kwargs)
            return whole
        except ResultNotStoredError as error:
            # The result may come back, for example after a failover, so this is an ordinary failed attempt.
            return self.sealed(
                call, self.failed(self.context_of(call), call, error, perf_counter_ns(), 0, None)
            )
        except Exception as error:
            return self.sealed(call, self._unresolved(call.queue, call.message, error))

    async def _afilled(self, call: Call) -> Call | Ending:
        if not _takes_results(call):
            return call
        return await in_thread(self._filled, call)

    def _limited(self, call: Call) -> Any:
        timeout, soft_timeout = call.job.settings.timeout, self.hooks.soft_timeout
        if timeout is None or soft_timeout is None:
            value = self.called(call)
        else:
            with soft_timeout(timeout):
                value = self.called(call)
        if call.job.settings.stores_result:
            # Encode the result here as well, so that middleware sees the failure if the result can't be stored.
            call.job.encoded_result(value, call.message.mid)
        return value

    def called(self, call: Call) -> Any:
        """Call the function. If the function forks and returns in the child process, end the child process."""
        try:
            value = call.job.function(*call.args, **call.kwargs)
        except BaseException as error:
            self.home.only(error)
            raise
        if getpid() != self.home.pid:
            leave()
        if value is not None:
            check_finished(value, call.job.name)
        return value

    async def _alimited(self, call: Call, meter: Meter) -> Any:
        value = await self.acalled(call, meter)
        if call.job.settings.stores_result:
            call.job.encoded_result(value, call.message.mid)
        return value

    async def acalled(self, call: Call, meter: Meter) -> Any:
        """Call the function of an async job within its timeout, and add its CPU time to `meter`."""
        job, timeout = call.job, call.job.settings.timeout
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                value = await _metered(job.function(*call.args, **call.kwargs), meter, self.home)
                check_finished(value, job.name)
        except TimeoutError as error:
            if limit.expired():
                raise JobTimeout(f"ran past its timeout of {timeout:g} s") from error
            raise
        return value

    def done(self, call: Call, result: bytes | None, started: int, cpu_ns: int) -> Ending:
        """Return the `Ending` of a successful attempt, which began at `started` (perf_counter_ns)."""
        message = call.message
        run_us = (perf_counter_ns() - started) // 1000
        if run_us >= LONG_US or self._runs % RSS_EVERY == 0:
            self._measure_memory()
        self._runs += 1
        ago, cpu_us, name = ago_ms(call.enqueued_at), cpu_ns // 1000, call.job.name
        record = attempt_record(
            name, message.attempt, ago, run_us, cpu_us, self._rss_kib, self.worker,
            nbytes=len(message.content), trace_id=trace_id(call.headers) if call.headers else "",
        )  # fmt: skip
        settings = call.job.settings
        if result is None and settings.remember is not None and message.mid[0] != MEMBER_SIGN:
            result = DONE
        if result is not None:
            return Ending(
                mid=message.mid, token=message.token, record=record,
                result=ended(result, message.attempt), result_ttl=settings.remember_s or 0,
            )  # fmt: skip
        if self.hooks.counted:
            figures = (name, message.attempt, ago, run_us, cpu_us)
            return Ending(mid=message.mid, token=message.token, record=record, figures=figures)
        return Ending(mid=message.mid, token=message.token, record=record)

    def failed(
        self,
        context: Context,
        call: Call,
        error: BaseException,
        started: int,
        cpu_ns: int,
        told_to_stop: Asked | None,
    ) -> Ending:
        """Return the `Ending` of an attempt that began at `started` (perf_counter_ns) and raised `error`."""
        run_us = (perf_counter_ns() - started) // 1000
        self._measure_memory()
        if self.hooks.on_failure is not None:
            self.hooks.on_failure(call, error)
        figures = (run_us, cpu_ns // 1000, self._rss_kib, self.worker)
        ending = failed_ending(
            context,
            call,
            error,
            figures,
            lambda raised: stops(raised, told_to_stop),
            self.hooks.tracebacks,
        )
        self.home.only()  # a policy may also fork
        return ending

    def sealed(self, call: Call, ending: Ending) -> Ending:
        """Seal the result, the reason and the traceback of an `Ending` if its call was sealed."""
        if self._seal is None or not call.sealed:
            return ending
        where = (call.queue, ending.mid)
        changes: dict[str, Any] = {}
        if ending.result is not None:
            seal = self._seal.of("result")
            changes["result"] = seal.close(*where, ending.result, call.message.content)
        for name, text in (("reason", ending.reason), ("traceback", ending.traceback)):
            if text:
                seal = self._seal.of("reason")
                changes[name] = seal.close_text(*where, text, call.message.content)
        return structs.replace(ending, **changes) if changes else ending

    def _logged(self, call: Call, logs: AttemptLogs) -> AbstractContextManager[None]:
        message, keep_s = call.message, call.job.settings.keep_logs or 0.0

        def sealed(text: bytes) -> bytes:
            if self._seal is None or not call.sealed:
                return text
            plain, seal = text.decode("utf-8", "replace"), self._seal.of("log")
            return seal.close_text(call.queue, message.mid, plain, message.content).encode()

        return logs.of(call.queue, message.mid, message.attempt, keep_s, sealed)

    def _checkpointing(self, call: Call) -> Checkpoint | None:
        keep, seal = self.hooks.checkpoint, self._seal
        if keep is None or seal is None or not call.sealed:
            return keep
        own = seal.of("checkpoint")

        def sealed(queue: str, mid: str, token: str, value: str) -> str | None:
            if value:
                value = own.close_text(queue, mid, value, call.message.content)
            kept = keep(queue, mid, token, value)
            return own.open_text(queue, mid, kept) if kept else kept

        return sealed

    def _reporting(self, call: Call) -> ReportProgress | None:
        report, seal = self.hooks.report_progress, self._seal
        if report is None or seal is None or not call.sealed:
            return report

        def sealed(queue: str, mid: str, token: str, text: str) -> bool:
            text = text.encode("utf-8", "replace")[:PROGRESS_ROOM].decode("utf-8", "ignore")
            text = seal.of("progress").close_text(queue, mid, text, call.message.content)
            return report(queue, mid, token, text)

        return sealed

    def _measure_memory(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._rss_kib = peak // 1024 if sys.platform == "darwin" else peak


def _takes_results(call: Call) -> bool:
    return FLOW_HEADER in call.headers and call.message.mid.startswith(MEMBER_SIGN)


def stops(error: BaseException, told_to_stop: Asked | None) -> bool:
    """Return whether an error interrupts the attempt, so that the attempt has no outcome."""
    if isinstance(error, JobAborted) and told_to_stop is not None:
        return told_to_stop()
    return isinstance(error, KeyboardInterrupt | JobAborted)


def cancelled_from_outside(error: BaseException, told_to_stop: Asked | None) -> bool:
    """Return whether the worker cancelled the running task; False if the job cancelled itself."""
    try:
        current = asyncio.current_task()
    except RuntimeError:
        current = None
    if isinstance(error, GeneratorExit):
        # Without a current task, the coroutine is being closed. Otherwise the job raised it.
        return current is None
    if not isinstance(error, asyncio.CancelledError):
        return False
    if told_to_stop is not None:
        return told_to_stop()
    return current is not None and current.cancelling() > 0
