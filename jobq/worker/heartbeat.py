"""A worker's entries on the server: its heartbeat in the list of workers, and its queues in the list of queues."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from jobq import __version__
from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.config import WorkerSettings
from jobq.durations import listed
from jobq.errors import JobqError, ScriptError, ServerFullError
from jobq.jobs.registry import Registry
from jobq.queue import directory, keys, presence
from jobq.worker import logger
from jobq.worker.charts import ChartKeeper
from jobq.worker.pool import PoolMember
from jobq.worker.recycle import resident_bytes

_MAY_ASK = "#!lua flags=no-writes\nreturn redis.acl_check_cmd('INFO', 'memory') and 1 or 0"
#: Maximum number of names in one log line.
MAX_NAMES = 10
#: About how often a worker removes the list entries of killed workers.
CLEAN_EVERY_S = 600.0


def declared(registry: Registry) -> list[str]:
    """Return the names of the queues that the registry and its jobs declare, sorted."""
    return sorted(registry.queues | {job.queue for job in registry})


def warn_of_unserved(client: Client, registry: Registry, settings: WorkerSettings) -> None:
    """Log a warning for each queue of a registered job that no worker serves."""
    unserved = set(declared(registry)) - {name for name, _ in settings.queues}
    if not unserved:
        return
    try:
        unserved -= presence.served(client).keys()
    except JobqError as error:
        logger.debug("can't read which queues other workers serve: %s", error)
    for queue in sorted(unserved):
        jobs = sorted(job.name for job in registry if job.queue == queue)
        logger.warning(
            "no worker serves queue %s, used by %s: start a worker with --queues %s",
            queue,
            named(jobs),
            queue,
        )


def warn_of_unknown(client: Client, registry: Registry, settings: WorkerSettings) -> None:
    """Log a warning if queues in --queues were never used and no registered job declares them."""
    known = set(declared(registry))
    unknown = {name for name, _ in settings.queues} - known
    if not unknown:
        return
    try:
        # Names on the list don't count: an earlier start of this worker may have listed them.
        unknown = {name for name in unknown if not _was_used(client, name)}
        known |= set(directory.queue_names(client)) - unknown
    except JobqError as error:
        logger.debug("can't read which queues exist: %s", error)
        return
    if not unknown:
        return
    meant = [
        f"{name} (did you mean {near[0]}?)" if (near := get_close_matches(name, known, 1)) else name
        for name in sorted(unknown)
    ]
    was_never_used = "they were never used" if len(meant) > 1 else "it was never used"
    logger.warning(
        "--queues names %s, but no job here uses %s, and %s",
        named(meant), "them" if len(meant) > 1 else "it", was_never_used,
    )  # fmt: skip


def _was_used(client: Client, name: str) -> bool:
    """Return whether the queue has or had messages, or was paused.

    A worker waiting for messages doesn't count as a use.
    """
    prefix = keys.prefix(client.namespace, name)
    meta, messages = keys.key(prefix, "meta"), keys.key(prefix, "messages")
    facts = client.command("HMGET", meta, "fence", "paused")
    return any(facts) or bool(client.command("HLEN", messages))


def warn_of_eviction(client: Client) -> None:
    """Log a warning if the server is configured to evict keys when its memory is full.

    A user created by `jobq acl` isn't allowed to send INFO, and the server would log the rejected command in its ACL
    LOG. So this function first checks whether the user has this right. `jobq check doctor` also warns.
    """
    try:
        if not _may_ask(client):
            return
        text = client.command("INFO", "memory").decode()
    except JobqError as error:
        logger.debug("can't read whether the server evicts keys: %s", error)
        return
    facts = dict(line.partition(":")[::2] for line in text.split())
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        now = "" if facts.get("maxmemory") != "0" else " once maxmemory is set"
        logger.warning(
            "the server deletes keys when its memory is full (maxmemory-policy %s), so jobs or results can be lost%s: "
            "CONFIG SET maxmemory-policy noeviction",
            policy, now,
        )  # fmt: skip


def _may_ask(client: Client) -> bool:
    """Return whether this user may send INFO. The check doesn't create an entry in the server's ACL LOG."""
    if urlsplit(client.settings.url or "").username in (None, "", "default"):
        return True
    if client.settings.functions or client.is_cluster:
        # Users that call functions can't load scripts. On a Cluster the script may be on another node.
        return False
    sha = client.command("SCRIPT", "LOAD", _MAY_ASK)
    return bool(client.command("EVALSHA", sha, 0, routed_by=""))


def named(names: Sequence[str]) -> str:
    """Join names for a log line. If there are many names, show the first few names and a count."""
    return listed(names, MAX_NAMES)


class Heartbeat:
    """Sends a worker's heartbeat when leases are renewed. `on_answer` is called with a command's duration in ns."""

    def __init__(
        self,
        client: Client,
        settings: WorkerSettings,
        queues: list[str],
        registry: Registry,
        on_answer: Callable[[int], object],
    ) -> None:
        self._client, self._settings, self._queues = client, settings, queues
        #: When the worker started: epoch ms by this machine's clock.
        self.started_at = round(time.time() * 1000)
        #: Drained partitions, which this worker no longer serves.
        self.retired: set[str] = set()
        self._list_at = 0.0
        # The server's clock, epoch ms, and boot_ns when it was read.
        self._server_clock = 0, 0
        # Not immediately: workers are often started together.
        self._clean_at = time.monotonic() + random.uniform(0, CLEAN_EVERY_S)
        self._may_warn = True
        #: Whether the server's memory was full at the last heartbeat.
        self.is_full = False
        self._on_answer = on_answer
        self._charts = ChartKeeper(client, settings.name) if settings.charts else None
        self._jobs = registry.known_names()
        self._hidden = {
            name: job.redacted
            for job in registry
            if job.redacted is not None
            for name in (job.name, *job.settings.aliases)
        }
        at_once = settings.threads
        if any(job.is_async for job in registry):
            at_once = max(settings.concurrency, settings.threads)
        #: Jobs that this worker can run at the same time.
        self.slots = settings.processes * at_once
        self._facts: dict[str, Any] = {
            "host": socket.gethostname(), "version": __version__, "queues": queues,
            "slots": self.slots, "jobs": presence.digest_of(self._jobs),
            "lease_ms": round(settings.lease_s * 1000), "started_at": self.started_at,
            "strict": settings.strict,
        }  # fmt: skip
        if partitions := registry.partitions():
            self._facts["partitions"] = partitions

    def declares(self, schedules: Mapping[str, Sequence[str]]) -> None:
        """Store `schedules`, which the worker's code declares, in the worker's public entry."""
        self._facts.pop("schedules", None)
        if sum(map(len, schedules.values())) <= presence.MAX_SCHEDULES:
            self._facts["schedules"] = schedules

    def send(self, members: list[PoolMember], quiet: bool = False, leaving: bool = False) -> bool:
        """Renew the worker's entries.

        Once a minute, also renew the lists of queues and jobs, which the server may have lost.

        Return whether the server has answered. `quiet` marks the worker as paused, and `leaving` as draining.
        """
        try:
            now_ms = self._server_ms()
            children = [
                child_entry(member, self._queues, now_ms) for member in members if member.pid
            ]
            facts = self._facts | {
                "queues": self._served(),
                "pid": os.getpid(), "children": [child.pid for child in children], "quiet": quiet or leaving,
                "leaving": leaving, "running": sum(member.slots.nrunning for member in members if member.pid),
                "seen_at": now_ms,
            }  # fmt: skip
            self._send(facts, children)
        except JobqError as error:
            if not isinstance(error, ScriptError) and not self._client.is_cluster:
                raise
            self._warn(error)
            return False
        self._may_warn = True
        return True

    def _server_ms(self) -> int:
        """Return the server's time in ms, with one query a minute. Heartbeats must use the server's clock."""
        if time.monotonic() >= self._list_at:
            self._server_clock = self._client.clock_ms(), boot_ns()
        at_ms, since = self._server_clock
        return at_ms + (boot_ns() - since) // 1_000_000

    def _send(self, facts: dict[str, Any], children: list[presence.ChildEntry]) -> None:
        client, now = self._client, time.monotonic()
        asked_at = boot_ns()
        has_room = presence.put_worker(client, self._settings.name, facts)
        if has_room:
            self._on_answer(boot_ns() - asked_at)
        presence.put_running(client, self._settings.name, children)
        if now >= self._list_at:
            presence.put_jobs(client, self._jobs)
            # Later, only restore data that the server lost: a newer program may have stored other data since.
            presence.put_redactions(client, self._hidden, may_replace=not self._list_at)
            has_room = has_room and self._register()
            # Not at the start: only workers older than a minute write charts.
            if has_room and self._charts is not None and self._list_at:
                self._charts.begin()
            self._list_at = now + directory.LIST_EVERY_S
        if self._charts is not None:
            self._charts.sample()
        self._note_room(has_room)
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_EVERY_S * random.uniform(0.5, 1.5)
            if presence.should_clean(client, random.random()):
                presence.remove_stale(client)

    def _served(self) -> list[str]:
        return [name for name in self._queues if name not in self.retired]

    def _register(self) -> bool:
        """Add the queues to the server's list of queues. Return False if the server's memory is full."""
        try:
            directory.register_queues(self._client, self._served())
        except ServerFullError:
            return False
        return True

    def _note_room(self, has_room: bool) -> None:
        if has_room == self.is_full:
            if has_room:
                logger.info("the server has free memory again")
            else:
                logger.error(
                    "the server is full: its memory is at maxmemory, so it rejects enqueues; waiting jobs still run, "
                    "which frees memory. Raise maxmemory, or delete dead messages and results"
                )
        self.is_full = not has_room

    def _warn(self, error: JobqError) -> None:
        if self._may_warn:
            logger.warning("can't update this worker's entry in the list of workers: %s", error)
        self._may_warn = False

    def leave(self) -> None:
        """Remove the worker's public entries. If that fails, `seen_at` still shows that the entries are old."""
        try:
            presence.forget_worker(self._client, self._settings.name)
        except JobqError:
            pass


def child_entry(member: PoolMember, queues: Sequence[str], now_ms: int = 0) -> presence.ChildEntry:
    """Return a living child's entry. `now_ms` is the server's time; 0 means this machine's time."""
    slots, now_ms, now_ns = member.slots, now_ms or round(time.time() * 1000), boot_ns()
    times = slots.times()
    running = tuple(
        presence.RunningJob(queues[held.queue], held.mid, now_ms - (now_ns - since) // 1_000_000)
        for held, since in times.running
    )
    gathering = tuple(
        presence.GatheringCall(queues[held.queue], held.mid, now_ms + (until - now_ns) // 1_000_000)
        for held, until in times.gathering
    )
    state = slots.phase.name.lower()
    return presence.ChildEntry(
        member.pid, state, resident_bytes(member.pid), slots.nfinished, running, gathering
    )
