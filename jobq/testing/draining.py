"""Run waiting messages in this process, as a worker does: dequeue, decode, run and finish them."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from jobq.client import threads
from jobq.client.clock import wall
from jobq.client.connection import Client
from jobq.errors import (
    CodecError,
    ConfigError,
    Dead,
    JobFailedError,
    JobNotFoundError,
    JobTimeout,
    Outcome,
)
from jobq.flows.adding import flow_of
from jobq.flows.draining import Drainer
from jobq.flows.inputs import FlowInputs
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.calls import batch_of
from jobq.jobs.context import Call
from jobq.jobs.executor import RunHooks
from jobq.jobs.registry import Registry
from jobq.jobs.signing import seal_of
from jobq.jobs.timer import BUILT_IN
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue, alone
from jobq.queue.types import DAY_S, DeadMessage, Ending, Lease, Message
from jobq.testing.clock import KitClock
from jobq.testing.relaying import DjangoOutboxes
from jobq.testing.waiting import waiting_in

T = TypeVar("T")
#: A message, and the call in it, or the ending of a message that can't run.
Fetched = tuple[Message, Call | Ending]
#: Name of the worker for calls run in this process.
WORKER = "tests"


class DrainResult(NamedTuple):
    """Numbers of attempts and messages, counted during a drain.

    Attributes:
        done: Successful attempts.
        failed: Failed attempts whose messages are retried.
        dead: Dead-lettered messages.
        left: Messages that still waited at the end of the drain.
        expired: Messages that expired before they started.
    """

    done: int = 0
    failed: int = 0
    dead: int = 0
    left: int = 0
    expired: int = 0


class DrainPlan(NamedTuple):
    """The options of a drain; see Kit.drain."""

    queues: tuple[str, ...] | None = None
    delayed: bool = False
    retries: bool = True
    raises: bool = True
    limit: int = 10_000


class Draining:
    """Runs the messages of one client's queues with the jobs of one registry."""

    def __init__(
        self, client: Client, registry: Registry, clock: KitClock, outboxes: DjangoOutboxes
    ) -> None:
        self.client, self._registry, self._clock = client, registry, clock
        self._outboxes = outboxes
        self._flows = Drainer(client)
        #: Errors of the current attempts, by message.
        self._errors: dict[str, BaseException] = {}
        #: Messages waiting because of an attempt here, for example for a retry.
        self._returned: set[str] = set()
        hooks = RunHooks(
            soft_timeout=soft_timeout,
            report_progress=lambda queue, mid, token, text: self._queue(queue).progress(mid, token, text),
            checkpoint=lambda queue, mid, token, value: self._queue(queue).checkpoint(mid, token, value),
            find_dead=self._find_dead, fill_inputs=FlowInputs(client), flow_of=partial(flow_of, client),
            on_failure=self._on_failure, built_in=BUILT_IN,
        )  # fmt: skip
        self.executor = BatchExecutor(registry, worker=WORKER, seal=seal_of(client), hooks=hooks)

    def nested(self) -> Draining:
        """Return a new Draining, for a drain that starts during this drain. Each Draining tracks its own attempts."""
        return Draining(self.client, self._registry, self._clock, self._outboxes)

    def send_steps(self) -> bool:
        """Report ended steps and signals to their flows, and enqueue the next steps. Return whether there was anything
        to report.
        """
        return sum(self._flows.drain(name) for name in queue_names(self.client)) > 0

    def run(self, plan: DrainPlan) -> DrainResult:
        """Drain the queues. With `plan.raises`, raise the first error of a job."""
        steps = self._steps(plan)
        try:
            call = next(steps)
            while True:
                try:
                    ending = self._run(call)
                except BaseException as error:
                    steps.throw(error)
                    raise
                call = steps.send(ending)
        except StopIteration as end:
            drained: DrainResult = end.value
            return drained

    async def arun(self, plan: DrainPlan) -> DrainResult:
        """Drain on this event loop; sync jobs run in threads."""
        steps = self._steps(plan)
        try:
            call = next(steps)
            while True:
                try:
                    ending = await self._arun(call)
                except BaseException as error:
                    steps.throw(error)
                    raise
                call = steps.send(ending)
        except StopIteration as end:
            drained: DrainResult = end.value
            return drained

    def _run(self, what: Any) -> Any:
        if isinstance(what, Call):
            return run_call(self.executor, what)
        return run_batch(self.executor, what) if isinstance(what, list) else what()

    async def _arun(self, what: Any) -> Any:
        if isinstance(what, Call):
            return await arun_call(self.executor, what)
        if isinstance(what, list):
            return await arun_batch(self.executor, what)
        return await _aside(what)

    def _steps(self, plan: DrainPlan) -> Generator[Any, Any, DrainResult]:
        """Yield calls, lists of calls to run together, and functions. The caller runs each of them and sends the
        outcome back.
        """
        ended: Counter[str] = Counter()
        while True:
            if self._outboxes.aliases:
                yield partial(self._outboxes.relay, self.client)
            queues = alone(self.client, plan.queues or queue_names(self.client))
            self._note_on_dead(queues)
            before, began = ended.total(), wall.ms()
            for queue in queues:
                yield from self._drained(queue, plan, ended)
            ran = self.send_steps() or ended.total() > before
            if not ran and not self._jump(queues, plan, began):
                left = sum(1 for queue in queues for _ in waiting_in(queue))
                counts = {name: ended[outcome] for outcome, name in _COUNTED.items()}
                return DrainResult(left=left, **counts)

    def _drained(
        self, queue: Queue, plan: DrainPlan, ended: Counter[str]
    ) -> Generator[Any, Any, None]:
        with closing(self._batches(queue)) as batches:
            for fetched in batches:
                if ended.total() + len(fetched) > plan.limit:
                    queue.release([(message.mid, message.token) for message, _ in fetched])
                    raise ConfigError(
                        f"{plan.limit:,} attempts ran and more messages wait; if that is right, pass a larger limit="
                    )
                endings = yield from self._attempts(queue, fetched, plan)
                ended.update(ending.outcome for ending in endings)

    def _batches(self, queue: Queue) -> Generator[list[Fetched], None, None]:
        held: list[Fetched] = []
        try:
            while held or (held := self._fetch(queue, 1)):
                first, call = held.pop(0)
                batch = call.job.settings.batch if isinstance(call, Call) else None
                together = [(first, call)]
                if batch is not None and batch > 1:
                    held += self._fetch(queue, batch - 1)
                    together += [pair for pair in held if _is_of_same_batch(pair[1], call)][
                        : batch - 1
                    ]
                    held = [pair for pair in held if pair not in together]
                yield together
        finally:
            queue.release([(message.mid, message.token) for message, _ in held])

    def _fetch(self, queue: Queue, limit: int) -> list[Fetched]:
        # A debugger may pause a job for a long time.
        messages = queue.dequeue(limit, lease=DAY_S).messages
        return [(message, self.executor.resolve(queue.name, message)) for message in messages]

    def _attempts(
        self, queue: Queue, fetched: list[Fetched], plan: DrainPlan
    ) -> Generator[Any, Any, list[Ending]]:
        self._errors = {}
        calls = [call for _, call in fetched if isinstance(call, Call)]
        endings: list[Ending]
        try:
            if calls and calls[0].job.settings.batch is not None:
                endings = yield calls
            else:
                [(_, call)] = fetched
                endings = [(yield call) if isinstance(call, Call) else call]
        except BaseException:
            queue.release([(message.mid, message.token) for message, _ in fetched])
            raise
        errors, self._errors = self._errors, {}
        queue.finish(endings)
        self._returned.update(ending.mid for ending in endings if ending.outcome in _RETURNING)
        if plan.raises:
            for (_, call), ending in zip(fetched, endings, strict=True):
                self._raise(queue.name, call, ending, errors.get(ending.mid))
        return endings

    def _raise(
        self, queue: str, call: Call | Ending, ending: Ending, error: BaseException | None
    ) -> None:
        if error is not None and (not isinstance(error, Outcome) or isinstance(error, Dead)):
            raise error
        if isinstance(call, Call):
            if ending.outcome == "dead" and error is None:
                raise JobFailedError(f"{call.job.name} {ending.mid} is dead: {ending.reason}")
        elif ending.outcome == "unknown":
            raise JobNotFoundError(
                f"{ending.mid} of queue {queue} names a job that isn't registered here; import its module"
            )
        elif ending.outcome == "dead":
            raise CodecError(f"{ending.mid} of queue {queue} can't run: {ending.reason}")

    def _jump(self, queues: Iterable[Queue], plan: DrainPlan, began: int) -> bool:
        """Move the clock to the next time at which a message of the drain can run. Return False if there is none.

        Args:
            began: When the queues were last checked. Messages that have become due since then are included.
        """
        moments = [at for queue in queues for at in self._moments(queue, plan) if at > began]
        if not moments:
            return False
        ahead_ms = min(moments) - wall.ms()
        if ahead_ms > 0:
            self._clock.move(ahead_ms / 1000)
        return True

    def _moments(self, queue: Queue, plan: DrainPlan) -> Iterator[int]:
        if queue.admin.counts().paused:
            return
        for call in waiting_in(queue):
            again = call.attempts > 0 or call.mid in self._returned
            if call.due and (plan.retries if again else plan.delayed):
                yield round(call.due * 1000)
        if plan.retries or plan.delayed:
            for row in queue.admin.iter_keys():
                if row.waiting:
                    yield max(row.held_until, row.starts_at)

    def _note_on_dead(self, queues: Iterable[Queue]) -> None:
        if any(job.settings.on_dead is not None for job in self._registry):
            for queue in queues:
                queue.admin.call_on_dead()

    def _queue(self, name: str) -> Queue:
        queue = Queue(name, self.client)
        queue.is_alone = True
        return queue

    def _find_dead(self, queue: str, dead_id: str, lease: Lease) -> DeadMessage | None:
        messages = self._queue(queue).admin.dead(mid=dead_id)
        return messages[0] if messages and messages[0].dead_id == dead_id else None

    def _on_failure(self, call: Call, error: BaseException) -> None:
        self._errors[call.message.mid] = error


