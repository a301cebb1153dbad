"""Who a request is from. Sessions are kept in this process."""

from __future__ import annotations

import secrets
from threading import Lock

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.access.identity import NOBODY, Identity
from jobq.web.access.links import LoginLinks
from jobq.web.settings import WebSettings

COOKIE = "jobq_session"


class Guard:
    """Tells who sends a request, logs people in and out."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.links = LoginLinks()
        self._lock = Lock()
        self._sessions: dict[str, Identity] = {}

    def identify(self, request: Request) -> Identity:
        """Return who sends the request; NOBODY if that isn't known."""
        if self.settings.identify is not None:
            return self.settings.identify(request) or NOBODY
        with self._lock:
            return self._sessions.get(request.cookies.get(COOKIE, ""), NOBODY)

    def identify_program(self, request: Request) -> Identity:
        """Return who calls the JSON API, by its bearer token; NOBODY without one. Cookies don't count."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.settings.identify is None or scheme.lower() != "bearer" or not token:
            return NOBODY
        return self.settings.identify(request) or NOBODY

    def log_in(self, response: Response, identity: Identity) -> None:
        """Begin a session of `identity`, whose cookie `response` sets."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[number] = identity
        response.set_cookie(COOKIE, number, httponly=True, samesite="strict")

    def log_out(self, request: Request, response: Response) -> None:
        """End the session of this request."""
        with self._lock:
            self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE)
