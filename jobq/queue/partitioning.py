"""Change the number of a queue's partitions, and forget partitions that are empty.

Each step is harmless to repeat: a change that stopped midway continues when it is requested again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.names import checked_queue, is_partition
from jobq.client.numbered_calls import new_id
from jobq.client.pipelining import commands
from jobq.config import HARD_MAX_CONTENT
from jobq.errors import ConfigError, JobqError, NotDurableError, ScriptError, UnavailableError
from jobq.queue import keys
from jobq.queue.directory import forget_queue, queue_names, register_queues
from jobq.queue.durability import SharedConfirmation
from jobq.queue.partitions import (
    MAX_IN_MAP,
    MAX_MAP_BYTES,
    Epoch,
    PartitionMap,
    checked_number,
    fence_of,
    map_in,
    map_key,
    read_map,
    start_fence,
)
from jobq.queue.queue import queue_scripts
from jobq.queue.shared_settings import Settings
from jobq.queue.types import FENCES_PER_EPOCH

_log = logging.getLogger("jobq")


#: How many partition numbers may be skipped for an even spread over the nodes of a Cluster.
MAX_SKIPPED = 64
#: How long (s) drained partitions stay in the map, for their results and for repeated calls.
KEEP_S = 7 * 86_400


class Left(NamedTuple):
    """Numbers of messages that remain in a queue or partition.

    Attributes:
        is_sealed: Whether newer partitions accept messages instead.
        messages: Number of messages for workers.
        kept: Number of messages that only a person deletes: dead and quarantined messages.
        for_flows: Number of results for flows.
        is_listed: Whether a sealed queue has listed the keys of all delayed messages.
    """

    is_sealed: bool
    messages: int
    kept: int
    for_flows: int = 0
    is_listed: bool = True

    @property
    def is_drained(self) -> bool:
        """Whether workers can skip the queue, because it is sealed and has no work for them."""
        return self.is_sealed and not self.messages and not self.for_flows

    @property
    def is_empty(self) -> bool:
        """Whether the queue can be deleted without losing any messages or results."""
        return not (self.messages or self.kept or self.for_flows)


def partition(client: Client, name: str, count: int) -> PartitionMap:
    """Distribute new messages of the queue over `count` partitions; return the map.

    Existing messages don't move. Repeat the call if it fails.

    Raises:
        ConfigError: The queue may run fewer than `count` messages concurrently.
    """
    checked_queue(name)
    if not is_partition(f"{name}/0"):
        raise ConfigError(f"queue {name!r} can't have partitions, because its name ends with '/'")
    checked_number(count)
    confirmation = SharedConfirmation(client)
    known = _with_epoch(client, read_map(client, name), count, confirmation)
    # Clients use the new partitions once the first seal is there. The map must not be lost then.
    confirmation.check(f"queue {name!r} has a new map of partitions")
    register_queues(client, [name, *known.names()])
    if len(known.epochs) > 1:
        seal_old(client, known, confirmation)
        confirmation.check(f"partitions of queue {name!r} are sealed")
    return known


def _with_epoch(
    client: Client, known: PartitionMap, count: int, confirmation: SharedConfirmation
) -> PartitionMap:
    """Add an epoch of `count` partitions to the map, unless the newest epoch has this size; return the map.

    If a deletion has sealed partitions of the newest epoch, always add an epoch: the deletion may still be under way,
    and a changed map stops it before it deletes new messages.
    """
    number = known.newest.number
    is_stopped = known.newest.size == count and any_sealed(client, known)
    if known.newest.size == count and not is_stopped:
        return set_map(client, known, known, confirmation)  # it may not be confirmed yet
    copied, least = None, 0
    if not known.is_partitioned:  # a fence this high shows that the queue had partitions before
        least = fence_of(client, known.queue) // FENCES_PER_EPOCH + 1
    while known.newest.size != count or (is_stopped and known.newest.number == number):
        if known.newest.number != number:
            raise ConfigError(
                f"the partitions of queue {known.queue!r} were just changed by another client to "
                f"{known.newest.size}; try again if you want another number"
            )
        # If a worker has just marked a drained epoch, set_map returns the worker's map, and the loop continues.
        wanted = known.after(count, _most_even(client, known, count), least)
        _check_size(wanted)
        copied = _copy_settings(client, wanted)
        _raise_fences(client, wanted)
        known = set_map(client, known, wanted, confirmation)
    _copy_settings(client, known, copied)
    return known


def any_sealed(client: Client, known: PartitionMap) -> bool:
    """Return whether the map still directs new messages to partitions that a deletion has already sealed."""
    names = known.newest.names(known.queue) if known.is_partitioned else ()
    return any(left_in(client, name).is_sealed for name in names)


def _check_size(wanted: PartitionMap) -> None:
    size = sum(epoch.size for epoch in wanted.epochs)
    if size > MAX_IN_MAP or len(str(wanted)) > MAX_MAP_BYTES:
        raise ConfigError(
            f"queue {wanted.queue!r} would have {size:,} partitions, including earlier partitions, but at most "
            f"{MAX_IN_MAP:,} are allowed; jobq forgets earlier partitions a week after they are drained"
        )


def _raise_fences(client: Client, known: PartitionMap) -> None:
    """Set the fence counters of the newest partitions above all counters of older partitions."""
    for name in known.newest.names(known.queue):
        start_fence(client, name, known.newest.number)


def nodes_of(client: Client, names: Sequence[str]) -> list[Hashable]:
    """Return the node of each queue, without a round trip. Without a Cluster, all queues have the same node."""
    home = client.topology.locate
    return [home(map_key(client, name) if client.is_cluster else "") for name in names]


def _most_even(client: Client, known: PartitionMap, count: int) -> int:
    """Return how many partition numbers to skip, so that the next partitions are spread evenly over the nodes."""
    if not client.is_cluster:
        return 0
    nodes = nodes_of(client, known.after(count + MAX_SKIPPED).newest.names(known.queue))
    most = [max(Counter(nodes[at : at + count]).values()) for at in range(MAX_SKIPPED)]
    return most.index(min(most))


def created(client: Client, name: str, count: int) -> PartitionMap:
    """Create a queue with `count` partitions if it doesn't exist, and return its map.

    An existing queue keeps its number of partitions. If several clients create the queue, the first client's `count` is
    used. Messages that are already in the queue stay there and run. Without the right to create partitions, or without
    a server, nothing is created.
    """
    checked_number(count)
    try:
        known = read_map(client, name)
        if not known.is_partitioned and not exists(client, name):
            known = _created(client, name, count)
        elif known.is_partitioned and not left_in(client, name).is_sealed:
            seal_old(client, known)  # its creator stopped midway
        return known
    except (NotDurableError, ScriptError, UnavailableError) as error:
        _log.warning("queue %s could not be created with %d partitions: %s", name, count, error)
        return PartitionMap(name)


def _created(client: Client, name: str, count: int) -> PartitionMap:
    try:
        return partition(client, name, count)
    except ConfigError:
        known = read_map(client, name)
        if not known.is_partitioned:
            raise
        return known  # another client was faster, with another number


def exists(client: Client, name: str) -> bool:
    """Return whether the queue has or had messages, schedules or settings; waiting workers don't count."""
    prefix = keys.prefix(client.namespace, name)
    meta = keys.key(prefix, "meta")
    traces = [keys.key(prefix, key) for key in ("messages", "dead", "events", "schedules", "rules")]
    facts, ntraces = commands(
        client, meta, [("HMGET", meta, "fence", "paused", "max"), ("EXISTS", *traces)]
    )
    return ntraces > 0 or any(facts)


