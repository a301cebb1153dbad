"""Audit the messages of a time range from the lake, as `jobq check audit` does from the server's streams.

A message without an end in the lake's events is `open`. Only the server can tell whether it still has the message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.client.names import base_of
from jobq.durations import counted
from jobq.errors import ConfigError
from jobq.events import in_utc
from jobq.pipeline.lake.commit import Loss
from jobq.pipeline.options import unknown
from jobq.queue.audit import Audited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Maximum difference between an event's time and its entry's time, because the server's clock may have been set.
SLACK_MS = 300_000
#: Returns whether the server still has the message, given its queue and mid.
Lives = Callable[[str, str], bool]


class RecordedSpan(NamedTuple):
    """The times of a queue's events in the lake, epoch ms.

    Attributes:
        first_enqueued_ms: Time of the first recorded enqueue; None if no enqueue is recorded.
        jumps: For each clock jump, the time of its stream entry and the time of its event.
    """

    queue: str
    first_ms: int
    first_enqueued_ms: int | None
    last_ms: int
    jumps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LakeAudited(Audited):
    """The audit result of one queue, where accepted = finished + superseded + open + live + lost.

    Attributes:
        superseded: Messages that newer content replaced.
        open: Messages without a final event in the lake; 0 if the audit asked the server.
        live: Messages without a final event that the server still has.
        unrecorded: Finished messages whose enqueue in the range was not recorded.
        notes: Reasons why figures may be incomplete.
    """

    open: int = 0
    unrecorded: int = 0
    notes: list[str] = field(default_factory=list)


class LakeAudit:
    """Audits the view `events`. The audit reads `events` several times, so cache a DataFrame that is slow to read."""

    def __init__(self, spark: SparkSession, events: DataFrame) -> None:
        self._spark, self._events = spark, events
        rows = self._sql("audit_record", events=events).collect()
        self.recorded = {
            row["queue"]: RecordedSpan(**{**row.asDict(), "jumps": tuple(map(tuple, row["jumps"]))})
            for row in rows
        }

    def audit(
        self, since_ms: int | None, until_ms: int | None, queues: Collection[str] = (),
        lives: Lives | None = None, losses: Iterable[Loss] = (), unreadable: Iterable[tuple[str, int]] = (),
    ) -> list[LakeAudited]:  # fmt: skip
        """Audit `queues`, or by default every queue with recorded enqueues. Return one result for each queue.

        Raises ConfigError if one of `queues` has no events or no recorded enqueues.

        Args:
            since_ms: Start of the range; by default the queue's first recorded enqueue.
            lives: Returns whether the server still has a message.
            losses: Events that the ingest missed.
            unreadable: Queue and time of each quarantined entry.
        """
        chosen = self._chosen(queues)
        found_starts = {span.queue: _audit_start(span, since_ms, bool(queues)) for span in chosen}
        starts = {queue: start for queue, start in found_starts.items() if start is not None}
        last_ms = max((span.last_ms for span in chosen), default=0)
        until = last_ms if until_ms is None else until_ms
        if not starts:
            return []
        figures = self._figures(starts, until, lives)
        misses, bad = (
            list(losses),
            [entry for entry in unreadable if until_ms is None or entry[1] <= until_ms],
        )
        return [
            self._told(queue, start, until, figures.get(queue, {}), misses, bad)
            for queue, start in sorted(starts.items())
        ]

    def _figures(
        self, starts: Mapping[str, int], until: int, lives: Lives | None
    ) -> dict[str, dict[str, Any]]:
        of_lives = self._sql(
            "audit_lives",
            {"until_ms": until},
            events=self._since(starts),
            starts=self._starts(starts),
        )
        if lives is not None:
            of_lives = of_lives.persist()
        try:
            rows = self._sql("audit", lives=of_lives).collect()
            figures = {row["queue"]: row.asDict() for row in rows}
            if lives is not None:
                for row in of_lives.where("open > 0").toLocalIterator():
                    _ask(
                        figures[row["queue"]],
                        row["mid"],
                        row["open"],
                        lives(row["queue"], row["mid"]),
                    )
        finally:
            of_lives.unpersist()
        return figures

    def _chosen(self, queues: Collection[str]) -> list[RecordedSpan]:
        for name in queues:
            if name not in self.recorded:
                raise ConfigError(unknown("queue", name, self.recorded) if self.recorded
                                  else f"queue {name!r}: the lake has no events; run an ingest first")  # fmt: skip
        return [span for name, span in self.recorded.items() if not queues or name in queues]

    def _told(
        self, queue: str, start: int, until: int, figures: Mapping[str, Any], losses: Iterable[Loss],
        unreadable: Iterable[tuple[str, int]],
    ) -> LakeAudited:  # fmt: skip
        jumps = sum(start <= entry and at <= until for entry, at in self.recorded[queue].jumps)
        bad = sum(base_of(name) == queue and start <= at for name, at in unreadable)
        span = {"since_ms": start, "until_ms": until, "clock_jumps": jumps, "unreadable": bad}
        result = LakeAudited(**{**figures, "queue": queue, **span})
        return replace(result, notes=list(_notes(result, self.recorded[queue], losses)))

    def _since(self, starts: Mapping[str, int]) -> DataFrame:
        """Return the events for the audit. The lake partitions events by the day of `finished_at`."""
        at_ms = min(starts.values()) - SLACK_MS
        events = self._events.where(f"finished_at >= timestamp_millis({at_ms})")
        if "dt" not in events.columns:
            return events
        return events.where(f"dt >= to_date(timestamp_millis({at_ms}))")

    def _starts(self, starts: Mapping[str, int]) -> DataFrame:
        return self._spark.createDataFrame(sorted(starts.items()), "queue STRING, since_ms BIGINT")

    def _sql(self, name: str, args: dict[str, int] | None = None, **frames: DataFrame) -> DataFrame:
        text = (files("jobq.pipeline") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
        return self._spark.sql(text, args, **frames)


def _audit_start(recorded_span: RecordedSpan, since_ms: int | None, named: bool) -> int | None:
    """Return the time at which a queue's audit begins, or None to skip a queue without enqueue events.

    Raises ConfigError instead of skipping a queue that the user named.
    """
    if recorded_span.first_enqueued_ms is None:
        if not named:
            return None
        raise ConfigError(
            f"queue {recorded_span.queue!r}: the lake has no enqueue events, so the event level is 'attempts'; "
            f"run jobq events level all --queues {recorded_span.queue}, then audit a later range"
        )
    return recorded_span.first_enqueued_ms if since_ms is None else since_ms


def _ask(figures: dict[str, Any], mid: str, weight: int, lives: bool) -> None:
    column = "live" if lives else "lost"
    figures["open"] -= weight
    figures[column] = figures.get(column, 0) + weight
    if not lives:
        figures["lost_mids"] += [mid] * weight


def _notes(result: LakeAudited, recorded: RecordedSpan, losses: Iterable[Loss]) -> Iterator[str]:
    """Yield reasons why the figures may be incomplete, each with a remedy."""
    first = recorded.first_enqueued_ms
    if first is None or (result.since_ms < first and recorded.first_ms < first):
        since = f"only since {in_utc(first)}" if first is not None else "at no time"
        yield (
            f"enqueues are recorded {since}: earlier, the event level was 'attempts'; use a later --since"
        )
    elif result.unrecorded:
        yield (
            f"{counted(result.unrecorded, 'message')} ended without a recorded enqueue in the range: the event level "
            "wasn't always 'all', or events were lost; accepted and lost don't count them"
        )
    for loss in losses:
        if base_of(loss.queue) == result.queue and loss.upto_ms >= result.since_ms:
            yield (
                f"the ingest missed {counted(loss.nevents, 'event')} between {in_utc(loss.after_ms)} and "
                f"{in_utc(loss.upto_ms)}, "
                "which were trimmed before they were read; they may include messages shown as lost or open; "
                "ingest more often, or raise MAXLEN"
            )
