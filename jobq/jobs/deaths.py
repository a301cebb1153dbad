"""The argument of `@job(on_dead=…)` functions, and the messages for which workers run these functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jobq.client.names import base_of
from jobq.jobs.codec import decode
from jobq.jobs.signing import Seal, opened, shown_text
from jobq.queue.types import DeadMessage, Lease

#: Prefix of the content of a message about a death. A script writes such a message for each dead message if a job of
#: its queue declares on_dead. The content is never sealed, but the dead message that it names may be.
ON_DEAD = b'{"job":"jobq.on_dead","args":["'

#: (queue, dead id, lease of the message that names it) -> the dead message; None if it was revived, purged or evicted.
FindDead = Callable[[str, str, Lease], DeadMessage | None]


class DeadCall(msgspec.Struct, frozen=True):
    """A call whose message was dead-lettered. Times are in epoch ms.

    Attributes:
        attempts: Number of attempts.
        crashes: Number of attempts whose process died.
        reason: The last error with its traceback, or how the process died.
    """

    job: str
    mid: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, str]
    enqueued_at: int
    died_at: int
    attempts: int
    crashes: int
    reason: str
    dead_id: str

    def __repr__(self) -> str:
        # Like in Message, arguments and headers aren't shown: only the job should see them.
        return f"<DeadCall of {self.job!r}, {self.dead_id!r}>"


def dead_id_in(content: bytes) -> str:
    """Parse the id of a dead message from a message that calls on_dead; raise CodecError if it is unreadable."""
    return str(decode(content).args[0])


def dead_call(seal: Seal | None, queue: str, dead: DeadMessage) -> DeadCall:
    """Return the call of a dead message; raise CodecError if it can't be read or isn't trusted."""
    envelope = decode(opened(seal, queue, dead.mid, dead.content))
    reason = shown_text(seal, "reason", queue, dead.mid, dead.reason)
    return DeadCall(
        envelope.job, dead.mid, base_of(queue), envelope.args, envelope.kwargs, envelope.headers,
        envelope.enqueued_at, dead.died_at, dead.attempts, dead.ncrashes, reason, dead.dead_id,
    )  # fmt: skip
