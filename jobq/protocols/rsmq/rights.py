"""What a user of RSMQ's queues must be allowed, read from the scripts: the line that `jobq acl rsmq` prints."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.acl import allowed_for, literal
from jobq.client.functions import scripts
from jobq.protocols.rsmq.checks import existing_name
from jobq.protocols.rsmq.keys import Keys

#: What jobq sends itself: to wait for the next message.
_OWN = ("subscribe",)


def rights(ns: str = "rsmq", queues: Sequence[str] = ()) -> list[str]:
    """The words after a user's name, passwords apart: to use `queues` in every way, or all of the namespace.

    Who may make or delete one queue may write the list of all names: it is among the keys of those calls.
    """
    keys = Keys(ns)
    called = (script for script in scripts() if script.area == "rsmq")
    names = [existing_name(queue) for queue in queues]
    patterns = [literal(of(name)) for name in names for of in (keys.messages, keys.attributes)]
    channels = [literal(keys.channel(name)) for name in names] or [f"{literal(keys.channel(''))}*"]
    return [
        *(f"~{one}" for one in ([*patterns, literal(keys.queues)] if names else [f"{literal(ns)}:*"])),
        "resetchannels", *(f"&{one}" for one in channels),
        *allowed_for(called, _OWN),
    ]  # fmt: skip
