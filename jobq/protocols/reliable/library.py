"""The scripts as server functions under fixed names, `reliable_push` and so on, for clients in any language.

Each takes the eight keys of a queue, in the order of keys.PLACES, and the arguments that its file in
lua/reliable names. Loading another version of jobq's library replaces it.
"""

from __future__ import annotations

from functools import cache

from jobq.client.functions import Library, made, scripts

NAME = "reliable"


@cache
def library() -> Library:
    """The library of this version."""
    return made(NAME, {f"{NAME}_{one.name}": one for one in scripts() if one.area == NAME})
