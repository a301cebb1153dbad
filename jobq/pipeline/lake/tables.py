"""The tables of a lake: columns, partitioning, sort order and encodings.

Each table is a Delta table partitioned by `dt`, the UTC day of one of its times. `events` stores `enqueued_at` and
`entry_at` as differences from `finished_at`, which halves their size. Reads restore both columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jobq.client.names import checked_name
from jobq.pipeline.schema import (
    DEAD_COLUMNS,
    EVENT_COLUMNS,
    TOPIC_COLUMNS,
    Column,
    Columns,
    arrow_schema,
    bases,
    members,
    stored,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the view `events` that are stored as a distance from `finished_at`, each with its stored column.
DISTANCES = {
    "enqueued_at": Column("total_ms", "int64", "finished_at minus enqueued_at; null if unknown."),
    "entry_at": Column("entry_ms", "int64", "Time of the entry's id minus finished_at."),
}
LAKE_EVENTS: Columns = tuple(DISTANCES.get(c.name, c) for c in stored(EVENT_COLUMNS))

QUARANTINE_COLUMNS: Columns = (
    Column("queue", "string", "The queue's name."),
    Column("entry_id", "string", "The entry's id in the stream, unique per queue."),
    Column("version", "string", "Name of the entry's first field, the record's version."),
    Column("content", "binary", "The unchanged bytes of the record."),
    Column("reason", "string", "Why the entry is not a record."),
    Column("seen_at", "timestamp", "When the entry was ingested."),
)
JOB_RUN_COLUMNS: Columns = (
    Column("queue", "string", "The queue's name."),
    Column("mid", "string", "The message's id."),
    Column("job", "string", "The job's name; null without an attempt that records it."),
    Column("enqueued_at", "timestamp", "Enqueue time by the producer's clock; null if unknown."),
    Column("first_at", "timestamp", "Time of the enqueue, or else of the first event."),
    Column("started_at", "timestamp", "Start of the first attempt; null without attempts."),
    Column("last_at", "timestamp", "Time of the latest event."),
    Column(
        "outcome",
        "string",
        "Kind of the latest event, from docs/reference/events.md; null without a known kind.",
    ),
    Column("attempts", "int64", "Ended attempts, without snoozes."),
    Column("retries", "int64", "Failed attempts that are retried."),
    Column("ncrashes", "int64", "Attempts that crashed or were recovered."),
    Column("done", "int64", "Number of successful ends; more than 1 is a duplicate."),
    Column("wait_ms", "int64", "Time from enqueue to first start."),
    Column("run_us", "int64", "Total run time."),
    Column("cpu_us", "int64", "Total processor time."),
    Column("rss_kib", "int32", "Highest peak memory."),
    Column("nevents", "int64", "Number of events."),
    Column("snoozes", "int64", "Snoozed attempts."),
    Column("first_ended_at", "timestamp", "End of attempt 1; null if this attempt didn't run."),
)
ROLLUP_COLUMNS: Columns = (
    Column("hour", "timestamp", "Start of the hour."),
    Column("queue", "string", "The queue's name."),
    Column("job", "string", "The job's name; null for events without a job."),
    Column("nevents", "int64", "All events."),
    *(
        Column(kind, "int64", f"Events of kind {kind}.")
        for kind in ("enqueued", "done", "retry", "dead", "crashed", "snoozed", "recovered",
                     "cancelled", "revived", "superseded", "expired", "evicted")
    ),
    Column("runs", "int64", "Events that record a run."),
    Column("run_us", "int64", "Total run time."),
    Column("cpu_us", "int64", "Total processor time."),
    Column("bytes", "int64", "Sum of content lengths."),
    Column("rss_kib", "int32", "Highest peak of memory."),
    Column("run_us_sketch", "binary", "KLL sketch of run_us, k = 2000; null without runs."),
    Column("wait_ms_sketch", "binary", "KLL sketch of wait_ms, k = 2000; null without waits."),
    Column("done_us", "int64", "Total run time of successful runs."),
    Column("failed_us", "int64", "Total run time of runs that ended as retry, dead, crashed or recovered."),
)  # fmt: skip
MARK_COLUMNS: Columns = (
    Column("name", "string", "Name of the deploy or other event."),
    Column("at", "timestamp", "When."),
)
AUDIT_COLUMNS: Columns = (
    Column("log", "string", "`audit`, or `{eu}audit` for the source eu."),
    Column("entry_id", "string", "The entry's id, unique per log."),
    Column("at", "timestamp", "Time by the server's clock."),
    Column("who", "string", "The person."),
    Column("role", "string", "Role of the person in the dashboard, or `cli`."),
    Column("verb", "string", "Action, such as pause."),
    Column("queue", "string", "Queues, separated by commas; * for all."),
    Column(
        "filter", "string", "The affected messages or things; values of arguments are [hidden]."
    ),
    Column("number", "int64", "Number of affected messages; null if unknown."),
    Column("op", "string", "Id of the operation, shared by its intent and its end."),
    Column("phase", "string", "intent, done, failed, refused or undone."),
    Column("note", "string", "Error of a failed operation, or another remark."),
    Column("damaged", "boolean", "True if the entry isn't in jobq's format."),
)
ERASED_COLUMNS: Columns = (
    Column("erasure", "string", "Id of the erasure, which has several rows."),
    Column("at", "timestamp", "When."),
    Column(
        "kind",
        "string",
        "begun or done: the erasure itself. mid, message or entry: excluded from the lake.",
    ),
    Column("queue", "string", "Queue or topic of the excluded rows; null for a mid in all queues."),
    Column("hash", "binary", "BLAKE2b of kind and name, with the salt as key; never the name."),
    Column("salt", "binary", "Key of the hash."),
    Column(
        "note",
        "string",
        "For begun: the conditions, without values. For done: JSON with rows per table.",
    ),
)

T = TypeVar("T")


def sourced(source: str, name: str) -> str:
    """Return the name that a source's queue or topic has in the lake, such as `{eu}mails`.

    Names on servers have no braces.
    """
    return f"{{{checked_name('source', source)}}}{name}" if source else name


def parted(name: str) -> tuple[str, str]:
    """Split a name in the lake into the source and the name on the source's server. The source may be ''."""
    source, brace, rest = name[1:].partition("}") if name.startswith("{") else ("", "", "")
    return (source, rest) if brace else ("", name)


