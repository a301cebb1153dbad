"""Hide secrets in arguments, results and errors on pages, in the API and in filters, at every depth.

A value is hidden if the name of its key or parameter looks like a secret's name; see SECRET. Secrets within texts are
also hidden: passwords in URLs, private keys, and secrets written as `Bearer ...`, `password=...`, `--password ...`,
JSON or XML.
"""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.errors import ConfigError, JobqError, masked_text
from jobq.jobs.registry import Registry
from jobq.queue import presence


class Hidden(str):
    """A text that replaces a hidden value."""

    __slots__ = ()


HIDDEN = Hidden("[hidden]")
#: Names of secrets. The whole name is compared without punctuation, and each of its words: `accessToken` and
#: `access-token` are "accesstoken", "access" and "token".
SECRET = (
    "*passw*", "*secret*", "*token*", "*apikey*", "api?key", "*authorization*", "*cookie*", "*credential*",
    "*privatekey*", "card", "cards", "cardn*", "*creditcard*", "iban", "ssn", "cvv", "cvc",
)  # fmt: skip
#: Number of characters of a name to compare.
_MAX_NAME_LENGTH = 200
#: Interval between readings of the names that workers stored.
READ_EVERY_S = 10.0
#: Levels that are shown: envelopes nest no deeper.
MAX_LEVELS = 70
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
#: Texts up to this length are looked into for JSON.
_MAX_JSON_LENGTH = 65_536
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest)\s+[A-Za-z0-9._~+/=-]{6,}")
_ERRORS = ("Error", "Exception", "Warning", "Timeout")
#: `password=x`, `--token: 'x'`, `"secret" => "x"`, `\"secret\": \"x\"`: the name, and its sign.
_NAMED = re.compile(
    r"""(?<!\w)(?P<name>\w[\w.-]{0,60})\\{0,7}["']?\s{0,3}(?P<sign>=>|:=|==?|:|%3[dD])\s{0,3}"""
)
#: `--password x`, `'--password', 'x'`, `("password", "x")`: the name, and no sign.
_PAIRED = re.compile(
    r"""(?:(?<![\w-])--?(?P<flag>[A-Za-z][\w.-]{0,60})["']?,?\s{1,3}(?=[^\s-])"""
    r"""|[(\[]["'](?P<first>\w[\w. -]{0,60})["'],\s{0,3}(?=b?["']))"""
)
#: `<password>x</password>`
_ELEMENT = re.compile(r"(<(?P<name>[\w.:-]{1,60})(?:\s[^<>]{0,200})?>)[^<]{1,4000}(?=<)")
_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----BEGIN).){0,16384}?(?:-----END [A-Z ]{0,40}-----|\Z)",
    re.DOTALL,
)
#: A value in quotes, which may themselves be escaped; one without; the rest of a line.
_QUOTED = re.compile(
    r"""[bBrRuUfF]{0,2}(?P<quote>\\{0,7}["'])(?:(?!(?<!\\)(?P=quote))(?:\\[^\n]|[^\n])){0,4000}(?:(?P=quote))?"""
)
_BARE = re.compile(r"""[^\s"'&;,()\[\]{}\\]{1,2000}|\\(?!["'\\])""")
_LINE = re.compile(r"""[^\n"']{1,4000}""")
#: Names of headers: their values have spaces and semicolons.
_HEADERS = ("*authorization*", "*cookie*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: Characters of a value in brackets.
_MAX_VALUE_LENGTH = 4_000


class ShownArguments(NamedTuple):
    """A call's arguments with secrets hidden, so that they may be shown.

    Attributes:
        names: Parameter names of the positional arguments, or '' where they are unknown.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()


class DeclaredNames:
    """The names of arguments that each job hides with `@job(redact=...)`.

    Workers store the names on the server, and this process reads the names every ten seconds. If reading fails, the
    last known names apply. If no names were ever read, all arguments are hidden.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[str, ...]] | None = None
        self._until = 0.0

    def __call__(self, job: str) -> tuple[str, ...]:
        """Return the names of the arguments that the job hides."""
        now = time.monotonic()
        if now >= self._until:
            self._until = now + READ_EVERY_S
            with suppress(JobqError):
                stored = presence.every_redaction(self._client)
                # Names of values are compared without their case.
                self._known = {
                    name: tuple(name.casefold() for name in names) for name, names in stored.items()
                }
        return (presence.EVERYTHING,) if self._known is None else self._known.get(job, ())


