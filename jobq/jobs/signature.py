"""Whether arguments fit a function: asked at enqueue, where the one who erred can still see it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Signature:
    """A function's parameters, with a shortcut for plain positional calls."""

    __slots__ = ("_least", "_most", "_name", "_signature")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        self._name = function.__qualname__
        parameters = list(self._signature.parameters.values())
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        required = [p for p in parameters if p.default is p.empty]
        self._most = len(positional)
        # A required keyword-only parameter can't be met by position: nothing takes the shortcut then.
        names_only = any(p.kind is p.KEYWORD_ONLY for p in required)
        self._least = self._most + 1 if names_only else sum(p in positional for p in required)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """TypeError in the words of a call that doesn't fit."""
        if not kwargs and self._least <= len(args) <= self._most:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}") from None