def of_source(source: str, by_name: Mapping[str, T]) -> dict[str, T]:
    """Return the items of one source. Their names in the result no longer contain the source."""
    parts = ((parted(name), value) for name, value in by_name.items())
    return {name: value for (owner, name), value in parts if owner == source}


class LakeTable(NamedTuple):
    """A table of the lake.

    Attributes:
        day_of: The column whose UTC day is `dt`.
        sort: The order of rows in compacted files.
    """

    name: str
    columns: Columns
    day_of: str
    sort: tuple[str, ...]
    #: Columns whose values rarely repeat: written without a dictionary.
    plain: tuple[str, ...] = ()

    @property
    def app(self) -> str:
        """The app id of the table's Delta transactions. A transaction's version is the number of its batch."""
        return f"jobq-{self.name}"

    def schema(self) -> pa.Schema:
        """Return the schema of the table's files, which don't contain the column `dt`."""
        return arrow_schema(self.columns)

    def delta_schema(self) -> pa.Schema:
        """Return the schema of the table: the columns and `dt`."""
        import pyarrow as pa

        return self.schema().append(pa.field("dt", pa.date32()))

    def encodings(self) -> dict[str, Any]:
        types = {column.name: column.type for column in self.columns}
        packed = {"int64", "int32", "timestamp"}
        encoding = {
            name: "DELTA_BINARY_PACKED" if types[name] in packed else "DELTA_LENGTH_BYTE_ARRAY"
            for name in self.plain
        }
        repeated = [c.name for c in self.columns if c.name not in encoding and c.type != "map"]
        return {"use_dictionary": repeated, "column_encoding": encoding}


EVENTS = LakeTable(
    "events", LAKE_EVENTS, "finished_at", ("queue", "job", "finished_at"),
    ("mid", "trace_id", "total_ms", "finished_at", "run_us", "cpu_us", "rss_kib", "bytes", "entry_ms"),
)  # fmt: skip
TOPICS = LakeTable("topics", TOPIC_COLUMNS, "at", ("topic", "index"), ("index", "at", "content"))
DEAD = LakeTable("dead", DEAD_COLUMNS, "died_at", ("queue", "died_at"), ("content", "died_at"))
QUARANTINE = LakeTable(
    "quarantine", QUARANTINE_COLUMNS, "seen_at", ("queue", "entry_id"), ("content",)
)
JOB_RUNS = LakeTable("job_runs", JOB_RUN_COLUMNS, "first_at", ("queue", "job", "first_at"),
                 ("mid", "first_at", "enqueued_at", "started_at", "last_at", "run_us", "cpu_us",
                  "wait_ms"))  # fmt: skip
