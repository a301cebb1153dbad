"""Decode the entries of event streams into Arrow batches.

Arrow's CSV reader decodes whole batches. Python decodes the rows that the CSV reader rejects. An invalid entry is
returned with its bytes and the reason, so it doesn't stop the read. Executors import this module, so it needs only
pyarrow and a few modules of jobq.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from jobq.client.names import base_of
from jobq.errors import BadRecordError
from jobq.events import ABSOLUTE, COLUMNS, LIMITS, SCHEMA, SEPARATOR, columns_of, in_utc
from jobq.pipeline.schema import events_schema, members

#: A rejected batch is halved to find the bad rows. A batch of at most this many rows is decoded row by row instead.
FEW = 16
VERSION = SCHEMA.encode()
_SEP = SEPARATOR.encode()
#: Accepted by the CSV reader but not by the format: signs, hexadecimal digits and blanks in numbers, other line
#: endings. They are allowed in texts, where they only slow down the batch.
_NEVER = (b"\r", b"\0", b"\t")
_AT_START = (_SEP + b"-", _SEP + b"0x", _SEP + b"0X")
#: One message id in 64 begins with a dash, so such fields are matched completely.
_NUMBER_LIKE = re.compile(rb"(?:-[0-9]*|-?0[xX][0-9a-fA-F]*)(?=[\x1f\n]|\Z)")
_BLANKS = (_SEP + b" ", b" " + _SEP)
_SCHEMA = events_schema()
_TYPES: dict[str, pa.DataType] = {
    name: pa.int64() if name.endswith("_at") else _SCHEMA.field(name).type for name in COLUMNS
}
_ID_TYPES: dict[str, pa.DataType] = {"entry_at": pa.int64(), "entry_seq": pa.int32()}


class BadEntry(NamedTuple):
    """An entry that isn't a valid record, with its bytes and the reason."""

    id: bytes
    version: bytes
    value: bytes
    reason: str


class TimeBounds(NamedTuple):
    """The range of times that events can have, epoch ms.

    `finished_at` must be in the range. `enqueued_at` may be before the range, because a message can be delayed or
    imported.
    """

    first: int
    last: int

    def check(self, finished_at: int, enqueued_at: int | None) -> None:
        """Raise BadRecordError for times out of range."""
        if enqueued_at is not None and enqueued_at < ABSOLUTE:
            enqueued_at = finished_at - enqueued_at
        for name, at in (("finished_at", finished_at), ("enqueued_at", enqueued_at)):
            if at is not None and (at > self.last or (at < self.first and name == "finished_at")):
                raise BadRecordError(
                    f"{name} {in_utc(at)} is out of range; it must be between {in_utc(self.first)}, a day before "
                    f"jobq's first use here, and {in_utc(self.last)}, a day from now"
                )

    def hold(self, table: pa.Table) -> bool:
        """Return whether all times are within the bounds."""
        finished, enqueued = table["finished_at"], table["enqueued_at"]
        is_ago = pc.less(enqueued, pa.scalar(ABSOLUTE))
        at = pc.if_else(is_ago, pc.subtract(finished, enqueued), enqueued)
        ends: Any = pc.min_max(finished).as_py()
        newest: int | None = pc.max(at).as_py()
        return bool(self.first <= ends["min"] and max(ends["max"], newest or 0) <= self.last)


class DecodedEntries(NamedTuple):
    """The result of decoding.

    Attributes:
        batch: The valid records, with the columns of the view `events`.
        bad: The entries that aren't valid records.
    """

    batch: pa.RecordBatch
    bad: list[BadEntry]


