"""Column types: which ones can be arguments of a call, and how their values are converted.

Texts, booleans, whole numbers, floats and nulls are kept; so are arrays, structs and maps with text keys. Dates, times
and timestamps become ISO text (timestamps in UTC), decimals their digits as text, intervals of days seconds. Other
types are refused on the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any

from jobq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: Returns '' if the column's type fits, else what would fit.
Fits = Callable[["DataType"], str]
Plain = Callable[[Any], Any]

_AS_THEY_ARE = frozenset(
    ("string", "varchar", "char", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "void")
)  # fmt: skip
_WHOLE = frozenset(("tinyint", "smallint", "int", "bigint"))
_ISO = frozenset(("date", "timestamp_ntz", "time"))
_REMEDIES = {
    "binary": "use base64(column) and decode it in the job, or pass where the bytes are stored",
    "variant": "use to_json(column), or cast what is needed of it",
}


def word(kind: DataType) -> str:
    """Return the type's name without its parameters: 'decimal', 'array', 'bigint'."""
    return kind.simpleString().partition("(")[0].partition("<")[0].partition(" ")[0]


def is_text(kind: DataType) -> str:
    """Check a column of queue names."""
    return "" if word(kind) in ("string", "varchar", "char") else "take a string"


def is_id(kind: DataType) -> str:
    """Check a column of mids."""
    fits = not is_text(kind) or word(kind) in _WHOLE
    return "" if fits else "take a string or a whole number; cast(… as string) says how to write it"


def is_arguments(kind: DataType) -> str:
    """Check a column of positional arguments."""
    fits = not is_text(kind) or word(kind) in ("array", "struct")
    return "" if fits else "take an array, a struct, or a string that is a JSON array"


def is_time(kind: DataType) -> str:
    """Check a column of times."""
    fits = word(kind) in (*_WHOLE, "float", "double", "decimal", "timestamp")
    return "" if fits else "take a number of seconds, or a timestamp"


def check(kind: DataType, where: str) -> None:
    """Raise ConfigError unless values of this type can be arguments."""
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
        remedy = _REMEDIES.get(name, "use cast(column as string), or pass what identifies it")
        raise ConfigError(f"{where} is of type {kind.simpleString()}; {remedy}")


def _check_struct(kind: DataType, where: str) -> None:
    names = kind.fieldNames()  # type: ignore[attr-defined]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} has two fields of one name; rename one of them")
    for field in kind.fields:  # type: ignore[attr-defined]
        check(field.dataType, f"{where}.{field.name}")


def _is_interval(kind: DataType) -> bool:
    return kind.typeName().startswith("daytimeinterval")


def plain(kind: DataType) -> Plain | None:
    """Return the function that converts Arrow's values; None if they need no conversion."""
    name = word(kind)
    if name == "decimal":
        return _or_none(str)
    if name == "timestamp":
        return _or_none(lambda value: value.astimezone(UTC).isoformat())
    if name in _ISO:
        return _or_none(lambda value: value.isoformat())
    if _is_interval(kind):
        return _or_none(lambda value: value.total_seconds())
    if name == "array":
        return _plain_array(kind)
    if name == "map":
        return _plain_map(kind)
    return _plain_struct(kind) if name == "struct" else None


def _plain_array(kind: DataType) -> Plain | None:
    inner = plain(kind.elementType)  # type: ignore[attr-defined]
    return _or_none(lambda value: [inner(item) for item in value]) if inner else None


def _plain_map(kind: DataType) -> Plain:
    inner = plain(kind.valueType) or (lambda value: value)  # type: ignore[attr-defined]
    return _or_none(lambda value: {key: inner(item) for key, item in value})


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
