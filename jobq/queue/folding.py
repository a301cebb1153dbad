"""Add up the figures of a queue's partitions, as if they were one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from jobq.client.names import base_of
from jobq.errors import JobqError
from jobq.queue.types import Counts, Sample, WaitingHead

T = TypeVar("T")


def by_base(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of queues and partitions by queue."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(base_of(name), []).append(name)
    return groups


def without_partitions(items: Sequence[tuple[str, T]]) -> list[tuple[str, T]]:
    """Leave out each partition whose queue is also among the items. An item is a name and a value."""
    names = {name for name, _ in items}
    return [item for item in items if item[0] == base_of(item[0]) or base_of(item[0]) not in names]


def summed(counts: Sequence[Counts]) -> Counts:
    """Return the total of all counts.

    In the total, `paused` is True if any queue is paused. Drained partitions don't count.
    """
    total = Counts._make(map(sum, zip(*counts, strict=True)))
    served = [count for count in counts if count.served_partitions] or counts
    return total._replace(paused=any(count.paused for count in served))


def folded(
    samples: Sequence[Sample], enqueued_at: Callable[[WaitingHead], int | None] | None = None
) -> Sample:
    """Return the sums of these samples of a queue and its partitions.

    Args:
        enqueued_at: Returns the time when a message was enqueued, to find the message that has waited longest.
    """
    if len(samples) == 1:
        return samples[0]
    served = [sample for sample in samples if sample.counts.served_partitions] or samples
    pauses = [sample.pause_ends for sample in served if sample.counts.paused]
    heads = [sample.head for sample in samples if sample.head]
    if enqueued_at is not None:
        heads.sort(key=lambda head: enqueued_at(head) or float("inf"))
    return Sample(
        summed([sample.counts for sample in samples]),
        sum(sample.fence for sample in samples),
        sum(sample.added for sample in samples),
        heads[0] if heads else None,
        sum(sample.flow_entries for sample in samples),
        min((sample.flow_since_ms for sample in samples if sample.flow_since_ms), default=0),
        sum(sample.refused for sample in samples),
        max(sample.refused_at for sample in samples),
        sum(sample.unknowns for sample in samples),
        max(pauses) if pauses and all(pauses) else 0,
        all(sample.events_off for sample in samples),
        samples[0].sealed,
    )


def folded_replies(
    names: Sequence[str],
    replies: Sequence[Sample | JobqError],
    enqueued_at: Callable[[WaitingHead], int | None] | None = None,
) -> dict[str, Sample | JobqError]:
    """Return the figures of each queue, or an error if the figures of one of its partitions can't be read."""
    given = dict(zip(names, replies, strict=True))
    figures: dict[str, Sample | JobqError] = {}
    for base, places in by_base(names).items():
        read = [given[name] for name in places]
        wrong = [reply for reply in read if isinstance(reply, JobqError)]
        samples = [reply for reply in read if not isinstance(reply, JobqError)]
        figures[base] = wrong[0] if wrong else folded(samples, enqueued_at)
    return figures
