"""Runs of jobs on one event loop, which aren't each other's to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from jobq.jobs.context import Call, running


class JobRun(asyncio.Task[None]):
    """Runs one call. Its worker may cancel it, and the job itself; another job that cancels all tasks may not."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], call: Call, name: str) -> None:
        self._of = call
        super().__init__(coroutine, loop=asyncio.get_running_loop(), name=name)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any task; False where another job asks."""
        context = running.get(None)
        if context is not None and not context.is_of(self._of):
            return False
        return super().cancel(msg)
