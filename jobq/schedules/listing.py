"""Facts about schedules, for `jobq schedule list` and the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.client.pipelining import run_each
from jobq.errors import ConfigError, JobqError, KeyFullError, ScriptError
from jobq.jobs.job import Job
from jobq.jobs.registry import stand_in
from jobq.queue import presence
from jobq.queue.keys import key
from jobq.queue.queue import Queue
from jobq.queue.types import Sample, Schedules, Ticked, TickState
from jobq.records import JsonRecord, Moment
from jobq.schedules.definition import Owed, Schedule, decoded
from jobq.schedules.scheduler import enqueue_tick

#: Number of queues whose keys one EXISTS checks.
PER_CALL = 250
_FROM = {"c": "code", "a": "added"}


class ScheduleRow(NamedTuple):
    """One schedule of a queue. Times are epoch ms.

    Attributes:
        schedule: The definition; None if it is missing or can't be read.
        problem: "", "no definition" or "unreadable".
        origin: "code", "added" or ''.
        next_ms: When the next tick is enqueued; None if there are no more ticks.
        last_ms: Time of the latest enqueued tick; None if there was none.
        late_ms: How long the next tick has been overdue, in ms.
    """

    queue: str
    name: str
    schedule: Schedule | None
    problem: str
    origin: str
    paused: bool
    next_ms: int | None
    last_ms: int | None
    last_mid: str
    late_ms: int

    @property
    def state(self) -> str:
        """The schedule's problem. If there is no problem, the state is "paused" or ''."""
        return self.problem or ("paused" if self.paused else "")


def late_by(schedule: Schedule, queue: str, last_ms: int, now_ms: int) -> int:
    """Return how long the next tick has been overdue, in ms; 0 if it isn't due yet."""
    due = next(schedule.ticks.after(last_ms), None)
    return 0 if due is None else max(0, now_ms - due - schedule.shift_ms(queue))


def schedule_row(queue: str, name: str, schedules: Schedules) -> ScheduleRow:
    """Return the row for one schedule of a queue."""
    state, text = schedules.ticks.get(name), schedules.definitions.get(name, "")
    base = ScheduleRow(
        queue, name, None, "unreadable" if text else "no definition", _FROM.get(text[:1], ""),
        state is not None and state.paused, None,
        state.last_ms if state is not None and state.mid else None,
        state.mid if state is not None else "", 0,
    )  # fmt: skip
    try:
        schedule = decoded(text[1:]) if text else None
    except ConfigError:
        schedule = None
    return base if schedule is None else _with_times(base, schedule, state, schedules.now_ms)


def _with_times(
    base: ScheduleRow, schedule: Schedule, state: TickState | None, now_ms: int
) -> ScheduleRow:
    shift_ms = schedule.shift_ms(base.queue)
    coming = next(schedule.ticks.after(now_ms - shift_ms), None)
    runs = state is not None and not state.paused
    late_ms = (
        late_by(schedule, base.queue, state.last_ms, now_ms) if state is not None and runs else 0
    )
    return base._replace(
        schedule=schedule, problem="", late_ms=late_ms,
        next_ms=None if coming is None else coming + shift_ms,
    )  # fmt: skip


#: If a tick has been due for longer than this, no worker enqueues it.
OVERDUE_MS = 60_000


class WorkerCode(NamedTuple):
    """Names that a live worker's code declares: all jobs, and the schedules of one queue. None if unknown."""

    jobs: frozenset[str] | None
    schedules: frozenset[str] | None


def known_by_queue(client: Client) -> dict[str, list[WorkerCode]]:
    """Return, for each queue, the names of jobs and schedules that its live workers declare."""
    now_ms = client.clock_ms()
    live = [worker for worker in presence.workers(client) if worker.is_live(now_ms)]
    names = presence.job_names(client, {worker.jobs for worker in live if worker.jobs})
    by_queue: dict[str, list[WorkerCode]] = {}
    for worker in live:
        declared = worker.schedules
        for queue in worker.queues:
            schedules = None if declared is None else declared.get(queue, frozenset())
            by_queue.setdefault(queue, []).append(WorkerCode(names.get(worker.jobs), schedules))
    return by_queue


