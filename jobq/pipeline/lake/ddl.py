"""Write SQL that registers the tables of a lake in other SQL engines.

A view adds the columns of `events` that the lake doesn't store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from jobq.client.names import PARTITION
from jobq.errors import ConfigError
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, LAKE_EVENTS, RESTORED, TABLES
from jobq.pipeline.schema import DERIVED, EVENT_COLUMNS, MEMBER

EngineSql = Literal["spark", "databricks", "duckdb", "trino", "snowflake"]
#: Name of the view, which has the columns that `read` returns.
VIEW = "events_view"


class _Dialect(NamedTuple):
    """An engine's SQL to register a table, and to compute the columns that the lake doesn't store."""

    first: tuple[str, ...]
    table: Callable[[str, str, str], str]
    computed: dict[str, str]
    quote: str = '"'


_MEMBER = (
    MEMBER.replace("(?{0}<flow>", "(")
    .replace("(?{0}<step>", "(")
    .replace("{{", "{")
    .replace("}}", "}")
)


def _computed(ago: str, later: str, started: str, run_ms: str, group: str) -> dict[str, str]:
    """Return SQL expressions for the columns that the lake doesn't store, by column."""
    waited = f"total_ms - {run_ms}"
    return {
        "enqueued_at": ago,
        "entry_at": later,
        "started_at": started,
        "wait_ms": f"CASE WHEN {waited} < 0 THEN 0 ELSE {waited} END",
        "base_queue": f"coalesce({group.format(f'^{PARTITION}$', 1, 'queue')}, queue)",
        "flow": group.format(_MEMBER, 1, "mid"),
        "step": group.format(_MEMBER, 2, "mid"),
    }


_SPARK = {**RESTORED, **DERIVED}
_DIALECTS: dict[str, _Dialect] = {
    "spark": _Dialect(
        ("CREATE SCHEMA IF NOT EXISTS {schema}",),
        "CREATE TABLE IF NOT EXISTS {0}.{1} USING DELTA LOCATION '{2}'".format, _SPARK, "`",
    ),
    "databricks": _Dialect(
        ("CREATE SCHEMA IF NOT EXISTS {schema}",),
        "CREATE TABLE IF NOT EXISTS {0}.{1} USING DELTA LOCATION '{2}'".format, _SPARK, "`",
    ),
    "duckdb": _Dialect(
        ("INSTALL delta", "LOAD delta", "CREATE SCHEMA IF NOT EXISTS {schema}"),
        "CREATE OR REPLACE VIEW {0}.{1} AS SELECT * FROM delta_scan('{2}')".format,  # nosec B608
        _computed(
            "finished_at - to_milliseconds(total_ms)", "finished_at + to_milliseconds(entry_ms)",
            "finished_at - to_microseconds(run_us)", "run_us // 1000",
            "nullif(regexp_extract({2}, '{0}', {1}), '')",
        ),
    ),
    "trino": _Dialect(
        ("CREATE SCHEMA IF NOT EXISTS {schema}",),
        "CALL system.register_table(schema_name => '{0}', table_name => '{1}', table_location => '{2}')".format,
        _computed(
            "date_add('millisecond', -total_ms, finished_at)", "date_add('millisecond', entry_ms, finished_at)",
            "finished_at - run_us / 1e6 * INTERVAL '1' SECOND", "run_us / 1000", "regexp_extract({2}, '{0}', {1})",
        ),
    ),
    "snowflake": _Dialect(
        (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            "CREATE CATALOG INTEGRATION IF NOT EXISTS jobq_delta CATALOG_SOURCE = OBJECT_STORE TABLE_FORMAT = DELTA "
            "ENABLED = TRUE",
            "CREATE EXTERNAL VOLUME IF NOT EXISTS jobq_lake STORAGE_LOCATIONS = ((NAME = 'lake' "
            "STORAGE_PROVIDER = 'S3' STORAGE_BASE_URL = '{uri}/' "
            "STORAGE_AWS_ROLE_ARN = 'arn:aws:iam::ACCOUNT:role/ROLE'))",
        ),
        "CREATE ICEBERG TABLE IF NOT EXISTS {0}.{1} CATALOG = 'jobq_delta' EXTERNAL_VOLUME = 'jobq_lake' "
        "BASE_LOCATION = '{1}/'".format,
        _computed(
            "DATEADD(millisecond, -total_ms, finished_at)", "DATEADD(millisecond, entry_ms, finished_at)",
            "DATEADD(microsecond, -run_us, finished_at)", "FLOOR(run_us / 1000)",
            "REGEXP_SUBSTR({2}, '{0}', 1, 1, 'e', {1})",
        ), "",
    ),
}  # fmt: skip


def statements(lake: Lake, engine: EngineSql, schema: str = "jobq") -> Iterator[str]:
    """Yield the SQL statements for the lake's existing tables, without semicolons.

    Raises ConfigError for an invalid schema, and for Snowflake if the lake isn't in S3.
    """
    store = lake.store
    if engine == "snowflake" and not store.uri.startswith("s3://"):
        raise ConfigError(f"the lake is at {store.uri}, but Snowflake needs a lake in S3")
    if not schema.isidentifier() or not schema.isascii():
        raise ConfigError(
            f"schema {schema!r} can't be used; use letters, digits and _, and no digit at the beginning"
        )
    dialect = _DIALECTS[engine]
    for text in dialect.first:
        yield text.format(schema=schema, uri=_quoted(store.uri))
    there = [name for name in TABLES if lake.table(name) is not None]
    for name in there:
        yield dialect.table(schema, name, _quoted(store.below(name).uri))
    if EVENTS.name in there:
        head = f"CREATE OR REPLACE VIEW {schema}.{VIEW} AS SELECT"
        yield f"{head} {_columns(dialect)} FROM {schema}.{EVENTS.name}"


def _columns(dialect: _Dialect) -> str:
    there = {column.name for column in LAKE_EVENTS}
    names = [column.name for column in EVENT_COLUMNS] + ["dt"]
    return ", ".join(_column(dialect, name, name in there) for name in names)


def _column(dialect: _Dialect, name: str, is_stored: bool) -> str:
    quoted = f"{dialect.quote}{name}{dialect.quote}"
    return quoted if is_stored or name == "dt" else f"{dialect.computed[name]} AS {quoted}"


def _quoted(text: str) -> str:
    return text.replace("'", "''")