_COUNTED = {"done": "done", "retry": "failed", "dead": "dead", "expired": "expired"}
_RETURNING = frozenset(("retry", "snooze", "hold", "release", "unknown"))


def _is_of_same_batch(other: Call | Ending, call: Call | Ending) -> bool:
    return isinstance(other, Call) and isinstance(call, Call) and batch_of(other) == batch_of(call)


def run_call(executor: BatchExecutor, call: Call) -> Ending:
    """Run a call and return its outcome. An async job runs on a new event loop, and a batch job receives one call."""
    if call.job.settings.batch is not None:
        return run_batch(executor, [call])[0]
    if not call.job.is_async:
        return executor.run(call)
    return _on_new_loop(partial(executor.arun, call))


async def arun_call(executor: BatchExecutor, call: Call) -> Ending:
    """Run a call and return its outcome. A sync job runs in a thread."""
    if call.job.settings.batch is not None:
        return (await arun_batch(executor, [call]))[0]
    if call.job.is_async:
        return await executor.arun(call)
    return await _aside(partial(executor.run, call))


def run_batch(executor: BatchExecutor, calls: Sequence[Call]) -> list[Ending]:
    """Run calls of a batch job together; see `run_call`."""
    if not calls[0].job.is_async:
        return executor.run_together(calls)
    return _on_new_loop(partial(executor.arun_together, calls))


