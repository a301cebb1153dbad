"""What an intake sees of the worker that it feeds."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Given by the worker; `woken` becomes readable when something of it changes."""

    @property
    def name(self) -> str:
        """The worker's name."""
        ...

    @property
    def burst(self) -> bool:
        """Whether to leave once there is nothing left to take in."""
        ...

    @property
    def woken(self) -> int:
        """A file that becomes readable after any change."""
        ...

    @property
    def supervisor(self) -> int:
        """The process that hears signals for the whole worker."""
        ...

    @property
    def processes(self) -> int:
        """How many jobs run at once, at most."""
        ...

    def stopping(self) -> bool:
        """Whether to leave now."""
        ...

    def quiet(self) -> bool:
        """Whether to take nothing more."""
        ...

    def running(self) -> list[tuple[int, str, str, int]]:
        """Per job that runs: process, queue, mid, and for how many ms it has run at least."""
        ...

    def drain(self) -> None:
        """Empty `woken`."""
        ...
