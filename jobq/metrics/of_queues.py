"""Exports the metrics of queues, topics and schedules, read from the server.

One exporter is enough for any number of workers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.pipelining import run_each
from jobq.errors import ConfigError, GroupNotFoundError, JobqError, UnavailableError
from jobq.jobs.envelope import head_enqueued_at
from jobq.metrics.names import EXPORTER, PLACES, Family, LakeBehind, Rows
from jobq.metrics.serving import logger
from jobq.observe.situation import unknown_jobs
from jobq.queue import presence
from jobq.queue.directory import ListedQueues, listed_queues
from jobq.queue.folding import by_base, folded_replies
from jobq.queue.partitions import with_readable_partitions
from jobq.queue.queue import Queue
from jobq.queue.types import Sample, Schedules
from jobq.schedules.definition import decoded
from jobq.schedules.listing import late_by, queues_with
from jobq.topics.calls import listed_topics
from jobq.topics.topic import Topic
from jobq.worker.counters import MAX_QUEUES, OTHER

#: Scrapes within this time get the same answer.
CACHED_S = 5.0
#: Interval between searches of all queues for schedules; queues with schedules are read each time.
ALL_SCHEDULES_S = 60.0
#: Maximum number of labels of a metric. Further queues and schedules share the label OTHER. Topics with further groups
#: are left out.
MAX_LABELS = MAX_QUEUES
#: If several values have the same label, the greatest value of these metrics counts; other metrics are added up.
_GREATEST = frozenset(
    (
        "jobq_queue_oldest_seconds",
        "jobq_queue_flow_oldest_seconds",
        "jobq_queue_head_age_seconds",
        "jobq_cron_late_seconds",
        "jobq_cron_last_tick_timestamp_seconds",
    )
)
_LAKE_LAG = ("jobq_lake_overrun_seconds", "jobq_lake_lag_seconds")


class Sheet:
    """The metrics collected for one request.

    The first MAX_LABELS names have their own labels; all other names share OTHER.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {name: {} for name in EXPORTER}

    def put(self, name: str, value: float, *labels: str) -> None:
        """Record a value."""
        rows, key = self.rows[name], self._key(name, labels)
        row = rows.get(key)
        if not isinstance(row, int | float):
            rows[key] = value
        else:
            rows[key] = max(row, value) if name in _GREATEST else row + value

    def put_lake_lag(self, queue: str, overruns_in_s: float, behind_s: float) -> None:
        """Record how far a data lake is behind a queue.

        Alerts compare the two values, so both must come from the same queue. For queues under the label OTHER, the
        values come from the queue closest to losing events.
        """
        overruns, behind = (self.rows[name] for name in _LAKE_LAG)
        key = self._key(_LAKE_LAG[0], (queue,))
        match overruns.get(key), behind.get(key):
            case (int() | float() as now, int() | float() as ago) if (
                overruns_in_s * ago >= now * behind_s
            ):
                return
        overruns[key], behind[key] = overruns_in_s, behind_s

    def _key(self, name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        rows = self.rows[name]
        room = MAX_LABELS * (len(PLACES) if name == "jobq_queue_messages" else 1)
        return labels if labels in rows or len(rows) < room else (OTHER, *labels[1:])


class QueueExporter:
    """Reads metrics from the server, at most once every CACHED_S seconds. It is thread-safe."""

    def __init__(
        self, client: Client, names: Sequence[str] | None = None,
        lake: Callable[[], dict[str, LakeBehind]] | None = None,
    ) -> None:  # fmt: skip
        """Create an exporter.

        Args:
            names: The queues whose metrics to export; None means all.
            lake: Returns how far a data lake is behind each queue.
        """
        self._client, self._names, self._lake = client, names, lake
        self._lock = threading.Lock()
        self._families: list[Family] = []
        self._until = 0.0
        # By queue: the message at the head of ready, and the time since which it has been there.
        self._heads: dict[str, tuple[str, float]] = {}
        self._scheduled: set[str] = set()
        self._schedules_at = 0.0

    def families(self) -> list[Family]:
        """Return all metrics, which are at most CACHED_S seconds old. If the server doesn't answer, jobq_up is 0."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._families = self._read()
                self._until = time.monotonic() + CACHED_S
            return self._families

    def _read(self) -> list[Family]:
        began, sheet = time.monotonic(), Sheet()
        try:
            self._read_all(sheet)
            sheet.put("jobq_up", 1)
        except JobqError as error:
            logger.warning("can't read the server: %s", error)
            sheet = Sheet()
            sheet.put("jobq_up", 0)
        sheet.put("jobq_scrape_seconds", time.monotonic() - began)
        return [Family(EXPORTER[name], rows) for name, rows in sheet.rows.items() if rows]

    def _read_all(self, sheet: Sheet) -> None:
        client = self._client
        asked_at = time.time()
        now_ms = client.clock_ms()
        sheet.put("jobq_clock_skew_seconds", now_ms / 1000 - (asked_at + time.time()) / 2)
        listed = listed_queues(client) if self._names is None else self._chosen(self._names)
        names = listed.names
        sheet.put("jobq_queues_left_out", listed.left_out + len(listed.strange))
        queues = [Queue(name, client) for name in names]
        self._samples(sheet, queues, now_ms)
        self._workers(sheet, names, now_ms)
        self._cron(sheet, queues)
        self._topics(sheet)
        if self._lake is not None:
            self._lake_behind(sheet, self._lake)

    def _chosen(self, chosen: Sequence[str]) -> ListedQueues:
        """Return the chosen queues and their partitions, without queues whose partitions can't be read."""
        names, unread = with_readable_partitions(self._client, chosen)
        for name, error in unread.items():
            logger.warning("can't read queue %s: %s", name, error)
        return ListedQueues([name for name in names if name not in unread])

    def _samples(self, sheet: Sheet, queues: Sequence[Queue], now_ms: int) -> None:
        heads, now = self._heads, time.monotonic()
        self._heads = {}
        replies = run_each(self._client, [queue.admin.sample_call() for queue in queues])
        names = [queue.name for queue in queues]
        for name, sample in folded_replies(names, replies, head_enqueued_at).items():
            if isinstance(sample, JobqError):
                logger.warning("can't read queue %s: %s", name, sample)
                continue
            head = sample.head.mid if sample.head else ""
            if head:
                since = heads.get(name, (head, now))
                self._heads[name] = since if since[0] == head else (head, now)
            unchanged_s = now - self._heads[name][1] if head else 0.0
            _put_sample(sheet, name, sample, unchanged_s, now_ms)
        read = zip(names, replies, strict=True)
        unknown = {name: item for name, item in read if isinstance(item, Sample) and item.unknowns}
        for name, jobs in unknown_jobs(self._client, unknown).items():
            for job, number in jobs.items():
                sheet.put("jobq_queue_unknown_messages", number, base_of(name), job)

    def _each(
        self, queues: Sequence[Queue], call: Callable[[Queue], Any]
    ) -> Iterator[tuple[Queue, Any]]:
        """Yield each queue with the result of `call` for it. If a call fails, log the error and skip the queue."""
        results = run_each(self._client, [call(queue) for queue in queues])
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, Exception):
                logger.warning("can't read queue %s: %s", queue.name, result)
            else:
                yield queue, result

    def _workers(self, sheet: Sheet, names: Sequence[str], now_ms: int) -> None:
        count, slots = Counter[str](), Counter[str]()
        for worker in presence.workers(self._client):
            if worker.is_live(now_ms):
                served = {*map(base_of, worker.queues)}
                count.update(served)
                slots.update(dict.fromkeys(served, worker.slots))
        for name in by_base(names):
            sheet.put("jobq_queue_workers", count[name], name)
            sheet.put("jobq_queue_slots", slots[name], name)

    def _cron(self, sheet: Sheet, queues: Sequence[Queue]) -> None:
        if time.monotonic() >= self._schedules_at:
            self._schedules_at = time.monotonic() + ALL_SCHEDULES_S
            asked = list(queues)
        else:
            asked = [queue for queue in queues if queue.name in self._scheduled]
        for queue, schedules in self._each(
            self._with_schedules(asked), lambda queue: queue.admin.schedules_call()
        ):
            (self._scheduled.add if schedules.definitions else self._scheduled.discard)(queue.name)
            put_schedules(sheet, queue.name, schedules)

    def _with_schedules(self, queues: Sequence[Queue]) -> list[Queue]:
        some = set(queues_with(self._client, [queue.name for queue in queues], "schedules"))
        self._scheduled &= some
        return [queue for queue in queues if queue.name in some]

    def _topics(self, sheet: Sheet) -> None:
        listed = listed_topics(self._client)
        left_out, asked = listed.left_out + len(listed.strange), 0
        for name in listed.names:
            topic = Topic(name, self._client)
            try:
                groups = topic.groups()
                asked += len(groups)
                if asked > MAX_LABELS:
                    left_out += 1
                    continue
                for group in groups:
                    lag = topic.group(group).lag()
                    sheet.put("jobq_topic_lag_messages", lag.messages, name, group)
                    sheet.put(
                        "jobq_topic_pending_messages", lag.handed_out - lag.settled, name, group
                    )
            except GroupNotFoundError:
                continue  # it was removed since
            except JobqError as error:
                if self._client.is_lost(error):
                    raise
                logger.warning("can't read topic %s: %s", name, error)
        sheet.put("jobq_topics_left_out", left_out)

    def _lake_behind(self, sheet: Sheet, behind: Callable[[], dict[str, LakeBehind]]) -> None:
        try:
            for place, lag in behind().items():
                name = base_of(place)
                sheet.put("jobq_lake_lag_events", lag.events, name)
                if lag.overruns_in_s is not None and lag.behind_s is not None:
                    sheet.put_lake_lag(name, lag.overruns_in_s, lag.behind_s)
        except UnavailableError:
            raise
        except JobqError as error:
            logger.warning("can't read the lake: %s", error)


