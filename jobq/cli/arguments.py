"""Parse arguments of calls, times, and NAME=VALUE pairs from a command line.

    a.jpg 200 true '["x"]' width=200 'note="200"'

A word that is valid JSON is read as JSON, and any other word as text. `name=…` is a keyword argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobq.config import parse_queues, parse_time
from jobq.errors import CodecError, ConfigError
from jobq.jobs.codec import decode_any

_KEYWORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FIELDS = {"args": list, "kwargs": dict, "mid": str}


@dataclass(frozen=True)
class Given:
    """The arguments of one call, and its message id, if any."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    mid: str | None = None


def value_of(word: str) -> Any:
    """Parse one argument, such as `200` -> 200, `true` -> True, `a.jpg` -> "a.jpg"."""
    try:
        return decode_any(word.encode())
    except CodecError:
        return word


def from_words(words: Iterable[str]) -> Given:
    """Parse the words of a command line as the arguments of one call."""
    given = Given()
    for word in words:
        keyword = _KEYWORD.fullmatch(word)
        if keyword is None:
            given.args.append(value_of(word))
        elif keyword[1] in given.kwargs:
            raise ConfigError(f"argument {keyword[1]!r} was passed twice; pass it only once")
        else:
            given.kwargs[keyword[1]] = value_of(keyword[2])
    return given


def from_json(text: str, what: str) -> list[Any]:
    """Return positional arguments from a JSON array."""
    value = _decoded(text.encode(), what)
    if not isinstance(value, list):
        raise ConfigError(f"{what} {text!r} is not a JSON array; write '[\"a.jpg\", 200]'")
    return value


def from_lines(lines: Iterable[bytes]) -> Iterator[Given]:
    """Parse one call per line: `["a.jpg", 200]`, or `{"args": [...], "kwargs": {...}, "mid": "..."}`."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _from_line(_decoded(line, f"line {number}"), f"line {number}")


def _from_line(value: Any, what: str) -> Given:
    if isinstance(value, list):
        return Given(value)
    if not isinstance(value, dict):
        raise ConfigError(
            f'{what} is {value!r:.60}, not a call; write [args...] or {{"args": ..., "kwargs": ..., "mid": ...}}'
        )
    for key, item in value.items():
        if not isinstance(item, _FIELDS.get(key, ())):
            raise ConfigError(
                f"{what} has the invalid entry {key!r}: {item!r:.60}; use args (array), kwargs (object), mid (text)"
            )
    return Given(value.get("args", []), value.get("kwargs", {}), value.get("mid"))


def _decoded(text: bytes, what: str) -> Any:
    try:
        return decode_any(text)
    except CodecError as error:
        raise ConfigError(f"{what} {text!r:.60} is {error}; write JSON") from error


def moment_of(text: str) -> datetime | float:
    """Parse a time: epoch seconds, or `2026-11-21T08:00`, by default in this host's time zone."""
    try:
        return float(text)
    except ValueError:
        return parse_time(text, zone="local")


def pairs_of(flag: str, words: Iterable[str]) -> dict[str, str]:
    """Parse pairs: `trace=abc` -> {"trace": "abc"}."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} {word!r} is not a pair; write {flag} NAME=TEXT")
        pairs[name] = value
    return pairs


def names_of(queues: str | None) -> list[str]:
    """Return the queue names in --queues, without the weights of the queues. Return [] if --queues wasn't given."""
    return [name for name, _ in parse_queues(queues)] if queues else []
