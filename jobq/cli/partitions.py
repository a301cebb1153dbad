"""`jobq partitions`: distribute a hot queue over several queues, on several nodes of a Cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import click

from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.errors import JobqError, UnavailableError
from jobq.queue.directory import queue_names
from jobq.queue.partitioning import forget_gone, nodes_of, partition, tidy, without_drained
from jobq.queue.partitions import PartitionMap, read_map
from jobq.queue.queue import Queue
from jobq.queue.types import MAX_PARTITIONS

LISTED = Listing(("partition", "epoch", "state", "waiting", "running", "dead", "node"))


@command("partitions", "low", "low 8", operation="partitions")
@click.argument("name", metavar="QUEUE")
@click.argument("count", metavar="[NUMBER]", required=False, type=click.IntRange(1, MAX_PARTITIONS))
def partitions(session: Session, name: str, count: int | None) -> None:
    """Show the partitions of a queue, or change their number.

    New messages are spread over NUMBER partitions by key or, without a key, by id. Earlier messages stay in their
    partitions until workers have run them. If the command fails, run it again to finish the change. A partitioned queue
    always stays partitioned.
    """
    queue = session.queue(name)
    with session.operation(name, f"number:{count}", when=count is not None):
        if count is not None:
            _warn_of_new(session, name)
            forget_gone(
                session.client, tidy(session.client, partition(session.client, name, count))
            )
    known = read_map(session.client, name)
    if not known.is_partitioned:
        session.note(f"queue {queue.name} isn't partitioned")
        return
    with suppress(UnavailableError):  # the partitions that don't answer are named below
        known = without_drained(session.client, known)
    session.say_all(_rows(session, known), LISTED)
    _warn_of_skew(session, known)


def _warn_of_new(session: Session, name: str) -> None:
    with suppress(JobqError):
        known = queue_names(session.client)
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ";"
            session.remark(
                f"queue {name} was never used here{meant} 'jobq queue delete {name}' removes it from the list of queues"
            )


def _rows(session: Session, known: PartitionMap) -> Iterator[dict[str, Any]]:
    for epoch in known.epochs:
        names = epoch.names(known.queue)
        state = "current" if epoch is known.newest else "drained" if epoch.drained else "draining"
        for place, node in zip(names, _nodes(session, names), strict=True):
            with session.tolerating(place, "partition"):
                queue = Queue(place, session.client)
                queue.is_alone = True
                counts = queue.admin.counts()
                yield {
                    "partition": place, "epoch": epoch.number, "state": state, "waiting": counts.ready + counts.delayed,
                    "running": counts.locked, "dead": counts.dead, "node": node,
                }  # fmt: skip


def _nodes(session: Session, names: Sequence[str]) -> list[str]:
    if not session.client.is_cluster:
        return [""] * len(names)
    return [
        ":".join(map(str, node)) if isinstance(node, tuple) else str(node)
        for node in nodes_of(session.client, names)
    ]


def _warn_of_skew(session: Session, known: PartitionMap) -> None:
    """Warn if a node of a Cluster has more partitions than its even share plus one."""
    if not session.client.is_cluster:
        return
    names, nnodes = known.newest.names(known.queue), len(session.client.topology.nodes())
    for node, count in Counter(_nodes(session, names)).items():
        if count > len(names) / nnodes + 1:
            session.remark(
                f"node {node} has {count} of {len(names)} partitions, so it gets more than its share of the load; "
                f"move some of their slots to other nodes, or run jobq partitions {known.queue} with another number"
            )
