"""The columns of every table that the pipeline reads or stores.

A table's Arrow schema, Spark schema, DDL and documentation are made from one tuple of Column. Column types are strings,
so this module doesn't import pyarrow or pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.client.names import PARTITION, base_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        in_lake: Whether the lake stores the column. Other columns are computed when rows are read.
    """

    name: str
    type: str
    doc: str
    in_lake: bool = True


Columns = tuple[Column, ...]

#: Entry ids are unique per stream, so the lake stores the name of the stream's queue or partition.
BASE_QUEUE = Column(
    "base_queue", "string", "The queue; for the partition `low/3`, the queue `low`.", in_lake=False
)
EVENT_COLUMNS: Columns = (
    Column("queue", "string", "The queue's or partition's name, from the stream's key."),
    BASE_QUEUE,
    Column("kind", "string", "The kind of event, such as `done`."),
    Column("mid", "string", "The message's id; null for events about the whole queue."),
    Column("job", "string", "The job's name; null where it is unknown."),
    Column("attempt", "int32", "The attempt's number, from 1; 0 before the first attempt."),
    Column("enqueued_at", "timestamp", "Enqueue time by the producer's clock; null if unknown."),
    Column("started_at", "timestamp", "Start of the attempt; null without a run.", in_lake=False),
    Column("finished_at", "timestamp", "Time of the event, by the server's clock."),
    Column("wait_ms", "int64", "Time until the start, at least 0; null if unknown.", in_lake=False),
    Column("run_us", "int64", "Run time of the attempt; null without a run."),
    Column("cpu_us", "int64", "CPU time of the attempt."),
    Column("rss_kib", "int32", "Peak memory of the worker's process until the event."),
    Column("bytes", "int32", "Length of the content in bytes."),
    Column("worker", "string", "Name of the attempt's worker."),
    Column("error", "string", "The error's class, or a detail of another kind of event."),
    Column(
        "fingerprint", "string", "The same hash for errors of the same class from the same line."
    ),
    Column("trace_id", "string", "The 32 hex digits of the caller's trace."),
    Column("key", "string", "The message's key; set for attempts and enqueues."),
    Column("place", "string", "File, line and function that raised the error."),
    Column(
        "flow", "string", "The message's flow, as `name:id`; null without a flow.", in_lake=False
    ),
    Column("step", "string", "The flow's step; null without a flow.", in_lake=False),
    Column("entry_at", "timestamp", "Time at which the event was written, from the entry's id."),
    Column("entry_seq", "int32", "The entry's number within the millisecond of `entry_at`."),
    Column("version", "int32", "Version of the record's format."),
)

TOPIC_COLUMNS: Columns = (
    Column("topic", "string", "The topic's name."),
    Column("index", "int64", "The message's index; each message adds one."),
    Column("at", "timestamp", "Time of the append, by the server's clock."),
    Column("key", "string", "The message's key, for compaction; may be null."),
    Column("content", "binary", "The message's bytes; null deletes the key."),
    Column("headers", "map", "The message's headers; null if it has none."),
)

MESSAGE_COLUMNS: Columns = (
    Column("queue", "string", "The queue's or partition's name."),
    Column("mid", "string", "The message's id."),
    Column("status", "string", "The message's status, as in `jobq status`."),
    Column("attempts", "int32", "Number of attempts, without releases and snoozes."),
    Column("ncrashes", "int32", "Number of attempts that crashed."),
    Column("not_before", "timestamp", "End of the message's backoff; null without a backoff."),
    Column("lock_expires_at", "timestamp", "End of the attempt's lease; null without a lease."),
    Column("job", "string", "The job's name; null if the content is not a call."),
    Column("enqueued_at", "timestamp", "Enqueue time by the producer's clock; null if unknown."),
    Column("bytes", "int32", "Length of the content in bytes."),
    Column("content", "binary", "The call as it was enqueued."),
)

QUEUE_COLUMNS: Columns = (
    Column("queue", "string", "The queue's or partition's name."),
    Column("messages", "int64", "Live messages, and done messages still in Redis."),
    Column("ready", "int64", "Messages that can run now."),
    Column("delayed", "int64", "Messages waiting for a later time."),
    Column("deduped", "int64", "Done messages whose mids are still rejected."),
    Column("locked", "int64", "Running messages, also with expired leases."),
    Column("done", "int64", "Done messages that will be removed soon."),
    Column("requeued", "int64", "Running messages with newer content to run afterwards."),
    Column("dead", "int64", "Dead messages."),
    Column("circle", "int64", "Running and just finished messages."),
    Column("paused", "boolean", "Whether the queue is paused."),
    Column("quarantined", "int64", "Invalid mids that were set aside."),
    Column("keys", "int64", "Keys with messages, or on hold."),
    Column("level", "string", "Recorded events: off, attempts or all."),
    Column("maxlen", "int64", "Approximate number of events that the stream keeps."),
    Column("events", "int64", "Number of events in the stream."),
    Column("events_added", "int64", "Number of events ever written to the stream."),
)

DEAD_COLUMNS: Columns = (
    Column("queue", "string", "The queue's or partition's name."),
    Column("dead_id", "string", "Id for `jobq dead revive` and `purge`."),
    Column("mid", "string", "The message's id."),
    Column("died_at", "timestamp", "Time of the message's death, by the server's clock."),
    Column("attempts", "int32", "Number of attempts."),
    Column("ncrashes", "int32", "Number of attempts that crashed."),
    Column("reason", "string", "Why the message is dead, with the end of any traceback."),
    Column("job", "string", "The job's name; null if the content is not a call."),
    Column("enqueued_at", "timestamp", "Enqueue time by the producer's clock; null if unknown."),
    Column("bytes", "int32", "Length of the content in bytes."),
    Column("content", "binary", "The call as it was enqueued."),
)

