"""Reports of workers about themselves, in four hashes outside the slots of queues.

- workers: name -> the worker's last heartbeat.
- running: name -> the running jobs of each child at that heartbeat.
- jobs: digest of job names -> these names. Workers of one program share an entry.
- redact: job -> the arguments to hide.

Anyone who may write these keys can write anything into them. So readers treat every field as untrusted text, and mark
unreadable entries as damaged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from jobq.client.connection import Client
from jobq.client.scripts import load
from jobq.errors import ServerFullError
from jobq.queue import keys
from jobq.queue.types import text_of
from jobq.queue.untrusted import LATEST_MS, decoded, number_in, text_in
from jobq.records import JsonRecord, Moment

T = TypeVar("T")
#: A worker is lost if its last heartbeat is older than a lease plus this time. It sends three heartbeats per lease.
LATE_MS = 5_000
#: A worker keeps its name for three leases plus this time after its last heartbeat, since it may only be suspended.
NAME_KEPT_MS = 30_000
#: How long the entry of a killed worker stays visible.
KEPT_MS = 3_600_000
#: Maximum number of running jobs in a worker's entry. If there are more, the longest-running jobs are kept.
MAX_RUNNING = 500
#: Maximum size of a program's job names, in bytes. If they are larger, readers don't know the program's jobs.
MAX_NAMES_BYTES = 1 << 20
PER_CALL = 500
#: Approximate number of workers that read all entries within ten minutes, to clean up. If each of many workers did so,
#: the server's work would grow with the square of their number.
MAX_CLEANERS = 20
#: Separates the worker's given name from the suffix that distinguishes it from workers of the same name.
TWIN = "#"
#: Stands for all arguments of a job in its list of arguments to hide.
EVERYTHING = "*"
#: Maximum number of schedules in a worker's entry. If its code declares more, the entry has none.
MAX_SCHEDULES = 500
_NAME = attrgetter("name")
_NUMBERS = ("pid", "slots", "running", "lease_ms", "started_at", "seen_at")


class RunningJob(JsonRecord):
    """One message that a worker's child process runs.

    Attributes:
        started_at: Start time, by the worker's estimate of the server's clock.
    """

    queue: str
    mid: str
    started_at: Moment


class GatheringCall(JsonRecord):
    """A call of a batch job, waiting in a child process for more calls.

    Attributes:
        starts_at: Latest start of its batch, by the worker's estimate of the server's clock.
    """

    queue: str
    mid: str
    starts_at: Moment


class ChildEntry(JsonRecord):
    """One child of a worker.

    Attributes:
        rss: Resident memory in bytes; 0 if unknown.
        ended: Number of ended jobs.
    """

    pid: int
    state: str
    rss: int
    ended: int
    running: tuple[RunningJob, ...] = ()
    gathering: tuple[GatheringCall, ...] = ()


class WorkerEntry(NamedTuple):
    """A worker's last heartbeat.

    Attributes:
        version: The version of jobq.
        slots: Maximum number of concurrent jobs.
        quiet: Whether the worker is paused.
        jobs: Digest of the names of the worker's jobs.
        running: Number of running jobs.
        started_at: Start of the worker, in epoch ms by the worker's clock.
        seen_at: Time of the heartbeat, in epoch ms by the server's clock.
        damaged: Whether the entry is invalid, so that no worker can have written it.
        leaving: Whether the worker is draining.
        strict: Whether the worker empties a queue before it fetches from later queues.
        schedules: Queue -> names of the schedules that the worker's code declares; None if unknown.
        partitions: Queue -> the number of partitions that the worker's code declares.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    queues: tuple[str, ...] = ()
    slots: int = 0
    quiet: bool = False
    jobs: str = ""
    running: int = 0
    lease_ms: int = 0
    started_at: int = 0
    seen_at: int = 0
    damaged: bool = False
    leaving: bool = False
    strict: bool = False
    schedules: Mapping[str, frozenset[str]] | None = None
    partitions: Mapping[str, int] = {}

    def is_live(self, now_ms: int) -> bool:
        """Return whether the worker is alive. Its last heartbeat must not be older than the lease time plus 5 s."""
        return not self.damaged and now_ms - self.seen_at < self.lease_ms + LATE_MS

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the last heartbeat is older than the lease time. Other workers then take over the messages."""
        return now_ms - self.seen_at > self.lease_ms

    def is_lost(self, now_ms: int) -> bool:
        """Return whether the worker disappeared within the last hour, without a proper shutdown."""
        return not self.damaged and not self.is_live(now_ms) and now_ms - self.seen_at < KEPT_MS

    def keeps_name(self, now_ms: int) -> bool:
        """Return whether the worker's name stays reserved, because a suspended worker may resume."""
        return not self.damaged and now_ms - self.seen_at < 3 * self.lease_ms + NAME_KEPT_MS

    def serves(self, queue: str) -> bool:
        """Return whether the worker fetches messages from this queue."""
        return queue in self.queues

    def before(self, queue: str) -> tuple[str, ...]:
        """Return the queues that the worker empties before it fetches from this queue."""
        return self.queues[: self.queues.index(queue)] if self.strict and self.serves(queue) else ()


