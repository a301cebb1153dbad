"""Calls that take several requests, as generators of them: whoever drives one sends each and gives back its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from jobq.client.request import Request
from jobq.protocols.rsmq import batches
from jobq.protocols.rsmq.errors import MessageTooLongError
from jobq.protocols.rsmq.messages import Healed, Peeked, RsmqMessage, too_long
from jobq.protocols.rsmq.requests import PER_CALL, MessageRef, Requests

T = TypeVar("T")
Steps = Generator[Request[Any], Any, T]


def send(
    requests: Requests, qname: str, messages: Iterable[str | bytes], delay: int | None
) -> Steps[list[str]]:
    """Messages in batches, none of them when one is too long."""
    batched = batches.of(messages)
    if len(batched) > 1:
        # Or the first thousands would be sent before the last is refused.
        maxsize = (yield requests.describe(qname)).maxsize
        if any(too_long(len(body), maxsize) for batch in batched for body in batch):
            raise MessageTooLongError
    ids: list[str] = []
    for batch in batched:
        ids += yield requests.send(qname, batch, delay, checked=True)
    return ids


def each(
    held: Iterable[RsmqMessage | MessageRef],
    request: Callable[[list[MessageRef]], Request[list[bool]]],
) -> Steps[list[bool]]:
    """One request for every thousand messages."""
    every, done = batches.held(held), list[bool]()
    for first in range(0, len(every), PER_CALL):
        done += yield request(every[first : first + PER_CALL])
    return done


def purge(requests: Requests, qname: str) -> Steps[int]:
    """As many messages as there are now; those that are sent meanwhile may stay."""
    left, removed = (yield requests.describe(qname)).msgs, 0
    while left > 0:
        gone = yield requests.purge(qname)
        removed, left = removed + gone, left - gone if gone else 0
    return removed


def peek(
    requests: Requests, qname: str, place: str, offset: int, limit: int
) -> Steps[list[Peeked]]:
    """As many looks as the messages take, each of about 256 KiB."""
    found: list[Peeked] = []
    end = offset + limit
    while True:
        page = yield requests.peek(qname, place, offset, end - offset)
        found += page.messages
        offset += page.passed
        if offset >= end or not page.passed:
            return found


def redrive(requests: Requests, qname: str, target: str, limit: int | None) -> Steps[int]:
    """What is visible in one queue, to another; what others receive meanwhile stays with them."""
    yield requests.describe(target)
    there = yield requests.describe(qname)
    unseen = there.msgs - there.hiddenmsgs
    wanted, moved, passed = unseen if limit is None else limit, 0, 0
    while unseen > 0 and moved < wanted:
        looked = min(PER_CALL, unseen, wanted - moved)
        page = yield requests.peek(qname, "visible", passed, looked)
        if not page.passed:
            break
        some = page.messages
        # Ids without a body aren't shown, and stay where they are.
        unseen, passed = unseen - page.passed, passed + page.passed - len(some)
        held = [(one.id, one.receipt) for one in some]
        moved += sum((yield requests.move(qname, target, held))) if held else 0
    return moved


def heal(requests: Requests, qname: str) -> Steps[Healed]:
    """A walk over the whole queue."""
    cursors, phantoms, fields = ("0", "0"), 0, 0
    while any(cursors):
        cursors, removed = yield requests.heal(qname, cursors)
        phantoms, fields = phantoms + removed.phantoms, fields + removed.fields
    return Healed(phantoms, fields)
