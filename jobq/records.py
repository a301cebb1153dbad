"""Base class of the records that `--json` prints and the dashboard's JSON API returns.

A record is declared once, in the module that creates it. Python code reads its attributes, `--json` prints its fields
in order, and `jobq.web.api.schema` encodes the fields for HTTP and describes them for OpenAPI.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, dataclass_transform

from msgspec import Meta, Struct, field

#: Epoch ms; the JSON API writes RFC 3339.
Moment = Annotated[int, Meta(extra={"json": "moment"}, extra_json_schema={"x-json": "moment"})]
#: Like `Moment`, but 0 is an unknown time, which the JSON API writes as null.
MomentOrZero = Annotated[
    int, Meta(extra={"json": "moment_or_zero"}, extra_json_schema={"x-json": "moment_or_zero"})
]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class JsonRecord(Struct, frozen=True):
    """A record with named fields. Each subclass describes its fields in the section `Attributes:` of its docstring."""

    @classmethod
    def of(cls, source: object, /, **others: Any) -> Self:
        """Return a record with these fields. The other fields are read from attributes of `source`."""
        return cls(**{
            name: others[name] if name in others else getattr(source, name)
            for name in cls.__struct_fields__
        })  # fmt: skip


def words(values: tuple[str, ...]) -> Meta:
    """Return the annotation for a string that must be one of `values`: `Annotated[str, words(STATES)]`."""
    return Meta(extra_json_schema={"enum": list(values)})
