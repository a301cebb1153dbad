"""Enqueues the ticks of schedules. Every worker has one for the queues that it serves; there is no leader.

A scheduler follows the server's clock: each check of a queue reads that clock, and a monotonic clock measures the time
between checks. If processes disagree about the time, the script `tick` decides which ticks are enqueued.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from jobq.client.names import base_of, is_partition
from jobq.client.numbered_calls import moment
from jobq.durations import counted
from jobq.errors import ConfigError, JobqError, ServerFullError, UnavailableError
from jobq.jobs.job import Job, Outgoing
from jobq.jobs.registry import Registry
from jobq.jobs.ticks import HEADER
from jobq.queue import presence
from jobq.queue.admin import tick_values
from jobq.queue.keys import key
from jobq.queue.partition_ticks import PartitionTicks
from jobq.queue.queue import Queue
from jobq.queue.routing import SealedError
from jobq.queue.types import Schedules, Ticked
from jobq.schedules.declared import declared_in
from jobq.schedules.definition import Owed, Schedule, decoded, encoded, following, owed

logger = logging.getLogger("jobq.schedules")

#: The longest time between two looks at a queue. Added schedules are noticed within this time.
LOOK_S = 10.0
#: After a tick, each process waits a random part of this time and checks whether another process was faster.
WAIT_S = 0.3
RETRY_S = 1.0
#: A last tick that is further ahead than this was written when the server's clock was ahead.
CLOCK_MS = 60_000
#: Maximum calls per look at a queue; the rest waits for the next look, because leases must be renewed.
MAX_CALLS = 20

#: Maximum number of a queue's undeclared schedules to name at the start.
MAX_TOLD = 20

#: (number of the queue, call) -> whether the server answered.
Ask = Callable[[int, Callable[[], object]], bool]


class Scheduler:
    """Enqueues the ticks of some queues' schedules.

    Attributes:
        monotonic, share, now: Sources of time and of random numbers, for tests.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        registry: Registry,
        monotonic: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = random.random,
        now: Callable[[], int | None] = lambda: None,
    ) -> None:
        declared = declared_in(registry)
        self._queues, self._registry = queues, registry
        self._declared = [declared.get(queue.name, {}) for queue in queues]
        self._monotonic, self._share, self._now = monotonic, share, now
        # Workers that start together make their first looks at different times.
        first = monotonic() + share() * WAIT_S
        # The schedules of a queue with partitions are in the queue itself.
        self._look_at = [inf if is_partition(queue.name) else first for queue in queues]
        self._partitioned = {base_of(queue.name) for queue in queues if is_partition(queue.name)}
        self._warned: set[str] = set()
        # Checked queues.
        self._looked: set[int] = set()

    def names(self) -> dict[str, list[str]]:
        """Return the names of the schedules that the code declares, by queue."""
        named = zip(self._queues, self._declared, strict=True)
        return {queue.name: sorted(declared) for queue, declared in named if declared}

    def next_s(self) -> float:
        """Return the number of seconds until the next check of a queue's schedules."""
        return max(0.0, min(self._look_at) - self._monotonic())

    def enqueue_due(self, ask: Ask) -> None:
        """Enqueue the due ticks of all queues that must be checked now. Raises the errors of `ask`."""
        now = self._monotonic()
        due = [index for index, at in enumerate(self._look_at) if at <= now]
        others = [index for index in due if not self._declared[index]]
        without = set(self._without(others, ask, now)) if len(others) > 1 else ()
        for index in due:
            now = self._monotonic()
            if index not in without:
                self._look_at[index] = now + RETRY_S
                ask(index, partial(self._look, index))

    def _without(self, indexes: list[int], ask: Ask, now: float) -> list[int]:
        """Return the indexes of queues without schedules."""
        client = self._queues[indexes[0]].client
        if client.is_cluster:
            return []
        names = [key(self._queues[index].prefix, "schedules") for index in indexes]
        counts: list[int] = []
        exist = partial(client.command, "EXISTS", *names)
        if not ask(indexes[0], lambda: counts.append(exist())):
            return []
        if not counts[0]:
            again = now + LOOK_S + self._share() * WAIT_S
            for index in indexes:
                self._look_at[index] = again
            return indexes
        if len(indexes) == 1:
            return []
        half = len(indexes) // 2
        return [*self._without(indexes[:half], ask, now), *self._without(indexes[half:], ask, now)]

    def _look(self, index: int) -> None:
        queue = self._queues[index]
        schedules = queue.admin.schedules(now=self._now())
        began, now_ms = self._monotonic(), schedules.now_ms
        if index not in self._looked:
            self._looked.add(index)
            self._tell_undeclared(index, schedules)
        self._declare(index, schedules)
        if queue.name in self._partitioned:
            PartitionTicks(queue).send()  # messages that another client could not send
        next_ms, calls = now_ms + LOOK_S * 1000, 0
        for schedule in self._all(index, schedules.definitions):
            state = schedules.ticks.get(schedule.name)
            if state is not None and state.paused:
                continue
            # A newly declared schedule starts now.
            last_ms = now_ms if state is None else state.last_ms
            shift_ms = schedule.shift_ms(queue.name)
            due = owed(schedule, last_ms, now_ms - shift_ms)
            if last_ms > now_ms + CLOCK_MS:
                due = [Owed(last_ms, 0, runs=False)]
            for due_tick in due:
                ticked = calls < MAX_CALLS and self._tick(queue, schedule, due_tick, last_ms)
                if ticked is None:
                    # The next look retries this tick, so it doesn't use up the calls of other schedules.
                    break
                calls += 1
                if not ticked:
                    next_ms = now_ms
                    break
                last_ms = due_tick.tick_ms
            coming = next(following(schedule, now_ms - shift_ms), None)
            if coming is not None:
                next_ms = min(next_ms, coming + shift_ms)
        wait_s = max(0.0, (next_ms - now_ms) / 1000)
        self._look_at[index] = began + wait_s + self._share() * WAIT_S

    def _tell_undeclared(self, index: int, schedules: Schedules) -> None:
        """Log a warning for each schedule that code once declared, unless a running worker still declares it."""
        queue, declared = self._queues[index], self._declared[index]
        names = {
            name
            for name, text in schedules.definitions.items()
            if text.startswith("c") and name not in declared
        }
        if not names:
            return
        try:
            workers = presence.workers(queue.client)
        except JobqError as error:
            logger.debug("can't read the schedules declared by other workers: %s", error)
            return
        for worker in workers:
            if worker.serves(queue.name) and worker.is_live(schedules.now_ms):
                if worker.schedules is None:
                    return
                names -= worker.schedules.get(queue.name, frozenset())
        for name in sorted(names)[:MAX_TOLD]:
            logger.warning(
                "queue %s: no running worker declares schedule %s, so it doesn't run: "
                "jobq schedule delete %s --queues %s --force, or deploy the code that declares it",
                queue.name, name, name, queue.name,
            )  # fmt: skip

    def _declare(self, index: int, schedules: Schedules) -> None:
        """Store the code's declarations on the server. New schedules, and schedules with new times, start now."""
        admin = self._queues[index].admin
        for name, schedule in self._declared[index].items():
            definition = encoded(schedule)
            if schedules.definitions.get(name) != f"c{definition}" or name not in schedules.ticks:
                if schedules.definitions.get(name, "").startswith("a"):
                    self._warn(
                        f"schedule {name} was added by a command and is now declared in code; the declaration wins"
                    )
                word, last_ms = admin.schedule("declare", name, definition, now=self._now())
                if word == "full":
                    self._warn(
                        f"schedule {name} can't be stored: the queue has 1,000 schedules, the maximum; delete "
                        f"some"
                    )
                elif word == "declared" and name in schedules.ticks:
                    schedules.ticks[name] = schedules.ticks[name]._replace(last_ms=int(last_ms))

    def _all(self, index: int, definitions: Mapping[str, str]) -> list[Schedule]:
        """Return the schedules that this worker's code declares, and schedules that commands added for its jobs."""
        declared = self._declared[index]
        schedules = list(declared.values())
        for name, text in definitions.items():
            if text.startswith("a") and name not in declared:
                try:
                    schedule = decoded(text[1:])
                except ConfigError as error:
                    self._warn(f"schedule {name!r:.120}: {error}")
                    continue
                if schedule.name == name and schedule.job in self._registry:
                    schedules.append(schedule)
        return schedules

    def _tick(self, queue: Queue, schedule: Schedule, due_tick: Owed, last_ms: int) -> bool | None:
        """Enqueue one tick. Return whether the next tick may follow; None if this tick can't be enqueued."""
        try:
            job = self._registry.get(schedule.job)
            done = enqueue_tick(queue, job, schedule, due_tick, last_ms, now=self._now())
        except (UnavailableError, ServerFullError):
            raise
        except Exception as error:  # an error of one schedule must not stop the others
            self._warn(
                f"schedule {schedule.name} could not enqueue its job: {error or repr(error)}"
            )
            return None
        if done.outcome in _WORDS:
            logger.warning(
                "schedule %s: tick %s was %s",
                schedule.name,
                _text(schedule, due_tick),
                _WORDS[done.outcome],
            )
        elif due_tick.missed and done.outcome not in ("exists", "early", "new", "paused"):
            logger.warning(
                "schedule %s: tick %s replaces %s",
                schedule.name, _text(schedule, due_tick), counted(due_tick.missed, "missed tick"),
            )  # fmt: skip
        return done.outcome not in ("exists", "early", "new", "paused", "clock")

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 1_000:
            self._warned.add(text)
            logger.warning("%s", text)


