"""Checks of job functions, such as whether a function is async or returns a coroutine that never runs."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial, wraps
from itertools import starmap
from pathlib import Path
from typing import Any

from jobq.errors import Dead

#: Types of most results. They aren't checked further.
PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, tuple, dict))
#: Maximum number of pairs of values to compare. Beyond that, two closures count as different.
MAX_PAIRS = 100_000
_OWN_LOOP = (
    "The decorator starts its own event loop. jobq awaits async functions itself: remove the decorator, or delete "
    "its wrapper's __wrapped__ to run the job in a thread."
)


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a sync wrapper of an async function into an async function. Return other functions unchanged."""
    if inspect.iscoroutinefunction(function) or not inspect.iscoroutinefunction(
        inspect.unwrap(function)
    ):
        return function

    @wraps(function)
    async def awaits(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
        except RuntimeError as error:
            if "event loop" in str(error):
                error.add_note(_OWN_LOOP)
            raise
        return await value if inspect.isawaitable(value) else value

    return awaits


def check_finished(value: Any, job: str) -> None:
    """Raise Dead if a job returned a coroutine or generator, which runs only when a caller awaits or iterates it."""
    if type(value) in PLAIN:
        return
    if isinstance(value, Awaitable):
        remedy = (
            "make the job an `async def` and await it there; a decorator around an async function needs "
            "functools.wraps"
        )
    elif isinstance(value, Generator | map | filter | starmap):
        remedy = "loop over it in the job, or return list(…)"
    elif isinstance(value, AsyncIterator):
        remedy = "loop over it with `async for` in an async job"
    else:
        return
    for end in ("close", "cancel"):
        if callable(getattr(value, end, None)) and not isinstance(value, AsyncIterator):
            getattr(value, end)()
    raise Dead(f"{job} returned {article(type(value).__name__)}, so its work did not run; {remedy}")


def is_same(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Return whether both are the same function, even if a reload or a second import as `__main__` loaded it twice.

    Closures are the same if their code, their defaults and all values that they close over are the same.
    """
    return _Comparison().same(first, second)


def place(function: Callable[..., Any]) -> str:
    """Describe where a function, and the functions that it wraps, are defined."""
    around = [
        value
        for _, value in _closed_over(function)
        if isinstance(value, types.FunctionType) and value.__code__ is not _code(function)
    ]
    text = f"{function.__module__}.{function.__qualname__}"
    if (code := _code(function)) is not None:
        text += f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{text} around {place(around[0])}" if around else text


class _Comparison:
    """Compares two values that may contain themselves. A pair that is being compared counts as equal."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], tuple[Any, Any]] = {}

    def same(self, first: Any, second: Any) -> bool:
        if first is second:
            return True
        pair = (id(first), id(second))
        if pair in self._pairs:
            return True
        if len(self._pairs) >= MAX_PAIRS or not self._same_types(first, second):
            return False
        self._pairs[pair] = (first, second)  # also keeps both alive, so that no id is used twice
        try:
            return self._same_values(first, second)
        except (RecursionError, ReferenceError):
            return False

    def _same_types(self, first: Any, second: Any) -> bool:
        first_type, second_type = type(first), type(second)
        return first_type is second_type or self.same(first_type, second_type)

    def _same_values(self, first: Any, second: Any) -> bool:
        for kinds, compare in _COMPARES:
            if isinstance(first, kinds):
                return bool(compare(self, first, second))
        return self._same_objects(first, second)

    def _same_functions(self, first: Any, second: Any) -> bool:
        if _file(first) != _file(second) or first.__qualname__ != second.__qualname__:
            return False
        if first.__code__ != second.__code__:
            return not _is_in_source(first.__code__)
        return self._all_same(
            (first.__defaults__, first.__kwdefaults__, dict(_closed_over(first))),
            (second.__defaults__, second.__kwdefaults__, dict(_closed_over(second))),
        )

    def _same_partials(self, first: Any, second: Any) -> bool:
        return self._all_same(
            (first.func, first.args, first.keywords), (second.func, second.args, second.keywords)
        )

    def _same_methods(self, first: Any, second: Any) -> bool:
        return self._all_same((first.__func__, first.__self__), (second.__func__, second.__self__))

    def _same_classes(self, first: Any, second: Any) -> bool:
        if first.__qualname__ != second.__qualname__ or _file(first) != _file(second):
            return False
        return "<locals>" not in first.__qualname__ or self._same_dicts(
            _methods(first), _methods(second)
        )

    def _same_modules(self, first: Any, second: Any) -> bool:
        return _file_of_module(first) == _file_of_module(second)

    def _same_dicts(self, first: Any, second: Any) -> bool:
        return first.keys() == second.keys() and all(
            self.same(first[name], second[name]) for name in first
        )

    def _all_same(self, first: Any, second: Any) -> bool:
        return len(first) == len(second) and all(map(self.same, first, second))

    def _same_by_value(self, first: Any, second: Any) -> bool:
        return bool(first == second)

    def _same_objects(self, first: Any, second: Any) -> bool:
        with suppress(Exception):  # an array has no truth value
            if first == second:
                return True
        state, other = getattr(first, "__dict__", None), getattr(second, "__dict__", None)
        if state is not None and other is not None:
            return self._same_dicts(state, other)
        try:
            return self._all_same(first.__reduce_ex__(2), second.__reduce_ex__(2))
        except Exception:
            return True  # a lock or a socket, for example, has no value to compare


_COMPARES: tuple[tuple[Any, Callable[[_Comparison, Any, Any], bool]], ...] = (
    (types.FunctionType, _Comparison._same_functions),
    (types.MethodType, _Comparison._same_methods),
    (types.ModuleType, _Comparison._same_modules),
    (partial, _Comparison._same_partials),
    (type, _Comparison._same_classes),
    (dict, _Comparison._same_dicts),
    ((list, tuple), _Comparison._all_same),
    ((bool, int, float, complex, str, bytes, set, frozenset), _Comparison._same_by_value),
)


def _closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values in a closure, without unset variables such as a function's own name."""
    code = _code(function)
    for name, cell in zip(
        code.co_freevars if code else (), getattr(function, "__closure__", None) or ()
    ):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _methods(kind: type) -> dict[str, Any]:
    return {
        name: value for name, value in vars(kind).items() if isinstance(value, types.FunctionType)
    }


def _code(function: Any) -> types.CodeType | None:
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _file(thing: Any) -> str:
    code = _code(thing)
    if code is not None:
        return code.co_filename
    return _file_of_module(sys.modules.get(thing.__module__)) or str(thing.__module__)


def _file_of_module(module: Any) -> str:
    return str(getattr(module, "__file__", None) or getattr(module, "__name__", ""))


def _is_in_source(code: types.CodeType) -> bool:
    """Return whether the file still contains this code. It may have been edited after loading."""
    try:
        text = Path(code.co_filename).read_bytes()
        whole = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False
    return _contains(whole, code)


def _contains(whole: types.CodeType, code: types.CodeType) -> bool:
    parts = [part for part in whole.co_consts if isinstance(part, types.CodeType)]
    return code in parts or any(_contains(part, code) for part in parts)


def article(name: str) -> str:
    """Return a name with its article: `a list`, `an int`."""
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
