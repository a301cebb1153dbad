"""Write records as JSON, and describe this JSON for OpenAPI. The types of the fields determine the JSON.

Times are RFC 3339 in UTC with milliseconds, whole numbers that JavaScript can't hold are text, and unknown values are
null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, inspect, json

from jobq.events import in_utc
from jobq.records import JsonRecord

#: Whole numbers beyond this lose digits in JavaScript.
MAX_EXACT = 2**53 - 1
_REF = "#/components/schemas/{name}"
_ATTRIBUTE = re.compile(r"\n    (\w+): (.*(?:\n {8}.*)*)")
_TIME = {"examples": ["2026-11-23T14:02:03.250Z"]}
#: Kind of a whole number -> its JSON schema.
_NUMBERS: dict[str, dict[str, Any]] = {
    "whole": {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"},
    "moment": {"type": "string", **_TIME},
    "moment_or_zero": {"type": ["string", "null"], **_TIME},
}
Write = Callable[[Any], Any]
T = TypeVar("T")
Unread = Annotated[dict[str, str], Meta(description="Unreadable parts, with the reason.")]


class ListPage(JsonRecord, Generic[T], kw_only=True):
    """A page of a list."""

    items: Sequence[T]
    next: Annotated[
        str | None, Meta(description="Value of `cursor` for the next rows; null at the end.")
    ] = None


class ReadablePage(ListPage[T], kw_only=True):
    """A page of a list. `unread` has the parts that can't be read."""

    unread: Unread


@cache
def writer_of(kind: Any) -> Write:
    """Return the function that turns a value of this type into JSON data."""
    return _writer(inspect.type_info(kind))


def _writer(info: inspect.Type) -> Write:
    if isinstance(info, inspect.Metadata):
        return _MARKED.get((info.extra or {}).get("json", "")) or _writer(info.type)
    if isinstance(info, inspect.StructType):
        fields = [(field.encode_name, field.name, _writer(field.type)) for field in info.fields]
        return lambda value: {key: write(getattr(value, name)) for key, name, write in fields}
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        write_item = _writer(info.item_type)
        return lambda value: [write_item(item) for item in value]
    if isinstance(info, inspect.DictType):
        write_value = _writer(info.value_type)
        return lambda value: {_text(name): write_value(item) for name, item in value.items()}
    if isinstance(info, inspect.UnionType):
        [write_known] = [
            _writer(type_) for type_ in info.types if not isinstance(type_, inspect.NoneType)
        ]
        return lambda value: None if value is None else write_known(value)
    return _PLAIN.get(type(info), lambda value: value)


def _whole(value: int) -> int | str:
    number = int(value)
    return number if -MAX_EXACT <= number <= MAX_EXACT else str(number)


def _text(value: object) -> str:
    # UTF-8 can't encode lone surrogates.
    return str(value).encode("utf-8", "backslashreplace").decode()


def _moment_or_null(value: int) -> str | None:
    return in_utc(int(value)) if value else None


_PLAIN: dict[type[inspect.Type], Write] = {inspect.IntType: _whole, inspect.StrType: _text}
_MARKED: dict[str, Write] = {"moment": in_utc, "moment_or_zero": _moment_or_null}


def described(kinds: Iterable[Any], *, are_replies: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return a JSON schema for each type, and the named schemas that these schemas use.

    Args:
        are_replies: Whether the types are replies, which contain every field.
    """
    schemas, components = json.schema_components(kinds, ref_template=_REF)
    for schema in components.values():
        _describe_fields(schema)
        if are_replies:
            schema["required"] = list(schema["properties"])
    return [_as_written(schema) for schema in schemas], _as_written(components)


def _describe_fields(schema: dict[str, Any]) -> None:
    """Move the descriptions in the section `Attributes:` of a docstring to the fields."""
    about, _, section = cleandoc(schema.pop("description", "")).partition("\n\nAttributes:")
    if about:
        schema["description"] = " ".join(about.split())
    for name, text in _ATTRIBUTE.findall(section):
        schema["properties"][name]["description"] = " ".join(text.split())


def _as_written(schema: Any) -> Any:
    """Adapt msgspec's JSON schema to the JSON that the API writes."""
    if isinstance(schema, list):
        return [_as_written(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: _as_written(part) for name, part in value.items()} if key == "properties" else _as_written(value)
        for key, value in schema.items()
        if key not in ("x-json", "default")
    }  # fmt: skip
    if made.get("type") == "integer":
        made |= _NUMBERS[schema.get("x-json", "whole")]
    if "enum" in made:
        made["type"] = "string"
    return made