def seal_old(
    client: Client, known: PartitionMap, confirmation: SharedConfirmation | None = None
) -> None:
    """Seal the partitions of all undrained older epochs."""
    for epoch, following in zip(known.epochs, known.epochs[1:], strict=False):
        for place in [] if epoch.drained else epoch.names(known.queue):
            _seal(client, place, following, confirmation)


def _seal(
    client: Client, name: str, following: Epoch, confirmation: SharedConfirmation | None = None
) -> None:
    """Seal a queue, and list the keys of its delayed messages."""
    script, left = queue_scripts(client, "queue", name)["seal"], 1
    while left:
        state = script.state({"epoch": following.number})
        by = confirmation.by(mark_of(client, name)) if confirmation else None
        left = client.perform(script.keys[0], state, by)[2]


def unseal(client: Client, name: str, left: Left) -> None:
    """Let a queue accept all messages again."""
    prefix = keys.prefix(client.namespace, name)
    meta, moved = keys.key(prefix, "meta"), keys.key(prefix, "moved_keys")
    # The next enqueue to an empty queue writes the length of its content.
    longest = HARD_MAX_CONTENT if left.messages else 0
    asked = [
        ("HSET", meta, "max_content", longest),
        ("HDEL", meta, "sealed"),
        ("DEL", moved, keys.key(prefix, "seal_due")),
    ]
    commands(client, meta, asked)


