"""A queue with messages to operate on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.jobs.codec import encode
from jobq.observe.redaction import Redactor
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message
from jobq.web.access.identity import Identity, UserRole
from jobq.web.contents import Contents
from jobq.web.operations.service import Operations, OperationView

ANNA = Identity("anna", UserRole.ADMIN, arguments=True)


@pytest.fixture
def operations(client: Client) -> Iterator[Operations]:
    """The operations of one process, at full speed."""
    made = Operations(client, client, pause=lambda seconds: None)
    yield made
    made.close()


@pytest.fixture
def contents(client: Client) -> Contents:
    return Contents(client, Redactor(), arguments=True)


def dead(message: Message) -> Ending:
    """How an attempt ends that was the last."""
    reason = f"Timeout: {message.mid}\nmore"
    return Ending(mid=message.mid, token=message.token, outcome="dead", reason=reason)


@pytest.fixture
def kill(client: Client) -> Callable[..., list[str]]:
    """kill(queue, number): so many dead messages d0, d1, …; their dead ids."""

    def dying(queue: Queue, number: int, first: int = 0) -> list[str]:
        mids = [f"d{first + n}" for n in range(number)]
        queue.enqueue_many([(mid, encode(f"shop.job{n % 3}", [n])) for n, mid in enumerate(mids)])
        ended = 0
        while ended < number:
            taken = queue.dequeue(250).messages
            queue.finish([dead(one) for one in taken])
            ended += len(taken)
        return [f"{one.dead_id}" for one in queue.admin.iter_dead()]

    return dying


@pytest.fixture
def frozen(operations: Operations, contents: Contents) -> Callable[..., OperationView]:
    """frozen("revive", filter="queue:low"): a new operation with its preview."""

    def freezing(verb: str, who: Identity = ANNA, **given: Any) -> OperationView:
        op = operations.create(who, verb, contents, **given)
        operations.wait()
        view = operations.view(op)
        assert view is not None
        return view

    return freezing


@pytest.fixture
def applied(operations: Operations) -> Callable[..., OperationView]:
    """applied(view): the result of applying it."""

    def applying(view: OperationView, who: Identity = ANNA, **given: Any) -> OperationView:
        operations.apply(view.state.id, who, **given)
        operations.wait()
        found = operations.view(view.state.id)
        assert found is not None
        return found

    return applying


@pytest.fixture
def undone(operations: Operations) -> Callable[[OperationView], OperationView]:
    """undone(view): the result of its undo."""

    def undoing(view: OperationView) -> OperationView:
        operations.undo(view.state.id, ANNA)
        operations.wait()
        found = operations.view(view.state.id)
        assert found is not None
        return found

    return undoing
