"""Append new events to your own Delta table, then exit.

python delta.py history/events history/checkpoint
"""

from __future__ import annotations

import sys
from functools import partial

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from jobq.pipeline import session


def append(table: str, rows: DataFrame, batch: int) -> None:
    """Append a batch of a streaming query, unless the table already has this batch.

    Spark repeats an interrupted batch. The commit that adds a batch's rows also records its number.
    """
    query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if DeltaTable.is_deltatable(table):
        newest = DeltaTable(table).transaction_version(query)
        if newest is not None and batch <= newest:
            return
    number = CommitProperties(app_transactions=[Transaction(query, batch)])
    write_deltalake(
        table,
        rows.toArrow(),
        mode="append",
        partition_by=["day"],
        commit_properties=number,
    )


def keep(events: DataFrame, table: str, checkpoint: str) -> None:
    """Append all current events in batches. The driver holds one batch in memory."""
    query = (
        events.selectExpr("*", "to_date(finished_at) AS day")
        .writeStream.foreachBatch(partial(append, table))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    source = session("delta").readStream.format("jobq").option("maxRowsPerTrigger", 200_000)
    keep(source.load(), sys.argv[1], sys.argv[2])