def remove_partitions(client: Client, known: PartitionMap) -> str:
    """Delete the map of an unused queue, and its partitions; later messages go to the queue itself.

    If a partition isn't empty, delete nothing and return its name. If the call fails midway, repeat it, or
    call `partition` to keep the partitions.
    """
    newest, sealed = known.newest, list[str]()
    try:
        for name in newest.names(known.queue):
            sealed.append(name)
            queue_scripts(client, "queue", name)["seal"].run({"epoch": newest.number + 1})
        left = {name: left_in(client, name) for name in known.names()}
        busy = next((name for name, each in left.items() if not each.is_empty), "")
        if busy:
            raise _BusyError(busy)
        base = left_in(client, known.queue)
        meta = keys.key(keys.prefix(client.namespace, known.queue), "meta")
        last = max(fence_of(client, name) for name in [known.queue, *known.names()])
        client.command("HSET", meta, "fence", last)
        unseal(client, known.queue, base)
        if set_map(client, known, PartitionMap(known.queue)).is_partitioned:
            raise ConfigError(
                f"the partitions of queue {known.queue!r} were just changed by another client; try again"
            )
    except JobqError as error:
        _keep(client, known, sealed)
        if isinstance(error, _BusyError):
            return str(error)
        raise
    for name in known.names():
        if name != known.queue:
            delete_keys(client, name)
    return ""


class _BusyError(JobqError):
    """A partition isn't empty. The error's text is the partition's name."""


def _keep(client: Client, known: PartitionMap, sealed: Sequence[str]) -> None:
    """Unseal partitions whose deletion was abandoned, so that they accept messages again."""
    with suppress(JobqError):
        kept = read_map(client, known.queue)
        for name in set(sealed).intersection(kept.newest.names(known.queue)):
            with suppress(JobqError):
                unseal(client, name, left_in(client, name))
        tidy(client, kept)  # seals the queue itself again


def delete_keys(client: Client, name: str) -> None:
    """Delete an empty partition. Results stay until they expire."""
    script = queue_scripts(client, "queue", name)["fsck"]
    prefix = keys.prefix(client.namespace, name)
    others = ("eoq_backoff", "ndry_runs", "moved_keys", "seal_due", "flow_claim")
    client.command("UNLINK", *script.keys, *(keys.key(prefix, other) for other in others))


def without_drained(
    client: Client,
    known: PartitionMap,
    left: Mapping[str, Left] | None = None,
    now_s: int | None = None,
) -> PartitionMap:
    """Return the map with drained epochs marked.

    Leave out epochs that have been drained for KEEP_S, unless they have dead or quarantined messages.

    Args:
        left: The results of `left_in` for the queues of older epochs, if known.
    """
    if len(known.epochs) == 1:
        return known
    left = _left(client, known) if left is None else left
    if now_s is None:
        now_s = client.clock_ms(map_key(client, known.queue)) // 1000
    kept: list[Epoch] = []
    for epoch in known.epochs[:-1]:
        there = [left[name] for name in epoch.names(known.queue)]
        if not all(q.is_drained for q in there):
            kept.append(epoch._replace(drained_at=0))
        elif not epoch.drained or now_s < epoch.drained_at + KEEP_S or any(q.kept for q in there):
            kept.append(epoch._replace(drained_at=epoch.drained_at or now_s))
    return known._replace(epochs=(*kept, known.newest))


