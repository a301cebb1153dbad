"""Check which types of columns can be arguments of a call, and convert their values.

Texts, booleans, whole numbers, floats and nulls are kept; so are arrays, structs and maps with text keys. Dates, times
and timestamps become ISO text (timestamps in UTC). Decimals become text, and intervals of days become seconds. The
driver rejects other types. Equal values become equal text, because ids are made from the text: the session's time zone
and the order of a map's entries don't matter.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from jobq.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

#: Returns '' if the column's type fits, else the types that would fit.
Fits = Callable[["DataType"], str]
Plain = Callable[[Any], Any]

_AS_THEY_ARE = frozenset(
    ("string", "varchar", "char", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "void")
)  # fmt: skip
_WHOLE = frozenset(("tinyint", "smallint", "int", "bigint"))
_ISO = frozenset(("date", "timestamp_ntz", "time"))
_REMEDIES = {
    "binary": "use base64(column) and decode it in the job, or pass where the bytes are stored",
    "variant": "use to_json(column), or cast the needed fields",
}


def word(kind: DataType) -> str:
    """Return the type's name without its parameters, such as 'decimal', 'array' or 'bigint'."""
    return kind.simpleString().partition("(")[0].partition("<")[0].partition(" ")[0]


def is_text(kind: DataType) -> str:
    """Return '' if a column of this type can hold queue names, else a suggestion."""
    return "" if word(kind) in ("string", "varchar", "char") else "use a string"


def is_id(kind: DataType) -> str:
    """Return '' if a column of this type can hold mids, else a suggestion."""
    fits = not is_text(kind) or word(kind) in _WHOLE
    return (
        "" if fits else "use a string or a whole number; cast(… as string) chooses how to write it"
    )


def is_arguments(kind: DataType) -> str:
    """Return '' if a column of this type can hold positional arguments, else a suggestion."""
    fits = not is_text(kind) or word(kind) in ("array", "struct")
    return "" if fits else "use an array, a struct, or a string that is a JSON array"


def is_time(kind: DataType) -> str:
    """Return '' if a column of this type can hold times, else a suggestion."""
    fits = word(kind) in (*_WHOLE, "float", "double", "decimal", "timestamp")
    return "" if fits else "use a number of seconds, or a timestamp"


def check(kind: DataType, where: str) -> None:
    """Raise ConfigError unless values of this type can be arguments of a call."""
    name = word(kind)
    if name == "array":
        check(kind.elementType, f"{where}[]")  # type: ignore[attr-defined]
    elif name == "map":
        if is_text(kind.keyType):  # type: ignore[attr-defined]
            raise ConfigError(f"{where} is a map without string keys; use map_entries(column)")
        check(kind.valueType, f"{where}{{}}")  # type: ignore[attr-defined]
    elif name == "struct":
        _check_struct(kind, where)
    elif name not in _AS_THEY_ARE | _ISO | {"decimal", "timestamp"} and not _is_interval(kind):
        remedy = _REMEDIES.get(name, "use cast(column as string), or pass an identifier")
        raise ConfigError(f"{where} is of type {kind.simpleString()}; {remedy}")


def _check_struct(kind: DataType, where: str) -> None:
    names = kind.fieldNames()  # type: ignore[attr-defined]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} has two fields with the same name; rename one of them")
    for field in kind.fields:  # type: ignore[attr-defined]
        check(field.dataType, f"{where}.{field.name}")


def _is_interval(kind: DataType) -> bool:
    return kind.typeName().startswith("daytimeinterval")


def plain(kind: DataType) -> Plain | None:
    """Return the function that converts a column's values, or None if the values stay as they are.

    The function gets timestamps as epoch µs.
    """
    name = word(kind)
    if name == "decimal":
        return _or_none(lambda value: format(value, "f"))
    if name == "timestamp":
        return _or_none(_instant)
    if name in _ISO:
        return _or_none(lambda value: value.isoformat())
    if _is_interval(kind):
        return _or_none(lambda value: value.total_seconds())
    if name == "array":
        return _plain_array(kind)
    if name == "map":
        return _plain_map(kind)
    return _plain_struct(kind) if name == "struct" else None


def due(kind: DataType) -> Plain | None:
    """Return the function that converts timestamps to 'a<epoch ms>', or None for seconds, which stay unchanged."""
    if word(kind) != "timestamp":
        return None
    return _or_none(lambda micros: f"a{max(0, round(micros / 1000))}")


def _plain_array(kind: DataType) -> Plain | None:
    inner = plain(kind.elementType)  # type: ignore[attr-defined]
    return _or_none(lambda value: [inner(item) for item in value]) if inner else None


def _plain_map(kind: DataType) -> Plain:
    inner = plain(kind.valueType) or (lambda value: value)  # type: ignore[attr-defined]
    return _or_none(lambda value: {key: inner(item) for key, item in sorted(value, key=_key)})


def _key(entry: tuple[str, Any]) -> str:
    return entry[0]


def _plain_struct(kind: DataType) -> Plain | None:
    fields = {field.name: plain(field.dataType) for field in kind.fields}  # type: ignore[attr-defined]
    changed = {name: inner for name, inner in fields.items() if inner}
    if not changed:
        return None
    return _or_none(
        lambda value: {**value, **{name: inner(value[name]) for name, inner in changed.items()}}
    )


def _or_none(convert: Plain) -> Plain:
    return lambda value: None if value is None else convert(value)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Time zones in which instants shortly before UTC's year 1, and after its year 9999, still have a date.
_EARLIEST, _LATEST = (timezone(sign * timedelta(hours=23, minutes=59)) for sign in (1, -1))


def _instant(micros: int) -> str:
    """Format a time as ISO text in UTC, or in another time zone if the year in UTC isn't from 1 to 9999."""
    since = timedelta(microseconds=micros)
    try:
        return (_EPOCH + since).isoformat()
    except OverflowError:
        zone = _EARLIEST if micros < 0 else _LATEST
        return (_EPOCH.astimezone(zone) + since).isoformat()


def with_micros(kind: pa.DataType) -> pa.DataType:
    """Replace zoned timestamps in an Arrow type by epoch µs, because a datetime can't hold every year."""
    import pyarrow as pa

    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64() if kind.tz else kind
    if types.is_struct(kind):
        return pa.struct([field.with_type(with_micros(field.type)) for field in kind.fields])
    if types.is_map(kind):
        return pa.map_(kind.key_type, with_micros(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_micros(kind.value_type)))
    return kind


def comparable(column: Column, kind: DataType) -> Column:
    """Convert the column so that to_json() returns different texts for different values, with any Spark settings."""
    from pyspark.sql import functions as f

    name = word(kind)
    if name == "timestamp":
        return f.unix_micros(column)
    if name == "timestamp_ntz":
        return column.cast("string")
    if name == "array":
        inner = kind.elementType  # type: ignore[attr-defined]
        return f.transform(column, lambda item: comparable(item, inner))
    if name == "map":
        return _comparable_map(column, kind)
    if name == "struct":
        fields = kind.fields  # type: ignore[attr-defined]
        parts = [comparable(column[at.name], at.dataType).alias(at.name) for at in fields]
        return f.when(column.isNotNull(), f.struct(*parts))
    return column


def _comparable_map(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f

    keys, values = kind.keyType, kind.valueType  # type: ignore[attr-defined]
    return f.transform(
        f.array_sort(f.map_keys(column)),
        lambda key: f.struct(
            comparable(key, keys).alias("key"),
            comparable(f.element_at(column, key), values).alias("value"),
        ),
    )
