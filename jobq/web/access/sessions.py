"""Login links and sessions. A cookie contains a session's random id. Redis stores the user under this id's SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from threading import Lock

import msgspec

from jobq.client.connection import Client
from jobq.errors import ServerFullError
from jobq.queue import keys
from jobq.web.access.passwords import token_digest

#: A session ends after this time without a request, and at the latest this long after the login.
IDLE_S, MAX_S = 8 * 3600.0, 24 * 3600.0
#: How long a link works.
LINK_S = 600.0
#: How often the expiry of an active session is extended, in seconds.
MOVED_EVERY_S = 60.0
#: Maximum number of sessions whose last extension is remembered.
MAX_MOVED = 10_000
#: Maximum number of sessions kept only in this process, because the server rejected writes.
MAX_HERE = 100
#: Characters of an id: 256 bits in base64.
ID_LENGTH = 43


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """A login session, as the server stores it.

    Attributes:
        mark: Digest of the user's entry in the users file. If it changes, the session ends.
        started_at: Time of the login, epoch seconds.
    """

    name: str
    via: str
    mark: str
    started_at: float


class Sessions:
    """The sessions of a namespace. Every process that serves the dashboard shares them."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._lock = Lock()
        self._moved: dict[str, float] = {}
        self._here: dict[str, tuple[float, bytes]] = {}

    def start(self, name: str, via: str, mark: str) -> str:
        """Start a session and return its id. Raises UnavailableError.

        If the server's memory is full, only this process keeps the session.
        """
        session_id = secrets.token_urlsafe(32)
        kept = WebSession(name=name, via=via, mark=mark, started_at=self._clock())
        key, raw = self._key(session_id), msgspec.json.encode(kept)
        try:
            self._client.command("SET", key, raw, "PX", int(IDLE_S * 1000))
        except ServerFullError:
            # The server's memory is full, and users need the dashboard to see why.
            self._keep_here(key, raw)
        return session_id

    def find(self, session_id: str) -> WebSession | None:
        """Return the session with this id; None if it doesn't exist or has ended. Raises UnavailableError."""
        if len(session_id) != ID_LENGTH:
            return None
        key = self._key(session_id)
        raw = self._kept_here(key) or self._client.command("GET", key)
        try:
            decoded = msgspec.json.decode(raw or b"", type=WebSession)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        now = self._clock()
        left_s = decoded.started_at + MAX_S - now
        if not 0 < left_s <= MAX_S:
            return None
        if self._is_due(key, now):
            # PEXPIRE never brings back a session that ended in the meantime.
            self._client.command("PEXPIRE", key, int(min(IDLE_S, left_s) * 1000))
        return decoded

    def end(self, session_id: str) -> None:
        """End a session in every process immediately."""
        if len(session_id) == ID_LENGTH:
            key = self._key(session_id)
            with self._lock:
                self._here.pop(key, None)
            self._client.command("DEL", key)

    def _key(self, session_id: str) -> str:
        return keys.web_session(self._client.namespace, token_digest(session_id))

    def _is_due(self, key: str, now: float) -> bool:
        with self._lock:
            if now < self._moved.get(key, 0.0) + MOVED_EVERY_S:
                return False
            if len(self._moved) >= MAX_MOVED:
                self._moved.clear()
            self._moved[key] = now
            return True

    def _keep_here(self, key: str, raw: bytes) -> None:
        with self._lock:
            if len(self._here) >= MAX_HERE:
                del self._here[next(iter(self._here))]
            self._here[key] = (self._clock() + IDLE_S, raw)

    def _kept_here(self, key: str) -> bytes:
        with self._lock:
            until, raw = self._here.get(key, (0.0, b""))
            if raw and self._clock() >= until:
                del self._here[key]
                return b""
            return raw


class LoginLinks:
    """The login links that this process printed. Only SHA-256 hashes of their tokens are kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._until: dict[bytes, float] = {}

    def make(self) -> str:
        """Return a new token."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._until[_hash(token)] = self._clock() + LINK_S
        return token

    def take(self, token: str) -> bool:
        """Use up a token. Return False if it is unknown, already used or too old."""
        wanted, now = _hash(token), self._clock()
        with self._lock:
            for known, until in list(self._until.items()):
                if until < now:
                    del self._until[known]
                elif hmac.compare_digest(known, wanted):
                    del self._until[known]
                    return True
        return False


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
