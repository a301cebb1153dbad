"""The kit: an empty server, its clock, and assertions about its queues."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, Self, TypedDict, Unpack, get_args

from jobq.client.clock import wall
from jobq.client.connection import Client, set_default_client
from jobq.client.names import base_of
from jobq.client.runtime import runtime
from jobq.config import duration_s, settings_from_env
from jobq.durations import Duration, counted
from jobq.errors import ConfigError
from jobq.flows.announcing import listeners
from jobq.flows.definition import FlowStep
from jobq.flows.state import FlowState, FlowView, StepState, StepView
from jobq.jobs.job import Args, Job
from jobq.jobs.middleware import everywhere
from jobq.jobs.receipt_calls import result_waits
from jobq.jobs.registry import Registry, default_registry
from jobq.jobs.results import Receipt
from jobq.outbox.writing import listeners as outbox_listeners
from jobq.queue import presence
from jobq.queue.directory import queue_names, register_queues
from jobq.queue.queue import Queue
from jobq.schedules.declared import declared_in
from jobq.schedules.scheduler import Scheduler
from jobq.testing.attempts import AttemptFacts, Attempts, RunResult
from jobq.testing.clock import KitClock
from jobq.testing.draining import Draining, DrainPlan, DrainResult
from jobq.testing.flows import StartedFlow, StepCounts, assert_flow, assert_step
from jobq.testing.forked import POLL_S, ForkedWorker, worker_settings
from jobq.testing.matching import Expectations, Expected, checked, listing
from jobq.testing.rehearsal import Rehearsal, Rehearsed, TrialPlan, checked_plan
from jobq.testing.relaying import DjangoOutboxes, relay
from jobq.testing.servers import connected
from jobq.testing.waiting import EnqueuedCall, dead, waiting

#: Modes for calls that a test enqueues: the call waits, runs immediately, or runs in a worker process.
Mode = Literal["fake", "inline", "worker"]
#: Maximum depth to which inline calls may enqueue other inline calls. Each level takes about 20 frames, and Python
#: allows 1,000.
DEEPEST = 25
#: Maximum difference between this clock and the server's when a worker starts.
APART_S = 2.0
PATIENCE_S = 10.0
#: Default number of interruptions per fault.
POINTS = 50
#: Advice for a test whose wait for a result has failed.
WAITS_FOR_DRAIN = (
    "in a test, calls run in jobq.drain(): call it before result(), or use the mode 'worker'"
)


class Trials(TypedDict, total=False):
    """How `Kit.rehearse` injects faults.

    Attributes:
        faults: Faults to inject: twice, killed, zombie, late, reordered. By default, all faults; reordered needs
            `other`.
        other: The second call of a reordered trial: `job.args(…)`.
        within: Functions and modules in which attempts are interrupted; by default the job's module.
        allow: Keys in the result of `observe` whose values may differ. "enqueued" allows differences in enqueued calls.
        points: Maximum number of interruptions per fault. If the job runs more lines, `seed` selects among them.
        fork: Run each killed attempt in a forked process, and end that process with SIGKILL.
    """

    faults: Sequence[str]
    other: Args[..., Any]
    within: Sequence[Callable[..., Any] | ModuleType]
    allow: Sequence[str]
    points: int
    seed: int
    fork: bool


class Kit:
    """Gives one test an empty server. Use it as a context manager, or call `close` at the end.

    The kit runs the jobs of `registry`. With `strict`, the test fails if messages are still waiting at the end.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: Mode = "fake",
        strict: bool = False,
        registry: Registry = default_registry,
    ) -> None:
        settings = replace(
            settings_from_env({**os.environ, "JOBQ_URL": url}),
            patience_s=PATIENCE_S, functions=False, outage_buffer=0,
        )  # fmt: skip
        self.url, self.strict, self.registry = url, strict, registry
        self._before = (runtime.default, os.environ.get("JOBQ_URL"))
        self._waits_before = (result_waits.on_wait, result_waits.advice)
        result_waits.on_wait, result_waits.advice = self._on_wait, WAITS_FOR_DRAIN
        wall.ahead_ms = 0
        self.client = connected(settings, wall.ms)
        #: The test's clock, which can be moved.
        self.clock = KitClock(self.client)
        self.clock.guard = self._check_movable
        self._worker: ForkedWorker | None = None
        self._inline: _Inline | None = None
        self._modes: list[Mode] = []
        self._outboxes = DjangoOutboxes()
        outbox_listeners.append(self._outboxes.wrote)
        self._empty()
        set_default_client(self.client)
        os.environ["JOBQ_URL"] = url
        self._closed = False
        try:
            self._enter(mode)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End running work, and restore the default client, the environment and the time.

        With `strict`, raises AssertionError if calls are still waiting.
        """
        if self._closed:
            return
        self._closed = True
        outbox_listeners.remove(self._outboxes.wrote)
        try:
            while self._modes:
                self._leave()
            self._stop_worker()
            left = self.all_enqueued() if self.strict else []
        finally:
            default, url = self._before
            result_waits.on_wait, result_waits.advice = self._waits_before
            set_default_client(default)
            if url is None:
                os.environ.pop("JOBQ_URL", None)
            else:
                os.environ["JOBQ_URL"] = url
            wall.ahead_ms = 0
            _forget_servers()
            self.client.close()
        if left:
            shown = "\n".join(f"  {call!r}" for call in left[:5])
            raise AssertionError(
                f"{counted(len(left), 'call')} didn't run before the test ended:\n{shown}"
            )

    def _on_wait(self, receipt: Receipt[Any]) -> None:
        is_waiting = receipt.status().word.startswith("queued")
        if is_waiting and self._worker is None and not presence.workers(self.client):
            raise result_waits.late(receipt, ", and no worker runs")

    # Modes.

    @contextmanager
    def mode(self, mode: Mode) -> Iterator[None]:
        """Within a `with` block, let calls wait ("fake"), run immediately ("inline") or run in a worker process
        ("worker").
        """
        self._enter(mode)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"mode {mode!r} is unknown; use {', '.join(get_args(Mode))}")
        if mode == "worker":
            self._start_worker(1, None)
        self._modes.append(mode)
        self._set_inline()

    def _leave(self) -> None:
        if self._modes.pop() == "worker":
            self._stop_worker()
        self._set_inline()

    def _set_inline(self) -> None:
        if self._inline is not None:
            everywhere.remove(self._inline)
            listeners.remove(self._inline.announced)
            self._inline = None
        if self._modes and self._modes[-1] == "inline":
            self._inline = _Inline(self._draining())
            everywhere.add(self._inline)
            listeners.append(self._inline.announced)

    @contextmanager
    def worker(
        self, processes: int = 1, *, queues: Sequence[str] | None = None, **settings: Any
    ) -> Iterator[ForkedWorker]:
        """Run a real worker, forked from this process. The worker's method `wait` waits for its jobs.

        The worker uses the server's clock. Raises ConfigError if the test has moved or frozen its clock.

        Args:
            settings: Fields of jobq.config.WorkerSettings, such as concurrency and lease_s.
        """
        started = self._start_worker(processes, queues, **settings)
        try:
            yield started
        finally:
            self._stop_worker()

    def _start_worker(
        self, processes: int, queues: Sequence[str] | None, **settings: Any
    ) -> ForkedWorker:
        if self._worker is not None:
            raise ConfigError("a worker is already running; start it with more processes=")
        before, seconds = wall.s(), int(self.client.command("TIME")[0])
        if not before - APART_S < seconds < wall.s() + APART_S:
            raise ConfigError(
                "a worker uses the server's clock, but this test has moved or frozen its own clock; use drain()"
            )
        used = {base_of(name) for name in queue_names(self.client)}
        names = tuple(queues or sorted({job.queue for job in self.registry} | used))
        self._worker = ForkedWorker(
            self.client.settings, self.registry, worker_settings(processes, names, **settings)
        )
        return self._worker

    def _stop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _check_movable(self) -> None:
        if self._worker is not None:
            raise ConfigError(
                "a worker is running, and it uses the server's clock; move the clock before or after its run"
            )

    # Running.

    def drain(
        self,
        queues: str | Sequence[str] | None = None,
        *,
        delayed: bool = False,
        retries: bool = True,
        raises: bool = True,
        limit: int = 10_000,
    ) -> DrainResult:
        """Run waiting calls, and the calls that they enqueue, until no more calls can run.

        The method also relays the outbox of a Django project, even within the transaction of a TestCase. Inside an
        event loop, await `adrain`, which runs async jobs on that loop and sync jobs in threads.

        Args:
            delayed: Also run delayed calls. The clock moves forward to the start time of each call.
            retries: Also run calls waiting for a retry, a snooze, a key or a limit.
            raises: Raise the first error of a job, after its outcome was stored. Otherwise, errors are only counted.
            limit: Maximum number of attempts. More attempts raise ConfigError.
        """
        return self._draining().run(_plan(queues, delayed, retries, raises, limit))

    async def adrain(
        self,
        queues: str | Sequence[str] | None = None,
        *,
        delayed: bool = False,
        retries: bool = True,
        raises: bool = True,
        limit: int = 10_000,
    ) -> DrainResult:
        """Drain like `drain`, but run async jobs on this event loop, and sync jobs in threads."""
        return await self._draining().arun(_plan(queues, delayed, retries, raises, limit))

    def _draining(self) -> Draining:
        return Draining(self.client, self.registry, self.clock, self._outboxes)

    def relay(self, session: Any) -> int:
        """Enqueue and delete the outbox rows that a session or connection can read. Return the number of rows.

        The method doesn't commit, so it works within a transaction that the test rolls back later. For the databases of
        a Django project, `drain` relays the rows.
        """
        return relay(self.client, session)

    def tick(self) -> None:
        """Enqueue the jobs of overdue schedules, as a worker does. The first call declares and starts the schedules."""
        names = sorted({*declared_in(self.registry), *queue_names(self.client)})
        if names:
            register_queues(self.client, names)
        queues = [Queue(name, self.client) for name in names]
        Scheduler(queues, self.registry, share=lambda: 0.0, now=wall.ms).enqueue_due(_ask)

    def run_job(self, job: Job[..., Any], *args: Any, **kwargs: Any) -> RunResult:
        """Run a job's first attempt as a worker does, but without a server."""
        return Attempts(self.registry, AttemptFacts()).run(job, *args, **kwargs)

    def running(self, **facts: Unpack[AttemptFacts]) -> Attempts:
        """Return an object that runs attempts with these facts, without a server: `running(attempt=3).run(job, …)`."""
        return Attempts(self.registry, facts)

    def rehearse(
        self,
        job: Job[..., Any],
        *args: Any,
        before: Callable[[], object],
        observe: Callable[[], Any],
        kwargs: Mapping[str, Any] | None = None,
        **how: Unpack[Trials],
    ) -> Rehearsed:
        """Run one call with each possible fault of a worker. Raise AssertionError if effects differ from a run without
        faults.

        Enqueued calls are also compared. See docs/jobs/testing.md for the faults and the options.

        Args:
            before: Resets the job's data; called before each trial.
            observe: Returns the job's effects, to compare.
        """
        for_job = job.args(*args, **(kwargs or {}))
        allow = frozenset(how.get("allow", ()))
        plan = checked_plan(
            TrialPlan(
                before, observe, tuple(how.get("faults", ())), how.get("other"), tuple(how.get("within", ())), allow,
                how.get("points", POINTS), how.get("seed", 0), how.get("fork", False),
            ),
            job,
        )  # fmt: skip
        done = Rehearsal(self.registry, job, for_job, plan, (self._empty, self._comparable)).run()
        self._empty()
        if done.findings:
            raise AssertionError(str(done))
        return done

    def _empty(self) -> None:
        self.client.command("FLUSHDB", "SYNC", routed_by="")
        self.client.queues.clear()
        _forget_servers()

    def _comparable(self) -> list[tuple[Any, ...]]:
        """Return the waiting calls, without details that differ between runs."""
        calls = [(call.queue, call.job, call.args, call.kwargs) for call in self.all_enqueued()]
        return sorted(calls, key=repr)

    # Assertions.

    def all_enqueued(self, queue: str | None = None) -> list[EnqueuedCall]:
        """Return all waiting calls, whether they are ready, delayed, or waiting for a retry or for their key."""
        return waiting(self.client, queue)

    def all_dead(self, queue: str | None = None) -> list[EnqueuedCall]:
        """Return all dead calls, newest first in each queue."""
        return dead(self.client, queue)

    def assert_enqueued(
        self,
        job: Job[..., Any] | str | None = None,
        *,
        count: int | None = None,
        within: Duration | None = None,
        **expected: Unpack[Expectations],
    ) -> list[EnqueuedCall]:
        """Assert that a matching call is waiting. Return all matching calls.

        Args:
            args, kwargs: Expected arguments, compared by parameter name. docs/jobs/testing.md explains matching by
                functions, ANY and dicts.
            count: Exact number of matches.
            within: Wait up to this long for a matching call that another process enqueues.
        """
        wanted = checked(job, expected)
        return _assert(wanted, self.all_enqueued, count, within, "enqueued")

    def refute_enqueued(
        self,
        job: Job[..., Any] | str | None = None,
        *,
        within: Duration | None = None,
        **expected: Unpack[Expectations],
    ) -> None:
        """Assert that no matching call is waiting. With `within`, also assert that no matching call arrives in this
        time.
        """
        wanted = checked(job, expected)
        deadline = time.monotonic() + (0 if within is None else duration_s(within))
        while True:
            matching = [call for call in self.all_enqueued() if not wanted.distance(call)]
            if matching:
                shown = "\n".join(f"  {call!r}" for call in matching[:5])
                matches = "1 call matches" if len(matching) == 1 else f"{len(matching)} calls match"
                raise AssertionError(f"{matches} {wanted}:\n{shown}")
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)

    def assert_dead(
        self,
        job: Job[..., Any] | str | None = None,
        *,
        count: int | None = None,
        within: Duration | None = None,
        **expected: Unpack[Expectations],
    ) -> list[EnqueuedCall]:
        """Assert that a matching call is dead. Return all matching calls. A call's reason matches if it contains
        `reason`.
        """
        wanted = checked(job, expected)
        return _assert(wanted, self.all_dead, count, within, "dead")

    def assert_flow(self, run: StartedFlow | str, state: FlowState | None = None) -> FlowView:
        """Assert that a flow exists and, if `state` is given, that the flow is in this state. Return the flow's status.

        The error message lists the flow's steps, its failures and the conditions that it waits for.

        Args:
            run: The result of `start`, or `name:id`.
            state: open, running, done, failed or cancelled.
        """
        self._draining().send_steps()
        return assert_flow(self.client, run, state)

    def assert_step(
        self, run: StartedFlow | str, step: FlowStep | str, state: StepState | None = None, **counts: Unpack[StepCounts]
    ) -> StepView:  # fmt: skip
        """Assert that a step exists and, if `state` is given, that the step is in this state. Return the step's status.

        Args:
            state: waiting, ready, running, done, failed, skipped or cancelled.
            counts: Expected numbers of members: `members` (so far), `done`, `dead` and `cancelled`.
        """
        self._draining().send_steps()
        return assert_step(self.client, run, step, state, counts)


