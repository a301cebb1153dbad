"""Typed arguments and results: JSON in messages, and values of the annotated types in functions.

`datetime`, `date`, `time`, `timedelta`, `UUID`, `Decimal`, enums, `bytes`, sets, dataclasses, `msgspec.Struct`,
TypedDict, NamedTuple, pydantic models, and lists, dicts and unions of these are encoded and decoded by msgspec. An
argument that decoding would change is rejected before it is enqueued. Annotations that msgspec can't decode are
ignored.
"""

from __future__ import annotations

import inspect
import logging
import sys
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, NamedTuple

import msgspec

from jobq.errors import CodecError
from jobq.jobs.functions import article

logger = logging.getLogger("jobq")

#: Types whose values JSON doesn't change, so checking a value's type is enough.
_PLAIN = frozenset((str, int, float, bool, NoneType))
_TIMES = (datetime, date, time, timedelta)
_NO_CONVERSION = (Any, object, inspect.Parameter.empty)
#: Annotations that can always be decoded, and their texts.
_CERTAIN = (*_PLAIN, *_NO_CONVERSION, None, "str", "int", "float", "bool", "None", "Any", "object")

#: Valid examples for msgspec's errors.
_EXAMPLES = {
    "Invalid RFC3339 encoded datetime": "2026-12-24T18:00:00+01:00",
    "Invalid RFC3339 encoded date": "2026-12-24",
    "Invalid RFC3339 encoded time": "18:00:00",
    "Invalid ISO8601 duration": "PT90S",
    "Invalid UUID": "123e4567-e89b-12d3-a456-426614174000",
}


class ValueType:
    """The type of one annotation. It encodes and decodes values."""

    __slots__ = ("_annotation", "plain")

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        kinds = set(typing.get_args(annotation)) if _is_union(annotation) else {annotation}
        kinds = {NoneType if kind is None else kind for kind in kinds}
        #: Types whose values don't need conversion. JSON may write a float as an int.
        self.plain: set[Any] = set()
        if kinds <= _PLAIN:
            self.plain = kinds | ({int} if float in kinds else set())

    def encoded(self, value: Any, where: str) -> Any:
        """Return the value in a form that JSON can represent; raise CodecError if decoding would change it.

        Args:
            where: Name of the value, for errors.
        """
        if type(value) in self.plain:
            return value
        plain = self._as_json(value, where)
        difference = _difference(value, self.decoded(plain, where), "")
        if difference is not None:
            raise CodecError(
                f"{where}{difference}, but the annotation {self} would change this value; pass a value of that type"
            )
        return plain

    def decoded(self, plain: Any, where: str) -> Any:
        """Convert a value from JSON to its annotation; raise CodecError if it doesn't fit."""
        if type(plain) in self.plain:
            return plain
        try:
            return msgspec.convert(plain, self._annotation, dec_hook=_from_json, str_keys=True)
        except (ValueError, TypeError, RecursionError) as error:
            said, at, place = str(error).partition(" - at `$")
            example = f"; write it as {_EXAMPLES[said]}" if said in _EXAMPLES else ""
            text = f"{said}{example}{at and '; at `value'}{place}"
            raise CodecError(f"{where} doesn't fit its annotation {self}: {text}") from error

    def _as_json(self, value: Any, where: str) -> Any:
        try:
            return to_json(value)
        except (ValueError, TypeError, NotImplementedError, RecursionError) as error:
            raise CodecError(
                f"{where} doesn't fit its annotation {self}: {error}; pass a value of the annotated type"
            ) from error

    def __str__(self) -> str:
        annotation = self._annotation
        return annotation.__name__ if isinstance(annotation, type) else str(annotation)


#: Directions of a conversion: to plain JSON, and back.
ENCODE, DECODE = ValueType.encoded, ValueType.decoded


class _Parameters(NamedTuple):
    """The types of a function's parameters and result; None if a value isn't converted.

    Attributes:
        positions: Names and types of positional parameters.
        rest: Name and type of `*args`.
        keywords: Types, by name, of parameters that accept keyword arguments.
        more: The type of `**kwargs`.
    """

    positions: Sequence[tuple[str, ValueType | None]]
    rest: tuple[str, ValueType | None]
    keywords: Mapping[str, ValueType | None]
    more: ValueType | None
    result: ValueType | None

    @property
    def used(self) -> bool:
        """Whether an argument or the result needs conversion."""
        kinds = [kind for _, kind in self.positions] + [*self.keywords.values()]
        return any(kind is not None for kind in (*kinds, self.rest[1], self.more, self.result))


