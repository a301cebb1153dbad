"""Find problems with the partitions of queues, for `jobq check doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobq.durations import counted
from jobq.queue.doctor import Finding
from jobq.queue.partitions import PartitionMap
from jobq.queue.types import Sample

#: Report a partition with more than SKEW times its even share of the ready messages, if it has at least SKEWED_READY.
SKEW, SKEWED_READY = 2.0, 1_000


def partition_findings(known: PartitionMap, samples: Mapping[str, Sample]) -> Iterator[Finding]:
    """Yield findings about one queue.

    Args:
        samples: Name of the queue or of a readable partition -> figures.
    """
    yield from _unlisted(known, samples)
    yield from _unfinished(known, samples)
    yield from _skewed(known, samples)


def _unlisted(known: PartitionMap, samples: Mapping[str, Sample]) -> Iterator[Finding]:
    """Yield findings about partitions that have messages but aren't in the map.

    Workers of the queue don't serve these partitions.
    """
    served = {known.queue, *known.served()}
    for name, sample in samples.items():
        if name not in served and sample.counts.messages:
            has = counted(sample.counts.messages, "message")
            text = f"{name} has {has}, but it isn't in the map of queue {known.queue}"
            remedy = f"serve this partition until it is empty: jobq worker --import MODULE --queues {name}"
            yield Finding("partitions", "fail", text, remedy)


def _unfinished(known: PartitionMap, samples: Mapping[str, Sample]) -> Iterator[Finding]:
    older = [
        name
        for epoch in known.epochs[:-1]
        if not epoch.drained
        for name in epoch.names(known.queue)
    ]
    unsealed = [name for name in older if name in samples and not samples[name].sealed]
    if unsealed:
        size = known.newest.size
        text = f"the change of queue {known.queue} to {size} partitions isn't finished: {unsealed[0]} isn't sealed"
        yield Finding("partitions", "warn", text, f"jobq partitions {known.queue} {size}")
    newest = known.newest.names(known.queue) if known.is_partitioned else ()
    sealed = [name for name in newest if name in samples and samples[name].sealed]
    if sealed:
        text = f"a deletion of queue {known.queue} stopped midway: {sealed[0]} rejects messages"
        remedy = f"jobq partitions {known.queue} {known.newest.size}, or repeat jobq queue delete {known.queue}"
        yield Finding("partitions", "fail", text, remedy)


def _skewed(known: PartitionMap, samples: Mapping[str, Sample]) -> Iterator[Finding]:
    ready = {
        name: samples[name].counts.ready
        for name in known.newest.names(known.queue)
        if name in samples
    }
    total = sum(ready.values())
    if total < SKEWED_READY or len(ready) < 2:
        return
    name = max(ready, key=lambda partition: ready[partition])
    if ready[name] > SKEW * total / len(ready):
        text = f"{name} has {ready[name]:,} of {total:,} ready messages in {len(ready)} partitions"
        yield Finding(
            "partitions", "warn", text, f"see which keys wait: jobq key list {known.queue}"
        )
