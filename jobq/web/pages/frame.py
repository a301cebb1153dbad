"""Shared parts of all pages: static files, and a viewer's choices."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.web.access.identity import UserRole
from jobq.web.assets import accent_sheet, assets
from jobq.web.pages.login import local_path
from jobq.web.preferences import COOKIE, chosen, preferences
from jobq.web.routes import action, form_of, page
from jobq.web.site import site_of

YEAR_S = 365 * 86_400


@page("/static/{file}", role=UserRole.NONE, name="static")
def static_file(request: Request) -> Response:
    """Serve a static file. The file's name contains its hash, so browsers may cache it permanently."""
    wanted, accent = request.path_params["file"], site_of(request).settings.accent
    files = [*assets().values(), *([accent_sheet(accent)] if accent else [])]
    for asset in files:
        if asset.served == wanted:
            headers = {"cache-control": f"public, max-age={YEAR_S}, immutable"}
            return Response(asset.content, 200, headers, asset.kind)
    raise HTTPException(404)


@action("/view", role=UserRole.NONE, name="choose_view")
def choose_view(request: Request) -> Response:
    """Remember a viewer's choices in a cookie, and go back to the page."""
    form = {key: str(value) for key, value in form_of(request).items()}
    made = RedirectResponse(local_path(request, form.get("next", "")), 303)
    made.set_cookie(
        COOKIE, chosen(form, preferences(request.cookies)).text, YEAR_S,
        path=request.scope.get("root_path", "") or "/", samesite="strict", httponly=True,
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return made