def known_if_readable(client: Client) -> dict[str, list[WorkerCode]] | None:
    """Return the result of `known_by_queue`; None if the list of workers can't be read."""
    try:
        return known_by_queue(client)
    except JobqError:
        return None


def of_queue(
    known: Mapping[str, Sequence[WorkerCode]] | None, queue: str
) -> Sequence[WorkerCode] | None:
    """Return the jobs and schedules that each worker of a queue declares; None if they are unknown."""
    return None if known is None else known.get(queue, ())


def paused_queues(client: Client, names: Iterable[str]) -> frozenset[str]:
    """Return the names of paused queues. Queues that can't be read are left out."""
    wanted = list(names)
    samples = run_each(client, [Queue(name, client).admin.sample_call() for name in wanted])
    return frozenset(
        name
        for name, sample in zip(wanted, samples, strict=True)
        if isinstance(sample, Sample) and sample.counts.paused
    )


def state_of(row: ScheduleRow, known: Sequence[WorkerCode] | None, is_queue_paused: bool) -> str:
    """Return why a schedule's ticks aren't enqueued, or why its jobs don't run; '' if the schedule works.

    Args:
        known: Jobs and schedules that the queue's workers declare; None if they are unknown.
    """
    if row.state or row.schedule is None:
        return row.state
    if is_undeclared(row, known or ()):
        return "undeclared"
    if known is not None and row.next_ms is not None:
        if not known:
            return "no worker"
        job = row.schedule.job
        if all(code.jobs is not None and job not in code.jobs for code in known):
            return "unknown job"
    return "queue paused" if is_queue_paused else ""


def is_undeclared(row: ScheduleRow, known: Sequence[WorkerCode]) -> bool:
    """Return whether a schedule has the origin `code`, but isn't declared by a live worker of its queue.

    If a worker doesn't report its declarations, the schedule counts as undeclared once a tick is overdue.

    Args:
        known: The names that each worker of the queue declares.
    """
    if not known or row.schedule is None or row.origin != "code" or row.paused:
        return False
    if any(code.schedules is not None and row.name in code.schedules for code in known):
        return False
    return row.late_ms > OVERDUE_MS or all(_lacks(c, row.name, row.schedule.job) for c in known)


def _lacks(known: WorkerCode, schedule: str, job: str) -> bool:
    if known.schedules is not None:
        return schedule not in known.schedules
    return known.jobs is not None and job not in known.jobs


class ScheduleRecord(JsonRecord):
    """A schedule of a queue, in the form that `jobq schedule list --json` and the JSON API return.

    Attributes:
        job: Name of the job. If the definition can't be read, the name, `rule`, `cron` and `tz` are empty.
        rule: The schedule's cron expression or interval, as people write it.
        cron: Empty for an interval.
        every_ms: 0 for a cron expression.
        tz: The time zone of the cron expression; `UTC` for an interval.
        origin: `code` or `added`; empty if unknown.
        state: `paused`, `undeclared`, `unreadable`, `no definition`, `no worker` (no worker serves the queue), `unknown
            job` (the queue's workers don't know the job) or `queue paused` (ticks are enqueued, but the jobs wait).
            Empty if the jobs run, or if the list of workers can't be read.
        next_at: Time of the next tick; null if there are no more ticks.
        last_at: Time of the last enqueued tick; null if there was none.
        last_mid: Mid of the last tick's message.
        late_ms: How long the next tick has been overdue, in ms.
        start_at: Earliest time of a tick; null without such a bound.
        end_at: Latest time of a tick; null without such a bound.
        times: Maximum number of ticks, counted from `start_at`; null without a maximum.
    """

    queue: str
    schedule: str
    job: str
    rule: str
    cron: str
    every_ms: int
    tz: str
    missed: str
    overlap: str
    origin: str
    state: str
    paused: bool
    next_at: Moment | None
    last_at: Moment | None
    last_mid: str
    late_ms: int
    start_at: Moment | None = None
    end_at: Moment | None = None
    times: int | None = None