def tidy(client: Client, known: PartitionMap, now_s: int | None = None) -> PartitionMap:
    """Mark drained epochs in the stored map, and remove epochs that can be forgotten; return the map.

    Also seal older partitions that aren't sealed: their seal was never written, or a failover lost it. Complete a seal
    that stopped midway.
    """
    left = _left(client, known)
    for epoch, following in zip(known.epochs, known.epochs[1:], strict=False):
        for name in epoch.names(known.queue):
            if not (left[name].is_sealed and left[name].is_listed):
                _seal(client, name, following)
    wanted = without_drained(client, known, left, now_s)
    if wanted == known:
        return known
    return set_map(client, known, wanted)


def forget_gone(client: Client, known: PartitionMap) -> list[str]:
    """Remove partitions from the list of queues if the map no longer has them; return their names.

    Only sealed, empty partitions are removed, because a client with an old map can still enqueue messages in unsealed
    partitions.
    """
    beyond = known.newest.first + known.newest.size
    gone = {f"{known.queue}/{number}" for number in range(beyond)}.difference(known.names())
    names = sorted(gone.intersection(queue_names(client)) if gone else ())
    forgotten = [
        name for name in names if (left := left_in(client, name)).is_sealed and left.is_empty
    ]
    for name in forgotten:
        forget_queue(client, name)
    return forgotten


def _left(client: Client, known: PartitionMap) -> dict[str, Left]:
    names = [name for epoch in known.epochs[:-1] for name in epoch.names(known.queue)]
    return {name: left_in(client, name) for name in names}


def set_map(
    client: Client,
    known: PartitionMap,
    wanted: PartitionMap,
    confirmation: SharedConfirmation | None = None,
) -> PartitionMap:
    """Replace the map, unless another client has changed it. Return the stored map."""
    script = queue_scripts(client, "queue", known.queue)["set_partitions"]
    by = confirmation.by(mark_of(client, known.queue)) if confirmation else None
    state = script.state({"known": str(known), "map": str(wanted)})
    return map_in(known.queue, client.perform(script.keys[0], state, by)[1])


def mark_of(client: Client, name: str) -> str:
    """Return a new key in the queue's slot. The key marks a write until that write is confirmed."""
    return f"{keys.prefix(client.namespace, name)}call:{new_id()}~"


def left_in(client: Client, name: str) -> Left:
    """Count the messages that remain in the queue."""
    prefix = keys.prefix(client.namespace, name)
    meta = keys.key(prefix, "meta")
    asked = [
        ("HMGET", meta, "sealed", "max_content"),
        ("HLEN", keys.key(prefix, "messages")),
        ("ZCARD", keys.key(prefix, "dead")),
        ("HLEN", keys.key(prefix, "quarantine")),
        ("XLEN", keys.key(prefix, "flow_outbox")),
        ("EXISTS", keys.key(prefix, "seal_due")),
    ]
    (sealed, longest), messages, dead, quarantined, for_flows, unlisted = commands(
        client, meta, asked
    )
    is_sealed = sealed is not None and longest == b"sealed"
    return Left(is_sealed, messages, dead + quarantined, for_flows, not unlisted)


def _copy_settings(client: Client, known: PartitionMap, copied: Settings | None = None) -> Settings:
    """Copy the queue's settings to the newest partitions; return the settings.

    Args:
        copied: Settings that were copied to these partitions before.
    """
    settings = Settings(client, known.queue)
    if settings != copied:
        settings.check(known.newest)
        settings.copy_to(
            known.newest, partial(queue_scripts, client, "queue"), client.clock_ms(map_key(client, known.queue)),
            again=copied is not None,
        )  # fmt: skip
    return settings