def columns(reply: Sequence[Any]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return ids, versions and values of XRANGE's reply. The version is empty for an entry with several fields."""
    ids = [entry[0] for entry in reply]
    fields = [entry[1] for entry in reply]
    if all(len(field) == 2 for field in fields):
        return ids, [field[0] for field in fields], [field[1] for field in fields]
    versions = [field[0] if len(field) == 2 else b"" for field in fields]
    values = [field[1] if len(field) == 2 else _SEP.join(field) for field in fields]
    return ids, versions, values


def decode(
    queue: str, ids: Sequence[bytes], versions: Sequence[bytes], values: Sequence[bytes],
    bounds: TimeBounds | None = None,
) -> DecodedEntries:  # fmt: skip
    """Decode event records. In the result, `bad` contains invalid entries and entries with times outside `bounds`."""
    bad: list[BadEntry] = []
    batches: list[pa.RecordBatch] = []
    if versions.count(VERSION) != len(versions):
        known = [i for i, version in enumerate(versions) if version == VERSION]
        others = [i for i, version in enumerate(versions) if version != VERSION]
        for i in others:
            _one_by_one(queue, ids[i : i + 1], values[i : i + 1], batches, bad, bounds, versions[i])
        ids, values = [ids[i] for i in known], [values[i] for i in known]
    _halved(queue, ids, values, batches, bad, bounds)
    if len(batches) == 1:
        return DecodedEntries(batches[0], bad)
    whole = pa.Table.from_batches(batches, _SCHEMA).combine_chunks().to_batches()
    return DecodedEntries(whole[0] if whole else _nothing(), bad)


def _halved(
    queue: str, ids: Sequence[bytes], values: Sequence[bytes], batches: list[pa.RecordBatch], bad: list[BadEntry],
    bounds: TimeBounds | None,
) -> None:  # fmt: skip
    if not ids:
        return
    batch = _together(queue, ids, values, bounds)
    if batch is not None:
        batches.append(batch)
    elif len(ids) <= FEW:
        _one_by_one(queue, ids, values, batches, bad, bounds)
    else:
        middle = len(ids) // 2
        _halved(queue, ids[:middle], values[:middle], batches, bad, bounds)
        _halved(queue, ids[middle:], values[middle:], batches, bad, bounds)


def _together(
    queue: str, ids: Sequence[bytes], values: Sequence[bytes], bounds: TimeBounds | None
) -> pa.RecordBatch | None:
    """Decode all entries with the CSV reader. Return None if it can't decode one of them."""
    gaps = [_SEP * missing for missing in range(len(COLUMNS))]
    try:
        lines = [value + gaps[-1 - value.count(_SEP)] for value in values]
    except IndexError:
        return None
    text = b"\n".join(lines)
    if text.count(b"\n") != len(values) - 1 or _suspect(text):
        return None
    try:
        parsed = _parsed(text, _TYPES, SEPARATOR)
        entries = _parsed(b"\n".join(ids), _ID_TYPES, "-")
    except pa.ArrowInvalid:
        return None
    whole = parsed.num_rows == entries.num_rows == len(values)
    if not whole or parsed["kind"].null_count or parsed["finished_at"].null_count:
        return None
    if not all(_within(parsed[name], limit) for name, limit in LIMITS.items()):
        return None
    if bounds and not bounds.hold(parsed):
        return None
    return (
        _batch(queue, entries, parsed)
        if _within(entries["entry_at"], LIMITS["finished_at"])
        else None
    )


def _suspect(text: bytes) -> bool:
    # Searching for one byte is ten times faster than for two, and most texts have no blank.
    blanks = _BLANKS if b" " in text else ()
    return any(blank in text for blank in (*_NEVER, *blanks)) or any(
        _NUMBER_LIKE.match(text, at + 1) for start in _AT_START for at in _places(text, start)
    )


def _places(text: bytes, sought: bytes) -> Iterator[int]:
    at = text.find(sought)
    while at >= 0:
        yield at
        at = text.find(sought, at + 1)


def _parsed(text: bytes, types: dict[str, pa.DataType], delimiter: str) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(text),
        csv.ReadOptions(column_names=list(types), block_size=len(text) + 1, use_threads=False),
        csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
    )


def _within(column: pa.ChunkedArray[Any], limit: int) -> bool:
    most = pc.max(column).as_py()
    return most is None or most <= limit


def _one_by_one(
    queue: str, ids: Sequence[bytes], values: Sequence[bytes], batches: list[pa.RecordBatch], bad: list[BadEntry],
    bounds: TimeBounds | None, version: bytes = VERSION,
) -> None:  # fmt: skip
    entries: list[dict[str, int]] = []
    rows: list[dict[str, str | int]] = []
    for entry_id, value in zip(ids, values, strict=True):
        try:
            row, entry = columns_of(value, version), _id_of(entry_id)
            if bounds:
                bounds.check(row["finished_at"], row.get("enqueued_at"))  # type: ignore[arg-type]
        except BadRecordError as error:
            bad.append(BadEntry(entry_id, version, value, str(error)))
        else:
            rows.append(row)
            entries.append(entry)
    if rows:
        table = pa.Table.from_pylist(rows, pa.schema(list(_TYPES.items())))
        ids_found = pa.Table.from_pylist(entries, pa.schema(list(_ID_TYPES.items())))
        batches.append(_batch(queue, ids_found, table))


def _id_of(entry_id: bytes) -> dict[str, int]:
    at, _, sequence = entry_id.partition(b"-")
    if not (at.isdigit() and sequence.isdigit()):
        raise BadRecordError(f"{entry_id[:40]!r} is not the id of a stream's entry")
    if int(at) > LIMITS["finished_at"] or int(sequence) > LIMITS["attempt"]:
        raise BadRecordError(f"the time or sequence in entry id {entry_id.decode()} is too high")
    return {"entry_at": int(at), "entry_seq": int(sequence)}


def _batch(queue: str, entries: pa.Table, table: pa.Table) -> pa.RecordBatch:
    """Return all columns of the view, including computed columns. Times in ms become timestamps."""
    rows = table.num_rows
    arrays: dict[str, Any] = {name: table[name].chunk(0) for name in COLUMNS}
    arrays |= {name: entries[name].chunk(0) for name in _ID_TYPES}
    finished_ms, run_us, enqueued = (
        arrays[name] for name in ("finished_at", "run_us", "enqueued_at")
    )
    is_ago = pc.less(enqueued, pa.scalar(ABSOLUTE))
    arrays["enqueued_at"] = pc.if_else(is_ago, pc.subtract(finished_ms, enqueued), enqueued)
    waited = pc.subtract(pc.subtract(finished_ms, pc.divide(run_us, 1000)), arrays["enqueued_at"])
    arrays["wait_ms"] = pc.max_element_wise(waited, 0, skip_nulls=False)
    arrays["started_at"] = pc.subtract(pc.multiply(finished_ms, 1000), run_us)
    for name in ("finished_at", "enqueued_at", "entry_at"):
        arrays[name] = pc.multiply(arrays[name], 1000)
    arrays["flow"], arrays["step"] = members(arrays["mid"])
    arrays["attempt"] = pc.fill_null(arrays["attempt"], 0)
    arrays["queue"] = pa.repeat(pa.scalar(queue), rows)
    arrays["base_queue"] = pa.repeat(pa.scalar(base_of(queue)), rows)
    arrays["version"] = pa.repeat(pa.scalar(int(SCHEMA), pa.int32()), rows)
    columns = [arrays[field.name].cast(field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], _SCHEMA)