def schedule_records(
    queue: str, schedules: Schedules, known: Sequence[WorkerCode] | None, is_queue_paused: bool
) -> Iterator[ScheduleRecord]:
    """Yield the records of all schedules of a queue, by name; see `state_of` for the arguments."""
    for row in rows_of(queue, schedules):
        state, spec = state_of(row, known, is_queue_paused), row.schedule
        rule = (spec.rule, spec.cron, spec.every_ms, spec.zone) if spec else ("", "", 0, "")
        yield ScheduleRecord(
            queue, row.name, spec.job if spec else "", *rule, spec.missed if spec else "", spec.overlap if spec else "",
            row.origin, state, row.paused,
            None if state == "undeclared" else row.next_ms, row.last_ms, row.last_mid, row.late_ms,
            *((spec.start_ms or None, spec.end_ms or None, spec.times or None) if spec else ()),
        )  # fmt: skip


def names_of(schedules: Schedules) -> list[str]:
    """Return the sorted names of a queue's schedules, including schedules without a definition."""
    return sorted(schedules.definitions.keys() | schedules.ticks.keys())


def rows_of(queue: str, schedules: Schedules) -> Iterator[ScheduleRow]:
    """Yield a row for each schedule of a queue, sorted by name."""
    for name in names_of(schedules):
        yield schedule_row(queue, name, schedules)


def queues_with(client: Client, names: Sequence[str], *places: str) -> list[str]:
    """Return the queues that have at least one of the given keys. If keys can't be checked, their queue is included.

    One command covers many queues, except on a Cluster.
    """
    size = 1 if client.is_cluster else PER_CALL
    matching: list[str] = []
    for first in range(0, len(names), size):
        matching += _with_keys(client, names[first : first + size], places)
    return matching


def _with_keys(client: Client, names: Sequence[str], places: Sequence[str]) -> list[str]:
    prefixes = [Queue(name, client).prefix for name in names]
    wanted = [key(prefix, place) for prefix in prefixes for place in places]
    try:
        if not client.command("EXISTS", *wanted):
            return []
    except ScriptError:  # the user may not read this queue: a call for the queue alone reports that
        pass
    if len(names) == 1:
        return list(names)
    half = len(names) // 2
    return [
        *_with_keys(client, names[:half], places),
        *_with_keys(client, names[half:], places),
    ]


def schedules_of_queues(
    client: Client, names: Sequence[str], log: int = 0
) -> dict[str, Schedules | JobqError]:
    """Return the schedules and latest `log` ticks of each queue with schedules, or the error if they can't be read."""
    some = queues_with(client, names, "schedules", "ticks")
    calls = [Queue(name, client).admin.schedules_call(log) for name in some]
    return dict(zip(some, run_each(client, calls), strict=True))


def run_now(
    queue: Queue, name: str, schedules: Schedules, job: Job[..., Any] | None = None
) -> Ticked:
    """Enqueue a schedule's job now, in addition to its ticks. The `detail` of the result is the mid.

    Raises ConfigError if the server has no readable definition, and KeyFullError if too many messages wait for the key.

    Args:
        job: The schedule's job, if the caller has imported it.
    """
    text = schedules.definitions.get(name, "")
    if not text:
        raise ConfigError(
            f"schedule {name} has no definition on the server; enqueue its job instead"
        )
    schedule = decoded(text[1:])
    owed = Owed(schedules.now_ms, 0, runs=True)
    done = enqueue_tick(queue, job or stand_in(schedule.job), schedule, owed, 0, at_once=True)
    if done.outcome == "full":
        raise KeyFullError(f"schedule {name} enqueued nothing: too many messages wait for its key")
    return done
