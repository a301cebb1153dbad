"""Bulk actions, with their required roles, their places and their undo."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.errors import ConfigError
from jobq.queue.bin import Taken
from jobq.web.access.identity import UserRole
from jobq.web.search import DEAD_KEYS, LIVE_KEYS


class BulkVerb(NamedTuple):
    """A bulk action.

    Attributes:
        label: Label of its button.
        done: Word for its result.
        places: Places where it applies.
        undone: Name that put_back uses for it; `time` if an undo restores former times; '' if it can't be undone.
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
        """Return whether the action is for dead messages."""
        return self.places == ("dead",)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that its filter may have."""
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
