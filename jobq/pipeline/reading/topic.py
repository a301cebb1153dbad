"""Messages of topics as Arrow batches, and what retention dropped before they were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobq.errors import OutOfRangeError
from jobq.pipeline.reading.events import report
from jobq.pipeline.reading.stretch import Stretch
from jobq.pipeline.schema import TOPIC_COLUMNS, arrow_schema
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import decoded
from jobq.topics.ranges import pages

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.pipeline.reading.request import Request

_SCHEMA = arrow_schema(TOPIC_COLUMNS)


def batches(request: Request, one: Stretch, client: Client) -> Iterator[pa.RecordBatch]:
    """The messages of a stretch. Raises DataLossError, unless the request says to go on."""
    names = [column.name for column in request.columns]
    binding, lost = TopicCalls(one.name, client), 0
    for page, dropped in kept(binding, int(one.after) + 1, int(one.upto)):
        lost += dropped
        if page:
            yield batch(one.name, page).select(names)
    report(request, one.name, lost)


def kept(binding: TopicCalls, following: int, upto: int) -> Iterator[tuple[list[Any], int]]:
    """Pages of a topic's log; or an empty one, with how many messages retention has dropped there."""
    while following <= upto:
        try:
            for page in pages(binding, following, upto, True):
                following = _index(page[-1]) + 1
                yield page, 0
            return
        except OutOfRangeError as error:
            # Holes that compaction left aren't losses: this is what retention dropped.
            first = min(max(error.first, error.position + 1), upto + 1)
            yield [], first - error.position
            following = first


def batch(topic: str, page: list[Any]) -> pa.RecordBatch:
    """Entries of a topic's log as rows of the view `topic`."""
    places = [entry[0].split(b"-") for entry in page]
    keys: list[str | None] = [None] * len(page)
    headers: list[list[tuple[str, str]] | None] = [None] * len(page)
    contents: list[bytes | None] = []
    for row, entry in enumerate(page):
        fields = entry[1]
        if len(fields) == 2 and fields[0] == b"m":
            contents.append(fields[1])
            continue
        message = decoded(entry)
        contents.append(message.content)
        keys[row] = message.key
        headers[row] = list(message.headers.items()) or None
    at = pa.array([int(place[1]) * 1000 for place in places], pa.int64())
    arrays = [
        pa.array([topic] * len(page)), pa.array([int(place[0]) for place in places], pa.int64()),
        at.cast(pa.timestamp("us", tz="UTC")), pa.array(keys, pa.string()),
        pa.array(contents, pa.binary()), pa.array(headers, _SCHEMA.field("headers").type),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _index(entry: Any) -> int:
    return int(entry[0].partition(b"-")[0])