def digest_of(names: Iterable[str]) -> str:
    """Return the digest under which these job names are stored."""
    return sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


# Calls of workers.


class Stored(NamedTuple):
    """Result of storing an entry.

    Attributes:
        is_new: Whether the entry didn't exist before.
        had_room: Whether the server was below its memory limit.
    """

    is_new: bool
    had_room: bool


def _store(client: Client, key: str, field: str, text: str, verb: str = "HSET") -> Stored:
    """Store an entry. If the server is full, a script stores it, so that the worker doesn't look lost."""
    try:
        return Stored(bool(client.command(verb, key, field, text)), True)
    except ServerFullError:
        reply = client.run(load("shared", "put_entry"), [key], [verb, field, text])
        return Stored(bool(reply), False)


def put_worker(client: Client, name: str, facts: dict[str, Any]) -> bool:
    """Store a worker's heartbeat; return whether the server was below its memory limit.

    Args:
        facts: JSON data, with `seen_at` in epoch ms.
    """
    return _store(client, keys.workers(client.namespace), name, json.dumps(facts)).had_room


def claim_name(client: Client, name: str, facts: dict[str, Any]) -> WorkerEntry | None:
    """Store a worker's first heartbeat, unless the name already has an entry.

    Return None if the worker may use the name; otherwise, return the worker that owns the name.
    """
    key = keys.workers(client.namespace)
    if _store(client, key, name, json.dumps(facts), "HSETNX").is_new:
        return None
    other = _entry(name, decoded(client.command("HGET", key, name)))
    return other if other.keeps_name(client.clock_ms()) else None


def put_running(client: Client, name: str, children: Sequence[ChildEntry]) -> None:
    """Store the running jobs of a worker's children, at most MAX_RUNNING. Longest-running jobs take precedence."""
    oldest = sorted(job.started_at for child in children for job in child.running)
    latest = oldest[MAX_RUNNING - 1] if len(oldest) > MAX_RUNNING else LATEST_MS
    facts = [
        structs.asdict(child)
        | {"running": [structs.astuple(job) for job in child.running if job.started_at <= latest][:MAX_RUNNING]}
        | {"gathering": [structs.astuple(call) for call in child.gathering][:MAX_RUNNING]}
        for child in children
    ]  # fmt: skip
    _store(client, keys.running(client.namespace), name, json.dumps(facts))


def put_jobs(client: Client, names: Sequence[str]) -> None:
    """Store the names of a worker's jobs."""
    text = json.dumps(sorted(names))
    if len(text) <= MAX_NAMES_BYTES:
        _store(client, keys.jobs(client.namespace), digest_of(names), text)


def put_redactions(
    client: Client, hidden: Mapping[str, Sequence[str]], *, may_replace: bool
) -> None:
    """Store which job arguments to hide when calls are shown. These entries outlive the workers.

    Args:
        hidden: Job -> names and positions of the arguments to hide.
        may_replace: Replace entries that other workers wrote.
    """
    verb = "HSET" if may_replace else "HSETNX"
    for name, names in hidden.items():
        _store(client, keys.redactions(client.namespace), name, json.dumps(list(names)), verb)


def forget_worker(client: Client, name: str) -> None:
    """Remove a stopped worker's entries, and its job names unless another worker has the same names.

    If there are many workers, `remove_stale` removes the names later.
    """
    key = keys.workers(client.namespace)
    mine = client.command("HGET", key, name)
    for hash_key in (key, keys.running(client.namespace)):
        client.command("HDEL", hash_key, name)
    digest = _entry(name, decoded(mine)).jobs
    if not digest or client.command("HLEN", key) > MAX_CLEANERS:
        return
    if all(entry.jobs != digest for _, entry in _read(client)):
        client.command("HDEL", keys.jobs(client.namespace), digest)


def should_clean(client: Client, chance: float) -> bool:
    """Return whether a worker should call `remove_stale` now. On average, the result is True for MAX_CLEANERS workers.

    Args:
        chance: A random number from 0 to 1.
    """
    return chance * int(client.command("HLEN", keys.workers(client.namespace))) < MAX_CLEANERS


