"""Run the statements of reports with DuckDB in this process, or with Spark. Both run the same SQL.

A statement uses the SQL that Spark and DuckDB share, and functions of jobq: `sketch(column, k)`, `merged(column)`,
`quantile(column, share)`, `critical_path(column)` and `latest(column, since, until)`. Their arguments are names of
columns, or numbers. In DuckDB, macros define these functions, and also functions of Spark that DuckDB lacks. For Spark,
jobq's functions are replaced in the statement's text.

In DuckDB, and in Spark for up to EXACT_ROWS events, a sketch is the sorted list of all values, so quantiles are exact.
For more events, Spark's KLL sketches give slightly different answers each time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jobq import extras
from jobq.errors import PipelineError
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import LakeTable
from jobq.pipeline.options import EngineName

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Shared = TypeVar("Shared")
Unit = TypeVar("Unit")
Result = TypeVar("Result")
#: Maximum number of events for which Spark computes exact quantiles.
EXACT_ROWS = 1_000_000


class SqlEngine(Protocol):
    """Runs statements over views.

    Attributes:
        exact: Whether quantiles are computed from all values.
    """

    name: EngineName
    exact: bool

    def open(self, view: str, rows: Any) -> None:
        """Make a view of a DataFrame, or of an Arrow table."""

    def make(
        self, view: str, statement: str, args: Mapping[str, Any] | None = None, keep: bool = False
    ) -> None:
        """Make a view from a statement. The new view replaces a view of the same name.

        Args:
            keep: Compute the view only once.
        """

    def drop(self, *views: str) -> None:
        """Remove views, and free their cached rows."""

    def rows(self, statement: str, args: Mapping[str, Any] | None = None) -> list[Row]:
        """Return the rows of a statement; their times are in UTC."""
        ...

    def each(
        self, function: Callable[[Shared, Unit], Result], shared: Shared, units: Sequence[Unit]
    ) -> list[Result]:
        """Call the function for each unit, and return the results."""
        ...


class SparkEngine:
    """Runs statements in a session of Spark."""

    name: EngineName = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.exact = spark, True
        self._kept: dict[str, Any] = {}

    def open(self, view: str, rows: Any) -> None:
        rows.createOrReplaceTempView(view)

    def make(
        self, view: str, statement: str, args: Mapping[str, Any] | None = None, keep: bool = False
    ) -> None:
        frame = self._frame(statement, args)
        if keep:
            frame = self._kept[view] = frame.cache()
        frame.createOrReplaceTempView(view)

    def drop(self, *views: str) -> None:
        for view in views:
            self.spark.catalog.dropTempView(view)
            kept = self._kept.pop(view, None)
            if kept is not None:
                kept.unpersist()

    def rows(self, statement: str, args: Mapping[str, Any] | None = None) -> list[Row]:
        rows: list[Row] = self._frame(statement, args).toArrow().to_pylist()
        return rows

    def each(
        self, function: Callable[[Shared, Unit], Result], shared: Shared, units: Sequence[Unit]
    ) -> list[Result]:
        context = self.spark.sparkContext
        sent = context.broadcast(shared)
        try:
            parts = max(1, min(len(units), context.defaultParallelism))
            results: list[Result] = (
                context.parallelize(units, parts)
                .map(lambda unit: function(sent.value, unit))
                .collect()
            )
            return results
        finally:
            sent.unpersist()

    def _frame(self, statement: str, args: Mapping[str, Any] | None) -> Any:
        return self.spark.sql(for_spark(statement, self.exact), dict(args or {}))


def as_spark(engine: SqlEngine) -> SparkEngine:
    """Return the engine; raise PipelineError if it isn't a SparkEngine, because only Spark reads rollups."""
    if isinstance(engine, SparkEngine):
        return engine
    raise PipelineError(
        "some events in the range have expired, and only Spark can read the rollups that replace them; choose --engine "
        "spark, or a later --since"
    )


_SPARK = {
    "critical_path": (
        "aggregate(reverse({0}), struct(CAST(9007199254740991 AS BIGINT) AS at, "
        "CAST(array() AS ARRAY<STRING>) AS path), "
        "(taken, step) -> CASE WHEN step.ended_ms <= taken.at + 5 THEN struct(least(step.ready_ms, taken.at) AS at, "
        "array_append(taken.path, step.step) AS path) ELSE taken END, taken -> reverse(taken.path))"
    ),
    "latest": "array_max(filter({0}, moment -> moment BETWEEN {1} AND {2}))",
}
_EXACT = _SPARK | {
    "sketch": "array_sort(collect_list({0}))",
    "merged": "array_sort(flatten(collect_list({0})))",
    "quantile": "try_element_at({0}, CAST(greatest(1, ceil({1} * size({0}) - 1e-9D)) AS INT))",
}
_SKETCHED = _SPARK | {
    "sketch": "kll_sketch_agg_bigint({0}, {1})",
    "merged": "kll_merge_agg_bigint({0}, 2000)",
    "quantile": "kll_sketch_get_quantile_bigint({0}, {1}D)",
}
_WORD = re.compile(rf"\b({'|'.join(_EXACT)})\(([\w.]+(?:, [\w.]+)*)\)")


