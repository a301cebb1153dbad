"""Check a write's options and schema. The check runs on the driver, before any row is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobq.client.names import checked_name
from jobq.config import ServerSettings, duration_s
from jobq.durations import DAY_MS
from jobq.errors import ConfigError
from jobq.jobs.options import checked_job_name
from jobq.pipeline.options import PLACE, SparkOptions, unknown
from jobq.pipeline.writing import column_types

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

#: Options of a write. Spark adds the last two to a stream's options.
KNOWN = (
    *PLACE, "job", "queue", "queueColumn", "idColumn", "keyColumn", "ordered", "loadId", "argsColumn", "kwargsColumns",
    "delayColumn", "delay", "dedupeFor", "batch", "checkpointLocation", "queryName",
)  # fmt: skip
#: Options that name a column, each with the check of the column's type.
SERVING = {
    "queueColumn": column_types.is_text, "idColumn": column_types.is_id, "argsColumn": column_types.is_arguments,
    "delayColumn": column_types.is_time, "keyColumn": column_types.is_id,
}  # fmt: skip
#: Maximum number of messages per call.
MAX_COUNT = 1_000
MAX_S = 3_153_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteSettings:
    """The settings of a write, as plain data for the executors. `server` may contain secrets, so it is never printed.

    Attributes:
        when: Earliest start of a message if its row doesn't set a time: '' for immediately, or 'd<ms>' for a delay.
    """

    server: ServerSettings
    job: str
    queue: str
    queue_column: str = ""
    id_column: str = ""
    args_column: str = ""
    delay_column: str = ""
    key_column: str = ""
    ordered: bool = False
    kwargs_columns: tuple[str, ...] = ()
    load_id: str = ""
    when: str = ""
    dedupe_ms: int = DAY_MS
    batch: int = 500

    @property
    def keyed(self) -> str:
        """The argument `keyed` for lua/pipeline/deliver.lua; '' if rows have no keys."""
        return "" if not self.key_column else "ordered" if self.ordered else "key"

    def __repr__(self) -> str:
        return f"WriteSettings(job={self.job!r}, queue={self.queue!r})"


def write_settings(given: Mapping[str, str], schema: StructType) -> WriteSettings:
    """Parse the options of a write. Raises ConfigError for invalid options and for columns of unsupported types."""
    options = SparkOptions(given, KNOWN)
    columns = _columns(schema)
    _check_loads(options)
    named = {name: _column(options, name, columns, fits) for name, fits in SERVING.items()}
    kwargs = _kwargs(options, columns, [name for name in named.values() if name])
    for name in [*kwargs, *filter(None, [named["argsColumn"]])]:
        column_types.check(columns[name], f"column {name!r}")
    return WriteSettings(
        server=options.server(),
        job=_job(options),
        queue=checked_name("queue", options.text("queue", "default")),
        queue_column=named["queueColumn"],
        id_column=named["idColumn"],
        args_column=named["argsColumn"],
        delay_column=named["delayColumn"],
        key_column=named["keyColumn"],
        ordered=_ordered(options),
        kwargs_columns=kwargs,
        load_id=options.text("loadId"),
        when=f"d{_ms(options, 'delay')}" if "delay" in options else "",
        dedupe_ms=_ms(options, "dedupeFor", "1d"),
        batch=_batch(options),
    )


def _job(options: SparkOptions) -> str:
    if "job" not in options:
        raise ConfigError("option 'job' is missing; set it to the job to call for each row")
    return checked_job_name(options.text("job"))


def _columns(schema: StructType) -> dict[str, DataType]:
    columns: dict[str, DataType] = {}
    for field in schema.fields:
        if field.name in columns:
            raise ConfigError(f"column {field.name!r} exists twice; rename or drop one of them")
        columns[field.name] = field.dataType
    return columns


def _column(
    options: SparkOptions, option: str, columns: dict[str, DataType], fits: column_types.Fits
) -> str:
    name = options.text(option)
    if option not in options:
        return ""
    if name not in columns:
        raise ConfigError(unknown(f"option {option}: column", name, columns))
    takes = fits(columns[name])
    if takes:
        raise ConfigError(
            f"option {option}: column {name!r} is of type {columns[name].simpleString()}; {takes}"
        )
    return name


def _kwargs(
    options: SparkOptions, columns: dict[str, DataType], used: list[str]
) -> tuple[str, ...]:
    if "kwargsColumns" not in options:
        return tuple(name for name in columns if name not in used)
    names = options.names("kwargsColumns")
    for name in names:
        if name not in columns:
            raise ConfigError(unknown("option kwargsColumns: column", name, columns))
    return names


def _check_loads(options: SparkOptions) -> None:
    if "idColumn" in options and "loadId" in options:
        raise ConfigError(
            "idColumn and loadId contradict each other: ids come from a column, or are generated for a load; use only "
            "one"
        )


def _ordered(options: SparkOptions) -> bool:
    ordered = options.flag("ordered", False)
    if ordered and "keyColumn" not in options:
        raise ConfigError("option ordered=true orders the rows of a key; also set keyColumn")
    return ordered


def _batch(options: SparkOptions) -> int:
    number = options.number("batch", 500, 1)
    if number > MAX_COUNT:
        raise ConfigError(
            f"option batch={number} is out of range; it must be between 1 and {MAX_COUNT}"
        )
    return number


def _ms(options: SparkOptions, name: str, default: str = "") -> int:
    text = options.text(name, default)
    seconds = duration_s(text)
    if not seconds < MAX_S:
        raise ConfigError(f"option {name}={text!r} is out of range; it must be less than 100 years")
    return round(seconds * 1000)
