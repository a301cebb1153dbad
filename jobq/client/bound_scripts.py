"""A call of a script whose keys and arguments are given by the names that the script binds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobq.client.numbered_calls import Values
from jobq.client.scripts import Argument, Script, load

#: Most messages of one call, in every protocol but jobq's own queues.
PER_CALL = 1_000


def bound(
    area: str,
    name: str,
    key: Callable[[str], str],
    values: Values,
    rest: Sequence[Argument] = (),
) -> tuple[Script, tuple[str, ...], tuple[Argument, ...]]:
    """The script, its keys and its arguments, in its order. `key` gives a key by the name that Lua gives it.

    rest: arguments behind those that have names.
    """
    script = load(area, name)
    return script, tuple([key(one) for one in script.keys]), ordered(script, values, rest)


def ordered(script: Script, values: Values, rest: Sequence[Argument] = ()) -> tuple[Argument, ...]:
    """The arguments in the order of the script."""
    if len(values) != script.nargs:
        raise script.misnamed(values)
    return (*script.order(values), *rest)
