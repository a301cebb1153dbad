"""Perform users' actions, with an audit log entry before and after each action."""

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
    """Record in the audit log, before and after an action, which user performs it.

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
    """Yield a client for an action, and write the action to the audit log as `audited` does.

    A ConfigError becomes a page that shows why the action was rejected.
    """
    try:
        with audited(request, verb, queue=queue, filter=filter, number=number):
            yield site_of(request).operate
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error
