"""Filters of lists: `queue:mails place:ready,due -job:shop.* attempt:>3 age:>1h error:"no route*" arg.to:a@b.example`.

A space means *and*, a comma *or*, and a leading `-` *not*; `*` stands for any text. `>`, `<`, `>=` and `<=` compare
numbers and durations. Quotes keep spaces, commas and stars as they are. Filters don't support regular expressions, so
matching is always fast.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jobq.client.names import base_of
from jobq.durations import seconds_of
from jobq.errors import ConfigError
from jobq.events import KINDS
from jobq.observe.redaction import HIDDEN

#: Maximum number of characters in a filter, and of conditions.
MAX_CHARACTERS, MAX_TERMS = 500, 20
PLACES = ("ready", "due", "running", "done", "dead")
#: The type of each key.
KEYS: dict[str, Literal["text", "word", "number", "duration"]] = {
    "queue": "text", "place": "word", "job": "text", "mid": "text", "error": "text", "fingerprint": "text",
    "attempt": "number", "crashes": "number", "age": "duration", "due": "duration", "worker": "text", "kind": "word",
    "trace": "text", "by": "text",
}  # fmt: skip
_WORDS = {"place": PLACES, "kind": KINDS}
ARGUMENT = "arg."
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


class FilterError(ConfigError):
    """A filter can't be read.

    Attributes:
        column: Position in the text, from 1; 0 for the whole filter.
    """

    def __init__(self, message: str | None = None, column: int = 0) -> None:
        super().__init__(f"column {column}: {message}" if column else message)
        self.column = column


@dataclass(frozen=True)
class Row:
    """Filterable facts about a message or event. '' and None mean unknown.

    Attributes:
        age_ms: Time since the message was enqueued or died, or since the event was written.
        due_ms: Time until the message is due; negative if the message is overdue.
        arguments: Returns redacted `(args, kwargs)`, or None if they can't be read.
    """

    queue: str
    mid: str
    place: str = ""
    job: str = ""
    error: str = ""
    fingerprint: str = ""
    attempt: int = 0
    crashes: int = 0
    age_ms: int | None = None
    due_ms: int | None = None
    worker: str = ""
    kind: str = ""
    trace: str = ""
    by: str = ""
    arguments: Callable[[], tuple[Sequence[Any], dict[str, Any]] | None] = field(
        default=lambda: None, repr=False
    )


class TextPattern(NamedTuple):
    """A pattern for text, split at its `*` wildcards. A pattern without wildcards matches only the same text."""

    parts: tuple[str, ...]

    @property
    def exact(self) -> str | None:
        """The only text that the pattern matches; None if it can match several."""
        return self.parts[0] if len(self.parts) == 1 else None

    def __call__(self, text: str) -> bool:
        """Return whether the whole text matches."""
        if len(self.parts) == 1:
            return text == self.parts[0]
        first, *between, last = self.parts
        if len(text) < len(first) + len(last):
            return False
        if not (text.startswith(first) and text.endswith(last)):
            return False
        at, end = len(first), len(text) - len(last)
        for part in between:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


class Compared(NamedTuple):
    """A comparison with a number; durations are in milliseconds."""

    by: str
    number: float

    def __call__(self, value: object) -> bool:
        """Return whether the value is a number for which the comparison holds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value == self.number if self.by == "=" else _COMPARED[self.by](value, self.number)


class Term(NamedTuple):
    """A condition of a filter.

    Attributes:
        path: Path to a value in the arguments; empty for other keys.
        tests: Tests of which at least one must match.
    """

    key: str
    path: tuple[str, ...]
    tests: tuple[TextPattern | Compared, ...]
    negated: bool
    column: int

    def __call__(self, row: Row) -> bool:
        """Return whether the row meets the condition. Hidden values never match, so filters can't reveal them."""
        return self.holds(*_values(row, self.key, self.path))

    def holds(self, *values: Any) -> bool:
        """Return whether a row with these values meets the condition. A row that lacks the key has no values."""
        if self.path and HIDDEN in values:
            return False
        return self.negated != any(_holds(test, value) for test in self.tests for value in values)


