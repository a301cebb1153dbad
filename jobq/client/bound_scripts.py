"""A call of a script whose keys and arguments are given by the names that the script binds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobq.client.numbered_calls import Values
from jobq.client.scripts import Argument, Script, load

#: Maximum number of messages per call, in every protocol except jobq's own queues.
PER_CALL = 1_000


def bound(
    area: str,
    name: str,
    key: Callable[[str], str],
    values: Values,
    rest: Sequence[Argument] = (),
) -> tuple[Script, tuple[str, ...], tuple[Argument, ...]]:
    """Return the script, its keys and its arguments, in its order.

    Args:
        key: Returns the key for a name in the Lua source.
        rest: Arguments that follow the named arguments.
    """
    script = load(area, name)
    return script, tuple([key(one) for one in script.keys]), ordered(script, values, rest)


def ordered(script: Script, values: Values, rest: Sequence[Argument] = ()) -> tuple[Argument, ...]:
    """Return the arguments in the order of the script."""
    if len(values) != script.nargs:
        raise script.misnamed(values)
    return (*script.order(values), *rest)
