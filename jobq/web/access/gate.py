"""First checks of every request: size, host, and the origin of forms.

The gate also determines the address and the scheme of the browser behind trusted proxies.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobq.errors import JobqError
from jobq.web.access.settings import UNIX, AccessSettings, is_loopback, proxy_advice

MAX_BODY, MAX_URL, MAX_QUERY_KEYS = 1 << 20, 8 * 1024, 50
#: Methods that must not change anything, and don't need a proof of origin.
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
#: Paths that probes call by a pod's address. Their replies contain no private data.
PROBES = frozenset(("/healthz", "/readyz"))
#: Maximum number of addresses to read from a chain of proxies.
MAX_PROXIES = 20
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\\\s]+))(?::(\d{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class RefusedRequest(NamedTuple):
    """The reply to a rejected request."""

    status: int
    text: str


class BodyTooLargeError(JobqError):
    """The body has more bytes than the limit."""


class Gate:
    """Rejects bad requests, and passes the others on with the browser's address and scheme."""

    def __init__(self, app: ASGIApp, settings: AccessSettings, prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix
        self._settings = settings
        self._networks = settings.networks
        self._hosts = _known_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a bad request, or pass the request on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope = {**scope, **self._behind_proxies(scope, headers)}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(refusal, scope, receive, send)
            return
        await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and abort it if its body exceeds MAX_BODY."""
        received, started, too_large = 0, False, False

        async def counted() -> Message:
            nonlocal received, too_large
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                too_large = True
                raise BodyTooLargeError
            return message

        async def passed_on(message: Message) -> None:
            nonlocal started
            if started or not too_large:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, passed_on)
        except Exception:
            # The application's middleware may have answered with an error of its own, and raised another.
            if not too_large:
                raise
        if too_large and not started:
            await _answer(_TOO_LARGE, scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> RefusedRequest | None:
        return (
            _size_refusal(scope, headers)
            or self._host_refusal(scope, headers)
            or self._origin_refusal(scope, headers)
        )

    def _origin_refusal(self, scope: Scope, headers: Headers) -> RefusedRequest | None:
        is_api = self._within(scope).startswith("/api/")
        advice = proxy_advice(self._settings, scope, headers)
        return _origin_refusal(scope, headers, is_api, advice)

    def _within(self, scope: Scope) -> str:
        return _path_within(scope).removeprefix(self._prefix)

    def _host_refusal(self, scope: Scope, headers: Headers) -> RefusedRequest | None:
        """Return a rejection if the Host header has an unknown name, to prevent DNS rebinding."""
        if self._hosts is None or self._within(scope) in PROBES or self._is_scrape(scope, headers):
            return None
        given = headers.getlist("host")
        host = host_name(given[0]) if len(given) == 1 else ""
        if host in self._hosts or is_loopback(host):
            return None
        return RefusedRequest(
            421,
            f"This dashboard doesn't accept the host name {host!r:.100}. "
            "Start it with --host and that name to allow it.",
        )

    def _is_scrape(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the request asks for metrics and has a token, which is checked later.

        Such a request may use any host name: Prometheus calls a pod by its address, and an attacking site doesn't know
        a token.
        """
        return (
            self._settings.users is not None
            and self._within(scope) == "/metrics"
            and scope["method"] in SAFE
            and _has_token(headers)
        )

    def _behind_proxies(self, scope: Scope, headers: Headers) -> Scope:
        """Return changes to the scope: the browser's address and scheme, as reported by trusted proxies."""
        client = scope.get("client")
        peer = client[0] if client else ""
        trusted = self.trusts(peer)
        changes: Scope = {"client": (peer, client[1] if client else 0), "jobq.proxied": trusted}
        if not trusted:
            return changes
        lines = headers.getlist("x-forwarded-for")
        chain = [part.strip() for line in lines for part in line.split(",")][-MAX_PROXIES:]
        browser = self._browser(peer, chain)
        changes["client"] = (browser, 0)
        changes["jobq.shared_address"] = self.trusts(browser)
        scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        if scheme in _DEFAULT_PORTS:
            changes["scheme"] = scheme
        return changes

    def _browser(self, peer: str, chain: list[str]) -> str:
        """Return the last address that isn't a trusted proxy. Earlier addresses can be forged."""
        last = peer
        for text in reversed(chain):
            address = _address(_without_port(text))
            if address is None:
                return last
            last = str(address)
            if not self.trusts(last):
                break
        return last

    def trusts(self, peer: str) -> bool:
        """Return whether to trust this peer's headers about the browser."""
        address = _address(peer)
        if address is None:
            return UNIX in self._settings.trusted_proxies and not peer
        return any(address in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return the address in an entry of X-Forwarded-For, without the port or brackets that some proxies write."""
    bracketed = _HOST.fullmatch(text)
    return text if bracketed is None else bracketed[1] or bracketed[2]


def _has_token(headers: Headers) -> bool:
    return headers.get("authorization", "")[:7].lower() == "bearer "


def host_name(header: str) -> str:
    """Return the name in a Host header, in lower case and without the port; empty if it can't be read."""
    match = _HOST.fullmatch(header)
    return (match[1] or match[2]).lower() if match else ""


def _known_hosts(settings: AccessSettings) -> frozenset[str] | None:
    """Return the accepted host names; None if the program that mounts the dashboard checks them."""
    if settings.bind is None and not settings.hosts:
        return None
    bound = [settings.bind.host] if settings.bind is not None and settings.bind.host else []
    return frozenset(name.lower() for name in (*bound, *settings.hosts))


_TOO_LARGE = RefusedRequest(413, f"The body is larger than {MAX_BODY:,} bytes.")


def _size_refusal(scope: Scope, headers: Headers) -> RefusedRequest | None:
    query: bytes = scope.get("query_string", b"")
    if (
        len(scope.get("raw_path") or scope["path"].encode("utf-8", "replace")) + len(query)
        > MAX_URL
    ):
        return RefusedRequest(414, f"The address is longer than {MAX_URL:,} bytes.")
    if query.count(b"&") >= MAX_QUERY_KEYS:
        return RefusedRequest(400, f"The address has more than {MAX_QUERY_KEYS} parameters.")
    # WSGI allows an empty CONTENT_LENGTH for a request without a body; wsgiref and Django's runserver pass it.
    length = headers.get("content-length") or "0"
    if not length.isascii() or not length.isdigit():
        return RefusedRequest(400, "The header Content-Length is not a number.")
    return _TOO_LARGE if int(length[:20]) > MAX_BODY else None


def _origin_refusal(
    scope: Scope, headers: Headers, is_api: bool, advice: str
) -> RefusedRequest | None:
    """Return a rejection if a form or script of another site sent the request, otherwise None."""
    # Browsers don't send bearer tokens automatically. Pages have no such exemption, because a program that serves the
    # dashboard identifies its users by cookies.
    if scope["method"] in SAFE or (is_api and _has_token(headers)):
        return None
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return None
        return RefusedRequest(
            403,
            f"This request comes from another page (Sec-Fetch-Site: {site!r:.30}). Open the dashboard, and use the "
            "button there.",
        )
    origin = headers.get("origin")
    if origin is None:
        return RefusedRequest(
            403,
            "This request does not say which page it comes from: it has neither Sec-Fetch-Site nor Origin. Programs "
            "use /api/v1 with a token.",
        )
    if _same_origin(origin, scope["scheme"], headers.get("host", "")):
        return None
    return RefusedRequest(
        403,
        f"This request comes from {origin!r:.200}, and the dashboard is at {scope['scheme']}://"
        f"{headers.get('host', '')!r:.100}. If a proxy serves HTTPS: {advice}.",
    )


def _same_origin(origin: str, scheme: str, host: str) -> bool:
    theirs, _, place = origin.partition("://")
    port = f":{_DEFAULT_PORTS.get(scheme, '')}"
    ours = host.lower().removesuffix(port)
    return theirs == scheme and bool(ours) and place.lower().removesuffix(port) == ours


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _path_within(scope: Scope) -> str:
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path


async def _answer(refusal: RefusedRequest, scope: Scope, receive: Receive, send: Send) -> None:
    headers = {"connection": "close"} if refusal.status == 413 else None
    response = PlainTextResponse(refusal.text + "\n", refusal.status, headers)
    await response(scope, receive, send)
