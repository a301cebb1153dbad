"""Log in with a password or by the link that `jobq web` printed, and log out."""

from __future__ import annotations

import logging
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.errors import JobqError
from jobq.queue.audit_log import Act, AuditLog
from jobq.web.access.guard import LoginRefusedError, address_of
from jobq.web.access.identity import UserRole
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, page, path_to
from jobq.web.site import site_of

logger = logging.getLogger("jobq.web")


@page("/login", role=UserRole.NONE)
def login(request: Request) -> Response:
    """Ask for a password, or show the button to log in with a link."""
    wanted = request.query_params.get("next", "")
    if site_of(request).guard.identify(request).may(UserRole.READ):
        return RedirectResponse(local_path(request, wanted), 303)
    return _login_page(request, token=request.query_params.get("token", ""), next=wanted)


@action("/login", role=UserRole.NONE, name="log_in")
def log_in(request: Request) -> Response:
    """Start a session."""
    given = {
        name: str(form_of(request).get(name, "")) for name in ("token", "name", "password", "next")
    }
    guard = site_of(request).guard
    made = RedirectResponse(local_path(request, given["next"]), 303)
    try:
        if given["token"]:
            guard.log_in_by_link(request, made, given["token"])
            _note(request, Act("local", "admin", "login", note="by link"), "done")
        else:
            me = guard.log_in_by_password(request, made, given["name"], given["password"])
            _note(request, Act(me.name, me.role.word, "login", note=_origin(request)), "done")
    except LoginRefusedError as error:
        if error.status == 403:
            # A flood of rejected logins is only counted, so it doesn't push other entries out of the log.
            note = guard.refusals.note(f"from {address_of(request)}", _origin(request))
            if note is not None:
                _note(request, Act(given["name"], "none", "login", note=note), "refused")
        page = _login_page(
            request, status=error.status, next=given["next"], name=given["name"], refused=str(error)
        )
        if error.retry_after_s:
            page.headers["retry-after"] = str(int(error.retry_after_s))
        return page
    return made


@action("/logout", role=UserRole.READ)
def log_out(request: Request) -> Response:
    """End the session."""
    made = RedirectResponse(path_to(request, "login"), 303)
    site_of(request).guard.log_out(request, made)
    return made


def _origin(request: Request) -> str:
    return f"by password from {address_of(request)}"


def _note(request: Request, act: Act, phase: Literal["done", "refused"]) -> None:
    """Write a login to the audit log. A failing server doesn't prevent logins."""
    try:
        AuditLog(site_of(request).operate).append(act, phase)
    except JobqError as error:
        logger.warning("a login of %r could not be written to the audit log: %s", act.who, error)


def _login_page(request: Request, *, status: int = 200, **facts: Any) -> Response:
    access = site_of(request).guard.settings
    way = "password" if access.users else "link" if access.by_link else ""
    if access.identify is not None:
        way = ""
    facts = {"token": "", "name": "", "refused": "", **facts}
    return render(request, "login.html", status=status, live=0, way=way, **facts)


def local_path(request: Request, wanted: str) -> str:
    """Return `wanted` if it is a path of this dashboard, otherwise the path of the first page."""
    root = request.scope.get("root_path", "")
    safe = wanted.startswith(f"{root}/") and not wanted.startswith("//") and wanted.isprintable()
    return wanted if safe and "\\" not in wanted else path_to(request, "overview")
