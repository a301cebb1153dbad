"""What only topics raise; all are JobqErrors."""

from __future__ import annotations

from jobq.errors import JobqError


class OutOfRange(JobqError):
    """No message of this topic has that index: it was dropped, or isn't there yet.

    `position` is the index asked for; `first` and `last` are what the topic has.
    """

    def __init__(
        self, message: str | None = None, position: int = 0, first: int = 0, last: int = 0
    ) -> None:
        super().__init__(message)
        self.position, self.first, self.last = position, first, last


class NoGroup(JobqError):
    """The topic has no group of this name; subscribe makes one."""
