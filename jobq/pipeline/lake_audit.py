"""What became of the messages of a time range, from the lake alone: `jobq check audit` for history.

A message that hasn't ended in what the lake holds is `open`: it may still live on the server, and only that can
tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.errors import ConfigError
from jobq.events import in_utc
from jobq.pipeline.commits import Loss
from jobq.pipeline.options import unknown
from jobq.queue.audited import Audited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Between the time of an event and that of its entry: a server's clock may have stepped.
SLACK_MS = 300_000
#: Whether a queue still holds a mid.
Lives = Callable[[str, str], bool]


class Recorded(NamedTuple):
    """What the lake has of a queue: from when on events, from when on enqueues (None: none), up to when.

    jumps: of each time that the server's clock was set back, when its entry and when itself, epoch ms.
    """

    queue: str
    first_ms: int
    first_enqueued_ms: int | None
    last_ms: int
    jumps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LakeAudited(Audited):
    """The same of what a lake has. accepted = finished + superseded + open + live + lost.

    open: not ended in the lake; live: not ended, and the server still holds it, where that was asked.
    unrecorded: endings of messages whose enqueue, within the range by the producer's clock, is on no record.
    notes: why the figures don't tell all.
    """

    open: int = 0
    unrecorded: int = 0
    notes: list[str] = field(default_factory=list)


class LakeAudit:
    """Audits `events`, the view of that name. A DataFrame is read more than once; cache one that is slow."""

    def __init__(self, spark: SparkSession, events: DataFrame) -> None:
        self._spark, self._events = spark, events
        rows = self._sql("audit_record", events=events).collect()
        self.recorded = {
            row["queue"]: Recorded(**{**row.asDict(), "jumps": tuple(map(tuple, row["jumps"]))})
            for row in rows
        }

    def run(
        self, since_ms: int | None, until_ms: int | None, queues: Collection[str] = (),
        lives: Lives | None = None, losses: Iterable[Loss] = (), unreadable: Iterable[tuple[str, int]] = (),
    ) -> list[LakeAudited]:  # fmt: skip
        """The answer for each of `queues`, all that the lake knows without.

        since_ms None: all with enqueues on record. lives: asks the server for what is open. losses: what the
        ingest missed. unreadable: queue and time of the records that it couldn't read.
        Raises ConfigError for a queue that the lake doesn't know, or that tells nothing.
        """
        chosen = self._chosen(queues)
        found_starts = {one.queue: _start(one, since_ms, bool(queues)) for one in chosen}
        starts = {queue: start for queue, start in found_starts.items() if start is not None}
        last_ms = max((one.last_ms for one in chosen), default=0)
        until = last_ms if until_ms is None else until_ms
        if not starts:
            return []
        figures = self._figures(starts, until, lives)
        misses, bad = (
            list(losses),
            [one for one in unreadable if until_ms is None or one[1] <= until_ms],
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
            found = {row["queue"]: row.asDict() for row in rows}
            if lives is not None:
                for row in of_lives.where("open > 0").toLocalIterator():
                    _ask(
                        found[row["queue"]],
                        row["mid"],
                        row["open"],
                        lives(row["queue"], row["mid"]),
                    )
        finally:
            of_lives.unpersist()
        return found

    def _chosen(self, queues: Collection[str]) -> list[Recorded]:
        for name in queues:
            if name not in self.recorded:
                raise ConfigError(unknown("queue", name, self.recorded) if self.recorded
                                  else f"queue {name!r}: the lake has no events; ingest some first")  # fmt: skip
        return [one for name, one in self.recorded.items() if not queues or name in queues]

    def _told(
        self, queue: str, start: int, until: int, found: Mapping[str, Any], losses: Iterable[Loss],
        unreadable: Iterable[tuple[str, int]],
    ) -> LakeAudited:  # fmt: skip
        jumps = sum(start <= entry and at <= until for entry, at in self.recorded[queue].jumps)
        bad = sum(name == queue and start <= at for name, at in unreadable)
        span = {"since_ms": start, "until_ms": until, "clock_jumps": jumps, "unreadable": bad}
        result = LakeAudited(**{**found, "queue": queue, **span})
        return replace(result, notes=list(_notes(result, self.recorded[queue], losses)))

    def _since(self, starts: Mapping[str, int]) -> DataFrame:
        """Events that may count. A lake keeps them by the day of `finished_at`, near which their entries are."""
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


def _start(one: Recorded, since_ms: int | None, named: bool) -> int | None:
    """Where a queue's audit begins; None leaves out one that nobody asked for and that tells nothing."""
    if one.first_enqueued_ms is None:
        if not named:
            return None
        raise ConfigError(
            f"queue {one.queue!r}: the lake has no enqueues of it, so the event level is 'attempts'; "
            f"jobq events level all --queues {one.queue}, and audit from then on"
        )
    return one.first_enqueued_ms if since_ms is None else since_ms


def _ask(figures: dict[str, Any], mid: str, weight: int, lives: bool) -> None:
    column = "live" if lives else "lost"
    figures["open"] -= weight
    figures[column] = figures.get(column, 0) + weight
    if not lives:
        figures["lost_mids"] += [mid] * weight


def _notes(result: LakeAudited, recorded: Recorded, losses: Iterable[Loss]) -> Iterator[str]:
    """Why an answer isn't the whole truth, each with what can be done."""
    first = recorded.first_enqueued_ms
    if first is None or (result.since_ms < first and recorded.first_ms < first):
        since = f"only since {in_utc(first)}" if first is not None else "at no time"
        yield (
            f"enqueues are on record {since}: before, the event level was 'attempts'; give a later --since"
        )
    elif result.unrecorded:
        yield (
            f"{result.unrecorded:,} messages ended whose enqueue in the range is on no record: the event level wasn't "
            "'all' throughout, or events were lost; accepted and lost leave them out"
        )
    for one in losses:
        if one.queue == result.queue and one.upto_ms >= result.since_ms:
            yield (
                f"the ingest missed {one.nevents:,} events of {in_utc(one.after_ms)} to {in_utc(one.upto_ms)}, trimmed "
                "before they were read; what seems lost or open may be among them; ingest more often, or raise MAXLEN"
            )
