"""Access settings of the dashboard. Unsafe combinations are rejected before it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from jobq.errors import ConfigError
from jobq.metrics.serving import Endpoint
from jobq.web.access.identity import Identity, UserRole

#: A proxy that connects through the Unix socket.
UNIX = "unix"
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?")
Network = IPv4Network | IPv6Network


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, such as `localhost`, `127.0.0.1` or `::1`. Names aren't looked up."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Access rules of a dashboard. Raises ConfigError for a combination that would leave it open.

    Attributes:
        bind: Address that `jobq web` listens on; None if another program serves the dashboard.
        hosts: Host names of the dashboard, in addition to the bound name and loopback names. A program that sets no
            names must check the Host header itself.
        users: Path of the users file.
        auth_header: A header in which a trusted proxy passes the user's name.
        auth_role: Role of users who are named in the header but missing from the users file; NONE means no rights.
        trusted_proxies: Networks, or `unix`, whose X-Forwarded headers are trusted.
        no_auth: Whether every visitor has all rights.
        tls: Whether this process itself serves HTTPS.
        identify: Function that returns the user of a request, if another program serves the dashboard.
    """

    bind: Endpoint | None = None
    hosts: tuple[str, ...] = ()
    users: Path | None = None
    auth_header: str = ""
    auth_role: UserRole = UserRole.NONE
    trusted_proxies: tuple[str, ...] = ()
    no_auth: bool = False
    tls: bool = False
    identify: Callable[[Any], Identity | None] | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not (_HOST.fullmatch(host) or _is_address(host)):
                raise ConfigError(f"{host!r:.100} is not a host name such as dash.example.com")
        _ = self.networks
        self._check_ways()
        if self.bind is not None and not self.is_local:
            self._check_remote(self.bind)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks of trusted proxies. Raises ConfigError for an invalid network."""
        networks = []
        for text in self.trusted_proxies:
            if text == UNIX:
                continue
            try:
                networks.append(ip_network(text))
            except ValueError as error:
                raise ConfigError(
                    f"{text!r:.100} is not a proxy's address; use an address or network such as 10.0.0.0/8, or unix"
                ) from error
        return tuple(networks)

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the address where `jobq web` listens."""
        return self.bind is not None and (bool(self.bind.path) or is_loopback(self.bind.host))

    @property
    def by_link(self) -> bool:
        """Return whether users log in with a link that `jobq web` prints."""
        return self.is_local and not self._ways()

    @property
    def has_login(self) -> bool:
        """Return whether users log in at the dashboard itself: by the link or with a password."""
        return self.by_link or (self.users is not None and self.identify is None)

    def _ways(self) -> list[str]:
        given = {
            "--users": self.users, "--auth-header": self.auth_header, "--no-auth": self.no_auth,
            "identify": self.identify,
        }  # fmt: skip
        return [name for name, value in given.items() if value]

    def _check_ways(self) -> None:
        if self.bind is None and self.identify is None:
            raise ConfigError(
                "a mounted dashboard needs identify=, a function from the request to an Identity or None"
            )
        ways = self._ways()
        if self.no_auth and len(ways) > 1:
            raise ConfigError(
                f"--no-auth can't be combined with {', '.join(sorted(set(ways) - {'--no-auth'}))}; leave one out"
            )
        if not self.auth_header:
            return
        if not _HEADER.fullmatch(self.auth_header):
            raise ConfigError(
                f"{self.auth_header!r:.100} is not a header name; write it like X-Remote-User"
            )
        if not self.trusted_proxies:
            raise ConfigError(
                "--auth-header needs --trusted-proxy: otherwise any client could send the header"
            )
        if self.users is None and not self.auth_role:
            raise ConfigError(
                "--auth-header sends names without roles; add --users FILE, or --auth-role for all users"
            )

    def _check_remote(self, bind: Endpoint) -> None:
        if self.no_auth:
            raise ConfigError(
                f"--no-auth at {bind.shown} would be open to every host that can reach it; bind 127.0.0.1 or unix:PATH"
            )
        if not self._ways():
            raise ConfigError(
                f"other hosts can reach {bind.shown}, so use --users FILE, or --auth-header with "
                "--trusted-proxy; or bind 127.0.0.1, where a link logs you in"
            )
        if not (self.tls or self.trusted_proxies):
            raise ConfigError(
                f"logins at {bind.shown} would cross the network unencrypted; use --tls-cert and --tls-key, "
                "or --trusted-proxy for a proxy that serves HTTPS"
            )
        if bind.host in ("0.0.0.0", "::") and not self.hosts:  # noqa: S104 # nosec B104
            raise ConfigError(
                f"use --host NAME with {bind.shown}: the name by which browsers reach the dashboard"
            )


def proxy_advice(
    settings: AccessSettings, scope: Mapping[str, Any], headers: Mapping[str, str]
) -> str:
    """Return advice for the user: the change that lets the dashboard detect a proxy's HTTPS."""
    if scope.get("jobq.proxied"):
        scheme = headers.get("x-forwarded-proto")
        if scheme is None:
            return "configure the proxy to send X-Forwarded-Proto (nginx: proxy_set_header X-Forwarded-Proto $scheme)"
        return f"the proxy sends X-Forwarded-Proto: {scheme!r:.40}; configure it to send https for HTTPS connections"
    if settings.trusted_proxies:
        peer = (scope.get("client") or ("",))[0] or "the Unix socket"
        return f"the request came from {peer}, which --trusted-proxy doesn't include; add the proxy's address"
    return "start the dashboard with --trusted-proxy and the proxy's address"


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False
