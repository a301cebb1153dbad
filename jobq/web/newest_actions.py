"""The latest actions of users, read from the audit log in one round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import ScriptError
from jobq.queue.audit_log import AuditEntry, AuditLog, without_ended_intents

#: Number of entries to read.
LOOKED_AT = 200
#: Filter prefixes of control entries that pause, resume or restart a worker.
_STEERING = ("control:quiet", "control:resume", "control:restart")


class NewestActs(NamedTuple):
    """The latest entries of the audit log.

    Attributes:
        unread: Reason why the log can't be read, or ''.
    """

    entries: Sequence[AuditEntry] = ()
    unread: str = ""


def newest_acts(client: Client, most: int) -> NewestActs:
    """Return the latest undamaged entries of the audit log."""
    try:
        read = _read(client)
    except ScriptError as error:
        return NewestActs(unread=str(error))
    return NewestActs(list(islice((entry for entry in read if not entry.damaged), most)))


def paused_by(client: Client, queue: str) -> AuditEntry | None:
    """Return the audit entry of a queue's pause; None if the queue was resumed, or if the entry is too old."""
    for entry in _entries(client):
        if (
            entry.verb in ("pause", "resume")
            and not {queue, base_of(queue)}.isdisjoint(entry.queue.split(","))
            and entry.phase == "done"
        ):
            return entry if entry.verb == "pause" else None
    return None


def quieted_by(client: Client) -> dict[str, AuditEntry]:
    """Return worker name -> audit entry, for each worker whose latest command was a pause."""
    newest: dict[str, AuditEntry] = {}
    for entry in _entries(client):
        order, _, workers = entry.filter.partition(" ")
        if entry.verb == "control" and entry.phase == "done" and order in _STEERING:
            for name in workers.split(" "):
                newest.setdefault(name.removeprefix("worker:"), entry)
    return {name: act for name, act in newest.items() if act.filter.startswith("control:quiet ")}


def _entries(client: Client) -> list[AuditEntry]:
    try:
        return list(_read(client))
    except ScriptError:
        return []


def _read(client: Client) -> Iterator[AuditEntry]:
    return without_ended_intents(iter(AuditLog(client).page(limit=LOOKED_AT)))
