"""The thread that renews slots which no worker's supervisor renews: in web processes and scripts."""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic
from typing import Any, Protocol

from jobq.client.steps import Steps
from jobq.errors import JobqError

logger = logging.getLogger("jobq.limits")
#: The thread ends after this time without a slot to renew.
IDLE_S = 30.0


class Renewable(Protocol):
    """What is renewed each third of its lease."""

    @property
    def calls(self) -> Any: ...
    @property
    def lease_s(self) -> float: ...
    def renew_steps(self) -> Steps[None]: ...
    def leave_steps(self) -> Steps[None]: ...


class Renewals:
    """What is held in this process, and since when it waits for its renewal."""

    def __init__(self) -> None:
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._due: dict[Renewable, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, one: Renewable) -> None:
        """Renew this from now on."""
        if self._pid != os.getpid():
            # What a parent holds, it renews itself, and its thread isn't here.
            self._start_anew()
        with self._changed:
            self._due[one] = monotonic() + one.lease_s / 3
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="jobq-slots", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, one: Renewable) -> None:
        """Renew it no more."""
        if self._pid == os.getpid():
            with self._changed:
                self._due.pop(one, None)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                one.calls.perform(one.renew_steps())
                with self._changed:
                    gone = one not in self._due
                if gone:  # given back while it was renewed, which may have taken it again
                    one.calls.perform(one.leave_steps())
            except JobqError as error:
                logger.warning("%r can't be renewed yet: %s", one, error)
            except Exception:
                # The slots of others must be renewed all the same.
                logger.exception("%r can't be renewed", one)

    def _next(self) -> Renewable | None:
        """Wait for the next that is due; None once there was nothing for a while."""
        with self._changed:
            while True:
                if not self._due:
                    if not self._changed.wait(IDLE_S) and not self._due:
                        self._thread = None
                        return None
                    continue
                one = min(self._due, key=self._due.__getitem__)
                left_s = self._due[one] - monotonic()
                if left_s <= 0:
                    self._due[one] = monotonic() + one.lease_s / 3
                    return one
                self._changed.wait(left_s)


renewals = Renewals()