_WORDS = {
    "skipped": "skipped, because the previous run isn't over",
    "missed": "missed, because no worker ran then",
    "full": "not enqueued, because the line of its key is full",
    "clock": "ahead of the server's clock, which was set back; ticks continue from now",
}


def _text(schedule: Schedule, due_tick: Owed) -> str:
    return schedule.tick(due_tick.tick_ms, 0).at.isoformat()


def enqueue_tick(
    queue: Queue,
    job: Job[..., object],
    schedule: Schedule,
    due_tick: Owed,
    last_ms: int,
    *,
    at_once: bool = False,
    now: int | None = None,
) -> Ticked:
    """Enqueue a schedule's job for one tick.

    Middleware isn't applied, because its connections would be opened in the supervisor and shared by all forked
    children.

    Args:
        at_once: Enqueue the job immediately, and leave the schedule's ticks unchanged.
    """
    try:
        call = job.decoded(list(schedule.args), dict(schedule.kwargs))
        outgoing = Outgoing(job, [call])
        outgoing.mid = schedule.mid(due_tick.tick_ms)
        outgoing.headers[HEADER] = schedule.tick(due_tick.tick_ms, due_tick.missed).header()
        [(mid, content, key)] = outgoing.prepared(queue)
    except Exception as error:  # including errors of the function that makes its key
        raise ConfigError(f"{job.name} can't be called: {error!r}") from error
    lease = job.settings.lease
    values = tick_values(
        schedule.name, due_tick.tick_ms, last_ms, mid or outgoing.mid, content,
        due_ms=due_tick.tick_ms + schedule.shift_ms(queue.name), missed=due_tick.missed,
        overlap="run" if at_once else schedule.overlap if due_tick.runs else "miss",
        key=key, ordered=bool(job.settings.ordered),
        now=moment(now), lock_ms="" if lease is None else round(lease * 1000),
    )  # fmt: skip
    try:
        return queue.admin.tick(values)
    except SealedError:
        return PartitionTicks(queue).take(values)
