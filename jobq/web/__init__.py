"""The dashboard: pages, a JSON API, and access rules.

`jobq web` serves the dashboard. To serve it from your own program, use `create_app`. This package
imports its public names at first use, because their modules need the packages of the extra `web`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobq.web.access.identity import Identity, UserRole
    from jobq.web.app import create_app
    from jobq.web.settings import WebSettings
    from jobq.web.wsgi import wsgi_app

__all__ = ["Identity", "UserRole", "WebSettings", "create_app", "wsgi_app"]

_HOME = {
    "create_app": "jobq.web.app",
    "Identity": "jobq.web.access.identity",
    "UserRole": "jobq.web.access.identity",
    "WebSettings": "jobq.web.settings",
    "wsgi_app": "jobq.web.wsgi",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
