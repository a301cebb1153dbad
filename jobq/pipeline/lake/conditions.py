"""Conditions that select rows to erase, by columns, by arguments of calls or by keys of JSON data.

Conditions are plain data, so they can be sent to executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import CodecError, ConfigError
from jobq.jobs import codec
from jobq.jobs.signing import is_sealed, unverified
from jobq.pipeline.options import parsed_moment
from jobq.pipeline.schema import is_of

_TEXT = r"'(?:[^']|'')*'"
_VALUE = rf"(?:{_TEXT}|-?\d+)"
_CONDITION = re.compile(
    rf"\s*(?P<column>\w+)\s*(?:(?P<sign>=|!=|<>)\s*(?P<value>{_VALUE})"
    rf"|in\s*\((?P<values>\s*{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\))\s*",
    re.IGNORECASE,
)
_AND = re.compile(r"and\b", re.IGNORECASE)


class Condition(NamedTuple):
    """The condition that a column has one of the values or, if `is_not`, none of them."""

    column: str
    values: tuple[str, ...]
    is_not: bool = False


class Argument(NamedTuple):
    """Matches calls in which an argument, or a key inside an argument, has this name and value.

    A numeric name, such as `0`, also matches the argument at that position.
    """

    name: str
    value: str

    def is_in(self, content: Any) -> bool:
        """Return whether JSON data has this name with this value, at any depth."""
        # Not recursive, because contents may be nested as deeply as Python's recursion limit allows.
        rest = [content]
        while rest:
            node = rest.pop()
            if isinstance(node, dict):
                if any(self._is(key, value) for key, value in node.items()):
                    return True
                rest.extend(node.values())
            elif isinstance(node, list | tuple):
                rest.extend(node)
        return False

    def is_in_call(self, args: Sequence[Any], kwargs: Any) -> bool:
        """Return whether a call with these arguments matches."""
        by_position = any(self._is(str(at), value) for at, value in enumerate(args))
        return by_position or self.is_in(list(args)) or self.is_in(kwargs)

    def _is(self, name: str, value: Any) -> bool:
        if name != self.name or isinstance(value, dict | list):
            return False
        text = value if isinstance(value, str) else json.dumps(value)
        return bool(text == self.value)


class Sought(NamedTuple):
    """Selects rows that match all conditions and, unless `argument` is None, also match `argument`.

    Attributes:
        queue: Queue or topic to search; None searches all.
    """

    queue: str | None
    conditions: tuple[Condition, ...]
    argument: Argument | None

    def columns(self) -> set[str]:
        """Return the columns that the search reads."""
        content = {"content"} if self.argument else set()
        return {condition.column for condition in self.conditions} | content

    def mask(self, rows: pa.Table, queue: str) -> tuple[Any, int]:
        """Return a mask of the matching rows, and the number of contents that could not be searched."""
        mask: Any = pa.array([True] * rows.num_rows, pa.bool_())
        terms = [Condition(queue, (self.queue,))] if self.queue is not None else []
        for term in [*terms, *self.conditions]:
            mask = pc.and_(mask, _matches(rows[term.column], term))
        if self.argument is None:
            return mask, 0
        contents = pc.if_else(mask, rows["content"], None).to_pylist()
        answers = [
            None if content is None else has_argument(content, self.argument)
            for content in contents
        ]
        unsearched = sum(
            content is not None and answer is None
            for content, answer in zip(contents, answers, strict=True)
        )
        return pa.array([bool(answer) for answer in answers], pa.bool_()), unsearched


def _matches(column: Any, condition: Condition) -> Any:
    values: Sequence[Any] = condition.values
    if pa.types.is_timestamp(column.type):
        values = [moment(condition.column, text) for text in condition.values]
    elif not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    mask = is_of(condition.column, column, values)
    return pc.and_(pc.invert(mask), pc.is_valid(column)) if condition.is_not else mask


def moment(column: str, text: str) -> datetime:
    """Parse the time in a condition on a column."""
    return parsed_moment(f"--where {column}", text)


def has_argument(content: bytes, argument: Argument) -> bool | None:
    """Return whether a call or JSON data has the argument; None if the bytes can't be searched."""
    plain = unverified(content)
    if is_sealed(plain):
        return None
    try:
        call = codec.decode(plain)
    except CodecError:
        pass
    else:
        return argument.is_in_call(call.args, call.kwargs)
    refused = codec.read_refusal(plain)
    try:
        data = codec.decode_any(refused.raw if refused else plain)
    except CodecError:
        return None
    return argument.is_in(data) if isinstance(data, dict | list) else None


def parsed_conditions(text: str) -> tuple[Condition, ...]:
    """Parse conditions such as `key = 'acme' and job in ('a', 'b')`. Raises ConfigError for invalid conditions."""
    return tuple(_conditions(checked_text("--where", text)))


def checked_text(option: str, text: str) -> str:
    """Return the text of an option. Raises ConfigError if the text is empty or isn't UTF-8."""
    if not text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError(f"{option} {text[:80]!r} is invalid; use non-empty UTF-8 text")
    return text


def _conditions(text: str) -> Iterator[Condition]:
    at = 0
    while True:
        match = _CONDITION.match(text, at)
        if match is None:
            raise ConfigError(
                f"condition {text[at : at + 80]!r} can't be read; write column = 'text', column != 'text' or "
                "column in ('a', 'b'), with 'and' between them"
            )
        values = re.findall(_VALUE, match["value"] or match["values"])
        yield Condition(
            match["column"].lower(), tuple(map(_value, values)), match["sign"] in ("!=", "<>")
        )
        at = match.end()
        if at == len(text):
            return
        following = _AND.match(text, at)
        if following is None:
            raise ConfigError(
                f"condition {text[at : at + 80]!r} can't be read; write 'and' between conditions"
            )
        at = following.end()


def _value(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def parsed_argument(text: str) -> Argument:
    """Parse an argument condition such as `customer=7`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--arg {text[:80]!r} has no value; write NAME=VALUE")
    return Argument(name.strip(), value)