def remove_stale(client: Client) -> None:
    """Remove the entries of dead workers: their running jobs, their job names and, an hour later, their heartbeats."""
    namespace = client.namespace
    # Workers write job names after their heartbeats. Here the names are read first, so that the names of a starting
    # worker aren't removed.
    digests = client.command("HKEYS", keys.jobs(namespace))
    named = client.command("HKEYS", keys.running(namespace))
    now_ms, live, known, old = client.clock_ms(), set(), set(), []
    for raw, entry in _read(client):
        known.add(entry.jobs.encode())
        if entry.keeps_name(now_ms):
            live.add(raw)
        elif not entry.damaged and now_ms - entry.seen_at > KEPT_MS + 3 * entry.lease_ms:
            old.append(raw)
    _remove(client, keys.workers(namespace), old)
    _remove(client, keys.running(namespace), [raw for raw in named if raw not in live])
    _remove(client, keys.jobs(namespace), [raw for raw in digests if raw not in known])


def _remove(client: Client, hash_key: str, fields: list[bytes]) -> None:
    for first in range(0, len(fields), PER_CALL):
        client.command("HDEL", hash_key, *fields[first : first + PER_CALL])


# Calls of readers.


def workers(client: Client) -> list[WorkerEntry]:
    """Return every worker's last heartbeat, sorted by name, including killed workers and damaged entries."""
    return sorted((entry for _, entry in _read(client)), key=_NAME)


def workers_in(reply: Any) -> list[WorkerEntry]:
    """Return the workers in a reply to HGETALL; see `workers`."""
    return sorted((_entry(text_of(raw), decoded(text)) for raw, text in _pairs(reply)), key=_NAME)


def some_workers(client: Client, names: Sequence[str]) -> dict[str, WorkerEntry]:
    """Return the last heartbeats of these workers. Workers without an entry are left out."""
    entries: dict[str, WorkerEntry] = {}
    for first in range(0, len(names), PER_CALL):
        some = names[first : first + PER_CALL]
        reply = client.command("HMGET", keys.workers(client.namespace), *some)
        entries.update(
            (name, _entry(name, decoded(raw)))
            for name, raw in zip(some, reply, strict=True)
            if raw is not None
        )
    return entries


def workers_named(client: Client, names: Sequence[str]) -> dict[str, WorkerEntry]:
    """Return the last heartbeats of these workers, and of live workers with one of these names plus a suffix."""
    known, now_ms = {entry.name: entry for entry in workers(client)}, client.clock_ms()
    chosen: dict[str, WorkerEntry] = {}
    for name in names:
        twins = {
            other: entry
            for other, entry in known.items()
            if other.startswith(name + TWIN) and entry.is_live(now_ms)
        }
        # A missing worker is not an error while a worker of the same name is alive.
        if name in known and (known[name].is_live(now_ms) or not twins):
            chosen[name] = known[name]
        chosen |= twins
    return chosen


def served(client: Client) -> dict[str, int]:
    """Return the number of live workers that serve each queue."""
    now_ms, nworkers = client.clock_ms(), Counter[str]()
    for _, entry in _read(client):
        if entry.is_live(now_ms):
            nworkers.update(entry.queues)
    return nworkers


def running(client: Client, names: Sequence[str]) -> dict[str, tuple[ChildEntry, ...] | None]:
    """Return the children of each worker; None for a damaged entry. Workers without an entry are left out."""
    children: dict[str, tuple[ChildEntry, ...] | None] = {}
    for first in range(0, len(names), PER_CALL):
        some = names[first : first + PER_CALL]
        children |= running_in(some, client.command("HMGET", keys.running(client.namespace), *some))
    return children


def running_in(names: Sequence[str], reply: Any) -> dict[str, tuple[ChildEntry, ...] | None]:
    """Return the children of each worker from a reply to HMGET; see `running`."""
    entries = zip(names, reply, strict=True)
    return {name: _children(raw) for name, raw in entries if raw is not None}


def job_names(client: Client, digests: Iterable[str]) -> dict[str, frozenset[str] | None]:
    """Return the job names stored under each digest; None if they are missing or damaged."""
    wanted = sorted({digest for digest in digests if digest})
    if not wanted:
        return {}
    return job_names_in(wanted, client.command("HMGET", keys.jobs(client.namespace), *wanted))


def job_names_in(digests: Sequence[str], reply: Any) -> dict[str, frozenset[str] | None]:
    """Return the job names for each digest from a reply to HMGET; see `job_names`."""
    return {digest: _names(digest, raw) for digest, raw in zip(digests, reply, strict=True)}