class _Inline:
    """Middleware that runs calls immediately after they are enqueued."""

    def __init__(self, draining: Draining) -> None:
        self._draining = draining
        self._local = threading.local()

    def enqueue(self, outgoing: Any, following: Callable[[Any], Any]) -> Any:
        """Enqueue the calls, then run all ready calls. Delayed calls and retries wait."""
        receipts = following(outgoing)
        with self._deeper():
            self._draining.nested().run(DrainPlan((outgoing.queue,), retries=False))
        return receipts

    def announced(self, client: Client, _: str) -> None:
        """Run the ready calls of a flow. A flow can continue after a failed step, so the step's error isn't raised."""
        if client is self._draining.client:
            with self._deeper():
                self._draining.nested().run(DrainPlan(retries=False, raises=False))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        depth = getattr(self._local, "depth", 0)
        if depth >= DEEPEST:
            raise ConfigError(f"inline calls are nested more than {DEEPEST} deep; use drain()")
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth


def _plan(
    queues: str | Sequence[str] | None, delayed: bool, retries: bool, raises: bool, limit: int
) -> DrainPlan:
    names = (queues,) if isinstance(queues, str) else None if queues is None else tuple(queues)
    return DrainPlan(names, delayed, retries, raises, limit)


def _assert(
    wanted: Expected,
    calls: Callable[[], list[EnqueuedCall]],
    count: int | None,
    within: Duration | None,
    what: str,
) -> list[EnqueuedCall]:
    deadline = time.monotonic() + (0 if within is None else duration_s(within))
    while True:
        present = calls()
        matching = [call for call in present if not wanted.distance(call)]
        if matching if count is None else len(matching) == count:
            return matching
        if time.monotonic() >= deadline:
            number = (
                f"{len(matching)} {what} calls match"
                if len(matching) > 1
                else f"{len(matching) or 'no'} {what} call matches"
            )
            exact = "" if count is None else f", {count} expected"
            raise AssertionError(f"{number} {wanted}{exact}\n{listing(wanted, present, what)}")
        time.sleep(POLL_S)


def _ask(index: int, call: Callable[[], object]) -> bool:
    call()
    return True


def _forget_servers() -> None:
    """Forget which queues and topics this process has registered, because the server has changed or is empty."""
    runtime.listed.clear()
    runtime.listed_topics.clear()