def _put_sample(sheet: Sheet, name: str, sample: Sample, unchanged_s: float, now_ms: int) -> None:
    for place in PLACES:
        sheet.put("jobq_queue_messages", getattr(sample.counts, place), name, place)
    sheet.put("jobq_queue_dead", sample.counts.dead, name)
    sheet.put("jobq_queue_paused", sample.counts.paused, name)
    sheet.put("jobq_queue_dequeued_total", sample.fence, name)
    sheet.put("jobq_queue_events_total", sample.added, name)
    sheet.put("jobq_queue_refused_total", sample.refused, name)
    sheet.put("jobq_queue_flow_entries", sample.flow_entries, name)
    since = sample.flow_since_ms
    sheet.put("jobq_queue_flow_oldest_seconds", max(0, now_ms - since) / 1000 if since else 0, name)
    sheet.put("jobq_queue_head_age_seconds", unchanged_s, name)
    at = head_enqueued_at(sample.head)
    oldest_s = max(0, now_ms - at) / 1000 if at else unchanged_s
    sheet.put("jobq_queue_oldest_seconds", oldest_s, name)


def put_schedules(sheet: Sheet, queue: str, schedules: Schedules) -> None:
    """Record when each schedule of a queue last enqueued its job, and how long its next job has been overdue."""
    for name, text in schedules.definitions.items():
        state = schedules.ticks.get(name)
        if state is None or state.paused:
            continue
        try:
            schedule = decoded(text[1:])
        except ConfigError:
            continue
        late_ms = late_by(schedule, queue, state.last_ms, schedules.now_ms)
        sheet.put("jobq_cron_last_tick_timestamp_seconds", state.last_ms / 1000, name)
        sheet.put("jobq_cron_late_seconds", late_ms / 1000, name)
