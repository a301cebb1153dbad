"""Convert rows to messages: content (as jobq/jobs/codec.py encodes a call), mid, queue and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.client.names import checked_name
from jobq.errors import BadRecordError, JobqError
from jobq.jobs.codec import decode_any, encode
from jobq.jobs.signing import seal_for
from jobq.pipeline.writing import column_types
from jobq.pipeline.writing.settings import MAX_S, WriteSettings
from jobq.queue.mids import mid_of, users_mid
from jobq.queue.types import checked_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class RowMessage(NamedTuple):
    """The message for a row of a DataFrame.

    Attributes:
        when: The earliest start: '' for immediately, 'd<ms>' for a delay, 'a<epoch ms>' for a time.
        key: The message's key; '' if it has none.
    """

    queue: str
    when: str
    mid: str
    content: bytes
    key: str = ""


class Rows:
    """Converts the rows of a partition to messages.

    Attributes:
        number: Number of rows so far.
    """

    def __init__(
        self, settings: WriteSettings, schema: StructType, load_id: str, partition: int
    ) -> None:
        self._settings = settings
        self._seal = seal_for(settings.server.codec)
        self._ids = Ids(load_id, partition)
        self._partition = partition
        self._index = {field.name: at for at, field in enumerate(schema.fields)}
        self._plain = [
            (column_types.due if field.name == settings.delay_column else column_types.plain)(
                field.dataType
            )
            for field in schema.fields
        ]
        kind = schema[settings.args_column].dataType if settings.args_column else None
        self._arguments = _arguments_of(column_types.word(kind)) if kind is not None else None
        self._checked: set[str] = {settings.queue}
        self.number = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[RowMessage]:
        """Yield a message per row. Raises BadRecordError, which names the row and its error."""
        settings = self._settings
        stamp = b',"enqueued_at":%d}' % (time.time_ns() // 1_000_000)
        nothing = [None] * batch.num_rows
        queues, mids, times, arguments, keys = (
            self._values(batch, name) if name else nothing
            for name in (
                settings.queue_column, settings.id_column, settings.delay_column, settings.args_column,
                settings.key_column,
            )
        )  # fmt: skip
        names = settings.kwargs_columns
        kwargs: Any = zip(*[self._values(batch, name) for name in names], strict=True)
        rows = zip(queues, mids, times, keys, arguments, kwargs if names else [()] * batch.num_rows)
        for queue, mid, at, key, args, values in rows:
            self.number += 1
            try:
                call = encode(settings.job, self._args(args), dict(zip(names, values)))
                yield self._message((queue, mid, at, key), call, stamp)
            except JobqError as error:
                raise self._bad(str(error), mid) from error

    def _message(self, serving: tuple[Any, Any, Any, Any], call: bytes, stamp: bytes) -> RowMessage:
        """Make the message for a row.

        Args:
            serving: The row's queue, mid, time and key; each may be None.
        """
        queue, mid, at, key = serving
        settings = self._settings
        queue = settings.queue if queue is None else queue
        if queue not in self._checked:
            self._checked.add(checked_name("queue", queue))
        when = settings.when if at is None else _when(at)
        key = "" if key is None else checked_key(str(key))
        if settings.id_column:
            mid = _given_id(settings.id_column, mid)
        else:
            line = f"{key}\0" if key else ""
            mid = self._ids.id(f"{queue}\0{when}\0{line}".encode() + call)
        content = call[:-1] + stamp
        if self._seal is not None:
            content = self._seal.close_call(queue, mid, content, _due_ms(when))
        return RowMessage(queue, when, mid, content, key)

    def _args(self, value: Any) -> Sequence[Any]:
        return () if value is None or self._arguments is None else self._arguments(value)

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        at = self._index[name]
        convert = self._plain[at]
        column: Any = batch.column(at)
        try:
            column = column.cast(column_types.with_micros(column.type))
            values: list[Any] = column.to_pylist()
            return values if convert is None else list(map(convert, values))
        except (ValueError, OverflowError) as error:
            raise self._unreadable(column, name, convert, error) from error

    def _unreadable(
        self, column: Any, name: str, convert: column_types.Plain | None, error: Exception
    ) -> BadRecordError:
        for index in range(len(column)):
            try:
                value = column[index].as_py()
                if convert is not None:
                    convert(value)
            except (ValueError, OverflowError) as inner:
                self.number += index + 1
                return self._bad(f"column {name!r} can't be read ({inner}); correct or cast it", "")
        return self._bad(f"column {name!r} can't be read ({error}); correct or cast it", "")

    def _bad(self, what: str, mid: Any) -> BadRecordError:
        named = f" (id {mid!r:.140})" if mid not in (None, "") else ""
        return BadRecordError(f"row {self.number} of partition {self._partition}{named}: {what}")


def _given_id(column: str, value: Any) -> str:
    if value is None:
        raise BadRecordError(
            f"column {column!r} is null; an id must have 1-128 printable characters"
        )
    return users_mid(value if type(value) is str else str(value))


def _when(value: Any) -> str:
    if isinstance(value, str):
        return value
    seconds = float(value)
    if not isfinite(seconds) or not 0 <= seconds < MAX_S:
        raise BadRecordError(
            f"a delay of {value} seconds is out of range; it must be between 0 and 100 years"
        )
    return f"d{round(seconds * 1000)}"


def _due_ms(when: str) -> float:
    """Convert a message's `when` to the earliest start in epoch ms; 0 means immediately."""
    if not when:
        return 0
    return int(when[1:]) + (time.time() * 1000 if when[0] == "d" else 0)


