"""What a user of these queues must be allowed, read from the scripts: the line that `jobq acl reliable` prints."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.acl import allowed_for, literal
from jobq.client.functions import scripts
from jobq.protocols.reliable.keys import checked_space, prefix

#: What jobq sends to a queue's keys itself.
_OWN = ("blpop", "llen")


def rights(ns: str = "reliable", queues: Sequence[str] = ()) -> list[str]:
    """The words after a user's name, passwords apart: to use `queues` in every way, or all of the namespace."""
    called = (script for script in scripts() if script.area == "reliable")
    patterns = [literal(prefix(ns, queue)) for queue in queues] or [
        f"{literal(checked_space(ns))}:"
    ]
    return [*(f"~{one}*" for one in patterns), "resetchannels", *allowed_for(called, _OWN)]
