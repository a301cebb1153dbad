"""Names of RSMQ's keys.

==================  =====================================================================
{ns}:QUEUES         set of queue names
{ns}:{q}:Q          hash with the queue's settings and totals. Each message has three fields:
                    `<id>` (body), `<id>:rc` (number of receives) and `<id>:fr` (time of the
                    first receive, ms)
{ns}:{q}            sorted set of message ids; the score is the time (ms) when the message
                    becomes visible
{ns}:rt:{q}         channel that announces the queue's number of messages after a send
==================  =====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobq.client.acl import READING, allowed_for, commands, literal, selector
from jobq.client.functions import scripts
from jobq.errors import ConfigError
from jobq.protocols.rsmq.checks import existing_name

_TAGGED = re.compile(r"[^{]*\{[^}]+\}")


class Keys:
    """The keys of one namespace."""

    def __init__(self, ns: str, *, is_cluster: bool = False) -> None:
        if not ns or not ns.isprintable():
            raise ConfigError(f"ns {ns!r} can't be used; use printable characters, such as 'rsmq'")
        if is_cluster and not _TAGGED.match(ns):
            raise ConfigError(
                f"ns {ns!r} has no hash tag, so a Cluster would store the keys of a queue on several nodes; use "
                f"ns='{{{ns}}}'"
            )
        self.ns = ns
        self.queues = f"{ns}:QUEUES"

    def messages(self, queue: str) -> str:
        """Return the key of the sorted set of ids."""
        return f"{self.ns}:{queue}"

    def attributes(self, queue: str) -> str:
        """Return the key of the hash with the queue's settings and message bodies."""
        return f"{self.ns}:{queue}:Q"

    def named(self, name: str, queue: str, target: str = "") -> str:
        """Return the key that Lua scripts call `name`. Names starting with `to_` belong to the queue `target`."""
        if name == "queues":
            return self.queues
        owner = target if name.startswith("to_") else queue
        return self.messages(owner) if name.endswith("messages") else self.attributes(owner)

    def channel(self, queue: str) -> str:
        """Return the name of the channel that announces new messages."""
        return f"{self.ns}:rt:{queue}"


#: Commands that jobq sends directly, to wait for the next message.
_OWN = ("subscribe",)


def rights(ns: str = "rsmq", queues: Sequence[str] = ()) -> list[str]:
    """Return ACL rules, without passwords, for a user with all rights to `queues`, or to the whole namespace.

    So that the user can create and delete `queues`, the rules also permit writing the list of all queue names.
    """
    keys = Keys(ns)
    called = (script for script in scripts() if script.area == "rsmq")
    names = [existing_name(queue) for queue in queues]
    patterns = [literal(of(name)) for name in names for of in (keys.messages, keys.attributes)]
    channels = [literal(keys.channel(name)) for name in names] or [f"{literal(keys.channel(''))}*"]
    return [
        *(f"~{pattern}" for pattern in ([*patterns, literal(keys.queues)] if names else [f"{literal(ns)}:*"])),
        "resetchannels", *(f"&{channel}" for channel in channels),
        *allowed_for(called, _OWN),
    ]  # fmt: skip


#: Scripts that pages and lists call.
_OF_LOOKING = ("describe", "list", "peek")


def rights_to_look(ns: str = "rsmq") -> list[str]:
    """Return ACL rules to add to a user, so that the user may also see all queues of a namespace."""
    called = [
        script for script in scripts() if script.area == "rsmq" and script.name in _OF_LOOKING
    ]
    needed = sorted(set[str]().union(*map(commands, called)))
    return selector(f"%R~{literal(ns)}:*", [*READING, *needed])
