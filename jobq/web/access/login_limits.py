"""Limits on failed logins: 5 per address and 10 per name in 15 minutes, counted in Redis for all processes.

If a proxy doesn't report the browsers' addresses, all browsers share the proxy's address, which has a limit of 100.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from threading import Lock

from jobq.client.connection import Client
from jobq.errors import ServerFullError
from jobq.queue import keys
from jobq.web.access.passwords import token_digest

PER_ADDRESS, PER_NAME, PER_PROXY = 5, 10, 100
WINDOW_MS = 15 * 60 * 1000
#: Maximum number of counts that this process keeps.
MAX_HERE = 10_000


class LoginLimits:
    """Counts logins before the password is checked, so that simultaneous logins can't exceed the limit."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = Lock()
        #: Counts while the server rejects writes: key -> (failures, expiry).
        self._here: dict[str, tuple[int, float]] = {}

    def refused_for_s(self, address: str, name: str, per_address: int = PER_ADDRESS) -> float:
        """Count a login. Return 0 if the login is allowed, otherwise the seconds to wait. Raises UnavailableError."""
        of_address, of_name = self._keys(address, name)
        # An address over its limit must not use up the limit of a name.
        return self._count(of_address, per_address) or self._count(of_name, PER_NAME)

    def succeeded(self, address: str, name: str) -> None:
        """Stop counting a login that succeeded, because only failed logins are limited."""
        for key in self._keys(address, name):
            with suppress(ServerFullError):
                if int(self._client.command("DECR", key)) <= 0:
                    self._client.command("DEL", key)

    def _keys(self, address: str, name: str) -> tuple[str, str]:
        namespace = self._client.namespace
        return (
            keys.web_failures(namespace, "a", token_digest(block_of(address))),
            keys.web_failures(namespace, "n", token_digest(name)),
        )

    def _count(self, key: str, most: int) -> float:
        try:
            # The key gets its expiry before it counts, so that every count expires.
            self._client.command("SET", key, 0, "PX", WINDOW_MS, "NX")
            count = int(self._client.command("INCR", key))
        except ServerFullError:
            return self._count_here(key, most)
        if count <= most:
            return 0.0
        left_ms = int(self._client.command("PTTL", key))
        if left_ms < 0:
            # It expired between the two commands above.
            self._client.command("PEXPIRE", key, WINDOW_MS)
            left_ms = WINDOW_MS
        return max(1.0, left_ms / 1000)

    def _count_here(self, key: str, most: int) -> float:
        now = self._clock()
        with self._lock:
            count, until = self._here.get(key, (0, 0.0))
            if now >= until:
                count, until = 0, now + WINDOW_MS / 1000
            if len(self._here) >= MAX_HERE:
                self._here.clear()
            self._here[key] = (count + 1, until)
        return max(1.0, until - now) if count >= most else 0.0


def block_of(address: str) -> str:
    """Return the network whose logins are counted together: an address, or the first 64 bits of an IPv6 address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return ip.exploded[:19]
    return str(ip)
