"""Names of the dashboard's keys about logins, `jobq:web:session:…`. No queue's keys begin like them.

=================  =======================================================================
session:<sha256>   string, PX: who logged in and when, as JSON; the session's id is only in the browser
login:a:<sha256>   string, PX 15 min: failed logins from an address
login:n:<sha256>   string, PX 15 min: failed logins under a name
=================  =======================================================================
"""

from __future__ import annotations

from jobq.client.names import checked_name


def session(namespace: str, digest: str) -> str:
    """Where a session is kept, by the SHA-256 of its id."""
    return f"{checked_name('namespace', namespace)}:web:session:{digest}"


def failures(namespace: str, kind: str, digest: str) -> str:
    """Where failed logins are counted: kind `a` by address, `n` by name, each by its SHA-256."""
    return f"{checked_name('namespace', namespace)}:web:login:{kind}:{digest}"
