"""Read the figures of all queues every two seconds while users view pages.

`Sampling` reads once per call, and `Sampler` reads in a thread. All pages use the latest Snapshot, which never changes.
Ring buffers store the data of charts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from threading import Condition, Event, Thread
from typing import NamedTuple, TypeVar, cast

from jobq.client.connection import Client
from jobq.client.names import base_of, is_partition
from jobq.client.pipelining import run_each
from jobq.errors import JobqError, UnavailableError
from jobq.jobs.envelope import head_enqueued_at, head_job
from jobq.observe.incidents import Incident, Situation, incidents
from jobq.observe.runs import RunningMessage
from jobq.observe.situation import situation_of
from jobq.queue import presence
from jobq.queue.directory import listed_queues
from jobq.queue.folding import by_base, folded_replies
from jobq.queue.presence import WorkerEntry
from jobq.queue.queue import Queue
from jobq.queue.types import Sample
from jobq.web.kept_charts import KeptCharts
from jobq.web.outcomes import Outcomes, Recent
from jobq.web.rings import Ring
from jobq.web.tail import FOLLOWERS, Tail
from jobq.web.trouble import GrowthWatch, QueueFigures, busy_slots

T = TypeVar("T")
logger = logging.getLogger("jobq.web")
EVERY_S = 2.0
#: The thread sleeps when no page was fetched for this long.
WATCHED_S = 10.0
#: A reading that takes longer doubles the interval, up to the second number.
LONG_S, SLOWEST_S = 0.5, 32.0
#: A page waits this long for the first reading.
FIRST_S = 10.0
#: Points and interval of two rings, which cover half an hour and a day.
FINE, COARSE = (900, EVERY_S), (1_440, 60.0)
#: Points and interval of the ring for sparklines, which covers a quarter of an hour.
SPARK = (64, 15.0)
READY, DELAYED, RUNNING, DEAD, DEQUEUED = range(5)
#: Maximum number of queues with rings, which take 48 KiB per queue.
MAX_RINGS = 2_000
#: The name under which the sums of all queues are kept.
ALL = ""


class Totals(NamedTuple):
    """Sums over all queues that can be read."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    messages: int = 0
    slots: int = 0
    dequeued_per_s: float | None = None
    recent: Recent = Recent()

    @property
    def busy(self) -> int:
        """Number of fetched messages that are running."""
        return busy_slots(self.running, self.slots)


class Snapshot(NamedTuple):
    """All figures from one reading of the server.

    Attributes:
        at_ms: Server time of the reading, in epoch ms.
        server_ms: Duration of a small call to the server.
        took_s: Duration of the whole reading.
        interval_s: Time until the next reading.
        broken: Why the latest reading failed, or ''. After a failure, the figures are from the previous reading.
        workers_unread: Why the list of workers can't be read.
        left_out: Number of listed names that weren't read: invalid names, and names over the limit.
        incidents: Problems, each cause before its symptoms.
        longest: Queue name -> longest-running job of the queue.
        partitions: Figures of each partition; `queues` has their sums.
        taken: Time of the reading by time.monotonic().
        number: Number of the reading. Later readings have greater numbers.
    """

    number: int
    taken: float
    at_ms: int
    queues: Mapping[str, QueueFigures]
    workers: Sequence[WorkerEntry]
    totals: Totals
    server_ms: float = 0.0
    took_s: float = 0.0
    interval_s: float = EVERY_S
    sampled: bool = False
    broken: str = ""
    workers_unread: str = ""
    left_out: int = 0
    incidents: Sequence[Incident] = ()
    longest: Mapping[str, RunningMessage] = {}
    partitions: Mapping[str, QueueFigures] = {}

    def of(self, queue: str) -> QueueFigures | None:
        """Return the figures of a queue or partition; None if it isn't known."""
        return self.queues.get(queue) or self.partitions.get(queue)

    @property
    def age_s(self) -> float:
        """Seconds since this snapshot was taken."""
        return max(0.0, time.monotonic() - self.taken)

    @property
    def is_old(self) -> bool:
        """Return whether the next snapshot is overdue, for example because no user viewed a page."""
        return self.age_s > 2 * self.interval_s + self.took_s

    @property
    def lost_workers(self) -> list[WorkerEntry]:
        """Workers whose heartbeats stopped before they signed off."""
        return [worker for worker in self.workers if worker.is_lost(self.at_ms)]

    @property
    def in_trouble(self) -> list[QueueFigures]:
        """The queues that need attention, worst first."""
        return sorted(
            (queue for queue in self.queues.values() if not queue.is_fine),
            key=lambda queue: queue.trouble,
        )

    @property
    def causes(self) -> list[Incident]:
        """Incidents that can cause problems in queues. Incidents that only describe a queue's state are left out."""
        return [
            incident
            for incident in self.incidents
            if incident.code not in ("backlog", "paused", "no_worker")
        ]

    @property
    def unexplained(self) -> list[QueueFigures]:
        """Queues that need attention for an unknown reason, and queues that can't be read."""
        causes = self.causes
        return [
            figures
            for figures in self.in_trouble
            if figures.broken or not any(cause.concerns(figures.queue) for cause in causes)
        ]

    def incidents_of(self, queue: str) -> list[Incident]:
        """Return the problems of a queue and of its server."""
        return [incident for incident in self.incidents if incident.concerns(queue)]


