"""The lake: Delta tables with the history that the server no longer has.

::

    from jobq.pipeline import session
    from jobq.pipeline.lake import Lake, read

    lake = Lake.open("./lake")
    read(session(), lake, "events", since="2026-11-01").groupBy("job").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.options import Moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lake", "read"]


def read(
    spark: SparkSession,
    lake: Lake,
    table: str = "events",
    since: Moment = None,
    until: Moment = None,
) -> DataFrame:
    """Return a table's rows from `since` (included) to `until` (excluded) as a DataFrame.

    `since` and `until` limit the table's main time, such as `finished_at` of events. The last column, `dt`, is the UTC
    day of that time. docs/data/ingest.md lists the other columns. A table that was never written has no rows.
    """
    from jobq.pipeline.lake import reading  # needs pyarrow; opening a lake doesn't

    return reading.read(spark, lake, table, since, until)
