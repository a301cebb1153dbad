"""The thread that renews slots outside workers: in web processes and scripts."""

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
    """A lease that is renewed after each third of its duration."""

    @property
    def calls(self) -> Any: ...
    @property
    def lease_s(self) -> float: ...
    def renew_steps(self) -> Steps[None]: ...
    def leave_steps(self) -> Steps[None]: ...


class Renewals:
    """Renews the slots of this process in a thread."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._due: dict[Renewable, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, lease: Renewable) -> None:
        """Start renewing a lease."""
        if self._pid != os.getpid():
            # The parent process renews its own leases, and its thread does not exist here.
            self._reset()
        with self._changed:
            self._due[lease] = monotonic() + lease.lease_s / 3
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="jobq-slots", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, lease: Renewable) -> None:
        """Stop renewing a lease."""
        if self._pid == os.getpid():
            with self._changed:
                self._due.pop(lease, None)

    def _run(self) -> None:
        while (lease := self._next()) is not None:
            try:
                lease.calls.perform(lease.renew_steps())
                with self._changed:
                    removed = lease not in self._due
                if removed:  # The renewal may have acquired the slot again after it was returned.
                    lease.calls.perform(lease.leave_steps())
            except JobqError as error:
                logger.warning("could not renew %r; trying again: %s", lease, error)
            except Exception:
                # The thread must continue to renew the other leases.
                logger.exception("could not renew %r", lease)

    def _next(self) -> Renewable | None:
        """Wait until a renewal is due, and return its lease. If there are no leases for a while, return None."""
        with self._changed:
            while True:
                if not self._due:
                    if not self._changed.wait(IDLE_S) and not self._due:
                        self._thread = None
                        return None
                    continue
                lease = min(self._due, key=self._due.__getitem__)
                left_s = self._due[lease] - monotonic()
                if left_s <= 0:
                    self._due[lease] = monotonic() + lease.lease_s / 3
                    return lease
                self._changed.wait(left_s)


renewals = Renewals()