#: The pattern of a flow member's mid: `~flow.run.step.index`. Regular expressions of Java and Arrow both accept it.
MEMBER = (
    "^~(?{0}<flow>[A-Za-z0-9_.@+-]{{1,62}}:[A-Za-z0-9_:@+-]{{1,62}})"
    "[.][A-Za-z0-9]{{1,16}}[.](?{0}<step>[A-Za-z0-9_-]{{1,32}})[.][0-9]{{1,9}}$"
)
#: SQL of the columns that the lake doesn't store. `wait_ms` is computed as in jobq.events.Event.
DERIVED = {
    # Most names have no slash, for which LIKE is several times as fast.
    BASE_QUEUE.name: (
        "CASE WHEN queue LIKE '%/%' THEN "
        f"coalesce(nullif(regexp_extract(queue, '^{PARTITION}$', 1), ''), queue) ELSE queue END"
    ),
    "started_at": "timestamp_micros(unix_micros(finished_at) - run_us)",
    # greatest() ignores nulls.
    "wait_ms": (
        "CASE WHEN run_us IS NOT NULL AND enqueued_at IS NOT NULL THEN "
        "greatest(0L, unix_millis(finished_at) - run_us div 1000 - unix_millis(enqueued_at)) END"
    ),
    "flow": f"nullif(regexp_extract(mid, '{MEMBER.format('')}', 1), '')",
    "step": f"nullif(regexp_extract(mid, '{MEMBER.format('')}', 2), '')",
}

#: Views of the present state of queues. `base_queue` follows `queue`, as in the view `events`.
_LIVE = {"messages": MESSAGE_COLUMNS, "queues": QUEUE_COLUMNS, "dead": DEAD_COLUMNS}
#: The data source's views, by name.
VIEWS: dict[str, Columns] = {
    "events": EVENT_COLUMNS,
    **{name: (queue, BASE_QUEUE, *rest) for name, (queue, *rest) in _LIVE.items()},
    "topic": TOPIC_COLUMNS,
}

_DDL = {
    "string": "STRING", "int32": "INT", "int64": "BIGINT", "timestamp": "TIMESTAMP",
    "boolean": "BOOLEAN", "binary": "BINARY", "map": "MAP<STRING, STRING>",
}  # fmt: skip


def stored(columns: Columns) -> Columns:
    """Return the columns that the lake stores."""
    return tuple(column for column in columns if column.in_lake)


def ddl(columns: Columns) -> str:
    """Return the columns as `name TYPE, …` for Spark, with quoted names."""
    return ", ".join(f"`{name}` {type_}" for name, type_ in columns_ddl(columns))


def columns_ddl(columns: Columns) -> list[tuple[str, str]]:
    """Return each column's name and SQL type."""
    return [(column.name, _DDL[column.type]) for column in columns]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema. Spark itself converts the columns to exactly this schema, in UTC."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"), "binary": pa.binary(),
        "map": pa.map_(pa.string(), pa.string()),
    }  # fmt: skip
    return pa.schema([(column.name, types[column.type]) for column in columns])


def struct(columns: Columns) -> StructType:
    """Return the Spark schema of `columns`. This needs pyspark, but no JVM."""
    from pyspark.sql import types as t

    known: dict[str, DataType] = {
        "string": t.StringType(), "int32": t.IntegerType(), "int64": t.LongType(),
        "timestamp": t.TimestampType(), "boolean": t.BooleanType(), "binary": t.BinaryType(),
        "map": t.MapType(t.StringType(), t.StringType()),
    }  # fmt: skip
    return t.StructType([t.StructField(column.name, known[column.type]) for column in columns])


def bases(names: Any) -> Any:
    """In an Arrow array of queue names, replace the name of each partition by the name of the whole queue."""
    import pyarrow as pa
    import pyarrow.compute as pc

    each = pc.unique(names)
    known = [name and base_of(name) for name in each.to_pylist()]
    if known == each.to_pylist():
        return names
    return pc.take(pa.array(known, pa.string()), pc.index_in(names, each))


def is_of(column: str, values: Any, wanted: Any) -> Any:
    """Return a mask of the values in `wanted`. In the column `queue`, partitions of a wanted queue also match."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sought = pa.array(wanted, values.type)
    mask = pc.is_in(values, sought)
    return pc.or_(mask, pc.is_in(bases(values), sought)) if column == "queue" else mask


def members(mids: Any) -> tuple[Any, Any]:
    """Return the flow and the step of each mid as two Arrow arrays. Mids outside flows give null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.any(pc.starts_with(mids, "~")).as_py():
        nothing = pa.nulls(len(mids), pa.string())
        return nothing, nothing
    parts = pc.extract_regex(mids, MEMBER.format("P"))
    return pc.struct_field(parts, "flow"), pc.struct_field(parts, "step")


def events_schema() -> pa.Schema:
    """Return the Arrow schema of the view `events`."""
    return arrow_schema(EVENT_COLUMNS)


def markdown(columns: Columns) -> str:
    """Return the columns as a Markdown table."""
    rows = [f"| `{c.name}` | {c.type} | {c.doc} |" for c in columns]
    return "\n".join(["| column | type | |", "|---|---|---|", *rows])
