"""Results of steps as arguments of other steps: their positions in a call, and their sources.

A call stores null at these positions, and the header `flow` lists them as JSON: `[[path, step, what, queue], …]`. A
path begins with the index of a positional argument or the name of a keyword argument, and continues with indexes and
keys inside that argument. `what` is one of WHATS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from jobq.errors import CodecError, ConfigError
from jobq.flows.identity import MAX_STEP_LENGTH
from jobq.jobs.codec import MAX_DEPTH

#: `result` is the result of a step, and `value` is the value of a wait's signal. `results` is a list of the results of
#: a map's done members, and `failures` is a list of Failure for a map or step.
What = Literal["result", "results", "failures", "value"]
WHATS: tuple[What, ...] = get_args(What)
#: Maximum number of results in one call.
MAX_INPUTS = 256

Path = tuple[int | str, ...]
_Index = Annotated[int, Meta(ge=0, le=2**31)]
_Step = Annotated[str, Meta(min_length=1, max_length=MAX_STEP_LENGTH)]


class FlowInput(NamedTuple):
    """An argument whose value is the result of a step. `path` is the argument's place in the call."""

    path: Path
    step: str
    what: What
    queue: str = ""


class ResultOf:
    """Placeholder for a step's result in a definition. For type checkers, it has the type of the result."""

    __slots__ = ("step", "what")

    def __init__(self, step: Any, what: What) -> None:
        self.step = step
        self.what: What = what

    @property
    def name(self) -> str:
        """The step's name."""
        return str(self.step.name)

    def __repr__(self) -> str:
        return f"<{self.what} of step {self.name}>"

    def _refuse(self, *_: Any) -> Any:
        raise ConfigError(
            f"{self!r} is known only when the flow runs; pass it whole as an argument of a step"
        )

    __bool__ = __iter__ = __len__ = __getitem__ = __contains__ = _refuse
    # An f-string would send the words `<result of step …>` to the job.
    __str__ = __format__ = __add__ = __radd__ = __mod__ = __mul__ = _refuse
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __hash__ = object.__hash__


def taken_out(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], list[tuple[Path, ResultOf]]]:
    """Return the arguments with None in place of each ResultOf, and the ResultOf objects with their paths."""
    results: list[tuple[Path, ResultOf]] = []
    plain = [_without(value, (at,), results) for at, value in enumerate(args)]
    named = {name: _without(value, (name,), results) for name, value in kwargs.items()}
    if len(results) > MAX_INPUTS:
        raise ConfigError(
            f"a call takes {len(results)} results of steps; at most {MAX_INPUTS} are allowed. Use a map and its results"
        )
    return plain, named, results


def _without(value: Any, path: Path, results: list[tuple[Path, ResultOf]]) -> Any:
    if isinstance(value, ResultOf):
        results.append((path, value))
        return None
    if len(path) > MAX_DEPTH:
        return value  # the codec rejects it
    if isinstance(value, list | tuple) and value:
        return [_without(item, (*path, at), results) for at, item in enumerate(value)]
    if isinstance(value, dict) and value:
        return {
            key: _without(item, (*path, key), results) if isinstance(key, str) else item
            for key, item in value.items()
        }
    return value


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    path: Annotated[list[_Index | str], Meta(min_length=1, max_length=MAX_DEPTH + 1)]
    step: _Step
    what: What
    queue: str = ""


_decoder = msgspec.json.Decoder(Annotated[list[_Stored], Meta(max_length=MAX_INPUTS)])


def header_of(inputs: Sequence[FlowInput]) -> str:
    """Encode inputs as the header `flow`."""
    return msgspec.json.encode([list(input_) for input_ in inputs]).decode()


def inputs_in(header: str) -> list[FlowInput]:
    """Parse the header `flow` of a call; raise CodecError if it is invalid."""
    try:
        stored = _decoder.decode(header)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the header 'flow' can't be read: {error}") from error
    return [FlowInput(tuple(ref.path), ref.step, ref.what, ref.queue) for ref in stored]


def put_in(
    args: list[Any], kwargs: dict[str, Any], inputs: Sequence[tuple[FlowInput, Any]]
) -> None:
    """Put each value at its path in the arguments; raise CodecError if that place doesn't exist or isn't null."""
    for ref, value in inputs:
        first, *rest = ref.path
        inside: Any = args if isinstance(first, int) else kwargs
        try:
            key: int | str = first
            for step in rest:
                inside, key = inside[key], step
            if inside[key] is not None:
                raise CodecError(
                    f"can't insert the {ref.what} of step {ref.step}: the argument already has a value"
                )
            inside[key] = value
        except (LookupError, TypeError):
            raise CodecError(
                f"can't insert the {ref.what} of step {ref.step}: the call has no argument {list(ref.path)!r:.200}"
            ) from None