ROLLUP = LakeTable("rollup_hourly", ROLLUP_COLUMNS, "hour", ("hour", "queue", "job"),
               ("run_us_sketch", "wait_ms_sketch"))  # fmt: skip
MARKS = LakeTable("marks", MARK_COLUMNS, "at", ("at",))
AUDIT = LakeTable("audit", AUDIT_COLUMNS, "at", ("at", "entry_id"), ("entry_id", "at"))
ERASED = LakeTable("erased", ERASED_COLUMNS, "at", ("at", "kind"), ("hash",))

TABLES = {
    t.name: t for t in (EVENTS, TOPICS, DEAD, QUARANTINE, JOB_RUNS, ROLLUP, MARKS, ERASED, AUDIT)
}

#: SQL that restores the times of the view `events` from the stored distances.
RESTORED = {
    "enqueued_at": "timestamp_millis(unix_millis(finished_at) - total_ms)",
    "entry_at": "timestamp_millis(unix_millis(finished_at) + entry_ms)",
}


def to_lake(batch: pa.RecordBatch) -> pa.Table:
    """Convert events to the columns that the lake stores."""
    import pyarrow as pa
    import pyarrow.compute as pc

    finished = _ms(batch.column("finished_at"))
    columns = {
        "total_ms": pc.subtract(finished, _ms(batch.column("enqueued_at"))),
        "entry_ms": pc.subtract(_ms(batch.column("entry_at")), finished),
    }
    arrays = [columns[c.name] if c.name in columns else batch.column(c.name) for c in LAKE_EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS.schema())


#: Computed columns of the view `events`, each with the stored columns that it is computed from.
_MADE_OF = {
    "base_queue": ("queue",),
    "flow": ("mid",), "step": ("mid",),
    "enqueued_at": ("finished_at", "total_ms"), "started_at": ("finished_at", "run_us"),
    "wait_ms": ("total_ms", "run_us"), "entry_at": ("finished_at", "entry_ms"),
}  # fmt: skip


def stored_for(names: Iterable[str]) -> list[str]:
    """Return the stored columns that are needed to compute these columns of the view `events`."""
    needed = {stored for name in names for stored in _MADE_OF.get(name, (name,))}
    return [column.name for column in LAKE_EVENTS if column.name in needed]


def from_lake(table: pa.Table, names: Iterable[str] = ()) -> pa.Table:
    """Convert stored rows to the columns of the view `events`. If the rows have the column `dt`, keep it.

    Args:
        names: Columns to return; by default all.
    """
    import pyarrow as pa

    wanted = set(names)
    columns = tuple(c for c in EVENT_COLUMNS if not wanted or c.name in wanted)
    made = _computed(table, {c.name for c in columns})
    arrays = [made[c.name] if c.name in made else table[c.name] for c in columns]
    whole = pa.Table.from_arrays(arrays, schema=arrow_schema(columns))
    return whole.append_column("dt", table["dt"]) if "dt" in table.column_names else whole


def _computed(table: pa.Table, names: Set[str]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    stamp = pa.timestamp("us", tz="UTC")

    def earlier(distance: Any) -> Any:
        return pc.subtract(table["finished_at"].cast(pa.int64()), distance).cast(stamp)

    columns: dict[str, Any] = {}
    if "base_queue" in names:
        columns["base_queue"] = bases(table["queue"])
    if names & {"flow", "step"}:
        columns["flow"], columns["step"] = members(table["mid"])
    if "enqueued_at" in names:
        columns["enqueued_at"] = earlier(pc.multiply(table["total_ms"], 1000))
    if "started_at" in names:
        columns["started_at"] = earlier(table["run_us"])
    if "wait_ms" in names:
        waited = pc.subtract(table["total_ms"], pc.divide(table["run_us"], 1000))
        columns["wait_ms"] = pc.max_element_wise(waited, 0, skip_nulls=False)
    if "entry_at" in names:
        columns["entry_at"] = earlier(pc.multiply(table["entry_ms"], -1000))
    return columns


def _ms(times: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.divide(times.cast(pa.int64()), 1000)
