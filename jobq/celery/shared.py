"""What tasks, signatures and apps share in a process: which tasks there are, the current app, the running request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

#: Name -> Task.
tasks: dict[str, Any] = {}
#: The app that was made last; tasks of `shared_task` have its settings.
apps: list[Any] = []
#: The request of the task that runs here, and the task.
requests: ContextVar[tuple[Any, ...]] = ContextVar("jobq_celery_requests", default=())
#: The request of an eager call, for its attempts.
eager: ContextVar[dict[str, Any]] = ContextVar("jobq_celery_eager")
#: The header in which a message carries what only Celery's tasks have.
HEADER = "jobq-celery"


class SentWith(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call was sent with. retries: how many it had before. links, errbacks: signatures."""

    retries: int = 0
    links: list[dict[str, Any]] = []
    errbacks: list[dict[str, Any]] = []
    eta: str = ""
    expires: str = ""


def header_of(sent: SentWith) -> dict[str, str]:
    """The header that carries this; none if there is nothing to carry."""
    return {} if sent == SentWith() else {HEADER: msgspec.json.encode(sent).decode()}


def sent_with(headers: Any) -> SentWith:
    """What a running call was sent with."""
    text = headers.get(HEADER)
    return msgspec.json.decode(text, type=SentWith) if text else SentWith()


class LookedUp:
    """Stands for an object that is looked up each time: the current app or task."""

    def __init__(self, look_up: Any) -> None:
        object.__setattr__(self, "_look_up", look_up)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._look_up(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._look_up(), name, value)

    def __bool__(self) -> bool:
        return self._look_up() is not None

    def __repr__(self) -> str:
        return repr(self._look_up())
