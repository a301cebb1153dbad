"""State that tasks, signatures and apps of a process share: all tasks, the current app, the running call's request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

#: Name -> Task.
tasks: dict[str, Any] = {}
#: All apps. The last is the current app, whose settings `shared_task` uses.
apps: list[Any] = []
#: The stack of running tasks, each with its request.
requests: ContextVar[tuple[Any, ...]] = ContextVar("jobq_celery_requests", default=())
#: The facts about an eager call, shared by its attempts.
eager: ContextVar[dict[str, Any]] = ContextVar("jobq_celery_eager")
#: The message header for facts that only Celery's tasks have.
HEADER = "jobq-celery"


class SentWith(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a sent call. `retries` is the number of earlier retries; `links` and `errbacks` are signatures."""

    retries: int = 0
    links: list[dict[str, Any]] = []
    errbacks: list[dict[str, Any]] = []
    eta: str = ""
    expires: str = ""


def header_of(sent: SentWith) -> dict[str, str]:
    """Return the header for these settings, or an empty dict if they are the defaults."""
    return {} if sent == SentWith() else {HEADER: msgspec.json.encode(sent).decode()}


def sent_with(headers: Any) -> SentWith:
    """Return the settings with which the running call was sent."""
    text = headers.get(HEADER)
    return msgspec.json.decode(text, type=SentWith) if text else SentWith()


class LookedUp:
    """A proxy for an object that it looks up on each access, such as the current app or task."""

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
