"""A message that was understood: which job, with what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobq.queue.types import Message

if TYPE_CHECKING:
    from jobq.jobs.job import Job
else:
    Job = Any


class Call(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One hand-out of one job, ready to run. sealed: what is said about it is to be sealed as it was."""

    job: Job[..., Any]
    message: Message
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, str]
    enqueued_at: int
    sealed: bool = False

    def __repr__(self) -> str:
        # As with Message: arguments and headers are for the job alone.
        return f"<Call of {self.job.name!r}, {self.message!r}>"

    @property
    def failures(self) -> int:
        """How many attempts have failed if this one does; those that crashed are counted apart."""
        return max(1, self.message.attempt - self.message.ncrashes)
