"""Build a script call from keys and arguments that are given by their names in the script."""

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
    """Return a script, with its keys and arguments in the order in which it unpacks them.

    Args:
        key: Returns the key for a name in the Lua source.
        rest: Arguments that follow the named arguments.
    """
    script = load(area, name)
    return script, tuple([key(key_name) for key_name in script.keys]), ordered(script, values, rest)


def ordered(script: Script, values: Values, rest: Sequence[Argument] = ()) -> tuple[Argument, ...]:
    """Return the arguments in the order in which the script unpacks them."""
    if len(values) != script.nargs:
        raise script.misnamed(values)
    return (*script.order(values), *rest)