def redactions(client: Client, jobs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the arguments to hide for each job with an entry; EVERYTHING if the entry is unreadable."""
    wanted, hidden = sorted(set(jobs)), dict[str, tuple[str, ...]]()
    for first in range(0, len(wanted), PER_CALL):
        some = wanted[first : first + PER_CALL]
        reply = client.command("HMGET", keys.redactions(client.namespace), *some)
        for name, raw in zip(some, reply, strict=True):
            if raw is not None:
                hidden[name] = _hidden(raw)
    return hidden


def every_redaction(client: Client) -> dict[str, tuple[str, ...]]:
    """Return the arguments to hide for each job that has an entry; see `redactions`."""
    reply = client.command("HGETALL", keys.redactions(client.namespace))
    return {text_of(raw): _hidden(text) for raw, text in _pairs(reply)}


def _hidden(text: bytes) -> tuple[str, ...]:
    names = decoded(text)
    fine = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if fine else (EVERYTHING,)


def _read(client: Client) -> Iterator[tuple[bytes, WorkerEntry]]:
    reply = client.command("HGETALL", keys.workers(client.namespace))
    for raw, text in _pairs(reply):
        yield raw, _entry(text_of(raw), decoded(text))


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    return reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)


def _entry(name: str, facts: Any) -> WorkerEntry:
    if not isinstance(facts, dict):
        return WorkerEntry(name, damaged=True)
    queues = facts.get("queues")
    named = [text_in(queue) for queue in queues] if isinstance(queues, list) else []
    number = {field: number_in(facts.get(field)) for field in _NUMBERS}
    return WorkerEntry(
        name,
        host=text_in(facts.get("host")),
        pid=number["pid"] or 0,
        version=text_in(facts.get("version")),
        queues=tuple(queue for queue in named if queue),
        slots=number["slots"] or 0,
        quiet=facts.get("quiet") is True,
        jobs=text_in(facts.get("jobs")),
        running=number["running"] or 0,
        lease_ms=number["lease_ms"] or 0,
        started_at=number["started_at"] or 0,
        seen_at=number["seen_at"] or 0,
        damaged=not isinstance(queues, list) or None in (number["seen_at"], number["lease_ms"]),
        leaving=facts.get("leaving") is True,
        strict=facts.get("strict") is True,
        schedules=_schedules(facts.get("schedules")),
        partitions=_partitions(facts.get("partitions")),
    )


def _schedules(facts: Any) -> dict[str, frozenset[str]] | None:
    if not isinstance(facts, dict) or not all(isinstance(names, list) for names in facts.values()):
        return None
    return {text_in(queue): frozenset(map(text_in, names)) for queue, names in facts.items()}


def _partitions(facts: Any) -> dict[str, int]:
    """Return the declared number of partitions of each queue. Invalid entries are left out."""
    if not isinstance(facts, dict):
        return {}
    numbers = {text_in(queue): number_in(count) for queue, count in facts.items()}
    return {queue: count for queue, count in numbers.items() if queue and count}


def _children(text: bytes) -> tuple[ChildEntry, ...] | None:
    facts = decoded(text)
    if not isinstance(facts, list):
        return None
    children = [_child(child) for child in facts]
    return None if None in children else tuple(child for child in children if child is not None)


def _child(facts: Any) -> ChildEntry | None:
    if not isinstance(facts, dict) or not isinstance(facts.get("running"), list):
        return None
    gathering = facts.get("gathering", [])
    if not isinstance(gathering, list):
        return None
    pid, rss, ended = (number_in(facts.get(field)) for field in ("pid", "rss", "ended"))
    jobs = [_placed(RunningJob, values) for values in facts["running"]]
    calls = [_placed(GatheringCall, values) for values in gathering]
    if pid is None or rss is None or ended is None or None in jobs or None in calls:
        return None
    return ChildEntry(
        pid, text_in(facts.get("state")), rss, ended, tuple(filter(None, jobs)), tuple(filter(None, calls))
    )  # fmt: skip


def _placed(kind: Callable[[str, str, int], T], facts: Any) -> T | None:
    """Parse a child's facts about a message as `kind(queue, mid, time)`; return None if they can't be read."""
    if not isinstance(facts, list) or len(facts) != 3:
        return None
    queue, mid, at = facts
    number = number_in(at)
    if not isinstance(queue, str) or not isinstance(mid, str) or number is None:
        return None
    return kind(text_in(queue), text_in(mid), number)


def _names(digest: str, text: bytes | None) -> frozenset[str] | None:
    names = decoded(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    try:
        return frozenset(names) if digest_of(names) == digest else None
    except UnicodeEncodeError:
        return None
