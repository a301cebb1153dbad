"""JSON data as a tree of bounded size for pages: each part has a name, a kind, and a text or parts of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jobq.observe.redaction import Hidden

#: Maximum number of parts in a tree, characters in a text, and levels.
MAX_PARTS, MAX_TEXT, MAX_LEVELS = 500, 4_000, 32


class Part(NamedTuple):
    """A value or a part of a value.

    Attributes:
        kind: text, number, word (true, false, null), secret, object, list, or cut (omitted parts).
        number: Number of parts of an object or a list.
    """

    name: str
    kind: str
    text: str = ""
    parts: tuple[Part, ...] = ()
    number: int = 0


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_PARTS


def tree(name: str, value: Any) -> Part:
    """Return a value as a tree. Parts beyond the limits are counted but left out."""
    return _part(name, value, _Budget(), MAX_LEVELS)


def arguments(args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str]) -> list[Part]:
    """Return a call's arguments as parts: positional arguments with their names if known, then keyword arguments."""
    budget, parts = _Budget(), list[Part]()
    labels = [f"{at} {name}".strip() for at, name in enumerate(names)]
    for label, value in [*zip(labels, args, strict=False), *kwargs.items()]:
        if budget.left <= 0:
            more = len(args) + len(kwargs) - len(parts)
            return [*parts, Part("", "cut", f"{more:,} more")]
        parts.append(_part(label, value, budget, MAX_LEVELS))
    return parts


def _part(name: str, value: Any, budget: _Budget, levels: int) -> Part:
    budget.left -= 1
    if isinstance(value, Hidden):
        return Part(name, "secret", "hidden")
    if isinstance(value, str):
        more = len(value) - MAX_TEXT
        text = value if more <= 0 else f"{value[:MAX_TEXT]}… {more:,} more characters"
        return Part(name, "text", text)
    if value is None or isinstance(value, bool):
        return Part(name, "word", {None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int | float):
        return Part(name, "number", _shown(value))
    if isinstance(value, dict):
        pairs = ((str(key), item) for key, item in value.items())
        return Part(
            name, "object", "", tuple(_parts(pairs, len(value), budget, levels)), len(value)
        )
    pairs = ((str(at), item) for at, item in enumerate(value))
    return Part(name, "list", "", tuple(_parts(pairs, len(value), budget, levels)), len(value))


def _parts(
    pairs: Iterator[tuple[str, Any]], number: int, budget: _Budget, levels: int
) -> Iterator[Part]:
    for seen, (name, value) in enumerate(pairs):
        if budget.left <= 0 or not levels:
            yield Part("", "cut", f"{number - seen:,} more")
            return
        yield _part(name, value, budget, levels - 1)


def _shown(value: float) -> str:
    try:
        return repr(value)
    except ValueError:  # more digits than Python prints
        return "a number of thousands of digits"