class Sampling:
    """Reads queues, workers and events, and keeps data for charts. Only one thread may read from the server,
    but every thread may query the data.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.outcomes = Outcomes()
        self._others = [make() for make in FOLLOWERS]
        self.tail = Tail(client, [self.outcomes, *self._others])
        self.snapshot: Snapshot | None = None
        self._number = 0
        self._rings: dict[str, tuple[Ring, Ring, Ring]] = {}
        self._growth: dict[str, GrowthWatch] = {}
        self._heads: dict[str, tuple[str, int]] = {}
        self._kept = KeptCharts(client)

    def follower(self, kind: type[T]) -> T:
        """Return the object of type `kind` that follows the events."""
        return cast(T, next(follower for follower in self._others if isinstance(follower, kind)))

    def take_snapshot(self) -> Snapshot:
        """Read everything except past events, and return the new snapshot.

        While the server is unreachable, return the previous snapshot with `broken` set.
        """
        began = time.monotonic()
        try:
            self.snapshot = self._read(began)
        except JobqError as error:
            if self.snapshot is None:
                raise
            self.snapshot = self.snapshot._replace(broken=str(error))
        return self.snapshot

    def _read(self, began: float) -> Snapshot:
        before = self.snapshot
        now_ms = self.client.clock_ms()
        server_ms = (time.monotonic() - began) * 1000
        listed = listed_queues(self.client)
        names = listed.names
        workers, unread = self._workers()
        served = _Served(workers, now_ms, bool(unread))
        samples = self._samples(names)
        given = dict(zip(names, samples, strict=True))
        folded = folded_replies(names, samples, head_enqueued_at)
        every = {**folded, **{name: given[name] for name in names if is_partition(name)}}
        figures = {
            name: self._figures(name, sample, now_ms, served, before)
            for name, sample in every.items()
        }
        added = {
            name: sample.added
            for name, sample in zip(names, samples, strict=True)
            if isinstance(sample, Sample)
        }
        slept = before is not None and began - before.taken > 3 * before.interval_s
        self.tail.read_added(added, slept=slept)
        places = by_base(names)
        figures = {
            name: row._replace(
                recent=self.outcomes.recent(name, now_ms)._replace(
                    known=all(map(self.tail.is_read, places.get(name, (name,))))
                    and not row.events_off
                )
            )
            for name, row in figures.items()
        }
        queues = {name: figures.pop(name) for name in folded}
        recent = self.outcomes.total(now_ms)._replace(known=self.tail.is_read())
        totals = _totals(list(queues.values()), served.slots_of_all, recent)
        self._keep([*queues.values(), *figures.values()], totals, now_ms)
        self._number += 1
        situation = self._situation(now_ms, None if unread else workers, names, samples)
        return Snapshot(
            self._number, began, now_ms, queues, workers, totals, server_ms,
            time.monotonic() - began, sampled=self.tail.sampled, workers_unread=unread,
            left_out=listed.left_out + len(listed.strange),
            incidents=incidents(situation),
            longest={name: queue.longest for name, queue in situation.queues.items() if queue.longest},
            partitions=figures,
        )  # fmt: skip

    def _situation(
        self, now_ms: int, workers: Sequence[WorkerEntry] | None, names: Sequence[str],
        samples: Sequence[Sample | JobqError],
    ) -> Situation:  # fmt: skip
        readable = {
            name: sample
            for name, sample in zip(names, samples, strict=True)
            if isinstance(sample, Sample)
        }
        return situation_of(self.client, now_ms, workers, readable)

    def catch_up(self) -> Snapshot:
        """Read all figures, including all recent events."""
        snapshot = self.take_snapshot()
        while self.tail.read_past(snapshot.at_ms):
            pass
        return self.take_snapshot()

    def _workers(self) -> tuple[list[WorkerEntry], str]:
        try:
            return presence.workers(self.client), ""
        except UnavailableError:
            raise
        except JobqError as error:
            return [], str(error)

    def _samples(self, names: Sequence[str]) -> list[Sample | JobqError]:
        calls = [Queue(name, self.client).admin.sample_call() for name in names]
        return run_each(self.client, calls)

    def _figures(
        self, name: str, sample: Sample | JobqError, now_ms: int, served: _Served,
        before: Snapshot | None,
    ) -> QueueFigures:  # fmt: skip
        workers, slots = served.of(name)
        if isinstance(sample, JobqError):
            return QueueFigures(name, now_ms, workers=workers, slots=slots, broken=str(sample))
        counts = sample.counts
        oldest_ms, at_least = self._oldest(name, sample, now_ms)
        last = before.of(name) if before else None
        watch = self._growth.get(name) or self._growth.setdefault(name, GrowthWatch())
        return QueueFigures(
            name, now_ms, counts.ready, counts.delayed, counts.locked, counts.dead, counts.messages,
            counts.paused, workers, slots, oldest_ms, at_least,
            _rate(last, sample.fence, now_ms), sample.fence, watch.put(now_ms / 1000, counts.ready),
            pause_ends=sample.pause_ends, events_off=sample.events_off,
            job=head_job(sample.head), served_partitions=counts.served_partitions,
            paused_partitions=counts.paused_partitions,
        )  # fmt: skip

    def _oldest(self, name: str, sample: Sample, now_ms: int) -> tuple[int | None, bool]:
        """Return how long the next message has waited, and whether it may have waited even longer."""
        head = sample.head
        if head is None:
            self._heads.pop(name, None)
            return None, False
        mid, since = self._heads.get(name, ("", now_ms))
        self._heads[name] = (head.mid, since if mid == head.mid else now_ms)
        at = head_enqueued_at(head)
        if at:
            return max(0, now_ms - at), False
        return now_ms - self._heads[name][1], True

    def _keep(self, figures: Sequence[QueueFigures], totals: Totals, now_ms: int) -> None:
        for gone in self._rings.keys() - {ALL, *(figure.queue for figure in figures)}:
            for kept in (self._rings, self._growth, self._heads):
                kept.pop(gone, None)
        everything = QueueFigures(
            ALL, now_ms, totals.ready, totals.delayed, totals.running, totals.dead,
            dequeued_per_s=totals.dequeued_per_s,
        )  # fmt: skip
        for figure in (everything, *figures[:MAX_RINGS]):
            if not figure.broken:
                rate = float("nan") if figure.dequeued_per_s is None else figure.dequeued_per_s
                values = (figure.ready, figure.delayed, figure.running, figure.dead, rate)
                for ring in self._rings.get(figure.queue) or self._new_rings(figure.queue):
                    ring.put(now_ms / 1000, values)

    def _new_rings(self, name: str) -> tuple[Ring, Ring, Ring]:
        means = frozenset((DEQUEUED,))
        self._rings[name] = (
            Ring(FINE[0], FINE[1], 5, means),
            Ring(COARSE[0], COARSE[1], 5, means),
            Ring(SPARK[0], SPARK[1], 5, means),
        )
        return self._rings[name]

    def note_paused(self, queue: str, paused: bool) -> None:
        """Record a pause or resume in the latest snapshot, so that pages show it before the next reading."""
        if (snapshot := self.snapshot) is None:
            return
        queues, partitions = dict(snapshot.queues), dict(snapshot.partitions)
        for group in (queues, partitions):
            for name in [name for name in group if queue in (name, base_of(name))]:
                group[name] = _with_pause(group[name], paused, group[name].served_partitions)
        if (base := base_of(queue)) != queue and base in queues and queue in partitions:
            npaused = queues[base].paused_partitions
            npaused += partitions[queue].paused_partitions
            npaused -= snapshot.partitions[queue].paused_partitions
            queues[base] = _with_pause(queues[base], npaused > 0, npaused)
        self.snapshot = snapshot._replace(queues=queues, partitions=partitions)

    def points(
        self, queue: str, figure: int, since_s: float, until_s: float
    ) -> list[tuple[float, float | None]]:
        """Return the known values of a figure, for a queue or for ALL.

        In a range of up to half an hour, values are two seconds apart, otherwise a minute. Gaps are filled with values
        that workers stored.
        """
        rings = self._rings.get(queue)
        if rings is None:
            return []
        fine = until_s - since_s <= FINE[0] * FINE[1]
        own = rings[0 if fine else 1].points(figure, since_s, until_s)
        return self._kept.filled(own, queue, figure, since_s, until_s, step_s=15 if fine else 60)

    def spark_points(
        self, queue: str, figure: int, since_s: float, until_s: float
    ) -> list[tuple[float, float | None]]:
        """Return a figure's values in the last 15 minutes, 15 seconds apart."""
        rings = self._rings.get(queue)
        return [] if rings is None else rings[2].points(figure, since_s, until_s)


