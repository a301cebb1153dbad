"""Run one attempt of a job without a server, but with a worker's codec, executor, middleware, policy and timeouts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, NamedTuple, TypedDict

from msgspec import structs

from jobq.client.clock import boot_ns, wall
from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.calls import Calls
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.executor import RunHooks
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry
from jobq.queue.types import LEASE_S, Ending, Message
from jobq.testing.draining import WORKER, arun_call, run_call, soft_timeout
from jobq.testing.recording import recorded
from jobq.testing.waiting import EnqueuedCall

#: The id of a message if the test doesn't set one.
MID = "test-mid"


class AttemptFacts(TypedDict, total=False):
    """Facts about an attempt. Omitted facts have defaults.

    Attributes:
        attempt: The attempt's number, counted from 1.
        crashes: Number of earlier attempts whose process died.
        waited: Time since the call was enqueued.
        lease_left: Time until the attempt's lease ends.
        checkpoint: The previous attempt's checkpoint, as JSON.
    """

    attempt: int
    crashes: int
    mid: str
    queue: str
    generation: str
    fence: int
    headers: Mapping[str, str]
    waited: Duration
    lease_left: Duration
    checkpoint: str


class RunResult(NamedTuple):
    """The result of one attempt.

    Attributes:
        outcome: done, retry, dead, snooze, hold, expired or unknown.
        value: The job's return value.
        error: The job's exception.
        retry_in: Seconds until the call runs again; None if it doesn't run again.
        reason: Why the message was dead-lettered.
        progress: All progress reports, in order.
        logs: Records logged during the attempt.
        enqueued: Calls enqueued by the attempt.
    """

    outcome: str
    value: Any = None
    error: BaseException | None = None
    retry_in: float | None = None
    reason: str = ""
    progress: tuple[str, ...] = ()
    logs: tuple[logging.LogRecord, ...] = ()
    enqueued: tuple[EnqueuedCall, ...] = ()


class Attempts:
    """Runs single attempts with the given facts.

    If `records` is true, calls that the job enqueues are recorded instead of sent.
    """

    def __init__(self, registry: Registry, facts: AttemptFacts, *, records: bool = True) -> None:
        self._recorded: Any = recorded if records else partial(nullcontext, [])
        unknown = facts.keys() - AttemptFacts.__annotations__.keys()
        if unknown:
            raise ConfigError(
                f"an attempt has no {min(unknown)!r}; it has {', '.join(AttemptFacts.__annotations__)}"
            )
        self._registry, self._facts = registry, facts
        self._progress: list[str] = []
        self._errors: list[BaseException] = []
        self._values: list[Any] = []

    def run(self, job: Job[..., Any], *args: Any, **kwargs: Any) -> RunResult:
        """Run the job once."""
        executor, message = self._prepared(job, args, kwargs)
        with _logged() as logs, self._recorded() as calls:
            call = self._resolved(executor, message)
            ending = run_call(executor, call) if isinstance(call, Call) else call
        return self._ran(ending, logs, calls)

    async def arun(self, job: Job[..., Any], *args: Any, **kwargs: Any) -> RunResult:
        """Run the job once: an async job on this event loop, a sync job in a thread."""
        executor, message = self._prepared(job, args, kwargs)
        with _logged() as logs, self._recorded() as calls:
            call = self._resolved(executor, message)
            ending = await arun_call(executor, call) if isinstance(call, Call) else call
        return self._ran(ending, logs, calls)

    def _prepared(
        self, job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BatchExecutor, Message]:
        job.check_arguments(args, kwargs)
        self._progress, self._errors, self._values = [], [], []
        facts = self._facts
        lease_end = boot_ns() / 1e9 + duration_s(facts.get("lease_left", LEASE_S))
        kept = [facts.get("checkpoint", "")]
        hooks = RunHooks(
            soft_timeout=soft_timeout, report_progress=self._report, lease_deadline=lambda: lease_end,
            checkpoint=lambda queue, mid, token, value: keep(kept, value),
            on_failure=lambda call, error: self._errors.append(error),
        )  # fmt: skip
        executor = BatchExecutor(registry_for(job, self._registry), worker=WORKER, hooks=hooks)
        now = wall.ms()
        enqueued_at = now - round(duration_s(facts.get("waited", 0)) * 1000)
        headers = {**job.settings.headers, **facts.get("headers", {})}
        plain, named = job.encoded(args, kwargs)
        content = encode(
            job.name, plain, named, enqueued_at, headers, job.per_message_options(enqueued_at)
        )
        attempt = facts.get("attempt", 1)
        message = Message(
            facts.get("mid", MID), content, attempt, facts.get("crashes", 0), facts.get("fence", attempt),
            facts.get("generation", "generation"), f"token.{attempt}", now,
        )  # fmt: skip
        return executor, message

    def _resolved(self, executor: BatchExecutor, message: Message) -> Call | Ending:
        queue = self._facts.get("queue", "test")
        call = executor.resolve(queue, message)
        return observed(call, self._values.append) if isinstance(call, Call) else call

    def _report(self, queue: str, mid: str, token: str, text: str) -> bool:
        self._progress.append(text)
        return True

    def _ran(
        self, ending: Ending, logs: list[logging.LogRecord], calls: list[EnqueuedCall]
    ) -> RunResult:
        again = ending.outcome in ("retry", "snooze", "hold", "unknown")
        return RunResult(
            ending.outcome,
            self._values[-1] if self._values and ending.outcome == "done" else None,
            self._errors[-1] if self._errors else None,
            ending.backoff if again else None, ending.reason,
            tuple(self._progress), tuple(logs), tuple(calls),
        )  # fmt: skip


def observed(call: Call, take: Callable[[Any], object]) -> Call:
    """Return a copy of the call without limits. The copy passes the function's result to `take`."""
    function = call.job.function

    @wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        value = await function(*args, **kwargs)
        take(_value_of(call, args, value))
        return value

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        take(_value_of(call, args, value))
        return value

    return structs.replace(call, job=call.job.calling(awaited if call.job.is_async else called))


def _value_of(call: Call, args: tuple[Any, ...], value: Any) -> Any:
    """Return the result of the call. For a batch job, this is the result of the only call in the batch."""
    if call.job.settings.batch is None:
        return value
    calls: Calls[...] = args[0]
    returned = value[0] if isinstance(value, list | tuple) and value else None
    return calls.results.get(0, returned)


def registry_for(job: Job[..., Any], registry: Registry) -> Registry:
    """Return the registry if it has the job. Otherwise, return a new registry with the job and the job's middleware."""
    known = registry.find(job.name)
    if known is not None and known.function is job.function:
        return registry
    registry = Registry()
    registry.middleware = job.middleware
    registry.add(job)
    return registry


def keep(kept: list[str], value: str) -> str:
    """Store a checkpoint in `kept[0]` unless it is empty. Return the stored checkpoint."""
    if value:
        kept[0] = value
    return kept[0]


class _Gather(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    root, handler = logging.getLogger(), _Gather()
    root.addHandler(handler)
    try:
        yield handler.records
    finally:
        root.removeHandler(handler)
