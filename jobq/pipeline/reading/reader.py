"""The batch reader: plans partitions on the driver, reads each of them in an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobq.pipeline import collector
from jobq.pipeline.reading.request import Request

if TYPE_CHECKING:
    import pyarrow as pa

    from jobq.client.connection import Client


class JobqReader(DataSourceReader):
    """Reads one request. It takes no filters from Spark: 4.3 would apply them to other reads as well."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def partitions(self) -> Sequence[InputPartition]:
        """What there is now; every action on the DataFrame reads this and nothing newer."""
        with self.request.connected() as client:
            return [
                InputPartition(value) for value in _PLANS[self.request.view](self.request, client)
            ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One partition's rows, as Arrow batches."""
        return read(self.request, partition)


def read(request: Request, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition, of a batch or a stream; a partition without value has none."""
    if partition.value is None:
        return
    make = _batches(request.view)
    with collector.switched_off(), request.connected() as client:
        for one in partition.value:
            yield from make(request, one, client)


def _batches(view: str) -> Callable[[Request, Any, Client], Iterator[pa.RecordBatch]]:
    from jobq.pipeline.reading import events, live, topic

    known: dict[str, Callable[[Request, Any, Client], Iterator[pa.RecordBatch]]] = {
        "events": events.batches, "topic": topic.batches, "messages": live.messages,
        "dead": live.dead, "queues": live.counts,
    }  # fmt: skip
    return known[view]


def _logs(request: Request, client: Client) -> list[Any]:
    from jobq.pipeline.reading import events, stretch

    stretches, gone = stretch.planned(client, request)
    for name, lost in gone.items():
        events.report(request, name, lost)
    return stretch.divided(client, stretches, request.partitions)


def _shelves(request: Request, client: Client) -> list[Any]:
    from jobq.pipeline.reading import live, stretch

    names = stretch.chosen(client, request)
    if request.view == "messages":
        found = live.message_shelves(client, names)
    else:
        found = live.dead_shelves(client, request, names)
    return stretch.packed(found, request.partitions or stretch.MOST_PARTS)


def _counts(request: Request, client: Client) -> list[Any]:
    from jobq.pipeline.reading import live, stretch

    rows = live.queue_rows(client, stretch.chosen(client, request))
    return [tuple(rows)] if rows else []


_PLANS: dict[str, Callable[[Request, Client], list[Any]]] = {
    "events": _logs, "topic": _logs, "messages": _shelves, "dead": _shelves, "queues": _counts,
}  # fmt: skip
