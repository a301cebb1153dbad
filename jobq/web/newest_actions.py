"""Who did what lately, from the newest entries of the audit log, in one round trip."""

from __future__ import annotations

from itertools import islice

from jobq.client.connection import Client
from jobq.errors import ScriptError
from jobq.queue.audit_log import AuditEntry, AuditLog, without_ended_intents

#: Entries that are looked at.
LOOKED_AT = 200


def newest_acts(client: Client, most: int) -> list[AuditEntry]:
    """Return the newest entries that can be read; none if this user may not read the log."""
    return list(islice((one for one in _entries(client) if not one.damaged), most))


def paused_by(client: Client, queue: str) -> AuditEntry | None:
    """Return who paused a queue last; None if that isn't among the newest entries."""
    for one in _entries(client):
        if (
            one.verb in ("pause", "resume")
            and queue in one.queue.split(",")
            and one.phase == "done"
        ):
            return one if one.verb == "pause" else None
    return None


def _entries(client: Client) -> list[AuditEntry]:
    try:
        return list(without_ended_intents(iter(AuditLog(client).page(limit=LOOKED_AT))))
    except ScriptError:
        return []
