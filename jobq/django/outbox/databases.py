"""URLs of the project's databases, for the relay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from jobq.errors import ConfigError

#: Schemes by the last part of Django's engine.
_SCHEMES = {
    "postgresql": "postgresql", "postgis": "postgresql", "mysql": "mysql", "sqlite3": "sqlite", "spatialite": "sqlite",
}  # fmt: skip


def dsn_of(settings: Mapping[str, Any]) -> str:
    """Return the URL of a Django database for `jobq outbox`; raise ConfigError if its engine isn't supported."""
    engine = str(settings["ENGINE"]).rpartition(".")[2]
    name = str(settings["NAME"])
    if engine not in _SCHEMES:
        raise ConfigError(
            f"the outbox doesn't support the database engine {settings['ENGINE']!r}; use --dsn"
        )
    scheme = _SCHEMES[engine]
    if scheme == "sqlite":
        return f"sqlite:///{quote(name)}"
    user, password = (quote(str(settings.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    options = {}
    if host.startswith("/"):
        options["host" if scheme == "postgresql" else "unix_socket"] = host
        host = ""
    if scheme == "postgresql":
        # Options that libpq supports; other options are for Django or psycopg.
        given = settings.get("OPTIONS") or {}
        options |= {key: str(given[key]) for key in _LIBPQ if key in given}
    if ":" in host:
        host = f"[{host}]"
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    where = f"{host}:{port}" if port else host
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{login}{where}/{quote(name, safe='')}{query}"


_LIBPQ = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "service",
    "passfile",
    "target_session_attrs",
)