async def arun_batch(executor: BatchExecutor, calls: Sequence[Call]) -> list[Ending]:
    """Run calls of a batch job together; see `arun_call`."""
    if calls[0].job.is_async:
        return await executor.arun_together(calls)
    return await _aside(partial(executor.run_together, calls))


async def _aside(function: Callable[[], T]) -> T:
    """Call a function in another thread. With Django, use the thread in which a TestCase opened its transaction."""
    asgiref = sys.modules.get("asgiref.sync")
    if asgiref is not None:
        value: T = await asgiref.sync_to_async(function)()
        return value
    return await threads.in_thread(function)


def _on_new_loop(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new event loop, in another thread if this thread already runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_async(run)
    return in_thread(partial(_run_async, run))


def _run_async(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new event loop.

    Django's database calls in the coroutine run in this thread, in which a TestCase opened its transaction.
    """
    asgiref = sys.modules.get("asgiref.sync")
    if asgiref is None:
        return asyncio.run(run())
    value: T = asgiref.async_to_sync(run)()
    return value


def in_thread(function: Callable[[], T]) -> T:
    """Run a function in another thread, with this thread's context variables. Return the function's result."""
    results: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(function))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def soft_timeout(seconds: float) -> Iterator[None]:
    """Raise JobTimeout in the `with` block after this many seconds, but only in the main thread.

    An earlier timer, such as pytest-timeout's, continues afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise JobTimeout(f"ran past its timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, ring)
    before, every = signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
        signal.signal(signal.SIGALRM, handler)
        if before:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, before - (seconds - left)), every)
