"""The scripts as server functions under fixed names, `topic_append` and so on, for clients in any language.

Each takes its keys and arguments in the order that its file in lua/topic names. Loading another version of
jobq's library replaces it.
"""

from __future__ import annotations

from functools import cache

from jobq.client.functions import Library, made, scripts

NAME = "topic"


@cache
def library() -> Library:
    """The library of this version."""
    return made(NAME, {f"{NAME}_{one.name}": one for one in scripts() if one.area == NAME})
