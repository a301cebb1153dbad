"""The login link that `jobq web` prints: a random token that works once, for ten minutes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from threading import Lock

#: How long a link works.
LIVES_S = 600.0


class LoginLinks:
    """The links of one process. It keeps their SHA-256 only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._until: dict[bytes, float] = {}

    def make(self) -> str:
        """Return a new token."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._until[_hash(token)] = self._clock() + LIVES_S
        return token

    def take(self, token: str) -> bool:
        """Use up a token; False if it is unknown, used or too old."""
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
