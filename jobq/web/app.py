"""Assemble the dashboard from its routes, the checks of requests, and error pages."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount

from jobq.client.connection import Client, default_client
from jobq.client.numbered_calls import is_denied
from jobq.errors import (
    ConfigError,
    EmptyKeyError,
    GroupNotFoundError,
    JobqError,
    UnavailableError,
)
from jobq.protocols.rsmq.errors import QueueNotFoundError
from jobq.web.access.gate import Gate
from jobq.web.access.headers import SecurityHeaders, with_headers
from jobq.web.access.identity import NOBODY
from jobq.web.api.problems import problem
from jobq.web.rendering import render
from jobq.web.routes import load_pages, routes_of
from jobq.web.settings import WebSettings
from jobq.web.site import Site, site_of

log = logging.getLogger("jobq.web")
#: Errors about objects that don't exist. The address of a page or an action may name such an object.
NOT_FOUND = (GroupNotFoundError, QueueNotFoundError, EmptyKeyError)
SAYS = {
    403: ("Not allowed", "Your login doesn't have the right to do this."),
    404: ("Nothing here", "There is no page at this address."),
    405: ("Not done", "This address doesn't support this method."),
    413: ("Too much", "The request is too large."),
    429: ("Too fast", "Wait a moment, then try again."),
}


def create_app(
    client: Client | None = None, *, operate: Client | None = None, settings: WebSettings | None = None,
    **changes: Any,
) -> Starlette:  # fmt: skip
    """Return the dashboard as an ASGI application.

    Args:
        client: Client of the server to show. By default, the jobs' client.
        operate: Client of the same server for actions, with a user that has more rights. By default, `client`.
        changes: Fields of `settings`, such as `title=` or `identify=`. Without `identify=` or `access=`, this
            function raises ConfigError, so that a dashboard is never open by accident.
    """
    chosen = replace(settings, **changes) if settings else WebSettings(**changes)
    site = Site(client or default_client(), chosen, operate)
    routes = routes_of(load_pages())
    app = Starlette(
        routes=[Mount(chosen.prefix, routes=routes)] if chosen.prefix else routes,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(Gate, settings=site.guard.settings, prefix=chosen.prefix),
            # Five hundred rows are half a megabyte every two seconds. Compression is safe, because pages don't
            # contain secrets that their readers may not see.
            Middleware(GZipMiddleware, minimum_size=4096, compresslevel=1),
        ],
        exception_handlers={
            HTTPException: _refused, UnavailableError: _away, ConfigError: _wrong, JobqError: _failed,
            ClientDisconnect: _gone, Exception: _broken, **dict.fromkeys(NOT_FOUND, _missing),
        },
    )  # fmt: skip
    app.state.site = site
    return app


def error_page(request: Request, status: int, title: str, text: str, **facts: Any) -> Response:
    """Return a page that says what went wrong."""
    if not hasattr(request.state, "identity"):
        try:
            request.state.identity = site_of(request).guard.identify(request)
        except Exception:
            # The failing part may be the program's `identify` itself.
            request.state.identity = NOBODY
    facts = {"hint": "", "away": False, **facts}
    return render(
        request, "error.html", status=status, code=status, title=title, text=text, **facts
    )


def _is_api(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return path.removeprefix(site_of(request).settings.prefix).startswith("/api/")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _is_api(request):
        return problem(error.status_code, error.detail)
    title, text = SAYS.get(error.status_code, ("Not done", "The request was rejected."))
    stock = HTTPException(error.status_code).detail
    own = error.detail if error.detail != stock else ""
    text = own[:1].upper() + own[1:] + "." if own else text
    made = await run_in_threadpool(error_page, request, error.status_code, title, text, live=0)
    made.headers.update(error.headers or {})
    return made


async def _away(request: Request, error: Exception) -> Response:
    if _is_api(request):
        return problem(503, str(error))
    text = "The dashboard resumes when the server answers again."
    return await run_in_threadpool(
        error_page, request, 503, "The server doesn't answer", text, hint=str(error), away=True
    )


async def _wrong(request: Request, error: Exception) -> Response:
    """Return the error page for an invalid name or value in the address."""
    return await run_in_threadpool(error_page, request, 400, "Not done", str(error), live=0)


async def _missing(request: Request, error: Exception) -> Response:
    return await _refused(request, HTTPException(404, str(error)))


async def _gone(request: Request, error: Exception) -> Response:
    """Return a reply for a client that disconnected before its request was complete. The client can't read it."""
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    if is_denied(error):
        if _is_api(request):
            return problem(403, str(error))
        return await run_in_threadpool(
            error_page, request, 403, "The server's user lacks the rights", str(error), live=0,
            hint="jobq acl dashboard",
        )  # fmt: skip
    if _is_api(request):
        return problem(500, str(error))
    return await run_in_threadpool(
        error_page, request, 500, "This page can't be shown", str(error), live=0
    )


async def _broken(request: Request, error: Exception) -> Response:
    log.exception("the dashboard failed at %s", request.url.path, exc_info=error)
    # Starlette sends this reply from outside of all middleware.
    if _is_api(request):
        return with_headers(
            problem(500, "an error in jobq; see the traceback in the dashboard's log")
        )
    return with_headers(await run_in_threadpool(
        error_page, request, 500, "This page failed",
        "This is an error in jobq. See the traceback in the dashboard's log.", live=0,
    ))  # fmt: skip