def _with_pause(figures: QueueFigures, paused: bool, npaused: int) -> QueueFigures:
    return figures._replace(paused=paused, paused_partitions=paused * npaused, pause_ends=0)


class Sampler(Sampling):
    """Reads the server's figures in a thread, which sleeps if `look` wasn't called in the last ten seconds."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._changed = Condition()
        self._wake, self._end = Event(), Event()
        self._thread: Thread | None = None
        self._looked = time.monotonic()
        self._failed: JobqError | None = None

    def look(self, wait_s: float = FIRST_S, *, after: int = 0) -> Snapshot:
        """Return the latest snapshot, and keep the thread awake.

        If the latest snapshot is old, or if its number isn't greater than `after`, wait up to `wait_s` for the next
        snapshot. If there is no snapshot, raise the error that prevented it.
        """
        if self._pid != os.getpid():  # forked: the thread is the parent's
            self._renew()
        self._looked = time.monotonic()
        with self._changed:
            self._run_thread()
            if not self._is_fresh(after):
                self._failed = None
                self._changed.wait_for(lambda: self._is_fresh(after) or self._failed, wait_s)
        if self.snapshot is None:
            raise self._failed or UnavailableError(f"the server didn't answer within {wait_s:g} s")
        return self.snapshot

    def _run_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="jobq-web-sampler", daemon=True)
            self._thread.start()
        self._wake.set()

    def _is_fresh(self, after: int) -> bool:
        snapshot = self.snapshot
        if snapshot is None or snapshot.broken:
            return snapshot is not None
        return snapshot.number > after and not snapshot.is_old

    def close(self, wait_s: float = 10.0) -> None:
        """Stop the thread, and wait up to `wait_s` for the current reading to end."""
        self._end.set()
        self._wake.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(wait_s)

    def _run(self) -> None:
        interval = EVERY_S
        while not self._end.is_set():
            began = time.monotonic()
            snapshot, failed = self._tried()
            if snapshot is not None:
                interval = _interval(interval, snapshot.took_s)
                self.snapshot = snapshot._replace(interval_s=interval)
            with self._changed:
                self._failed = failed
                self._changed.notify_all()
            self._read_past()
            self._sleep(began, interval)

    def _tried(self) -> tuple[Snapshot | None, JobqError | None]:
        try:
            return self.take_snapshot(), None
        except JobqError as error:
            return None, error
        except Exception as error:
            # If the thread ended, all pages would lack figures.
            logger.exception("the queues can't be read")
            return None, UnavailableError(f"the queues can't be read: {error!r}")

    def _read_past(self) -> None:
        try:
            while (
                not self._end.is_set()
                and self.snapshot
                and self.tail.read_past(self.snapshot.at_ms)
            ):
                pass
        except JobqError as error:
            logger.warning("past events can't be read: %s", error)

    def _sleep(self, began: float, interval: float) -> None:
        self._end.wait(max(0.0, interval - (time.monotonic() - began)))
        while not self._end.is_set() and time.monotonic() - self._looked > WATCHED_S:
            self._wake.clear()
            if time.monotonic() - self._looked > WATCHED_S:
                self._wake.wait()


class _Served:
    """Counts the live workers of each queue and their slots."""

    def __init__(self, workers: Sequence[WorkerEntry], now_ms: int, unread: bool) -> None:
        self._unread = unread
        self._served: dict[str, tuple[int, int]] = {}
        self.slots_of_all = 0
        for worker in workers:
            if worker.is_live(now_ms):
                self.slots_of_all += worker.slots
                for name in set(worker.queues):
                    count, slots = self._served.get(name, (0, 0))
                    self._served[name] = count + 1, slots + worker.slots

    def of(self, queue: str) -> tuple[int | None, int]:
        """Return how many live workers serve a queue (None if unknown), and how many slots they have."""
        count, slots = self._served.get(queue, (0, 0))
        return (None if self._unread else count), slots


def _rate(last: QueueFigures | None, fence: int, now_ms: int) -> float | None:
    if last is None or last.broken or now_ms <= last.at_ms:
        return None
    return max(0, fence - last.dequeued) * 1000 / (now_ms - last.at_ms)


def _totals(figures: Sequence[QueueFigures], slots: int, recent: Recent) -> Totals:
    rates = [figure.dequeued_per_s for figure in figures if figure.dequeued_per_s is not None]
    return Totals(
        sum(figure.ready for figure in figures),
        sum(figure.delayed for figure in figures),
        sum(figure.running for figure in figures),
        sum(figure.dead for figure in figures),
        sum(figure.messages for figure in figures),
        slots,
        sum(rates) if rates else None,
        recent,
    )


def _interval(interval: float, took_s: float) -> float:
    if took_s > LONG_S:
        return min(SLOWEST_S, interval * 2)
    return max(EVERY_S, interval / 2) if took_s < LONG_S / 2 else interval
