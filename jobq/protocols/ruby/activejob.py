"""Reads the call in an ActiveJob wrapper of a Sidekiq or Resque job.

The wrapped arguments have markers for types that JSON lacks. Types with a plain equivalent are converted: symbols and
keys of hashes become text, keyword arguments stay keyword arguments, and a GlobalID becomes its `gid://…` text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jobq.errors import CodecError

WRAPPERS = frozenset(
    (
        "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
        "ActiveJob::QueueAdapters::ResqueAdapter::JobWrapper",
        "Sidekiq::ActiveJob::Wrapper",
    )
)
_KEYWORDS = "_aj_ruby2_keywords"
_SERIALIZED = "_aj_serialized"
_MARKS = frozenset((_KEYWORDS, "_aj_symbol_keys", "_aj_hash_with_indifferent_access"))


class RubyCall(NamedTuple):
    """A call, with the Ruby name of its job."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]


def unwrapped(name: str, args: list[Any]) -> RubyCall:
    """Return the call inside an ActiveJob wrapper, or any other job unchanged.

    Raises CodecError if its arguments aren't a list. The caller ensures that `args` isn't nested deeper than Ruby's
    JSON allows.
    """
    inner = args[0] if name in WRAPPERS and len(args) == 1 else None
    if not isinstance(inner, dict) or not isinstance(inner.get("job_class"), str):
        return RubyCall(name, args, {})
    arguments = inner.get("arguments")
    arguments = [] if arguments is None else arguments
    if not isinstance(arguments, list):
        raise CodecError(f"the arguments of {inner['job_class']:.200} are not a list")
    kwargs: dict[str, Any] = {}
    if arguments and isinstance(arguments[-1], dict) and _KEYWORDS in arguments[-1]:
        *arguments, last = arguments
        kwargs = _without_marks(last)
    return RubyCall(inner["job_class"], [_plain(item) for item in arguments], kwargs)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "_aj_globalid" in value:
        return value["_aj_globalid"]
    if _SERIALIZED in value and "value" in value:
        return _plain(value["value"])
    # The value is a range, or has a class of the program.
    return _without_marks({key: item for key, item in value.items() if key != _SERIALIZED})


def _without_marks(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(item) for key, item in value.items() if key not in _MARKS}