@cache
def for_spark(statement: str, exact: bool) -> str:
    """Return the statement with jobq's functions replaced by functions of Spark."""
    words = _EXACT if exact else _SKETCHED
    return _WORD.sub(lambda word: words[word[1]].format(*word[2].split(", ")), statement)


#: Functions that DuckDB doesn't have, or that have another meaning there. Times have no zone here, and are UTC.
_MACROS = (
    "pmod(a, b) AS ((a % b) + b) % b",
    "unix_micros(at_) AS epoch_us(at_)",
    "unix_millis(at_) AS (epoch_us(at_) - pmod(epoch_us(at_), 1000)) // 1000",
    "unix_seconds(at_) AS (epoch_us(at_) - pmod(epoch_us(at_), 1000000)) // 1000000",
    "timestamp_seconds(s) AS make_timestamp(CAST(s AS BIGINT) * 1000000)",
    "timestamp_millis(ms) AS make_timestamp(CAST(ms AS BIGINT) * 1000)",
    "from_utc_timestamp(at_, zone) AS timezone(zone, timezone('UTC', at_))",
    "weekday(at_) AS isodow(at_) - 1",
    "try_divide(a, b) AS CASE WHEN b <> 0 THEN a / b END",
    "percentile(x, share_) AS quantile_cont(x, share_)",
    "explode(items) AS unnest(items)",
    "sequence(a, b) AS generate_series(a, b), (a, b, step_) AS generate_series(a, b, step_)",
    "element_at(items, place_) AS list_extract(items, place_)",
    "size(items) AS len(items)",
    "array_sort(items) AS list_sort(items)",
    "collect_list(x) AS coalesce(list(x) FILTER (x IS NOT NULL), [])",
    "collect_set(x) AS coalesce(list(DISTINCT x) FILTER (x IS NOT NULL), [])",
    "array_join(items, sep) AS array_to_string(items, sep)",
    "struct(a, b) AS row(a, b)",
    "named_struct(a, x, b, y, c, z) AS {'ended_ms': x, 'ready_ms': y, 'step': z}",
    "startswith(a, b) AS starts_with(a, b)",
    "sketch(x, k_) AS list_sort(list(x) FILTER (x IS NOT NULL))",
    "merged(x) AS list_sort(flatten(list(x)))",
    "quantile(items, share_) AS list_extract(items, CAST(greatest(1, ceil(share_ * len(items) - 1e-9)) AS BIGINT))",
    "latest(items, since_, until_) AS list_extract("
    "list_reverse_sort(list_filter(items, lambda m: m BETWEEN since_ AND until_)), 1)",
    "critical_path(steps_) AS list_reverse(list_reduce(list_reverse(steps_), lambda taken, item: CASE "
    "WHEN item.ended_ms <= taken.at_ + 5 THEN {'at_': least(item.ready_ms, taken.at_), "
    "'path_': list_append(taken.path_, item.step)} ELSE taken END, "
    "{'at_': CAST(9007199254740991 AS BIGINT), 'path_': CAST([] AS VARCHAR[])}).path_)",
)
#: Patterns for a comment, a parameter, a number's type, an operator, and a column whose name DuckDB takes for a
#: keyword.
_SPELLED = (
    (re.compile(r"--.*|/\*.*?\*/"), ""),
    (re.compile(r"(?<![:\w]):(\w+)"), r"$\1"),
    (re.compile(r"\b(\d[\d.]*(?:e\d+)?)D\b"), r"\1::DOUBLE"),
    (re.compile(r"\b(\d+)L\b"), r"\1::BIGINT"),
    (re.compile(r"\bDIV\b", re.IGNORECASE), "//"),
    (re.compile(r"\* EXCEPT\b"), "* EXCLUDE"),
    (re.compile(r"(?<![$\w])at\b"), '"at"'),
)


@cache
def for_duckdb(statement: str) -> str:
    """Return the statement in DuckDB's dialect."""
    for pattern, spelled in _SPELLED:
        statement = pattern.sub(spelled, statement)
    return statement


