"""What can be done to many messages at once: who may, in which places, and how it is undone."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.errors import ConfigError
from jobq.queue.bin import Taken
from jobq.web.access.identity import UserRole
from jobq.web.search import DEAD_KEYS, LIVE_KEYS


class BulkVerb(NamedTuple):
    """One verb. label: of its button. done: what was done to a message. places: where the messages are.

    undone: what put_back calls what it did; `time` for a former time; '' = it can't be undone. says: what it does.
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
        """Whether it acts on dead messages."""
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
            "Enqueue dead messages again, with all their attempts.",
        ),
        BulkVerb(
            "purge", "Purge", "purged", UserRole.ADMIN, ("dead",), "dead", "Delete dead messages.",
        ),
        BulkVerb(
            "cancel", "Cancel", "cancelled", UserRole.OPERATE, ("ready", "due"), "waiting",
            "Take messages that wait out of their queues. Running ones stay.",
        ),
        BulkVerb(
            "run-now", "Run now", "moved", UserRole.OPERATE, ("due",), "time",
            "Let messages that wait for a time run at once.",
        ),
        BulkVerb(
            "cancel-running", "Cancel running", "cancelled", UserRole.ADMIN, ("running",), "",
            "Have workers stop running messages; their results are refused.",
        ),
    )
}  # fmt: skip


def verb_of(name: str) -> BulkVerb:
    """The verb of this name. ConfigError for another."""
    if name not in VERBS:
        raise ConfigError(f"{name!r:.50} is not an operation; use one of {', '.join(VERBS)}")
    return VERBS[name]