def _arguments_of(kind: str) -> Callable[[Any], Sequence[Any]]:
    if kind == "array":
        return lambda value: value
    if kind == "struct":
        return lambda value: list(value.values())
    return _from_json


def _from_json(text: str) -> Sequence[Any]:
    value = decode_any(text.encode("utf-8", "replace"))
    if not isinstance(value, list):
        raise BadRecordError(f"arguments must be a JSON array, not {text!r:.60}")
    return value


class Ids:
    """Makes ids for rows that have none.

    The ids are the same if Spark repeats the partition, in any order of rows. An id is a hash of load, partition, row,
    and the number of earlier equal rows in the partition. Without the partition's number, equal rows of two partitions
    would get the same id.
    """

    def __init__(self, load_id: str, partition: int) -> None:
        load = load_id.encode("utf-8", "surrogatepass")
        self._base = blake2b(b"%d:%b%d:" % (len(load), load, partition), digest_size=12)
        self._seen: set[bytes] = set()
        self._repeats: dict[bytes, int] = {}

    def id(self, row: bytes) -> str:
        """Return an id for this row. Equal rows get different ids."""
        hashed = self._base.copy()
        hashed.update(row)
        digest = hashed.digest()
        if digest in self._seen:
            n = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            hashed.update(b"\0%d" % n)
            digest = hashed.digest()
        else:
            self._seen.add(digest)
        return mid_of(digest)


def with_ids(df: DataFrame, column: str = "id", load_id: str = "") -> DataFrame:
    """Add a column of ids for `idColumn`. The ids don't depend on how the rows are partitioned.

    An id is a hash of `load_id`, the row's values, and its number among equal rows. Spark shuffles the rows to number
    them. If you load the same rows again as new messages, pass another `load_id`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns = {field: F.col(f"`{field.name.replace('`', '``')}`") for field in df.schema.fields}
    parts = [
        column_types.comparable(column, field.dataType).alias(field.name)
        for field, column in columns.items()
    ]
    whole = F.to_json(F.struct(*parts), {"timeZone": "UTC", "ignoreNullFields": "false"})
    number = F.row_number().over(Window.partitionBy(whole).orderBy(F.lit(0)))
    named = F.concat_ws("\0", F.lit(load_id), whole, number.cast("string"))
    return df.withColumn(column, F.substring(F.sha2(named, 256), 1, 32))
