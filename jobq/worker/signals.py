"""What a child hears, taken back from jobs that handle signals themselves."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from jobq.worker.log import logger

if TYPE_CHECKING:
    from signal import getsignal as getsignal
else:
    try:
        # signal.getsignal makes an enum of each answer, for thirty times the price: this is asked after each job.
        from _signal import getsignal as getsignal
    except ImportError:
        from signal import getsignal as getsignal

Handler = Callable[[int, FrameType | None], object]


class Signals:
    """The handlers of one process, and the pipe that fills with each signal."""

    def __init__(self, filled: int = -1) -> None:
        self._filled = filled
        self._handlers: list[tuple[int, Handler]] = []
        self._warned = False
        if filled >= 0:
            signal.set_wakeup_fd(filled, warn_on_full_buffer=False)

    def handle(self, number: int, handler: Handler) -> None:
        """Handle it, from now on and after each `restore`."""
        self._handlers = [one for one in self._handlers if one[0] != number] + [(number, handler)]
        signal.signal(number, handler)

    def restore(self) -> None:
        """Take back what a job handles otherwise. Cheap while there is nothing to do."""
        for number, handler in self._handlers:
            if getsignal(number) is not handler:
                self._take_back(number, handler)
        if self._filled >= 0:
            signal.set_wakeup_fd(self._filled, warn_on_full_buffer=False)

    def _take_back(self, number: int, handler: Any) -> None:
        signal.signal(number, handler)
        if not self._warned:
            self._warned = True
            logger.warning(
                "a job changed how %s is handled; jobq handles it again",
                signal.Signals(number).name,
            )
