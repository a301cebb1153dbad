"""Records queue figures once a minute for the dashboard's charts. Each minute, one worker records all queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.pipelining import commands, run_each
from jobq.client.scripts import Argument
from jobq.errors import JobqError
from jobq.jobs.envelope import head_enqueued_at
from jobq.queue import keys
from jobq.queue.charts import KEPT_MS, MAX_RINGS, MINUTE_MS, MINUTES, ChartMinute
from jobq.queue.directory import listed_queues
from jobq.queue.queue import Queue
from jobq.queue.types import Sample
from jobq.worker import logger

#: Workers try every minute. The worker that wrote the last minute usually writes the next.
TURN_MS = 55_000
#: A ring whose figures stay the same is written again after this, so that it doesn't expire.
AGAIN_MINUTES = MINUTES // 2
#: Queues per step. A step takes some hundredths of a second, and the supervisor must renew leases between steps.
PER_STEP = 500


class ChartKeeper:
    """Writes the charts' figures in steps, between heartbeats.

    While it is another worker's turn, this worker sends only one command a minute.
    """

    def __init__(self, client: Client, worker: str) -> None:
        self._client, self._worker = client, worker
        #: The figures that this worker wrote last, by queue.
        self._written: dict[str, ChartMinute] = {}
        self._kept: set[str] = set()
        #: The current minute's time, its queues left to sample, and its samples.
        self._now_ms = 0
        self._left: Sequence[str] = ()
        self._minutes: dict[str, ChartMinute] = {}
        self._unread: set[str] = set()

    def begin(self) -> None:
        """Start recording this minute if it is this worker's turn. After an error, the charts have a gap."""
        client, self._left = self._client, ()
        try:
            turn = keys.charts(client.namespace, "turn")
            if client.command("SET", turn, self._worker, "NX", "PX", TURN_MS):
                self._now_ms, self._minutes, self._unread = client.clock_ms(), {}, set()
                self._left = listed_queues(client).names
        except JobqError as error:
            logger.debug("charts will have a gap: %s", error)

    def sample(self) -> None:
        """Read figures of some queues for the current minute. Once all queues are read, store the minute's figures."""
        if not self._left:
            return
        names, self._left = self._left[:PER_STEP], self._left[PER_STEP:]
        try:
            self._sample(names)
            if not self._left:
                for name in self._unread & self._minutes.keys():
                    del self._minutes[name]  # the sum without a partition would be wrong
                self._write(self._minutes, self._now_ms // MINUTE_MS)
        except JobqError as error:
            self._left = ()
            logger.debug("charts will have a gap: %s", error)

    def _sample(self, names: Sequence[str]) -> None:
        client, now_ms = self._client, self._now_ms
        replies = run_each(client, [Queue(name, client).admin.sample_call() for name in names])
        for name, sample in zip(names, replies, strict=True):
            if isinstance(sample, Sample):
                self._put(name, _minute_of(sample, now_ms // MINUTE_MS, now_ms))
            else:
                self._unread.add(base_of(name))

    def _put(self, name: str, minute: ChartMinute) -> None:
        """Add a queue's figures to the minute. A partition's figures are added to its base queue's figures."""
        base = base_of(name)
        before = self._minutes.get(base)
        self._minutes[base] = minute if before is None else _sum([before, minute], minute.minute)

    def _write(self, rows: Mapping[str, ChartMinute], minute: int) -> None:
        client = self._client
        ringed = self._ringed(rows, minute)
        rest = [row for name, row in rows.items() if name not in ringed]
        writes = self._writes(keys.chart(client.namespace, ""), _sum(list(rows.values()), minute))
        if rest:
            writes += self._writes(keys.charts(client.namespace, "rest"), _sum(rest, minute))
        for name in ringed:
            if self._changed(name, rows[name]):
                writes += self._writes(keys.chart(client.namespace, name), rows[name])
                writes.append(("ZADD", keys.charts(client.namespace, "queues"), minute, name))
                self._written[name] = rows[name]
        index = keys.charts(client.namespace, "queues")
        self._send([*writes, ("PEXPIRE", index, KEPT_MS)])

    def _ringed(self, rows: Mapping[str, ChartMinute], minute: int) -> list[str]:
        """Return the queues that have a chart of their own.

        If there is room for more, add the busiest of the other queues.
        """
        if not rows.keys() <= self._kept or len(self._kept) > MAX_RINGS:
            index = keys.charts(self._client.namespace, "queues")
            self._client.command("ZREMRANGEBYSCORE", index, 0, minute - KEPT_MS // MINUTE_MS)
            known = self._client.command("ZRANGE", index, 0, MAX_RINGS - 1)
            self._kept = {name.decode(errors="replace") for name in known}
            used = [name for name, row in rows.items() if any(row[1:]) and name not in self._kept]
            used.sort(key=lambda name: -sum(rows[name][1:4]))
            self._kept |= set(used[: max(0, MAX_RINGS - len(self._kept))])
        return [name for name in rows if name in self._kept]

    def _changed(self, name: str, now: ChartMinute) -> bool:
        before = self._written.get(name)
        if before is None or now.minute - before.minute >= AGAIN_MINUTES:
            return True
        return before[1:] != now[1:]

    def _writes(self, key: str, minute: ChartMinute) -> list[tuple[Argument, ...]]:
        return [("SETRANGE", key, minute.offset, minute.packed), ("PEXPIRE", key, KEPT_MS)]

    def _send(self, writes: list[tuple[Argument, ...]]) -> None:
        if not self._client.is_cluster:
            commands(self._client, str(writes[0][1]), writes)
            return
        for words in writes:
            self._client.command(*words)


def _minute_of(sample: Sample, minute: int, now_ms: int) -> ChartMinute:
    counts, at = sample.counts, head_enqueued_at(sample.head)
    oldest_s = max(0, now_ms - at) // 1000 if at else 0
    return ChartMinute(
        minute, counts.ready, counts.delayed, counts.locked, counts.dead, oldest_s, sample.fence
    )


def _sum(minutes: list[ChartMinute], minute: int) -> ChartMinute:
    columns = list(zip(*minutes, strict=True)) or [(0,)] * len(ChartMinute._fields)
    ready, delayed, running, dead, _, fence = map(sum, columns[1:])
    return ChartMinute(minute, ready, delayed, running, dead, max(columns[5]), fence)