@dataclass(frozen=True)
class Filter:
    """Conditions that must all hold. An empty filter matches everything."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __call__(self, row: Row) -> bool:
        """Return whether the row matches."""
        return all(term(row) for term in self.terms)

    def only(self, key: str) -> frozenset[str] | None:
        """Return all texts that the filter allows for `key`; None if they can't be listed."""
        allowed: frozenset[str] | None = None
        for term in self.terms:
            texts = [test.exact for test in term.tests if isinstance(test, TextPattern)]
            if term.key == key and not term.negated and None not in texts:
                these = frozenset(text for text in texts if text is not None)
                allowed = these if allowed is None else allowed & these
        return allowed

    def may(self, key: str, text: str) -> bool:
        """Return whether a row whose `key` is `text` can match the filter."""
        texts = {text, base_of(text)} if key == "queue" else {text}
        return all(term.holds(*texts) for term in self.terms if term.key == key)


def parse(
    text: str, *, may_see_arguments: bool = False, keys: Sequence[str] = tuple(KEYS)
) -> Filter:
    """Parse a filter. Raises FilterError, which names the column of the error.

    Args:
        keys: Keys that the list supports.
    """
    if len(text) > MAX_CHARACTERS:
        raise FilterError(
            f"the filter has {len(text):,} characters; at most {MAX_CHARACTERS} are allowed",
            MAX_CHARACTERS + 1,
        )
    reader = _Reader(text)
    terms: list[Term] = []
    while reader.more():
        column = reader.at + 1
        if len(terms) == MAX_TERMS:
            raise FilterError(f"a filter has at most {MAX_TERMS} conditions", column)
        term = _term(reader, column, keys)
        if term.path and not may_see_arguments:
            raise FilterError(
                "filtering by 'arg.' needs the 'arguments' right, which this login lacks", column
            )
        terms.append(term)
    return Filter(text.strip(), tuple(terms))


def quoted(value: str) -> str:
    """Return `value` quoted for a filter, so that it matches exactly that text."""
    plain = value and not set(value) & set(' \t\n,"*\\') and value[0] not in "<>="
    if plain and value.isprintable():
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Reader:
    """Parses a filter from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def more(self) -> bool:
        """Skip whitespace, and return whether any text remains."""
        while self.peek().isspace():
            self.at += 1
        return self.at < len(self.text)

    def peek(self) -> str:
        """Return the next character, '' at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, *words: str) -> str:
        """If the text continues with one of these words, skip and return the word; otherwise return ''."""
        for word in words:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return word
        return ""

    def name(self) -> list[str]:
        """Parse a key up to its colon. Return its parts, which are separated by dots outside of quotes."""
        start, parts = self.at + 1, [""]
        while self.peek() != ":":
            if not self.peek() or self.peek().isspace():
                word = self.text[start - 1 : self.at]
                raise FilterError(
                    f"{word!r} has no key; write it as KEY:VALUE, for example mid:{quoted(word)}",
                    start,
                )
            if self.peek() == '"':
                parts[-1] += self.quotation()
            elif self.take("."):
                parts.append("")
            else:
                parts[-1] += self.take(self.peek())
        self.at += 1
        return parts

    def quotation(self) -> str:
        """Parse a quoted text, where a backslash escapes the next character."""
        start, chars = self.at + 1, []
        self.at += 1
        while self.peek() != '"':
            self.take("\\")
            if not self.peek():
                raise FilterError('unclosed quotation; add a "', start)
            chars.append(self.take(self.peek()))
        self.at += 1
        return "".join(chars)

    def pattern(self) -> TextPattern:
        """Parse the value up to the next unquoted whitespace or comma, and return its pattern."""
        parts = [""]
        while self.peek() and not self.peek().isspace() and self.peek() != ",":
            if self.peek() == '"':
                parts[-1] += self.quotation()
            elif self.take("*"):
                parts.append("")
            else:
                parts[-1] += self.take(self.peek())
        return TextPattern(tuple(parts))


