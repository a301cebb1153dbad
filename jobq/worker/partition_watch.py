"""Decides which partitions of its queues a worker serves, at the start and after a change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from jobq.client.connection import Client
from jobq.durations import counted, listed
from jobq.errors import JobqError, ScriptError, UnavailableError
from jobq.queue.partitioning import any_sealed, created, forget_gone, partition, tidy
from jobq.queue.partitions import PartitionMap, read_map
from jobq.worker import logger


def queues_to_serve(
    client: Client,
    queues: Sequence[tuple[str, int]],
    declared: Mapping[str, int],
    *,
    looks_again: bool = False,
) -> tuple[tuple[str, int], ...]:
    """Return the queues with their weights. After each queue come its partitions, each with the same weight.

    Args:
        declared: The number of partitions that jobs declare, by queue. A queue that doesn't exist yet is created with
            this number.
        looks_again: Whether the worker will read the partition maps again later. If not, an unreadable map raises an
            error.
    """
    weights: dict[str, int] = {}
    for name, weight in queues:
        count = declared.get(name)
        try:
            if count is not None:
                created(client, name, count)
            known = read_map(client, name)
        except (ScriptError, UnavailableError) as error:
            if not looks_again:
                raise
            logger.warning("queue %s is served without its partitions for now: %s", name, error)
            known, count = PartitionMap(name), None
        if count is not None and known.newest.size != count:
            logger.warning(
                "queue %s has %s, although its jobs declare partitions=%d: run jobq partitions %s %d, or change "
                "the code",
                name, counted(known.newest.size, "partition"), count, name, count,
            )  # fmt: skip
        for place in (name, *known.served()):
            weights.setdefault(place, weight)
    return tuple(weights.items())


def map_of(
    client: Client, base: str, *, tidies: bool, forgets: bool = False, sealed: Collection[str] = ()
) -> PartitionMap:
    """Return the partition map of the queue `base`.

    Args:
        tidies: Also mark drained partitions in the map, if all older partitions answer.
        forgets: Also remove partitions drained long ago, and add partitions if a deletion of the queue was interrupted.
        sealed: Queues that reject new messages. A current partition among them shows that a deletion was interrupted.
    """
    known = read_map(client, base)
    if forgets or not {*known.newest.names(base)}.isdisjoint(sealed):
        with suppress(JobqError):
            known = _continued(client, known)
    if tidies and (forgets or any(not epoch.drained for epoch in known.epochs[:-1])):
        # Each partition has its own upkeep, which reports that it doesn't answer.
        with suppress(JobqError):
            known = tidy(client, known)
    if forgets:
        with suppress(JobqError):
            forget_gone(client, known)
    return known


def _continued(client: Client, known: PartitionMap) -> PartitionMap:
    """Return the partition map. If a deletion of the queue stopped midway, first add new partitions to the map."""
    if not any_sealed(client, known):
        return known
    known = partition(client, known.queue, known.newest.size)
    logger.warning(
        "the deletion of queue %s stopped midway, so its messages go to new partitions: %s",
        known.queue, listed(known.newest.names(known.queue)),
    )  # fmt: skip
    return known
