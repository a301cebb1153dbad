"""Do what a visitor asks for, with an entry of the audit log before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from jobq.client.connection import Client
from jobq.errors import ConfigError
from jobq.queue.audit_log import Act, AuditLog
from jobq.web.routes import identity_of
from jobq.web.site import site_of


@contextmanager
def performing(
    request: Request, verb: str, *, queue: str = "", filter: str = "", number: int | None = None
) -> Iterator[Client]:
    """Yield the connection for changes; what happens with it is one entry of the audit log.

    queue, filter, number: as in `Act`. A ConfigError, which says what was refused, becomes a page that shows it.
    """
    me, client = identity_of(request), site_of(request).operate
    try:
        with AuditLog(client).performing(Act(me.name, me.role.word, verb, queue, filter, number)):
            yield client
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error
