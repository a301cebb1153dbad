"""The pipeline to Spark: events, topics and messages as DataFrames, and DataFrames as messages.

::

    from jobq.pipeline import register, session

    spark = session()
    register(spark)
    spark.read.format("jobq").option("view", "events").load()

Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from jobq.pipeline.sessions import session
from jobq.pipeline.source import register
from jobq.pipeline.writing.rows import with_ids

__all__ = ["register", "session", "with_ids"]
