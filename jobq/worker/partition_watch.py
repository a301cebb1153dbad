"""The partitions of a worker's queues: which queues to serve at the start, and which after a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.queue.partitioning import tidy
from jobq.queue.partitions import read_map


def with_partitions(
    client: Client, queues: Sequence[tuple[str, int]]
) -> tuple[tuple[str, int], ...]:
    """Return the queues and their weights, each followed by its partitions, which have its weight."""
    found: dict[str, int] = {}
    for name, weight in queues:
        for place in (name, *read_map(client, name).served()):
            found.setdefault(place, weight)
    return tuple(found.items())


def wanted(client: Client, sealed: Iterable[str], weights: dict[str, int]) -> dict[str, int]:
    """Return the queues to serve because these queues are sealed, with their weights.

    It also notes in the maps which older partitions are drained.
    """
    found: dict[str, int] = {}
    for base in {base_of(name) for name in sealed} & weights.keys():
        known = read_map(client, base)
        if any(not epoch.drained for epoch in known.epochs[:-1]):
            known = tidy(client, known)
        found |= dict.fromkeys(known.served(), weights[base])
    return found
