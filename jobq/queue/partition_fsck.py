"""Check a queue's map of partitions against the partitions, and repair it, for `jobq check fsck`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import ScriptError
from jobq.queue import keys
from jobq.queue.moving import key_in
from jobq.queue.partitioning import left_in, set_map, unseal, without_drained
from jobq.queue.partitions import (
    MAX_IN_MAP,
    Epoch,
    PartitionMap,
    fence_of,
    map_in,
    map_key,
    place_text,
    read_map,
)
from jobq.queue.types import FENCES_PER_EPOCH, MAX_PARTITIONS, Violation, text_of

UNREADABLE = "the map of partitions can't be read"
LOST = "sealed, although there is no map of partitions"
UNLISTED = "has messages, but isn't in the map of partitions"
DRAINED = "drained in the map of partitions, but has messages or no seal"
SEALED = "sealed, although the map of partitions has no later epoch"
LOW_FENCE = "fence of an earlier epoch"
NO_FENCE = "fence that isn't a number"
ELSEWHERE = "messages that belong in another partition"
OF_MAP = frozenset((UNREADABLE, LOST, UNLISTED, DRAINED, SEALED, LOW_FENCE, NO_FENCE, ELSEWHERE))
#: Maximum number of messages to look at in each partition, chosen at random.
SAMPLE = 200
#: A change of the map during the check looks like damage, so the check is made again.
TRIES = 3
#: Messages of on_dead stay in the partition of the dead message.
_ON_DEAD = b"on_dead:"


def map_violations(client: Client, queue: str, listed: Iterable[str]) -> list[Violation]:
    """Return violations in a queue's map of partitions.

    Args:
        listed: All known names of queues and partitions.
    """
    places = [name for name in listed if base_of(name) == queue != name]
    violations: list[Violation] = []
    for _ in range(TRIES):
        stored = _stored(client, queue)
        violations = list(_violations(client, queue, stored, places))
        if not violations or _stored(client, queue) == stored:
            break
    return violations


def _stored(client: Client, queue: str) -> tuple[str, bytes | None]:
    """Return the Redis type of the map of partitions, and the stored map."""
    where = map_key(client, queue)
    kind = text_of(client.command("TYPE", where))
    return kind, client.command("HGET", where, "map") if kind == "hash" else None


def _violations(
    client: Client, queue: str, stored: tuple[str, bytes | None], places: Iterable[str]
) -> Iterator[Violation]:
    kind, text = stored
    if kind not in ("hash", "none"):
        yield Violation(UNREADABLE, f"its key is a {kind}")
        return
    try:
        known = map_in(queue, text)
    except ScriptError:
        yield Violation(UNREADABLE, text_of((text or b"")[:80]))
        return
    if known.is_partitioned:
        for epoch in known.epochs:
            for name in epoch.names(queue):
                with suppress(ScriptError):  # the check of that partition reports it
                    yield from _of_place(client, known, epoch, name)
    elif left_in(client, queue).is_sealed:
        yield Violation(LOST, queue)
        return
    # An older backup may have brought messages back to partitions that were forgotten, even in the list of queues.
    beyond = known.newest.first + known.newest.size
    forgotten = [f"{queue}/{number}" for number in range(max(0, beyond - MAX_IN_MAP), beyond)]
    for name in sorted({*places, *forgotten} - {*known.names()}):
        with suppress(ScriptError):
            if left_in(client, name).messages:
                yield Violation(UNLISTED, name)


def _of_place(client: Client, known: PartitionMap, epoch: Epoch, name: str) -> Iterator[Violation]:
    left = left_in(client, name)
    if epoch is known.newest:
        if left.is_sealed:
            yield Violation(SEALED, name)
    elif epoch.drained and not left.is_drained:
        yield Violation(DRAINED, name)
    if not epoch.number:
        return
    try:
        if fence_of(client, name) < epoch.number * FENCES_PER_EPOCH:
            yield Violation(LOW_FENCE, name)
    except ScriptError:
        yield Violation(NO_FENCE, name)
    strays = _strays(client, known.queue, epoch, name) if left.messages else []
    if strays:
        more = f" and {len(strays) - 1:,} more" if len(strays) > 1 else ""
        yield Violation(ELSEWHERE, f"{name}: {strays[0]}{more}")


def _strays(client: Client, queue: str, epoch: Epoch, name: str) -> list[str]:
    """Return the ids of some messages whose key or id belongs in another partition of the epoch."""
    prefix = keys.prefix(client.namespace, name)
    mids = client.command("HRANDFIELD", keys.key(prefix, "messages"), SAMPLE)
    options = client.command("HMGET", keys.key(prefix, "options"), *mids) if mids else []
    return sorted(
        text_of(mid)
        for mid, own in zip(mids, options, strict=True)
        if not mid.startswith(_ON_DEAD)
        and epoch.name_for(queue, place_text(text_of(mid), key_in(own))) != name
    )


def mend_map(client: Client, queue: str, violation: Violation) -> str:
    """Repair a violation in the queue's partition map; return a description, or '' if only a person can repair it."""
    rule, name = violation.rule, violation.mid
    if rule in (UNREADABLE, LOST):
        return _rebuilt(client, queue)
    if rule == UNLISTED:
        return _completed(client, queue, name)
    if rule == DRAINED:
        known = read_map(client, queue)
        set_map(client, known, without_drained(client, known))
        return "workers serve it again"
    if rule == SEALED:
        unseal(client, name, left_in(client, name))
        return "accepts messages again"
    if rule == LOW_FENCE:
        epoch = read_map(client, queue).epoch_of(name) or Epoch(0)
        meta = keys.key(keys.prefix(client.namespace, name), "meta")
        client.command("HINCRBY", meta, "fence", epoch.number * FENCES_PER_EPOCH)
        return "raised"
    return ""


