"""What a JSON reply looks like: each shape writes a value, and describes itself for OpenAPI.

The same object does both, so a reply can't differ from its description. Times are RFC 3339 in UTC with milliseconds,
whole numbers that JavaScript can't hold are text, and what isn't known is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jobq.events import in_utc

#: Whole numbers beyond this lose digits in JavaScript.
MOST_EXACT = 2**53 - 1


class Shape(Protocol):
    """One shape."""

    def written(self, value: Any) -> Any:
        """Return `value` as JSON data."""
        ...

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        ...


@dataclass(frozen=True)
class Plain:
    """A value that is written as it is. kind: a type of JSON schema; says: what it means."""

    kind: str
    says: str = ""

    def written(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": self.kind} | ({"description": self.says} if self.says else {})


@dataclass(frozen=True)
class Text:
    """Text; lone surrogates, which no UTF-8 has, are escaped. values: all that there are."""

    says: str = ""
    values: tuple[str, ...] = ()

    def written(self, value: Any) -> str:
        """Return the text."""
        return str(value).encode("utf-8", "backslashreplace").decode()

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema: dict[str, Any] = {"type": "string"}
        if self.values:
            schema["enum"] = list(self.values)
        return schema | ({"description": self.says} if self.says else {})


@dataclass(frozen=True)
class Whole:
    """A whole number; text if JavaScript can't hold it."""

    says: str = ""

    def written(self, value: Any) -> int | str:
        """Return the number, or its digits."""
        number = int(value)
        return number if -MOST_EXACT <= number <= MOST_EXACT else str(number)

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema: dict[str, Any] = {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"}
        return schema | ({"description": self.says} if self.says else {})


@dataclass(frozen=True)
class Moment:
    """A time, from epoch ms."""

    says: str = ""

    def written(self, value: Any) -> str:
        """Return the time in UTC."""
        return in_utc(int(value))

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema: dict[str, Any] = {"type": "string", "examples": ["2026-11-23T14:02:03.250Z"]}
        return schema | ({"description": self.says} if self.says else {})


@dataclass(frozen=True)
class Maybe:
    """A value that may be unknown. zero: 0 means that, too."""

    shape: Shape
    zero: bool = False

    def written(self, value: Any) -> Any:
        """Return null for what isn't known."""
        return None if value is None or (self.zero and not value) else self.shape.written(value)

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema = self.shape.described()
        says = {"description": schema.pop("description")} if "description" in schema else {}
        return {"oneOf": [schema, {"type": "null"}]} | says


@dataclass(frozen=True)
class Optional:
    """A field of a body that may be left out."""

    shape: Shape

    def written(self, value: Any) -> Any:
        """Return the value."""
        return self.shape.written(value)

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return self.shape.described()


@dataclass(frozen=True)
class Items:
    """A list."""

    shape: Shape
    says: str = ""

    def written(self, value: Any) -> list[Any]:
        """Return the list."""
        return [self.shape.written(one) for one in value]

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema: dict[str, Any] = {"type": "array", "items": self.shape.described()}
        return schema | ({"description": self.says} if self.says else {})


@dataclass(frozen=True)
class ByName:
    """An object whose names are data."""

    shape: Shape
    says: str = ""

    def written(self, value: Any) -> dict[str, Any]:
        """Return the object."""
        return {str(name): self.shape.written(one) for name, one in value.items()}

    def described(self) -> dict[str, Any]:
        """Return the JSON schema."""
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self.shape.described()}
        return schema | ({"description": self.says} if self.says else {})


class RecordShape:
    """An object with these fields, from a mapping or a NamedTuple. Other fields of the value are left out."""

    def __init__(self, says: str = "", /, **fields: Shape) -> None:
        self.says, self.fields = says, fields

    def written(self, value: Any) -> dict[str, Any]:
        """Return the object."""
        facts = value if isinstance(value, Mapping) else value._asdict()
        return {name: shape.written(facts[name]) for name, shape in self.fields.items()}

    def described(self) -> dict[str, Any]:
        """Return the JSON schema. Fields may be added in this version, so others are allowed."""
        schema: dict[str, Any] = {
            "type": "object",
            "required": [name for name, shape in self.fields.items() if not isinstance(shape, Optional)],
            "properties": {name: shape.described() for name, shape in self.fields.items()},
        }  # fmt: skip
        return schema | ({"description": self.says} if self.says else {})

    def with_fields(self, **fields: Shape) -> RecordShape:
        """Return a record with more fields."""
        return RecordShape(self.says, **self.fields, **fields)


def listed(shape: Shape, says: str = "") -> RecordShape:
    """Return the shape of a list: the rows, and what `cursor` takes for the next ones."""
    following = Maybe(Text("What `cursor` takes for the next rows; null at the end."))
    return RecordShape(says, items=Items(shape), next=following)


TEXT, WHOLE, MOMENT = Text(), Whole(), Moment()
FLAG, REAL = Plain("boolean"), Plain("number")
NAMES = Items(TEXT)
Rows = Sequence[Any]
