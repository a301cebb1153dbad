"""Serve the dashboard from WSGI programs, such as Flask: `DispatcherMiddleware(app, {"/jobq": wsgi_app(identify=…)})`.

In `identify(request)`, the WSGI environment is `request.scope["wsgi_environ"]`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from io import BytesIO
from threading import Lock
from typing import Any

from a2wsgi import ASGIMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from jobq.web.access.gate import MAX_BODY
from jobq.web.app import create_app

StartResponse = Callable[..., Any]
_Bridge = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class WsgiApp:
    """Serves an ASGI application to WSGI.

    Each process creates the application at its first request, so a server may fork after it imports the program, as
    gunicorn --preload does.
    """

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: dict[int, _Bridge] = {}
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        try:
            environ = _checked(environ)
        except (ValueError, OSError) as error:
            start_response("400 Bad Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"This request can't be read: {type(error).__name__}.\n".encode()]
        return self._here()(environ, start_response)

    def _here(self) -> _Bridge:
        with self._lock:
            process = os.getpid()
            if process not in self._made:
                self._made = {process: _bridge(_with_client(self._make()))}
            return self._made[process]

    def _forget(self) -> None:
        # A thread of the parent may hold the lock. The child doesn't have that thread.
        self._lock = Lock()
        self._made = {}


def wsgi_app(*args: Any, **settings: Any) -> WsgiApp:
    """Return the dashboard as a WSGI application. It accepts the arguments of `create_app`, and needs `identify=`."""
    return WsgiApp(lambda: create_app(*args, **settings))


def _bridge(app: Any) -> _Bridge:
    made: Any = ASGIMiddleware(app)
    bridge: _Bridge = made
    return bridge


def _with_client(app: ASGIApp) -> ASGIApp:
    """Set the client address in each scope, even if the server doesn't pass the client's port."""

    async def passed_on(scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope["wsgi_environ"].get("REMOTE_ADDR") or ""
        await app({**scope, "client": (peer, 0)}, receive, send)

    return passed_on


def _checked(environ: dict[str, Any]) -> dict[str, Any]:
    environ.get("QUERY_STRING", "").encode("ascii")
    for name in ("SCRIPT_NAME", "PATH_INFO"):
        environ.get(name, "").encode("latin-1").decode("utf-8")
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length < 0:
        raise ValueError("the length of the body is negative")
    if length > MAX_BODY:
        return environ  # the application rejects it by its length, before it reads
    # A client that sends less than announced must not block the bridge.
    body = environ["wsgi.input"].read(length)
    if len(body) < length:
        raise ValueError("the body is shorter than its declared length")
    return {**environ, "wsgi.input": BytesIO(body)}
