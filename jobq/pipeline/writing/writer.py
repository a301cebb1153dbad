"""The writers behind `df.write.format("jobq")` and `df.writeStream.format("jobq")`.

Spark makes a writer on the driver and sends it to the tasks. `commit` and `abort` run on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from jobq.client.connection import Client, connect
from jobq.errors import BadRecordError, ConfigError, JobqError, PipelineError
from jobq.pipeline.engine import gc_off
from jobq.pipeline.gateway import told_without_traceback
from jobq.pipeline.options import unknown
from jobq.pipeline.writing.delivery import Delivery
from jobq.pipeline.writing.rows import Rows
from jobq.pipeline.writing.settings import WriteSettings, write_settings
from jobq.queue.directory import register_queue
from jobq.queue.presence import job_names, workers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("jobq.pipeline")
#: Local properties that Spark sets for the tasks of a stream's batch.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class PartitionWritten(WriterCommitMessage):
    """Result of a task: the numbers of rows, of added messages, and of messages already in their queue."""

    nrows: int
    nadded: int
    npresent: int


class PartitionOrigin(NamedTuple):
    """The partition that a task writes.

    `query` and `batch` are set in a stream, including its foreachBatch; otherwise they are ''.
    """

    partition: int = 0
    query: str = ""
    batch: str = ""


def current_origin() -> PartitionOrigin:
    """Return the partition that this process's task writes."""
    context = TaskContext.get()
    if context is None:
        return PartitionOrigin()
    query, batch = (context.getLocalProperty(name) or "" for name in (_QUERY, _BATCH))
    return PartitionOrigin(context.partitionId(), query, batch)


class JobqWriter(DataSourceArrowWriter):
    """Writer of a batch, for `df.write`."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        self.settings, self.schema = settings, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:  # type: ignore[override]
        """Write one partition."""
        return write_partition(self.settings, self.schema, iterator, current_origin())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the number of skipped rows, when all partitions have been written."""
        _log_present(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that Spark abandoned the write, because a task failed too often."""
        _log_failed()


class JobqStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query. Generated ids depend on the batch and on loadId, by default the query's id."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        self.settings, self.schema = settings, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:  # type: ignore[override]
        """Write one partition of one batch."""
        position = current_origin()
        if not position.batch:
            raise PipelineError(
                "Spark doesn't number batches with this trigger (continuous); use another trigger"
            )
        return write_partition(self.settings, self.schema, iterator, position)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the number of skipped rows, when all partitions of this batch have been written."""
        _log_present(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log that Spark abandoned a batch, because a task failed too often.

        The query stops. When it is restarted, it repeats the batch.
        """
        _log_failed()


@told_without_traceback()
def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> JobqWriter:
    """Make the writer of `df.write`. Raises ConfigError if the data can't be written, before any task runs."""
    if overwrite:
        raise ConfigError(
            "mode overwrite would delete the queue's waiting messages; use mode('append'), and `jobq queue purge` to "
            "empty it"
        )
    return JobqWriter(_connected(write_settings(options, schema)), schema)


@told_without_traceback()
def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> JobqStreamWriter:
    """Make the writer of `df.writeStream`, as `batch_writer` does."""
    if overwrite:
        raise ConfigError(
            "outputMode complete would enqueue every row in every batch; use append or update"
        )
    return JobqStreamWriter(_connected(write_settings(options, schema)), schema)


def _connected(settings: WriteSettings) -> WriteSettings:
    """Connect to the server, and return the settings with its address."""
    client = connect(settings=settings.server)
    try:
        if settings.queue_column:
            client.command("TIME")
        else:
            register_queue(client, settings.queue)
        _warn_of_unknown_job(client, settings)
        return replace(settings, server=replace(settings.server, url=client.url))
    finally:
        client.close()


def _warn_of_unknown_job(client: Client, settings: WriteSettings) -> None:
    """Log a warning if workers serve the queue but none of them knows the job.

    This isn't an error, because other workers may still start.
    """
    try:
        now_ms = client.clock_ms()
        live = [
            worker for worker in workers(client)
            if worker.is_live(now_ms) and (settings.queue_column or settings.queue in worker.queues)
        ]  # fmt: skip
        known = job_names(client, {worker.jobs for worker in live})
    except JobqError:
        return  # a producer's rights may end at its queue
    names = [known.get(worker.jobs) for worker in live]
    if names and all(jobs is not None and settings.job not in jobs for jobs in names):
        near = unknown("job", settings.job, {name for jobs in names if jobs for name in jobs})
        _log.warning(
            "no worker of queue %s knows the job %s, so its messages will wait: %s; start a worker that imports the "
            "job's module",
            (settings.queue_column and "*") or settings.queue, settings.job, near,
        )  # fmt: skip


@told_without_traceback()
def write_partition(
    settings: WriteSettings,
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
    position: PartitionOrigin,
) -> PartitionWritten:
    """Write all rows of one partition. The error for a bad row includes the number of rows already enqueued."""
    client = connect(settings=settings.server)
    delivery = Delivery(client, settings.batch, settings.dedupe_ms, settings.keyed)
    rows = Rows(settings, schema, _load_id(settings, position), position.partition)
    try:
        with gc_off():
            _deliver(rows, batches, delivery)
    finally:
        client.close()
    return PartitionWritten(rows.number, delivery.nadded, delivery.npresent)


def _deliver(rows: Rows, batches: Iterator[pa.RecordBatch], delivery: Delivery) -> None:
    put = delivery.put
    try:
        for batch in batches:
            for message in rows.messages(batch):
                put(message)
        delivery.flush()
    except BadRecordError as error:
        done = delivery.nadded + delivery.npresent
        if not done:
            raise
        raise BadRecordError(
            f"{error}. {done} rows of this partition are enqueued; correct the row and write all rows again: "
            "enqueued rows are skipped"
        ) from error


def _log_present(messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, PartitionWritten)]
    nadded, npresent = sum(w.nadded for w in written), sum(w.npresent for w in written)
    if npresent:
        _log.warning(
            "%d of %d rows were skipped, because the same id or load was enqueued within dedupeFor; %d were added",
            npresent, nadded + npresent, nadded,
        )  # fmt: skip


def _log_failed() -> None:
    _log.warning(
        "the write failed after enqueueing the rows of finished batches. To add the rest, write the same rows again "
        "within dedupeFor, with the same ids or loadId"
    )


def _load_id(settings: WriteSettings, position: PartitionOrigin) -> str:
    """Return the id that makes a load's mids unique. Each batch of a stream is a load."""
    if not position.batch:
        return settings.load_id
    return f"{settings.load_id or position.query}/{position.batch}"
