"""Log in by a one-time link, log out."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.web.access.identity import Identity, UserRole
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, page, path_to
from jobq.web.site import site_of


@page("/login", role=UserRole.NONE)
def login(request: Request) -> Response:
    """Show the button that uses up a link."""
    token = request.query_params.get("token", "")
    return render(
        request, "login.html", live=0, token=token, next=request.query_params.get("next", "")
    )


@action("/login", role=UserRole.NONE, name="log_in")
def log_in(request: Request) -> Response:
    """Use up a link and begin a session."""
    form, site = form_of(request), site_of(request)
    if not site.guard.links.take(str(form.get("token", ""))):
        raise HTTPException(
            403, "this link was used or is older than ten minutes; start 'jobq web' again"
        )
    made = RedirectResponse(local_path(request, str(form.get("next", ""))), 303)
    site.guard.log_in(made, Identity("link", UserRole.ADMIN, arguments=True))
    return made


@action("/logout", role=UserRole.READ)
def log_out(request: Request) -> Response:
    """End the session."""
    made = RedirectResponse(path_to(request, "login"), 303)
    site_of(request).guard.log_out(request, made)
    return made


def local_path(request: Request, wanted: str) -> str:
    """Return `wanted` if it is a path of this dashboard, else its first page."""
    root = request.scope.get("root_path", "")
    safe = wanted.startswith(f"{root}/") and not wanted.startswith("//") and wanted.isprintable()
    return wanted if safe and "\\" not in wanted else path_to(request, "overview")
