"""What a call may carry: exactly what JSON gives back as it was, and for the rest what to pass instead.

msgspec would write a datetime, a set or bytes as text without a word, and the job would get that text.
So everything is refused here that would arrive as something else. The one exception are tuples, which
arrive as lists.
"""

from __future__ import annotations

from math import isfinite
from types import NoneType
from typing import Any

from jobq.errors import CodecError

MAX_DEPTH = 64
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

_AS_THEY_ARE = frozenset((str, bool, NoneType))

#: The first class of a value's ancestry that is named here gives the remedy.
_REMEDIES = {
    "builtins.set": "pass a list",
    "builtins.frozenset": "pass a list",
    "builtins.bytes": "pass base64 text, or where the bytes are stored",
    "builtins.bytearray": "pass base64 text, or where the bytes are stored",
    "builtins.memoryview": "pass base64 text, or where the bytes are stored",
    "builtins.complex": "pass [value.real, value.imag]",
    "builtins.type": "pass its name",
    "builtins.function": "pass a name to look it up by",
    "builtins.generator": "pass list(value)",
    "builtins.range": "pass list(value), or its bounds",
    "builtins.str": "pass str(value)",
    "builtins.int": "pass int(value)",
    "builtins.float": "pass float(value)",
    "builtins.tuple": "pass list(value)",
    "builtins.list": "pass list(value)",
    "builtins.dict": "pass dict(value)",
    "datetime.datetime": "pass value.isoformat() and datetime.fromisoformat() it in the job",
    "datetime.date": "pass value.isoformat() and date.fromisoformat() it in the job",
    "datetime.time": "pass value.isoformat() and time.fromisoformat() it in the job",
    "datetime.timedelta": "pass value.total_seconds()",
    "uuid.UUID": "pass str(value)",
    "decimal.Decimal": "pass str(value)",
    "fractions.Fraction": "pass str(value)",
    "pathlib.PurePath": "pass str(value)",
    "pathlib._local.PurePath": "pass str(value)",
    "msgspec.Struct": "pass msgspec.to_builtins(value)",
    "pydantic.main.BaseModel": "pass value.model_dump(mode='json')",
    "numpy.generic": "pass value.item()",
    "numpy.ndarray": "pass value.tolist()",
    "django.db.models.base.Model": "pass value.pk and fetch it in the job",
}
_OTHERWISE = (
    "pass plain values (str, int, float, bool, None, list, dict), or an id to look it up by"
)


def check(value: Any, where: str) -> None:
    """CodecError unless `value` survives JSON; `where` says in it which argument this is."""
    if type(value) not in _AS_THEY_ARE:
        _check(value, where, [], 1)


def depth(value: Any, limit: int = MAX_DEPTH + 1) -> int:
    """How deep lists and dicts nest in decoded JSON; stops counting beyond `limit`."""
    deepest, level = 0, [value]
    while level and deepest <= limit:
        containers = [item for item in level if type(item) is list or type(item) is dict]
        deepest += bool(containers)
        level = [
            inner
            for item in containers
            for inner in (item.values() if type(item) is dict else item)
        ]
    return deepest


def _check(value: Any, where: str, path: list[Any], level: int) -> None:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            _refuse("is an int outside 64 bits", where, path, "pass str(value)")
    elif kind is float:
        if not isfinite(value):
            _refuse(
                f"is {value}, which JSON can't carry", where, path, "pass None, or leave it out"
            )
    elif kind is list or kind is tuple:
        _check_level(where, path, level)
        for index, item in enumerate(value):
            if type(item) not in _AS_THEY_ARE:
                _check(item, where, [*path, index], level + 1)
    elif kind is dict:
        _check_dict(value, where, path, level)
    else:
        named = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        an = "an" if named[0] in "aeiou" else "a"
        _refuse(
            f"is {an} {named}, which JSON would change or can't carry", where, path, _remedy(kind)
        )


def _check_dict(value: dict[Any, Any], where: str, path: list[Any], level: int) -> None:
    _check_level(where, path, level)
    for key, item in value.items():
        if type(key) is not str:
            kind = type(key).__qualname__
            _refuse(
                f"has a key of type {kind}, which JSON would change", where, path, "use str keys"
            )
        if type(item) not in _AS_THEY_ARE:
            _check(item, where, [*path, key], level + 1)


def _check_level(where: str, path: list[Any], level: int) -> None:
    if level > MAX_DEPTH:
        _refuse(
            f"nests deeper than {MAX_DEPTH} levels",
            where,
            path[:3],
            "pass a flatter value, or text",
        )


def _refuse(what: str, where: str, path: list[Any], remedy: str) -> None:
    steps = "".join(f"[{step!r:.40}]" for step in path)
    raise CodecError(f"{where}{steps} {what}; {remedy}")


def _remedy(kind: type) -> str:
    if hasattr(kind, "__dataclass_fields__"):
        return "pass dataclasses.asdict(value)"
    ancestors = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if "enum.Enum" in ancestors:  # before str and int, which an enum may be too
        return "pass value.value"
    return next((_REMEDIES[name] for name in ancestors if name in _REMEDIES), _OTHERWISE)
