"""Stored calls of a flow's steps, and the messages that are made from these calls.

A stored call has no timestamp, because its step may begin much later. If calls are sealed (signed or encrypted), the
seal of a stored call isn't valid for a message, so the call can't run before its step begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jobq.client.clock import wall
from jobq.flows.identity import Member
from jobq.jobs.codec import Envelope, decode, encode
from jobq.jobs.job import Job
from jobq.jobs.queues import ClientLike
from jobq.jobs.signing import opened, seal_of


def kept_call(
    client: ClientLike,
    where: tuple[str, str],
    job: Job[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Encode and seal a call so that a flow can store it.

    Args:
        where: Queue and `Member.address` of the call's message; for a map, of its first member.
    """
    content = encode(job.name, args, kwargs, 0, headers, job.overrides, client.settings.max_content)
    seal = seal_of(client)
    return seal.of("step").close(*where, content) if seal else content


def message_of(
    client: ClientLike, queue: str, member: Member, kept: bytes, due_ms: float = 0
) -> bytes:
    """Return a stored call's message content; raise CodecError if the call was stored for another queue or member.

    Args:
        due_ms: Start time of a delayed message, in epoch ms. The expiry of a seal is counted from this time.
    """
    envelope = _opened(client, queue, member.address, kept)
    return _message(client, queue, member.mid, envelope, due_ms)


def messages_of_items(
    client: ClientLike, queue: str, first: Member, kept: bytes, items: Iterable[Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield the mid and content of one message per item. The item is the call's only argument.

    Raises CodecError if an item makes its call too long.

    Args:
        first: The member for the first item.
        kept: The map's stored call, without arguments.
    """
    envelope = _opened(client, queue, first._replace(number=0).address, kept)
    for number, item in enumerate(items, first.number):
        mid = first._replace(number=number).mid
        call = Envelope(envelope.job, [item], {}, 0, envelope.headers, envelope.options)
        yield mid, _message(client, queue, mid, call, 0)


def _opened(client: ClientLike, queue: str, address: str, kept: bytes) -> Envelope:
    seal = seal_of(client)
    return decode(opened(seal and seal.of("step"), queue, address, kept))


def _message(client: ClientLike, queue: str, mid: str, envelope: Envelope, due_ms: float) -> bytes:
    content = encode(
        envelope.job, envelope.args, envelope.kwargs, wall.ms(), envelope.headers, envelope.options,
        client.settings.max_content,
    )  # fmt: skip
    seal = seal_of(client)
    return seal.close_call(queue, mid, content, due_ms) if seal else content
