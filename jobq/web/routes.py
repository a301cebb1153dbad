"""Declare pages and actions, each with a path, a role and a handler.

Handlers are functions `(request) -> Response`. They run in a thread, after the sender's role was checked. In a
template, a link to a route that isn't declared renders as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobq.errors import JobqError
from jobq.queue.audit_log import Act, AuditLog
from jobq.web.access.guard import address_of
from jobq.web.access.identity import NOBODY, Identity, UserRole
from jobq.web.names import encoded
from jobq.web.site import Site, site_of

Handler = Callable[[Request], Response]
#: `{queue}` stands for any name.
_BARE = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class DeclaredRoute:
    """A declared route.

    Attributes:
        role: Role required to use it; NONE if no login is needed.
        program: Whether programs use the route, with a token instead of a session.
    """

    name: str
    path: str
    method: str
    role: UserRole
    handler: Handler = field(repr=False)
    program: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names of the variable parts of the path."""
        return re.findall(r"\{([a-z_]+)", self.path)


@dataclass(frozen=True)
class NavEntry:
    """A link in the sidebar.

    Attributes:
        key: The second key of the link's keyboard shortcut, such as `q` in `g q`.
        shown: Returns whether this installation uses the page.
    """

    route: str
    label: str
    section: str
    order: int
    key: str
    shown: Callable[[Site], bool]


class Routes:
    """The routes and sidebar links that modules declare when they are imported."""

    def __init__(self) -> None:
        self.declared: dict[str, DeclaredRoute] = {}
        self.entries: list[NavEntry] = []

    def add(
        self, path: str, method: str, role: UserRole, name: str, handler: Handler, program: bool = False
    ) -> None:  # fmt: skip
        """Declare a route. Each name can be declared only once."""
        assert name not in self.declared, f"two routes are named {name}"
        path = _BARE.sub(r"{\1:name}", path)
        self.declared[name] = DeclaredRoute(name, path, method, role, handler, program)


ROUTES = Routes()


def page(
    path: str, *, role: UserRole = UserRole.READ, name: str = ""
) -> Callable[[Handler], Handler]:
    """Declare the handler of a page (GET), which must not change anything. By default, the route has the function's
    name.
    """
    return _declare(path, "GET", role, name)


def action(path: str, *, role: UserRole, name: str = "") -> Callable[[Handler], Handler]:
    """Declare the handler of an action (POST). An action must require a role above READ, unless it
    affects only the user who sends it.
    """
    return _declare(path, "POST", role, name)


def _declare(path: str, method: str, role: UserRole, name: str) -> Callable[[Handler], Handler]:
    def declare(handler: Handler) -> Handler:
        ROUTES.add(path, method, role, name or handler.__name__, handler)
        return handler

    return declare


def nav(
    route: str, label: str, *, section: str, order: int, key: str = "",
    shown: Callable[[Site], bool] = lambda site: True,
) -> None:  # fmt: skip
    """Add a link to the sidebar. The sections are Now, Control, Protocols and Records."""
    ROUTES.entries.append(NavEntry(route, label, section, order, key, shown))


def load_pages() -> Routes:
    """Import every module of pages and return the declared routes."""
    for package in ("jobq.web.pages", "jobq.web.api"):
        try:
            there = import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            continue
        for module in iter_modules(there.__path__):
            import_module(f"{package}.{module.name}")
    return ROUTES


def identity_of(request: Request) -> Identity:
    """Return the identity of a request's sender."""
    return cast(Identity, request.state.identity)


def form_of(request: Request) -> FormData:
    """Return the fields of a POST."""
    return cast(FormData, request.state.form)


def path_to(request: Request, route: str, **values: Any) -> str:
    """Return the path of a route, with the prefix. Values that aren't parts of the path become its query.

    The query leaves out values that are None. Raises KeyError for a route that isn't declared.
    """
    target = ROUTES.declared[route]
    parts = {name: values.pop(name) for name in target.parameters}
    path = re.sub(r"\{([a-z_]+)[^}]*\}", lambda name: encoded(str(parts[name[1]])), target.path)
    query = urlencode({key: value for key, value in values.items() if value is not None}, True)
    return f"{request.scope.get('root_path', '')}{path}" + (f"?{query}" if query else "")


def routes_of(routes: Routes) -> list[Route]:
    """Return the routes for Starlette."""
    return [
        Route(route.path, _endpoint(route), methods=[route.method], name=route.name)
        for route in routes.declared.values()
    ]


def _endpoint(declared: DeclaredRoute) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        refused = await run_in_threadpool(_refusal, request, declared)
        if refused is not None:
            return refused
        if declared.program:
            request.state.content = await request.body()
        elif declared.method != "GET":
            async with request.form(max_files=0, max_fields=1000) as form:
                request.state.form = form
                return await run_in_threadpool(declared.handler, request)
        return await run_in_threadpool(declared.handler, request)

    return endpoint


def _refusal(request: Request, declared: DeclaredRoute) -> Response | None:
    """Return a redirect to the login, or raise HTTPException, if the caller may not use the route."""
    site = site_of(request)
    guard = site.guard
    # Public routes don't query the server, so a page's files load even while the server is unreachable.
    identify = guard.identify_program if declared.program else guard.identify
    identity = identify(request) if declared.role else NOBODY
    request.state.identity = identity
    if not guard.rate.take(identity.name or address_of(request)):
        raise HTTPException(
            429, "more than 30 requests in a second; try again in a second", {"retry-after": "1"}
        )
    if not identity.may(declared.role):
        if declared.program and not identity.role:
            raise HTTPException(401, "send Authorization: Bearer TOKEN with a valid token")
        if not identity.role and not guard.settings.has_login:
            raise HTTPException(403, "log in to the application that serves this dashboard")
        if not identity.role and declared.method == "GET":
            wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(path_to(request, "login", next=wanted), 303)
        why = f"this needs the role {declared.role.word}; you have {identity.role.word}"
        _note_refusal(request, declared, identity, why)
        raise HTTPException(403, why)
    if site.settings.read_only and declared.role > UserRole.READ:
        raise HTTPException(403, "this dashboard is read-only, so nothing was changed")
    return None


def _note_refusal(request: Request, declared: DeclaredRoute, identity: Identity, why: str) -> None:
    if declared.method == "GET" or not identity.role:
        return
    note = site_of(request).guard.refusals.note(identity.name, why)
    if note is None:
        return
    queue = request.path_params.get("queue", "")
    act = Act(identity.name, identity.role.word, declared.name, queue, request.url.path, note=note)
    with suppress(JobqError):  # the action is rejected in any case
        AuditLog(site_of(request).operate).append(act, "refused")