class ArgumentTypes:
    """The types of a function's parameters and of its result. They are read when the first call needs them."""

    def __init__(
        self, job: str, function: Callable[..., Any], signature: inspect.Signature
    ) -> None:
        self._job, self._function, self._signature = job, function, signature
        #: Whether anything is converted. It is True until the annotations are read.
        self.used = True
        self._parameters: _Parameters | None = None
        #: Types of positional arguments in calls without conversion.
        self._unchanged: set[tuple[type, ...]] = set()
        #: Annotations that were already logged.
        self._logged: set[str] = set()
        self._check_declared()

    def encoded_by_name(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by parameter name, as plain JSON; the arguments of `*args` are one sequence."""
        read = self._read()
        kinds = {**read.keywords, **dict(read.positions)}
        return {
            name: self.converted(value, {}, ENCODE)[0]
            if name == read.rest[0]
            else self._encoded(name, kinds.get(name, read.more), value)
            for name, value in named.items()
        }

    def encoded_argument(self, at: int | str, value: Any) -> Any:
        """Return one argument in a form that JSON can represent; `at` is its position or name."""
        read = self._read()
        if isinstance(at, str):
            return self._encoded(at, read.keywords.get(at, read.more), value)
        name, kind = read.positions[at] if at < len(read.positions) else read.rest
        return self._encoded(name, kind, value)

    def _encoded(self, name: str, kind: ValueType | None, value: Any) -> Any:
        return value if kind is None else kind.encoded(value, self._where(name))

    def _where(self, name: str) -> str:
        return f"argument {name!r} of {self._job}"

    def encoded_result(self, value: Any) -> Any:
        """Return the result in a form that JSON can represent; unchanged if it doesn't fit its annotation.

        The job has run, so a wrong annotation must not dead-letter its message.
        """
        kind = self._read().result
        try:
            return value if kind is None else kind.encoded(value, "the result")
        except CodecError:
            return value

    def decoded_result(self, plain: Any) -> Any:
        """Convert the result to its annotated type; return it unchanged if it doesn't fit."""
        kind = self._read().result
        try:
            return plain if kind is None else kind.decoded(plain, "the result")
        except CodecError:
            return plain

    def converted(
        self, args: Any, kwargs: dict[str, Any], change: Callable[[ValueType, Any, str], Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Convert arguments with ENCODE or DECODE; raise CodecError if an argument doesn't fit its annotation."""
        types = tuple(map(type, args))
        if not kwargs and types in self._unchanged:
            return args, kwargs
        positions, rest, keywords, more, _ = self._parameters or self._read()
        if len(args) <= len(positions) and all(
            kind is not None and given in kind.plain for given, (_, kind) in zip(types, positions)
        ):
            self._unchanged.add(types)
        changed: dict[int, Any] = {}
        for index, value in enumerate(args):
            name, kind = positions[index] if index < len(positions) else rest
            if kind is not None and type(value) not in kind.plain:
                changed[index] = change(kind, value, self._where(name))
        if changed:
            args = [changed.get(index, value) for index, value in enumerate(args)]
        if kwargs:
            kwargs = {
                name: value
                if (kind := keywords.get(name, more)) is None or type(value) in kind.plain
                else change(kind, value, self._where(name))
                for name, value in kwargs.items()
            }
        return args, kwargs

    def _read(self) -> _Parameters:
        if self._parameters is None:
            # Threads may read these attributes concurrently: each assignment sets a complete value.
            parameters = self._types()
            self.used, self._parameters = parameters.used, parameters
        return self._parameters

    def _check_declared(self) -> None:
        """Log annotations that msgspec can't decode.

        If an annotation has undefined names, this check runs at the first call.
        """
        function = inspect.unwrap(self._function)
        if all(kind in _CERTAIN for kind in getattr(function, "__annotations__", {}).values()):
            return
        try:
            annotations = typing.get_type_hints(function, include_extras=True)
        except Exception:
            return
        defaults = self._signature.parameters
        for name in annotations:
            default = defaults[name].default if name in defaults else inspect.Parameter.empty
            self._type(annotations, name, default, is_first_look=True)

    def _types(self) -> _Parameters:
        annotations = annotations_of(self._function)
        positions: list[tuple[str, ValueType | None]] = []
        keywords: dict[str, ValueType | None] = {}
        rest: tuple[str, ValueType | None] = ("", None)
        more = None
        for parameter in self._signature.parameters.values():
            kind = self._type(annotations, parameter.name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = parameter.name, kind
            elif parameter.kind is parameter.VAR_KEYWORD:
                more = kind
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    positions.append((parameter.name, kind))
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    keywords[parameter.name] = kind
        result = self._type(annotations, "return", inspect.Parameter.empty)
        return _Parameters(positions, rest, keywords, more, result)

    def _type(
        self,
        annotations: Mapping[str, Any],
        name: str,
        default: Any,
        *,
        is_first_look: bool = False,
    ) -> ValueType | None:
        annotation = annotations.get(name, inspect.Parameter.empty)
        if annotation in _NO_CONVERSION:
            return None
        what = "its result" if name == "return" else f"argument {name!r}"
        try:
            if isinstance(annotation, str):
                raise TypeError(f"a name in {annotation:.80} isn't defined")
            annotation = typing.Optional[annotation] if default is None else annotation  # noqa: UP045 - also of text
            _check_decodable(annotation)
        except Exception as error:  # reading a class may run any code
            may_be_defined_later = is_first_look and isinstance(error, NameError)
            if name not in self._logged and not may_be_defined_later:
                self._logged.add(name)
                logger.info(
                    "%s: the annotation of %s can't be used for decoding, so the job gets plain JSON: %s",
                    self._job, what, error,
                )  # fmt: skip
            return None
        return ValueType(annotation)


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the function's annotations. Annotations that can't be evaluated remain strings."""
    function = inspect.unwrap(function)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        hints = getattr(function, "__annotations__", {})
    names = getattr(function, "__globals__", {})
    evaluated: dict[str, Any] = {}
    for name, annotation in hints.items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            evaluated |= typing.get_type_hints(holder, names, include_extras=True)
        except Exception:
            evaluated[name] = str(annotation)
    return evaluated


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, UnionType)


def _check_decodable(annotation: Any) -> None:
    """Raise TypeError if msgspec can't decode values with this annotation."""
    msgspec.json.Decoder(annotation, dec_hook=_from_json)
    seen: set[int] = set()
    kinds: list[Any] = [msgspec.inspect.type_info(annotation)]
    while kinds:
        kind = kinds.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        if isinstance(kind, msgspec.inspect.CustomType) and not _is_model(kind.cls):
            raise TypeError(f"{kind.cls.__qualname__} can't be represented in JSON")
        for name in kind.__struct_fields__ if isinstance(kind, msgspec.Struct) else ():
            value = getattr(kind, name)
            kinds += value if isinstance(value, tuple) else [value]


def _is_model(kind: Any) -> bool:
    """Return whether `kind` is a pydantic model class, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def to_json(value: Any) -> Any:
    """Return a value of any supported type as plain JSON; raise NotImplementedError for other types."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_model_to_json)


def _model_to_json(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"{type(value).__qualname__} can't be represented in JSON")


def _from_json(kind: Any, plain: Any) -> Any:
    if _is_model(kind):
        return kind.model_validate(plain)
    raise NotImplementedError(f"{kind!r} can't be represented in JSON")


def _difference(value: Any, back: Any, path: str) -> str | None:
    """Return where and how a value differs from its decoded form; None if they are equal.

    A list may replace a tuple, and a float may replace an int.
    """
    if value is back:
        return None
    if isinstance(value, list | tuple) and isinstance(back, list | tuple):
        return _first_difference(enumerate(value), list(back), len(value) == len(back), path)
    if isinstance(value, dict) and isinstance(back, dict):
        return _first_difference(value.items(), back, value.keys() == back.keys(), path)
    if isinstance(value, Set) and isinstance(back, Set) and type(value) is type(back):
        return None if value == back else f"{path} is a set"
    if type(value) is not type(back) and not _may_arrive_as(value, back):
        return f"{path} is {article(type(value).__name__)}"
    fields = _fields(value)
    if fields is None:
        return None if value == back else f"{path} is {value!r:.100}"
    return _first_difference(fields.items(), _fields(back) or {}, same_size=True, path=path)


def _may_arrive_as(value: Any, back: Any) -> bool:
    """Return whether a change of type is harmless: int to float, or one type of time to another."""
    if type(back) is float:
        return type(value) is int
    return isinstance(back, _TIMES) and isinstance(value, _TIMES)


def _first_difference(pairs: Any, back: Any, same_size: bool, path: str) -> str | None:
    if not same_size:
        return f"{path} has another length or other keys"
    for key, value in pairs:
        step = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
        difference = _difference(value, back[key], path + step)
        if difference is not None:
            return difference
    return None


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a Struct or a pydantic model; None for any other value."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if _is_model(type(value)):
        return dict(value.__dict__)
    return None