def _term(reader: _Reader, column: int, keys: Sequence[str]) -> Term:
    negated = bool(reader.take("-"))
    key, *path = reader.name()
    kind: str | None = KEYS.get(key) if key in keys and not path else None
    if key == ARGUMENT[:-1]:
        if not path or "" in path:
            raise FilterError("write arg.0:VALUE or arg.NAME:VALUE", column)
        kind = "argument"
    if kind is None:
        known = ", ".join((*keys, "arg.PATH"))
        written = ".".join((key, *path))
        raise FilterError(f"{written!r} is not a key of this list; use one of {known}", column)
    tests: list[TextPattern | Compared] = []
    while True:
        tests.append(_test(reader, key, kind))
        if not reader.take(","):
            return Term(key, tuple(path), tuple(tests), negated, column)


def _test(reader: _Reader, key: str, kind: str) -> TextPattern | Compared:
    column, start = reader.at + 1, reader.at
    by = reader.take(*_COMPARED)
    pattern = reader.pattern()
    value, written = pattern.exact, reader.text[start : reader.at]
    if not written or (by and not value):
        raise FilterError(f'{key} has no value; write {key}:VALUE, or {key}:"" (empty)', column)
    if kind == "duration":
        return Compared(*_duration(key, by, value or written, column))
    if kind == "number" or (kind == "argument" and by):
        return Compared(by or "=", _number(key, value or written, column))
    if by:
        raise FilterError(
            f"{key} is text; > and < work only with attempt, crashes, age and due", column
        )
    if kind == "word" and value is not None and value not in _WORDS[key]:
        raise FilterError(
            f"{key} {value!r} is unknown; use one of {', '.join(_WORDS[key])}", column
        )
    return TextPattern(tuple(map(str.casefold, pattern.parts))) if key == "error" else pattern


def _duration(key: str, by: str, value: str, column: int) -> tuple[str, float]:
    if not by:
        raise FilterError(
            f"{key} is compared with a duration; write {key}:>5m or {key}:<5m", column
        )
    try:
        return by, seconds_of(value) * 1000
    except ValueError as error:
        raise FilterError(f"{key}: {error}", column) from error


def _number(key: str, value: str, column: int) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**63:
        raise FilterError(f"{key}: {value!r} is not a number, or is too large", column)
    return number


def _values(row: Row, key: str, path: tuple[str, ...]) -> Iterator[Any]:
    if path:
        arguments = row.arguments()
        if arguments is not None:
            yield from _argument(*arguments, path)
    elif key in ("age", "due"):
        yield row.age_ms if key == "age" else row.due_ms
    elif key == "error":
        yield row.error.partition("\n")[0].casefold()
    elif key == "queue":
        yield from {row.queue, base_of(row.queue)}
    else:
        yield getattr(row, key)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the value at a path in a call's arguments: an argument's name or position, then keys of objects and
    positions in lists.
    """
    first, *rest = path
    value: Any = kwargs
    if first in kwargs:
        value = kwargs[first]
    elif (at := _position(first, args)) is not None:
        value = args[at]
    else:
        return
    for step in rest:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (at := _position(step, value)) is not None:
            value = value[at]
        elif value == HIDDEN:
            break
        else:
            return
    yield value


def _position(step: str, among: Sequence[Any]) -> int | None:
    if not (step.isascii() and step.isdigit()) or len(step) > 6 or int(step) >= len(among):
        return None
    return int(step)


def _holds(test: TextPattern | Compared, value: Any) -> bool:
    if isinstance(test, Compared):
        return test(value)
    if isinstance(value, str):
        return test(value)
    written = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return test(written[value])
    return isinstance(value, int | float) and test(f"{value!r}")
