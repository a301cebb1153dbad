"""What a user of these queues must be allowed, read from the scripts: the line that `jobq acl reliable` prints."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.compat.reliable.keys import checked_space, prefix
from jobq.engine.functions import scripts
from jobq.engine.rights import allowed_for, literal

#: What jobq sends to a queue's keys itself.
_OWN = ("blpop", "llen")


def rights(ns: str = "reliable", queues: Sequence[str] = ()) -> list[str]:
    """The words after a user's name, passwords apart: to use `queues` in every way, or all of the namespace."""
    called = (script for script in scripts() if script.area == "reliable")
    patterns = [literal(prefix(ns, queue)) for queue in queues] or [
        f"{literal(checked_space(ns))}:"
    ]
    return [*(f"~{one}*" for one in patterns), "resetchannels", *allowed_for(called, _OWN)]
