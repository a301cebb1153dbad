"""Who does the tasks of a batch: this process, or Spark's executors when there is enough to do.

Starting a JVM costs more than reading some hundred thousand events. So a session is made when a backlog is
worth it, and then kept for as long as the ingest runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from jobq.pipeline.lake.portion import Answer, Portion, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

When = Literal["auto", "always", "never"]
#: Entries from which on a session is made.
WORTH_IT = 1_000_000


class Runner:
    """Runs portions; `session` makes one, should it come to that."""

    def __init__(
        self,
        when: When = "auto",
        *,
        master: str | None = None,
        session: Callable[[], SparkSession] | None = None,
        worth_it: int = WORTH_IT,
    ) -> None:
        self._when, self._worth_it = when, worth_it
        self._session = session or partial(_session, master)
        self._spark: SparkSession | None = None

    def uses_spark(self, entries: int) -> bool:
        """Whether a backlog of so many entries goes to executors."""
        if self._when == "always":
            return entries > 0
        least = self._worth_it if self._spark is None else self._worth_it // 20
        return self._when == "auto" and entries >= least

    def spark(self) -> SparkSession:
        """The session, made at first use."""
        if self._spark is None:
            self._spark = self._session()
        return self._spark

    def run(self, portions: Sequence[Portion], backlog: int) -> list[Answer]:
        """The answers, in the order of the portions."""
        if not self.uses_spark(backlog):
            return list(map(work, portions))
        context = self.spark().sparkContext
        answers: list[Answer] = context.parallelize(portions, len(portions)).map(work).collect()
        return answers

    def close(self) -> None:
        """Stop the session, if this made one; one whose JVM has died is forgotten, so that a next one can start."""
        from jobq.pipeline import gateway
        from jobq.pipeline.sessions import failures

        spark, self._spark = self._spark, None
        if spark is None:
            return
        with warnings.catch_warnings():
            # PySpark warns of a JVM that has died, and then fails all the same.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                spark.stop()
            except failures():
                gateway.forget()


def _session(master: str | None) -> SparkSession:
    from jobq.pipeline.sessions import session

    return session("jobq lake", master=master)
