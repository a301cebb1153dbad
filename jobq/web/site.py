"""Shared state of a dashboard's handlers: settings, connections, and parts made at first use."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar, cast

from starlette.requests import Request

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.web.access.guard import Guard
from jobq.web.settings import WebSettings

T = TypeVar("T")
#: How long to remember whether a feature is used, and the same for a feature that only a scan of the keys finds.
USES_S, SCANNED_S = 10.0, 300.0


class Site:
    """State of a dashboard.

    Attributes:
        client: Client for reading.
        operate: Client for changes, whose user on the server has the necessary rights.
    """

    def __init__(
        self, client: Client, settings: WebSettings, operate: Client | None = None
    ) -> None:
        self.client = client
        self.operate = operate or client
        self.settings = settings
        self.guard = Guard(client, settings.who_may)
        self._lock = RLock()
        self._parts: dict[Any, Any] = {}
        self._uses: dict[str, tuple[float, bool]] = {}

    def part(self, kind: type[T], make: Callable[[Site], T]) -> T:
        """Return the object of type `kind` that all requests share, such as the sampler. `make` creates it at first
        use.
        """
        with self._lock:
            if kind not in self._parts:
                self._parts[kind] = make(self)
            return cast(T, self._parts[kind])

    def uses(self, feature: str, read: Callable[[Client], bool], every_s: float = USES_S) -> bool:
        """Return whether this installation uses a feature. The server is queried at most every `every_s` seconds.

        While the server doesn't answer, return the previous result.
        """
        now = time.monotonic()
        until, known = self._uses.get(feature, (0.0, False))
        if now >= until:
            try:
                known = read(self.client)
            except JobqError:
                pass
            self._uses[feature] = (now + every_s, known)
        return known

    def close(self) -> None:
        """Close the parts that have a method `close`."""
        with self._lock:
            parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            if close := getattr(part, "close", None):
                close()


def site_of(request: Request) -> Site:
    """Return the dashboard that serves a request."""
    return cast(Site, request.app.state.site)
