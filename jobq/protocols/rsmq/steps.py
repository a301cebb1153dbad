"""Blocking RSMQ calls, and RSMQ calls with several requests, as generators of steps (see `client.steps`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from jobq.client.bound_scripts import PER_CALL
from jobq.client.channel import Channel
from jobq.client.numbered_calls import BYTES_PER_CALL, ScriptCall
from jobq.client.steps import Ask, Nap, Steps, ask
from jobq.config import duration_s
from jobq.protocols.rsmq.checks import body
from jobq.protocols.rsmq.errors import MessageTooLongError
from jobq.protocols.rsmq.messages import (
    Peeked,
    Received,
    Repaired,
    RsmqCounts,
    RsmqMessage,
    too_long,
)
from jobq.protocols.rsmq.requests import MessageRef, Requests

#: First and longest pause between polls while nobody publishes.
FIRST_S, MAX_S = 0.02, 1.0


def counts(requests: Requests, qname: str) -> Steps[RsmqCounts]:
    """Return the numbers of visible and hidden messages."""
    facts = yield from ask(requests.describe(qname))
    return RsmqCounts(facts.msgs - facts.hiddenmsgs, facts.hiddenmsgs)


def send(
    requests: Requests, qname: str, messages: Iterable[str | bytes], delay: int | None
) -> Steps[list[str]]:
    """Send messages in batches, or none of them if a message is too long."""
    batches = list(batched(messages))
    if len(batches) > 1:
        # Otherwise, the first batches would be sent before a later message is rejected.
        maxsize = (yield from ask(requests.describe(qname))).maxsize
        if any(too_long(len(message), maxsize) for batch in batches for message in batch):
            raise MessageTooLongError
    ids: list[str] = []
    for batch in batches:
        ids += yield from ask(requests.send(qname, batch, delay, checked=True))
    return ids


def batched(messages: Iterable[str | bytes]) -> Iterator[list[bytes]]:
    """Yield batches of up to 1,000 messages and 4 MiB. A message over 4 MiB is a batch of its own."""
    batch: list[bytes] = []
    size = 0
    for message in map(body, messages):
        if batch and (len(batch) == PER_CALL or size + len(message) > BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        yield batch


def receive(
    requests: Requests,
    channel: Callable[[str], Channel],
    qname: str,
    limit: int,
    vt: int | None,
    wait: float | str | timedelta,
) -> Steps[list[RsmqMessage]]:
    """Receive messages; if none is visible, wait for the first.

    `channel` returns the channel that senders publish to.
    """
    seconds = duration_s(wait)
    messages = (yield from ask(requests.receive(qname, limit, vt))).messages
    if messages or seconds <= 0:
        return messages
    with channel(qname) as listening:
        return (yield from await_messages(requests, listening, qname, limit, vt, seconds))


def await_messages(
    requests: Requests,
    channel: Channel,
    qname: str,
    limit: int,
    vt: int | None,
    seconds: float,
    woken: int | None = None,
) -> Steps[list[RsmqMessage]]:
    """Wait up to `seconds` for messages and receive them. Stop if the file descriptor `woken` becomes readable."""
    pauses = Pauses(seconds)
    while True:
        if channel.open_file is None:
            yield Ask(channel.open)
        reply = yield from ask(requests.receive(qname, limit, vt))
        pause_s = pauses.next_s(reply)
        if reply.messages or pause_s <= 0:
            return reply.messages
        published = channel.open_file
        ready: list[int] = yield Nap(
            pause_s, tuple(file for file in (published, woken) if file is not None)
        )
        if published in ready:
            channel.drain()
        if woken in ready:
            return []


class Pauses:
    """Limits how long a client sleeps between two polls.

    A sender's notification ends a sleep, but not every sender notifies, and a broken connection loses notifications. So
    a sleep lasts at most a second, and ends when the next hidden message becomes visible.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = FIRST_S

    def next_s(self, received: Received) -> float:
        """Return the seconds until the next poll; 0 after the deadline."""
        left = self._deadline - time.monotonic()
        pause, self._pause = self._pause, min(MAX_S, self._pause * 2)
        if received.next_s is not None:
            pause = min(pause, received.next_s)
        return max(0.0, min(left, pause))


def each(
    held: Iterable[RsmqMessage | MessageRef],
    request: Callable[[list[MessageRef]], ScriptCall[list[bool]]],
) -> Steps[list[bool]]:
    """Send a request for every 1,000 messages; return the results."""
    every, done = refs(held), list[bool]()
    for first in range(0, len(every), PER_CALL):
        done += yield from ask(request(every[first : first + PER_CALL]))
    return done


def refs(messages: Iterable[RsmqMessage | MessageRef]) -> list[MessageRef]:
    """Return the id and receipt of each message. Existing references are returned unchanged."""
    return [
        (message.id, message.receipt) if isinstance(message, RsmqMessage) else message
        for message in messages
    ]


def next_messages(
    requests: Requests,
    qname: str,
    done: Iterable[RsmqMessage | MessageRef],
    limit: int,
    vt: int | None,
) -> Steps[tuple[list[bool], list[RsmqMessage]]]:
    """Delete messages and receive new messages in one request."""
    deleted, reply = yield from ask(requests.next(qname, refs(done), limit, vt))
    return deleted, reply.messages


def purge(requests: Requests, qname: str) -> Steps[int]:
    """Remove the queue's messages; return their number. Messages sent during the call may remain."""
    left, removed = (yield from ask(requests.describe(qname))).msgs, 0
    while left > 0:
        gone = yield from ask(requests.purge(qname))
        removed, left = removed + gone, left - gone if gone else 0
    return removed


def peek(
    requests: Requests, qname: str, place: str, offset: int, limit: int
) -> Steps[list[Peeked]]:
    """Read messages in pages of about 256 KiB."""
    messages: list[Peeked] = []
    end = offset + limit
    while True:
        page = yield from ask(requests.peek(qname, place, offset, end - offset))
        messages += page.messages
        offset += page.passed
        if offset >= end or not page.passed:
            return messages


def redrive(requests: Requests, qname: str, target: str, limit: int | None) -> Steps[int]:
    """Move visible messages to another queue, but not messages that a client receives during the call."""
    yield from ask(requests.describe(target))
    there = yield from ask(requests.describe(qname))
    unseen = there.msgs - there.hiddenmsgs
    wanted, moved, passed = unseen if limit is None else limit, 0, 0
    while unseen > 0 and moved < wanted:
        looked = min(PER_CALL, unseen, wanted - moved)
        page = yield from ask(requests.peek(qname, "visible", passed, looked))
        if not page.passed:
            break
        some = page.messages
        # Ids without a body aren't shown, and stay where they are.
        unseen, passed = unseen - page.passed, passed + page.passed - len(some)
        held = [(message.id, message.receipt) for message in some]
        if held:
            moved += sum((yield from ask(requests.move(qname, target, held))))
    return moved


def repair(requests: Requests, qname: str) -> Steps[Repaired]:
    """Repair the whole queue, with as many requests as necessary."""
    cursors, phantoms, fields = ("0", "0"), 0, 0
    while any(cursors):
        cursors, removed = yield from ask(requests.repair(qname, cursors))
        phantoms, fields = phantoms + removed.phantoms, fields + removed.fields
    return Repaired(phantoms, fields)
