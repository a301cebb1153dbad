"""Ingest dead messages with their contents, so that a replay can put them back after a purge.

The server has dead messages in a set sorted by time of death, not in a log. Each round reads from an hour
before the latest known death, and stores the messages that the table doesn't have.

Values that `@job(redact=...)` hides are also hidden in the lake. A call with hidden values would run with wrong
arguments, so it is stored in a form that workers don't run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import CodecError, JobqError, ScriptError
from jobq.jobs import codec
from jobq.jobs.signing import unverified
from jobq.observe.redaction import HIDDEN, Redactor
from jobq.pipeline.engine import Engine, gc_off, raise_first
from jobq.pipeline.lake.commit import IngestState, commit_batch, state_of
from jobq.pipeline.lake.files import DataFile, DataFileWriter, LiveFile, live_files, rows_of_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.partitions import settings_of
from jobq.pipeline.lake.store import LakeStore, remove_files
from jobq.pipeline.lake.tables import DEAD, of_source, sourced
from jobq.pipeline.lake.tombstones import TombstoneFiles, tombstone_files
from jobq.pipeline.offsets import LogOffset, latest_time
from jobq.pipeline.options import EngineName
from jobq.pipeline.reading.live import QueueRows, cut_dead, dead_batches, dead_counts, newest_deaths
from jobq.pipeline.reading.request import ReadRequest
from jobq.pipeline.schema import DEAD_COLUMNS
from jobq.queue import presence

#: Returns a context manager for reading the named queue or topic. It skips the queue or topic by suppressing an error.
Tolerating = Callable[[str], AbstractContextManager[object]]
#: How far a server's clock may have stepped back between two deaths.
OVERLAP_MS = 3_600_000
#: Approximate number of dead messages per task.
UNIT_ROWS = 100_000
#: The reason why a call in the lake can't run.
REDACTED = "its job hides arguments (redact=), so the lake has them as [hidden]; enqueue it again with its arguments"
#: Hidden texts of at least this length are also hidden in the reason of death.
SHORTEST = 4


def keep_dead(
    lake: Lake, client: Client, queues: Iterable[str], tolerating: Tolerating = nullcontext, source: str = "",
    engine: Engine | None = None, ran: Callable[[EngineName], object] = lambda engine: None,
) -> int:  # fmt: skip
    """Store the dead messages that the lake doesn't have, and return their number.

    Raises CommitConflictError if another ingest stored messages at the same time. Messages with a time of death more
    than a day in the future are skipped, because jobq never writes such a time.

    Args:
        tolerating: Returns a context manager for each queue. If it suppresses an error, the queue is skipped.
        source: Name of the server in the lake.
        engine: Runs the tasks that read and write.
        ran: Called with the chosen engine if there may be new dead messages.
    """
    state = state_of(lake, DEAD)
    own = replace(state, places=of_source(source, state.places))
    upto, newest = latest_time(client), dict[str, int]()
    names = list(queues)
    for queue, at in zip(names, newest_deaths(client, names, upto), strict=True):
        with tolerating(f"dead of queue {queue}"):
            if isinstance(at, JobqError):
                raise at
            if at:
                newest[queue] = at
    since = {queue: _since(own, queue, upto) for queue in newest}
    # If the latest death is older, messages were purged, and the table has all that are left.
    todo = {queue: at for queue, at in newest.items() if at >= since[queue]}
    if not todo:
        return 0
    spans = {queue: (since[queue], at) for queue, at in todo.items()}
    files, kept = _files_of(lake, client, spans, tolerating, source, engine or Engine("local"), ran)
    # The latest dead message may have been revived or purged since; offsets only go forward.
    places = {
        sourced(source, queue): LogOffset(
            str(max(todo[queue], _looked_at_until(own, queue, upto) or 0)), 0
        )
        for queue in kept
    }
    rows = sum(file.rows for file in files)
    if files:
        commit_batch(lake, DEAD, files, state.following(places, rows, {}))
    return rows


class DeadUnit(NamedTuple):
    """A task that reads dead messages of some queues and writes them to the lake.

    Attributes:
        names: Names of the queues in the lake.
        known: Files of the table for the same days; their messages aren't written again.
        erased: Tombstones; rows that match them are left out.
    """

    settings: ServerSettings
    store: LakeStore
    spans: tuple[QueueRows, ...]
    names: Mapping[str, str]
    known: tuple[LiveFile, ...]
    erased: TombstoneFiles | None = None


class DeadResult(NamedTuple):
    """The result of a task that reads dead messages.

    Attributes:
        problems: For each queue that wasn't read completely, the error's class and message.
        failed: Class and message of the task's error. After an error, `files` is empty.
    """

    files: tuple[DataFile, ...] = ()
    problems: Mapping[str, tuple[str, str]] = {}
    failed: tuple[str, str] | None = None


def read_dead(unit: DeadUnit) -> DeadResult:
    """Write the unit's dead messages into files, except messages that the lake already has.

    A JobqError is returned in the result.
    """
    client, problems = Client(unit.settings), dict[str, tuple[str, str]]()
    try:
        erased = unit.erased.load() if unit.erased else None
        there = _known_ids(unit)
        request = ReadRequest(view="dead", settings=unit.settings, columns=DEAD_COLUMNS)
        with gc_off(), DataFileWriter(unit.store, DEAD) as writer:
            for span in unit.spans:
                try:
                    for batch in dead_batches(request, span, client):
                        rows = _named(pa.Table.from_batches([batch]), unit.names[span.name])
                        rows = _unknown(rows, there)
                        rows = redacted(rows, presence.redactions(client, _jobs_of(rows)))
                        writer.add(erased.kept(DEAD.name, rows) if erased else rows)
                except ScriptError as error:
                    problems[span.name] = (type(error).__name__, str(error))
            return DeadResult(tuple(writer.finish()), problems)
    except JobqError as error:
        return DeadResult(failed=(type(error).__name__, str(error)))
    finally:
        client.close()


def _files_of(
    lake: Lake, client: Client, spans: Mapping[str, tuple[int, int]], tolerating: Tolerating, source: str,
    engine: Engine, ran: Callable[[EngineName], object],
) -> tuple[list[DataFile], list[str]]:  # fmt: skip
    """Write new dead messages into files. Return the files, and the queues without errors."""
    counted = [
        QueueRows(queue, rows, *spans[queue])
        for queue, rows in zip(spans, dead_counts(client, spans), strict=True)
    ]
    store, erased, settings = lake.below(DEAD.name), tombstone_files(lake), settings_of(client)
    names = {queue: sourced(source, queue) for queue in spans}
    live, units = live_files(lake.table(DEAD.name)), list[DeadUnit]()
    for (first, last), some in _by_days(counted).items():
        known = tuple(file for file in live if first <= file.dt <= last)
        for part in _shares(piece for span in some for piece in cut_dead(client, span, UNIT_ROWS)):
            own = {piece.name: names[piece.name] for piece in part}
            units.append(DeadUnit(settings, store, tuple(part), own, known, erased))
    rows = sum(span.rows for span in counted)
    ran(engine.chosen(rows))
    results = list(engine.run_units(read_dead, units, rows))
    problems = {queue: problem for result in results for queue, problem in result.problems.items()}
    files = [file for result in results for file in result.files]
    try:
        raise_first(result.failed for result in results)
        for queue, problem in problems.items():
            with tolerating(f"dead of queue {queue}"):
                raise_first([problem])
    except JobqError:
        remove_files(store, [file.path for file in files])
        raise
    return files, [queue for queue in spans if queue not in problems]


def _shares(spans: Iterable[QueueRows]) -> Iterator[list[QueueRows]]:
    """Group spans, each group with about UNIT_ROWS rows."""
    some, rows = list[QueueRows](), 0
    for span in spans:
        rows += span.rows
        if some and rows > UNIT_ROWS:
            yield some
            some, rows = [], span.rows
        some.append(span)
    if some:
        yield some


def _by_days(spans: Iterable[QueueRows]) -> dict[tuple[str, str], list[QueueRows]]:
    groups: dict[tuple[str, str], list[QueueRows]] = {}
    for span in spans:
        groups.setdefault((_day(span.since), _day(span.upto)), []).append(span)
    return groups


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _jobs_of(rows: pa.Table) -> set[str]:
    return {job for job in rows["job"].to_pylist() if job is not None}


def redacted(rows: pa.Table, hidden: Mapping[str, tuple[str, ...]]) -> pa.Table:
    """Return dead messages without the values that their jobs hide.

    Args:
        hidden: Names of hidden arguments by job, as workers stored them.
    """
    if not hidden:
        return rows
    redactor = Redactor(declared=lambda job: hidden.get(job, ()), usual=())
    plain: list[Any] = rows.select(["job", "content", "reason"]).to_pylist()
    for row in plain:
        if row["job"] in hidden:
            row.update(_redacted_row(redactor, row))
    for name in ("content", "reason"):
        index = rows.schema.get_field_index(name)
        column = pa.array([row[name] for row in plain], rows.schema.field(name).type)
        rows = rows.set_column(index, rows.schema.field(name), column)
    return rows


def _redacted_row(redactor: Redactor, row: Mapping[str, Any]) -> dict[str, Any]:
    job, content, reason = row["job"], row["content"], row["reason"] or ""
    try:
        call = codec.decode(unverified(content))
    except CodecError:
        # The content names a job, but isn't a readable call.
        why = "its job hides arguments (redact=), and it is not a call"
        return {"content": codec.refusal(why, b"", {}), "reason": HIDDEN}
    shown = redactor.call(job, call.args, call.kwargs)
    values = {*_hidden_values([call.args, call.kwargs], [shown.args, shown.kwargs])}
    for value in sorted(values, key=len, reverse=True):
        reason = reason.replace(value, HIDDEN)
    changes = {"reason": redactor.text(reason, redactor.declared(job))}
    if not values and (shown.args, shown.kwargs) == (call.args, call.kwargs):
        return changes
    left = codec.encode_plain(
        json.loads(json.dumps([shown.args, shown.kwargs])), f"the call of {job}"
    )
    return {**changes, "content": codec.refusal(REDACTED, left, {"job": job})}


def _hidden_values(before: Any, after: Any) -> Iterator[str]:
    """Yield texts that `before` contains and `after` hides. Short texts are left out."""
    if after == HIDDEN and before != HIDDEN:
        yield from (text for text in _texts(before) if len(text) >= SHORTEST)
    elif isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from _hidden_values(value, after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        for old, new in zip(before, after):
            yield from _hidden_values(old, new)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from _texts(element)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _looked_at_until(state: IngestState, queue: str, upto: int) -> int | None:
    """Return the time up to which the ingest has read the queue's dead messages.

    Returns None before the first read, or if the stored time is impossible.
    """
    at = int(state.places[queue].id) if queue in state.places else None
    return None if at is None or at > upto else at


def _since(state: IngestState, queue: str, upto: int) -> int:
    """Return the time at which to start reading dead messages; 0 before the first read of the queue.

    Later reads skip the table's expired days, because the server may still have dead messages from these days.
    """
    if queue not in state.places:
        return 0
    kept_from = datetime.fromisoformat(f"{state.before or '1970-01-01'}T00Z")
    looked_at = _looked_at_until(state, queue, upto) or 0
    return max(looked_at - OVERLAP_MS, round(kept_from.timestamp() * 1000))


def _known_ids(unit: DeadUnit) -> pa.Array[Any]:
    wanted = pa.array(list(unit.names.values()), pa.string())
    stored = rows_of_files(unit.store, unit.known, ["queue", "dead_id"])
    known = [_ids(rows.filter(pc.is_in(rows["queue"], wanted))) for rows in stored]
    return pa.concat_arrays([c for ids in known for c in ids.chunks] or [pa.array([], pa.string())])


def _named(rows: pa.Table, queue: str) -> pa.Table:
    names = pa.array([queue] * rows.num_rows, pa.string())
    return rows.set_column(rows.schema.get_field_index("queue"), rows.schema.field("queue"), names)


def _unknown(rows: pa.Table, there: pa.Array[Any]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(_ids(rows), there)))


def _ids(rows: pa.Table) -> Any:
    queue: Any = rows["queue"]
    return pc.binary_join_element_wise(queue, rows["dead_id"], "\x1f")
