"""Identify the senders of requests, and log users in and out."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from jobq.client.connection import Client
from jobq.errors import ConfigError, JobqError, UnavailableError
from jobq.web.access.bounds import RefusalRate, RequestRate, ScanSlots
from jobq.web.access.gate import host_name
from jobq.web.access.identity import ADMIN, NOBODY, READ, Identity, checked_user_name
from jobq.web.access.login_limits import PER_ADDRESS, PER_PROXY, LoginLimits
from jobq.web.access.sessions import MAX_S, LoginLinks, Sessions, WebSession
from jobq.web.access.settings import AccessSettings, is_loopback, proxy_advice
from jobq.web.access.users import UsersFile

logger = logging.getLogger("jobq.web")
#: While the server is unreachable, sessions that were valid this recently may still read.
AWAY_S = 600.0
MAX_REMEMBERED = 1_000
LOCAL = "local"


class LoginRefusedError(JobqError):
    """The login was rejected."""

    def __init__(self, message: str, status: int = 403, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class _Remembered(NamedTuple):
    identity: Identity
    at: float


class Guard:
    """Identifies the senders of requests. Threads may share this object."""

    def __init__(
        self, client: Client, settings: AccessSettings, clock: Callable[[], float] = time.time
    ) -> None:
        """Raise ConfigError if the users file can't be used.

        Args:
            clock: Returns epoch seconds.
        """
        self.settings = settings
        self.links = LoginLinks()
        self.rate = RequestRate()
        self.scans = ScanSlots()
        self.refusals = RefusalRate()
        self.users = UsersFile(settings.users) if settings.users is not None else None
        self.sessions = Sessions(client, clock)
        self._limits = LoginLimits(client)
        self._clock = clock
        self._lock = Lock()
        self._recent: OrderedDict[str, _Remembered] = OrderedDict()

    def identify(self, request: Request) -> Identity:
        """Return who requests a page or an action; NOBODY if unknown. Tokens are ignored."""
        settings = self.settings
        if settings.identify is not None:
            return settings.identify(request) or NOBODY
        if settings.no_auth:
            return Identity(LOCAL, ADMIN, arguments=True, via="open")
        named = self._named_by_proxy(request)
        return named if named is not None else self._by_session(request)

    def identify_program(self, request: Request) -> Identity:
        """Return the program that sent the request's bearer token; NOBODY if unknown. Cookies are ignored.

        A program that serves the dashboard checks the token itself.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return NOBODY
        if self.users is not None:
            return self.users.check_token(token.strip(), self._clock()) or NOBODY
        if self.settings.identify is not None:
            return self.settings.identify(request) or NOBODY
        return NOBODY

    def log_in_by_link(self, request: Request, response: Response, token: str) -> Identity:
        """Start a session with the link that `jobq web` printed. Raises LoginRefusedError or UnavailableError."""
        self._check_scheme(request)
        if not self.settings.by_link:
            raise LoginRefusedError("this dashboard doesn't accept login links")
        if not self.links.take(token):
            raise LoginRefusedError(
                "this link was already used, or is older than ten minutes; start jobq web again for a new link"
            )
        self._start(request, response, LOCAL, "link", "")
        return self._local()

    def log_in_by_password(
        self, request: Request, response: Response, name: str, password: str
    ) -> Identity:
        """Start a session with a password. Raises LoginRefusedError, UnavailableError or ConfigError."""
        self._check_scheme(request)
        if self.users is None:
            raise LoginRefusedError("this dashboard doesn't accept passwords")
        address = address_of(request)
        shared = bool(request.scope.get("jobq.shared_address"))
        wait_s = self._limits.refused_for_s(address, name, PER_PROXY if shared else PER_ADDRESS)
        if wait_s:
            raise LoginRefusedError(
                f"too many failed logins; try again in {max(1, round(wait_s / 60))} min",
                429,
                wait_s,
            )
        known = self.users.check_password(name, password)
        if known is None:
            raise LoginRefusedError("the name or the password is wrong")
        self._limits.succeeded(address, name)
        self._start(request, response, known.identity.name, "password", known.mark)
        return known.identity

    def log_out(self, request: Request, response: Response) -> None:
        """End the session of a request. If this raises UnavailableError, the session hasn't ended."""
        cookie = cookie_of(request)
        session_id = request.cookies.get(cookie.name, "")
        with self._lock:
            self._recent.pop(session_id, None)
        self.sessions.end(session_id)
        cookie.delete_from(response)

    def _local(self) -> Identity:
        return Identity(LOCAL, ADMIN, arguments=True, via="link")

    def _start(self, request: Request, response: Response, name: str, via: str, mark: str) -> None:
        cookie = cookie_of(request)
        former = request.cookies.get(cookie.name, "")
        session_id = self.sessions.start(name, via, mark)
        if former:
            self.sessions.end(former)
        cookie.set_on(response, session_id)

    def _check_scheme(self, request: Request) -> None:
        if request.url.scheme != "https" and not _is_local(request):
            raise LoginRefusedError(
                "this connection is not encrypted; open the dashboard with https://. If a proxy serves HTTPS: "
                + proxy_advice(self.settings, request.scope, request.headers)
            )

    def _by_session(self, request: Request) -> Identity:
        session_id = request.cookies.get(cookie_of(request).name, "")
        if not session_id:
            return NOBODY
        try:
            session = self.sessions.find(session_id)
        except UnavailableError:
            return self._while_away(session_id)
        identity = self._of(session) if session is not None else NOBODY
        with self._lock:
            self._recent.pop(session_id, None)
            if identity is not NOBODY:
                self._recent[session_id] = _Remembered(identity, self._clock())
                if len(self._recent) > MAX_REMEMBERED:
                    self._recent.popitem(last=False)
        if session is not None and identity is NOBODY:
            self.sessions.end(session_id)
        return identity

    def _of(self, session: WebSession) -> Identity:
        """Return the user of a session; NOBODY if the user's entry in the users file has changed since the login."""
        if session.via == "link":
            return self._local() if self.settings.by_link else NOBODY
        known = self.users.user(session.name) if self.users is not None else None
        return known.identity if known is not None and known.mark == session.mark else NOBODY

    def _while_away(self, session_id: str) -> Identity:
        """Return the user of a session that was valid in the last AWAY_S seconds, but limit the role to READ.

        Call it only while the server can't be reached. Raises UnavailableError for other sessions.
        """
        with self._lock:
            recent = self._recent.get(session_id)
        if recent is None or not 0 <= self._clock() - recent.at <= AWAY_S:
            raise UnavailableError(
                "the server can't be reached, so logins are impossible; try again in a moment"
            )
        was = recent.identity
        return Identity(was.name, READ, was.arguments, was.via)

    def _named_by_proxy(self, request: Request) -> Identity | None:
        settings = self.settings
        if not settings.auth_header or not request.scope.get("jobq.proxied"):
            return None
        names = request.headers.getlist(settings.auth_header)
        if len(names) != 1 or not names[0]:
            return None
        try:
            name = checked_user_name(
                names[0].encode("latin-1", "replace").decode("utf-8", "replace")
            )
        except ConfigError as error:
            logger.warning("the proxy sent an invalid name: %s", error)
            return None
        known = self.users.user(name, "header") if self.users is not None else None
        if known is not None:
            return known.identity
        return Identity(name, settings.auth_role, via="header") if settings.auth_role else NOBODY