def _rebuilt(client: Client, queue: str) -> str:
    """Rebuild the partition map from counters in the partitions. If no partition exists, unseal the queue instead."""
    made = _from_fences(client, queue)
    if made is None:
        return ""
    where = map_key(client, queue)
    if client.command("EXISTS", where):
        aside = f"{keys.prefix(client.namespace, queue)}damaged:partitions:{time.time_ns() // 1_000_000}"
        client.command("RENAME", where, aside)
    if made.is_partitioned:
        set_map(client, PartitionMap(queue), made)
        return f"rebuilt: {made}"
    unseal(client, queue, left_in(client, queue))
    return "accepts messages again"


def _completed(client: Client, queue: str, name: str) -> str:
    """Rebuild the map of partitions if it lacks the partition `name`. Return a description, or '' if that fails."""
    known, made = read_map(client, queue), _from_fences(client, queue)
    if made is None or name not in made.names():
        return ""
    if any(epoch[:3] not in [each[:3] for each in made.epochs] for epoch in known.epochs):
        return ""
    set_map(client, known, made)
    return f"the map was rebuilt: {made}"


def _from_fences(client: Client, queue: str) -> PartitionMap | None:
    """Reconstruct the partition map from the partitions' fence counters; return None if partitions are missing."""
    numbers: dict[int, list[int]] = {}
    number = empty = 0
    while empty < MAX_PARTITIONS:
        fence = fence_of(client, f"{queue}/{number}")
        if fence >= FENCES_PER_EPOCH:
            numbers.setdefault(fence // FENCES_PER_EPOCH, []).append(number)
            empty = 0
        else:
            empty += 1
        number += 1
    epochs = [Epoch(0)]
    for of_epoch, members in sorted(numbers.items()):
        epochs.append(Epoch(of_epoch, members[0], members[-1] - members[0] + 1))
        if epochs[-1].size != len(members):
            return None
    made = PartitionMap(queue, tuple(epochs))
    try:
        return map_in(queue, str(made).encode())
    except ScriptError:
        return None
