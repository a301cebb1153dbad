"""Bulk actions on messages."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.errors import ConfigError
from jobq.queue.bin import Taken
from jobq.web.access.identity import UserRole
from jobq.web.search import DEAD_KEYS, LIVE_KEYS


class BulkVerb(NamedTuple):
    """A bulk action.

    Attributes:
        label: Text of the action's button.
        done: Word for a result, such as `revived`.
        places: Parts of a queue that the action applies to.
        undone: Argument of `put_back` in an undo. `time` restores start times; '' means that an undo is impossible.
        says: Description of the action.
    """

    name: str
    label: str
    done: str
    role: UserRole
    places: tuple[str, ...]
    undone: Taken | Literal["time", ""]
    says: str

    @property
    def is_dead(self) -> bool:
        """Return whether the action applies to dead messages."""
        return self.places == ("dead",)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a filter for this action may use."""
        return DEAD_KEYS if self.is_dead else LIVE_KEYS


VERBS = {
    verb.name: verb
    for verb in (
        BulkVerb(
            "revive", "Revive", "revived", UserRole.OPERATE, ("dead",), "revived",
            "Enqueue dead messages again, with a full number of attempts.",
        ),
        BulkVerb(
            "purge", "Purge", "purged", UserRole.ADMIN, ("dead",), "dead", "Delete dead messages.",
        ),
        BulkVerb(
            "cancel", "Cancel", "cancelled", UserRole.OPERATE, ("ready", "due"), "waiting",
            "Remove waiting messages from their queues. Running messages continue.",
        ),
        BulkVerb(
            "run-now", "Run now", "moved", UserRole.OPERATE, ("due",), "time",
            "Run delayed messages immediately.",
        ),
        BulkVerb(
            "cancel-running", "Cancel running", "cancelled", UserRole.ADMIN, ("running",), "",
            "Stop running messages; their results are rejected.",
        ),
    )
}  # fmt: skip


def verb_of(name: str) -> BulkVerb:
    """Return the verb with this name. Raises ConfigError for an unknown name."""
    if name not in VERBS:
        raise ConfigError(f"{name!r:.50} is not an operation; use one of {', '.join(VERBS)}")
    return VERBS[name]
