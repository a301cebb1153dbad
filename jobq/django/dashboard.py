"""The dashboard in a Django project. Django's sessions identify users, and Django's permissions limit their actions.

The view is the same under WSGI and ASGI: it calls the dashboard's ASGI application with a scope made from the request.
Settings are in `JOBQ_DASHBOARD`: `{"title": "production", "accent": "#b3261e"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from jobq.client.connection import default_client
from jobq.extras import install
from jobq.web.access.identity import MAX_NAME_LENGTH, Identity, UserRole

#: Key of the identity in the scope of a request.
IDENTITY = "jobq.identity"
#: Roles from the highest to the lowest. A user has the first role that a permission allows.
_ROLES = (UserRole.ADMIN, UserRole.OPERATE, UserRole.READ)


def may_read(user: Any) -> bool:
    """Whether a user may see the dashboard."""
    return _role_of(user) > UserRole.NONE


@csrf_exempt  # type: ignore[untyped-decorator]
async def dashboard(request: HttpRequest, page: str = "") -> HttpResponseBase:
    """Show one page of the dashboard, or run the action of a submitted form.

    The dashboard itself checks where forms come from, so Django's CSRF token isn't needed.
    """
    user = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(
            "the dashboard needs django.contrib.auth.middleware.AuthenticationMiddleware in MIDDLEWARE"
        )
    identity = await sync_to_async(_identity_of)(user)
    if identity is None:
        if user.is_authenticated:
            raise PermissionDenied("The dashboard needs the permission jobq.read.")
        return redirect_to_login(request.get_full_path(), _login_url())
    return await _answered(_scope(request, page, identity), request.body)


@cache
def application() -> Any:
    """Return the dashboard as an ASGI application.

    It doesn't need an event loop, and doesn't start threads before its first request.
    """
    try:
        from jobq.web.app import create_app
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(f"the dashboard needs {error.name}; {install('web')}") from error
    chosen = {**_way_back(), **getattr(settings, "JOBQ_DASHBOARD", {})}
    return create_app(default_client(), identify=_identify, **chosen)


def _way_back() -> dict[str, str]:
    """Return a link from the dashboard to the admin, if the project has an admin."""
    try:
        return {"home_url": str(reverse("admin:index")), "home_label": "Admin"}
    except NoReverseMatch:
        return {}


def _identify(request: Any) -> Identity | None:
    identity: Identity | None = request.scope.get(IDENTITY)
    return identity


def _role_of(user: Any) -> UserRole:
    held = (role for role in _ROLES if user.has_perm(f"jobq.{role.word}"))
    return next(held, UserRole.NONE)


def _identity_of(user: Any) -> Identity | None:
    role = _role_of(user)
    if not role:
        return None
    name = "".join(c for c in user.get_username() if c.isprintable())[:MAX_NAME_LENGTH]
    return Identity(name or f"user {user.pk}", role, user.has_perm("jobq.arguments"), "program")


def _login_url() -> str | None:
    """Return the URL of the admin's login page. If LOGIN_URL is set or there is no admin, return None."""
    if settings.is_overridden("LOGIN_URL"):
        return None
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return None


def _scope(request: HttpRequest, page: str, identity: Identity) -> dict[str, Any]:
    meta: Mapping[str, Any] = request.META
    given: Any = request.headers
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in given.items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path.removesuffix(page).rstrip("/"),
        "query_string": meta.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": headers,
        "client": (meta.get("REMOTE_ADDR") or "", 0),
        "server": (request.get_host(), None),
        IDENTITY: identity,
    }


async def _answered(scope: dict[str, Any], body: bytes) -> HttpResponse:
    """Call the application and return its complete reply. Its pages are small, so they aren't streamed."""
    incoming = [{"type": "http.request", "body": body}]
    parts: list[bytes] = []
    head: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return incoming.pop() if incoming else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        else:
            parts.append(message.get("body", b""))

    await application()(scope, receive, send)
    response = HttpResponse(b"".join(parts), status=head["status"])
    del response["Content-Type"]
    for raw_name, raw_value in head["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name.lower() == "set-cookie":
            _set_cookie(response, value)
        elif name.lower() != "content-length":
            response[name] = value
    return response


def _set_cookie(response: HttpResponse, text: str) -> None:
    try:
        for name, morsel in SimpleCookie(text).items():
            response.cookies[name] = morsel.value
            response.cookies[name].update(morsel)
    except CookieError as error:
        raise ImproperlyConfigured(f"the dashboard set an unreadable cookie: {error}") from error
