"""The pipeline to Spark: events, topics and messages as DataFrames, and DataFrames as messages.

::

    from jobq.pipeline import register, session

    spark = session()
    register(spark)
    spark.read.format("jobq").option("view", "events").load()

Names load at first use: importing this brings in neither pyspark nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.pipeline.sessions import session
    from jobq.pipeline.writing.rows import with_ids

__all__ = ["register", "session", "with_ids"]
_HOME = {"session": "sessions", "with_ids": "writing.rows"}


def register(spark: SparkSession) -> None:
    """Make `format("jobq")` known where Spark doesn't find it by itself: modules sent with --py-files."""
    from jobq.pipeline import source

    source.register(spark)


if not TYPE_CHECKING:  # a checker would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'jobq.pipeline' has no attribute {name!r}")
        return getattr(import_module(f"jobq.pipeline.{_HOME[name]}"), name)
