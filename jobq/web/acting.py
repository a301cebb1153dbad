"""Do what a visitor asks for, with an entry of the audit log before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from jobq.client.connection import Client
from jobq.errors import ConfigError
from jobq.queue.audit_log import Act, AuditLog, Performed
from jobq.web.routes import identity_of
from jobq.web.site import site_of


def audited(
    request: Request, verb: str, *, queue: str = "", filter: str = "", number: int | None = None
) -> AbstractContextManager[Performed]:
    """Write who does what to the audit log, around an action.

    Args:
        queue, filter, number: See `Act`.
    """
    me = identity_of(request)
    act = Act(me.name, me.role.word, verb, queue, filter, number)
    return AuditLog(site_of(request).operate).performing(act)


@contextmanager
def performing(
    request: Request, verb: str, *, queue: str = "", filter: str = "", number: int | None = None
) -> Iterator[Client]:
    """Yield the connection for changes; what happens with it is one entry of the audit log, as `audited` writes it.

    A ConfigError, which says what was refused, becomes a page that shows it.
    """
    try:
        with audited(request, verb, queue=queue, filter=filter, number=number):
            yield site_of(request).operate
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error
