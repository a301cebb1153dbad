"""`jobq partitions`: distribute a hot queue over several queues, on several nodes of a Cluster."""

from __future__ import annotations

from typing import Any

import click

from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.queue.partitioning import partition, tidy, without_drained
from jobq.queue.partitions import PartitionMap, read_map
from jobq.queue.queue import Queue
from jobq.queue.types import MAX_PARTITIONS

LISTED = Listing(("partition", "epoch", "state", "waiting", "running", "dead", "node"))


@command("partitions", "low", "low 8", operation="partitions")
@click.argument("name", metavar="QUEUE")
@click.argument("count", metavar="[NUMBER]", required=False, type=click.IntRange(1, MAX_PARTITIONS))
def partitions(session: Session, name: str, count: int | None) -> None:
    """Show the partitions of a queue, or change their number.

    New messages go to NUMBER partitions, by their key or else their id. Earlier messages stay where they are until
    workers have run them. If the command fails, run it again: it continues the change. Signed calls, limits, flows and
    schedules aren't supported in a partitioned queue, and a partitioned queue always stays partitioned.
    """
    queue = session.queue(name)
    with session.operation(name, f"number:{count}", when=count is not None):
        if count is not None:
            tidy(session.client, partition(session.client, name, count))
    known = without_drained(session.client, read_map(session.client, name))
    if not known.is_partitioned:
        session.note(f"queue {queue.name} isn't partitioned")
        return
    session.say_all((_row(session, known, epoch, place) for epoch, place in _places(known)), LISTED)


def _places(known: PartitionMap) -> list[tuple[int, str]]:
    return [
        (at, name) for at, epoch in enumerate(known.epochs) for name in epoch.names(known.queue)
    ]


def _node(session: Session, queue: Queue) -> str:
    if not session.client.is_cluster:
        return ""
    host = session.client.topology.locate(queue.wake_key)
    return ":".join(map(str, host)) if isinstance(host, tuple) else str(host)


def _row(session: Session, known: PartitionMap, at: int, place: str) -> dict[str, Any]:
    queue, epoch = Queue(place, session.client), known.epochs[at]
    queue.is_alone = True
    counts = queue.admin.counts()
    state = "current" if epoch is known.newest else "drained" if epoch.drained else "draining"
    return {
        "partition": place, "epoch": epoch.number, "state": state, "waiting": counts.ready + counts.delayed,
        "running": counts.locked, "dead": counts.dead, "node": _node(session, queue),
    }  # fmt: skip
