"""The writers that `df.write.format("jobq")` and `df.writeStream.format("jobq")` use.

They are made on the driver, checked there, and travel to the tasks; `commit` and `abort` run on the driver.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from jobq.client.connection import connect
from jobq.errors import BadRecord, ConfigError, PipelineError
from jobq.pipeline import collector
from jobq.pipeline.writing import janitor, publishing
from jobq.pipeline.writing.delivery import Delivery, StagedDelivery
from jobq.pipeline.writing.outlet import Staged
from jobq.pipeline.writing.rows import Rows
from jobq.pipeline.writing.settings import WriteSettings, write_settings
from jobq.queue.directory import register_queue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("jobq.pipeline")
#: What Spark sets for the tasks of a stream's batch.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What one task did. `staged`: of an atomic write, under the name `run`."""

    nrows: int
    nadded: int
    npresent: int
    run: str
    staged: tuple[Staged, ...] = ()


class Place(NamedTuple):
    """Where an attempt runs. query and batch are those of a stream, also within its foreachBatch; else ''."""

    partition: int = 0
    query: str = ""
    batch: str = ""


def here() -> Place:
    """Of the task that runs in this process."""
    context = TaskContext.get()
    if context is None:
        return Place()
    query, batch = (context.getLocalProperty(name) or "" for name in (_QUERY, _BATCH))
    return Place(context.partitionId(), query, batch)


class JobqWriter(DataSourceArrowWriter):
    """One `save()`. `run` is its own random name, for what it stages; ids don't depend on it."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        self._settings, self._schema = settings, schema
        self._run = secrets.token_urlsafe(12)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """One attempt at one partition."""
        return attempt(self._settings, self._schema, iterator, self._run, here())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every partition is written."""
        _commit(self._settings, self._run, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task failed for good, or the commit did."""
        _abort(self._settings, self._run, messages)


class JobqStreamWriter(DataSourceStreamArrowWriter):
    """One query. What a batch stages is named after query and batch, ids too."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        self._settings, self._schema = settings, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """One attempt at one partition of one batch."""
        place = here()
        if not place.batch:
            raise PipelineError("Spark names no batch, as under a continuous trigger; use another")
        run = f"{place.query}.{place.batch}"
        return attempt(self._settings, self._schema, iterator, run, place)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every partition of this batch is written."""
        _commit(self._settings, _run_of(messages), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task failed for good, or the commit did; the query ends, and repeats the batch when started again."""
        _abort(self._settings, _run_of(messages), messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> JobqWriter:
    """For `df.write`; ConfigError for what can't be written, before any task runs."""
    if overwrite:
        raise ConfigError(
            "mode overwrite would drop what waits in the queue; use mode('append'), and `jobq clear` to empty it"
        )
    settings = _prepared(write_settings(options, schema))
    return JobqWriter(settings, schema)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> JobqStreamWriter:
    """For `df.writeStream`; the same."""
    if overwrite:
        raise ConfigError(
            "outputMode complete would enqueue every row in every batch; use append or update"
        )
    return JobqStreamWriter(_prepared(write_settings(options, schema)), schema)


def _prepared(settings: WriteSettings) -> WriteSettings:
    """With the address of the server, which was found to answer; leftovers of other writes are gone."""
    client = connect(settings=settings.server)
    try:
        if settings.atomic:
            janitor.sweep(client)
        elif not settings.queue_column:
            register_queue(client, settings.queue)
        else:
            client.command("TIME")
        return replace(settings, server=replace(settings.server, url=client.url))
    finally:
        client.close()


def attempt(
    settings: WriteSettings,
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
    run: str,
    place: Place,
) -> Written:
    """Write the rows of one partition; all of them, or an error that says what is written."""
    client = connect(settings=settings.server)
    delivery = Delivery(settings, client)
    signs: AbstractContextManager[None] = nullcontext()
    if settings.atomic:
        delivery = StagedDelivery(settings, client, run, secrets.token_urlsafe(12))
        signs = janitor.signs_of_life(settings.server, run)
    rows = Rows(settings, schema, _load_of(settings, place), place.partition)
    try:
        with collector.switched_off(), signs:
            _pass_on(rows, batches, delivery)
    finally:
        client.close()
    staged = tuple(delivery.staged.values())
    return Written(rows.number, delivery.nadded, delivery.npresent, run, staged)


def _pass_on(rows: Rows, batches: Iterator[pa.RecordBatch], delivery: Delivery) -> None:
    put = delivery.put
    try:
        for batch in batches:
            for message in rows.messages(batch):
                put(message)
        delivery.flush()
    except BadRecord as error:
        done = delivery.nadded + delivery.npresent
        if not done:
            raise
        raise BadRecord(
            f"{error}. {done} rows of this partition are enqueued; correct the row and write again, or use "
            "option commit=atomic to have all or none"
        ) from error


def _commit(
    settings: WriteSettings, run: str, messages: Sequence[WriterCommitMessage | None]
) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    nadded, npresent = sum(w.nadded for w in written), sum(w.npresent for w in written)
    if settings.atomic:
        client = connect(settings=settings.server)
        try:
            with janitor.signs_of_life(settings.server, run):
                parts = [part for one in written for part in one.staged]
                nadded, npresent = publishing.publish(client, run, parts, settings.dedupe_ms)
        finally:
            client.close()
    if npresent:
        _log.warning(
            "%d of %d rows were enqueued already, as rows of this id or load within dedupeFor are; %d were added",
            npresent, nadded + npresent, nadded,
        )  # fmt: skip


def _abort(
    settings: WriteSettings, run: str, messages: Sequence[WriterCommitMessage | None]
) -> None:
    if settings.atomic:
        client = connect(settings=settings.server)
        try:
            publishing.drop(client, run)
        finally:
            client.close()
        return
    _log.warning(
        "the write failed; rows of finished batches are enqueued. Written again, with the same ids or loadId, "
        "within dedupeFor, only the rest is added"
    )


def _load_of(settings: WriteSettings, place: Place) -> str:
    """What tells a load from others: each batch of a stream is one."""
    return f"{settings.load_id or place.query}/{place.batch}" if place.batch else settings.load_id


def _run_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    return next((message.run for message in messages if isinstance(message, Written)), "")
