"""Run units of work in this process or on Spark's executors, with the same results.

Units and results are plain values that can be sent to executors. Starting a JVM costs more than processing a few
hundred thousand rows. So Spark is started for the first large amount of work, and kept while the command runs.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from jobq import errors
from jobq.errors import JobqError
from jobq.pipeline import gateway, sessions
from jobq.pipeline.options import EngineName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Unit = TypeVar("Unit")
Result = TypeVar("Result")

#: Number of rows of work from which Spark is started.
SPARK_ROWS = 1_000_000


@contextmanager
def gc_off() -> Iterator[None]:
    """Turn off Python's garbage collector, because it would visit all rows in memory and free none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Engine:
    """Runs units of work.

    Attributes:
        name: `local` runs every task in this process, in order; `spark` runs them on executors; `auto` chooses by
            the number of rows.
        session: Starts Spark; called when Spark is first needed.
        spark_rows: Minimum number of rows for which `auto` starts Spark. Once Spark runs, a twentieth of this number is
            the minimum.
    """

    def __init__(
        self,
        name: EngineName = "auto",
        *,
        master: str | None = None,
        session: Callable[[], SparkSession] | None = None,
        spark_rows: int = SPARK_ROWS,
    ) -> None:
        self._name, self._spark_rows = name, spark_rows
        self._session = session or partial(_lake_session, master)
        self._spark: SparkSession | None = None

    def chosen(self, rows: int) -> EngineName:
        """Return `local` or `spark`, the engine for work on about `rows` rows."""
        least = self._spark_rows if self._spark is None else self._spark_rows // 20
        if self._name == "auto":
            return "spark" if rows >= least else "local"
        return "spark" if self._name == "spark" and rows else "local"

    @property
    def rule(self) -> str:
        """A note that explains when `auto` uses Spark, or '' if the user chose the engine."""
        if self._name != "auto":
            return ""
        return f" (auto: Spark from {self._spark_rows:,} rows, once started from {self._spark_rows // 20:,})"

    @property
    def used(self) -> EngineName:
        """`spark` if this engine has a Spark session, else `local`."""
        return "local" if self._spark is None else "spark"

    def width(self, rows: int) -> int:
        """Return how many units run concurrently, for work on about `rows` rows."""
        return 1 if self.chosen(rows) == "local" else self.spark().sparkContext.defaultParallelism

    def spark(self) -> SparkSession:
        """Return the session; start it at first use."""
        if self._spark is None:
            self._spark = self._session()
        return self._spark

    def run_units(
        self, function: Callable[[Unit], Result], units: Sequence[Unit], rows: int
    ) -> Iterator[Result]:
        """Call the function with each unit, and yield the results in the order of the units.

        The function can't use this process's connections. It should return expected errors as values, because Spark may
        repeat a unit that raises an exception. The last exception is raised here.

        Args:
            rows: Approximate number of rows in all units.
        """
        if not units:
            return
        if self.chosen(rows) == "local":
            yield from map(function, units)
            return
        context = self.spark().sparkContext
        yield from context.parallelize(units, len(units)).map(function).collect()

    def close(self) -> None:
        """Stop the session, if there is one. If its JVM has died, forget the JVM."""
        spark, self._spark = self._spark, None
        if spark is None:
            return
        with warnings.catch_warnings():
            # PySpark warns about a dead JVM before it raises.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                spark.stop()
            except sessions.failures():
                gateway.forget_jvm()


def raise_first(failures: Iterable[tuple[str, str] | None]) -> None:
    """Raise the first error that a task returned. Tasks return an error as its class name and its message."""
    for kind, words in filter(None, failures):
        known: type[JobqError] = getattr(errors, kind, errors.PipelineError)
        raise known(words)


#: Descriptions of the engines in output.
WHERE = {"local": "in this process", "spark": "on executors"}


def _lake_session(master: str | None) -> SparkSession:
    return sessions.session("jobq lake", master=master)
