"""Names of RSMQ's keys.

==================  =====================================================================
{ns}:QUEUES         set of the names of queues
{ns}:{q}:Q          hash: settings and totals of the queue; per message `<id>` its body,
                    `<id>:rc` times received, `<id>:fr` first received at, ms
{ns}:{q}            sorted set, id by when it is visible next, ms
{ns}:rt:{q}         channel: how many messages the queue has after a send
==================  =====================================================================
"""

from __future__ import annotations

import re

from jobq.errors import ConfigError

_TAGGED = re.compile(r"[^{]*\{[^}]+\}")


class Keys:
    """The keys of one namespace."""

    def __init__(self, ns: str, *, is_cluster: bool = False) -> None:
        if not ns or not ns.isprintable():
            raise ConfigError(f"ns {ns!r} can't be used; take printable characters, such as 'rsmq'")
        if is_cluster and not _TAGGED.match(ns):
            raise ConfigError(
                f"ns {ns!r} has no hash tag, so a Cluster would keep one queue's keys on several nodes; "
                f"take ns='{{{ns}}}'"
            )
        self.ns = ns
        self.queues = f"{ns}:QUEUES"

    def messages(self, queue: str) -> str:
        """Sorted set of ids."""
        return f"{self.ns}:{queue}"

    def attributes(self, queue: str) -> str:
        """Hash of all else."""
        return f"{self.ns}:{queue}:Q"

    def channel(self, queue: str) -> str:
        """Where sends are told."""
        return f"{self.ns}:rt:{queue}"