class Cookie(NamedTuple):
    """The session's cookie: its name, its path, and whether it is only sent over HTTPS."""

    name: str
    path: str
    secure: bool

    def set_on(self, response: Response, value: str) -> None:
        """Set the session's cookie, for at most a day."""
        response.set_cookie(
            self.name, value, max_age=int(MAX_S), path=self.path, secure=self.secure, httponly=True,
            samesite="strict",
        )  # fmt: skip

    def delete_from(self, response: Response) -> None:
        """Delete the session's cookie."""
        response.delete_cookie(
            self.name, path=self.path, secure=self.secure, httponly=True, samesite="strict"
        )


def cookie_of(request: Request) -> Cookie:
    """Return the session's cookie for this request.

    On HTTPS, the prefix of the cookie's name makes browsers reject cookies from other sites and paths. On loopback
    HTTP, the name contains the port, because browsers send a cookie to all ports.
    """
    prefix = request.scope.get("root_path", "").rstrip("/")
    if request.url.scheme == "https":
        return Cookie("__Secure-jobq" if prefix else "__Host-jobq", f"{prefix}/", True)
    return Cookie(f"jobq-{request.base_url.port or 80}", f"{prefix}/", False)


def address_of(request: Request) -> str:
    """Return the address of the browser, possibly as reported by a trusted proxy; `unix` for a Unix socket."""
    return (request.client.host if request.client else "") or "unix"


def _is_local(request: Request) -> bool:
    return is_loopback(host_name(request.headers.get("host", "")))