_ZONED = "TIMESTAMP WITH TIME ZONE"


class LocalEngine:
    """Runs statements in this process. Views are tables in memory, or files of a lake."""

    name: EngineName = "local"

    def __init__(self, lake: LakeStore | None = None) -> None:
        """Open a database in memory.

        Args:
            lake: The lake whose files `open_files` may read.
        """
        self.exact = True
        self._database = _database(lake)
        self._opened: set[str] = set()

    def open(self, view: str, rows: pa.Table) -> None:
        import pyarrow as pa

        fields = [
            field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
            for field in rows.schema
        ]
        self._database.register(view, rows.cast(pa.schema(fields)))
        self._opened.add(view)

    def open_files(
        self, view: str, store: LakeStore, table: LakeTable, paths: Sequence[str]
    ) -> None:
        """Make a view from a table's files, with the column `dt`. Each statement reads only the data that it needs."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        schema: Any = table.delta_schema()
        # Files lack the columns that were added to the table later.
        self._database.register("no_rows", schema.empty_table())
        text = "SELECT * FROM no_rows"
        if paths and store.is_local:
            names = ", ".join(_quoted(os.path.join(store.uri, path)) for path in paths)
            text += (
                f" UNION ALL BY NAME SELECT * FROM read_parquet([{names}], union_by_name = true, "  # noqa: S608  # nosec B608
                "hive_partitioning = true, hive_types = {'dt': DATE})"
            )
        elif paths:
            days: Any = ds.partitioning(pa.schema([("dt", pa.date32())]), flavor="hive")
            rows = ds.dataset(
                list(paths), schema, "parquet", filesystem=store.files(), partitioning=days
            )
            self._database.register("bucket_rows", rows)
            text += " UNION ALL BY NAME SELECT * FROM bucket_rows"
        self._run(f"CREATE OR REPLACE TEMP VIEW {view} AS {text}")

    def make(
        self, view: str, statement: str, args: Mapping[str, Any] | None = None, keep: bool = False
    ) -> None:
        text = f"CREATE OR REPLACE TEMP TABLE {view} AS {for_duckdb(statement)}"
        self._run(text, args)

    def drop(self, *views: str) -> None:
        for view in views:
            if view in self._opened:
                self._opened.remove(view)
                self._database.unregister(view)
            else:
                self._run(f"DROP TABLE IF EXISTS {view}")

    def rows(self, statement: str, args: Mapping[str, Any] | None = None) -> list[Row]:
        with _explained():
            relation = self._database.sql(for_duckdb(statement), params=_values(args))
            # DuckDB needs the package pytz to return a time with a zone. All its times are in UTC.
            columns = [
                f'CAST("{name}" AS {str(kind).replace(_ZONED, "TIMESTAMP")}) AS "{name}"'
                if _ZONED in str(kind)
                else f'"{name}"'
                for name, kind in zip(relation.columns, relation.types, strict=True)
            ]
            rows = relation.project(", ".join(columns)).fetchall()
        return [dict(zip(relation.columns, map(_told, row), strict=True)) for row in rows]

    def _run(self, text: str, args: Mapping[str, Any] | None = None) -> None:
        with _explained():
            self._database.execute(text, _values(args))

    def each(
        self, function: Callable[[Shared, Unit], Result], shared: Shared, units: Sequence[Unit]
    ) -> list[Result]:
        return [function(shared, unit) for unit in units]


@contextmanager
def _explained() -> Iterator[None]:
    """Convert an error of DuckDB to PipelineError."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        what = str(error).strip().partition("\n")[0]
        raise PipelineError(
            f"DuckDB {duckdb.__version__} can't compute this ({what}); choose --engine spark"
        ) from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _database(store: LakeStore | None = None) -> DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise PipelineError(
            f"reports in this process need DuckDB: {error}; {extras.install('lake')}, or choose --engine spark"
        ) from error
    # Statements read tables in memory and the files of a lake, and nothing else: no extensions from the network.
    database = duckdb.connect()
    if store and store.is_local:
        database.execute(f"SET allowed_directories = [{_quoted(f'{store.uri}/')}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    # DuckDB 2.0.0 ends some joins of many rows with an internal error, unless they are joined in the written order.
    database.execute("SET disabled_optimizers = 'join_order'")
    for macro in _MACROS:
        database.execute(f"CREATE TEMP MACRO {macro}")
    return database


def _values(args: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        name: value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
        for name, value in (args or {}).items()
    }


def _told(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