class Redactor:
    """Hides secrets in arguments and texts.

    Attributes:
        more: Additional names whose values are hidden.
        registry: The jobs that this process has imported.
        declared: Returns the names that a job hides with `@job(redact=...)`; '*' hides all arguments.
        usual: Built-in names whose values are hidden, such as `*passw*`.
    """

    def __init__(
        self,
        more: Iterable[str] = (),
        registry: Registry | None = None,
        declared: Callable[[str], Iterable[str]] = lambda job: (),
        usual: Iterable[str] = SECRET,
    ) -> None:
        self._patterns = (*usual, *map(checked_pattern, more))
        self._registry, self._declared = registry, declared

    def hides(self, name: str, more: Iterable[str] = ()) -> bool:
        """Return whether a value with this name is hidden."""
        return _hides(name, self._patterns) or _hides(name, tuple(more))

    def tree(self, value: Any, more: Iterable[str] = ()) -> Any:
        """Return JSON data with the secrets hidden."""
        return self._tree(value, tuple(more), MAX_LEVELS)

    def declared(self, job: str) -> tuple[str, ...]:
        """Return the names of arguments that a job hides; `*` hides all. Positions such as `0` are left out."""
        names = self._declared(job) if job else ()
        return tuple(name for name in names if not name.isdigit())

    def text(self, text: str, more: Iterable[str] = ()) -> str:
        """Return `text` with recognized secrets hidden.

        Args:
            more: Additional names whose values are hidden.
        """
        more = tuple(more)
        shown = _SCHEME.sub(lambda match: f"{match[1]} {HIDDEN}", masked_text(text))
        if "PRIVATE KEY" in shown:
            shown = _KEY.sub(HIDDEN, shown)
        if "</" in shown:
            shown = _ELEMENT.sub(lambda match: self._element(match, more), shown)
        if "=" in shown or ":" in shown or "%3" in shown:
            shown = self._without_values(_NAMED, shown, more)
        return self._without_values(_PAIRED, shown, more) if "-" in shown or "," in shown else shown

    def call(self, job: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ShownArguments:
        """Return the arguments of a call with secrets hidden. Positional arguments are named if this process has
        imported the job.
        """
        names, more = self._parameters(job, len(args)), tuple(self._declared(job))
        shown = [
            HIDDEN if (name and self.hides(name, more)) or str(at) in more or "*" in more else self.tree(value, more)
            for at, (name, value) in enumerate(zip(names, args, strict=True))
        ]  # fmt: skip
        return ShownArguments(shown, self.tree(dict(kwargs), more), names)

    def _parameters(self, job: str, number: int) -> tuple[str, ...]:
        known = self._registry.find(job) if self._registry else None
        names: list[str] = []
        if known is not None:
            for name, parameter in known.parameters.items():
                if parameter.kind is parameter.VAR_POSITIONAL:
                    names += [name] * (number - len(names))
                elif parameter.kind in (
                    parameter.POSITIONAL_ONLY,
                    parameter.POSITIONAL_OR_KEYWORD,
                ):
                    names.append(name)
        return tuple(names[:number]) + ("",) * (number - len(names))

    def _tree(self, value: Any, more: tuple[str, ...], levels: int) -> Any:
        if not levels:
            return HIDDEN
        if isinstance(value, dict):
            named = _named_value(value)
            return {
                key: HIDDEN
                if self.hides(key, more) or (key == named[1] and self.hides(named[0], more))
                else self._tree(item, more, levels - 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            # ["password", "x"]: a header or a field as a pair.
            if len(value) == 2 and isinstance(value[0], str) and self.hides(value[0], more):
                return [value[0], HIDDEN]
            return [
                HIDDEN if before and not _is_flag(item) else self._tree(item, more, levels - 1)
                for item, before in zip(value, self._secret_follows(value, more), strict=True)
            ]
        return self._in_text(value, more, levels) if isinstance(value, str) else value

    def _secret_follows(self, items: Sequence[Any], more: tuple[str, ...]) -> list[bool]:
        """Return, for each item, whether the previous item is a flag for a secret, such as `--password`."""
        named = [_is_flag(item) and "=" not in item and self.hides(item, more) for item in items]
        return [False, *named][: len(items)]

    def _in_text(self, text: str, more: tuple[str, ...], levels: int) -> str:
        if text.lstrip()[:1] in ("{", "[", '"') and len(text) <= _MAX_JSON_LENGTH:
            try:
                inner = json.loads(text)
                return json.dumps(self._tree(inner, more, levels - 1), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        return self.text(text, more)

    def _element(self, match: re.Match[str], more: tuple[str, ...]) -> str:
        return f"{match[1]}{HIDDEN}" if self.hides(match["name"], more) else match[0]

    def _without_values(self, names: re.Pattern[str], text: str, more: tuple[str, ...]) -> str:
        parts, at, known = [], 0, dict[str, bool]()
        for match in names.finditer(text):
            name = next(filter(None, (match[group] for group in names.groupindex)))
            if name not in known:
                # `TokenError: expired` is an error's name, followed by its message.
                known[name] = not name.endswith(_ERRORS) and self.hides(name, more)
            if not known[name] or match.start() < at or text.startswith("//", match.end()):
                continue
            is_header = names is _NAMED and match["sign"] == ":" and _hides(name, _HEADERS)
            end = _end_of_value(text, match.end(), is_header)
            if end > match.end():
                parts += [text[at : match.end()], HIDDEN]
                at = end
        return "".join([*parts, text[at:]])


def _end_of_value(text: str, at: int, is_header: bool) -> int:
    """Return the position after the value that starts at `at`. Text in quotes or brackets belongs to the value."""
    if is_header and not _QUOTED.match(text, at) and (line := _LINE.match(text, at)):
        return line.end()
    last = min(len(text), at + 2 * _MAX_VALUE_LENGTH)
    while at < last:
        if text[at] in _CLOSING:
            at = _end_of_brackets(text, at)
        elif value := _QUOTED.match(text, at) or _BARE.match(text, at):
            at = value.end()
        else:
            break
    return at


def _end_of_brackets(text: str, begin: int) -> int:
    """Return the position after the bracketed value that starts at `begin`, within _MAX_VALUE_LENGTH characters."""
    still_open = [_CLOSING[text[begin]]]
    at, last = begin + 1, min(len(text), begin + _MAX_VALUE_LENGTH)
    while at < last:
        if match := _QUOTED.match(text, at):
            at = match.end()
            continue
        if text[at] == still_open[-1]:
            still_open.pop()
            if not still_open:
                return at + 1
        elif text[at] in _CLOSING:
            still_open.append(_CLOSING[text[at]])
        at += 1
    return last


def checked_pattern(name: str) -> str:
    """Normalize the name of a value to hide. Raise ConfigError for a name that would hide nothing or everything."""
    kept = unicodedata.normalize("NFKC", name).casefold().strip()
    if not kept.strip("*?") or len(kept) > _MAX_NAME_LENGTH or "[" in kept:
        raise ConfigError(
            f"redact={name!r:.200} is invalid; use 1 to {_MAX_NAME_LENGTH} characters without [, "
            "and at least one character other than * and ?"
        )
    return kept


def _is_flag(item: Any) -> bool:
    return isinstance(item, str) and item.startswith("-")


def _named_value(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a name and the key of its value, such as `token` and `value` for `{"name": "token", "value": "x"}`.

    For other mappings, return two empty strings.
    """
    keys = {key.casefold(): key for key in value if isinstance(key, str) and len(key) < 10}
    for name in ("name", "key", "field", "header"):
        if "value" in keys and isinstance(value.get(keys.get(name, "")), str):
            return value[keys[name]], keys["value"]
    return "", ""


@lru_cache(maxsize=4096)
def _hides(name: str, patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return False
    text = unicodedata.normalize("NFKC", name[:_MAX_NAME_LENGTH])
    words = {word.casefold() for word in _WORDS.findall(text)}
    whole = text.casefold()
    words |= {whole, "".join(char for char in whole if char.isalnum())}
    return any(fnmatchcase(word, pattern) for pattern in patterns for word in words)
