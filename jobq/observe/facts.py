"""Collect what is known of a message, for people: its status, its history, the workers of its queue.

All of it is read in bounded calls, without a lock between them: on a busy queue the parts may be milliseconds apart.
A part that can't be read is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from jobq.errors import BadRecordError, CodecError, ScriptError, UnavailableError
from jobq.events import ATTEMPTS, SEPARATOR, Event, decode, named
from jobq.flows.identity import member_of
from jobq.flows.listing import flow_view
from jobq.flows.state import FlowView
from jobq.jobs.signing import opened, seal_of, unverified
from jobq.observe.why import MOST_AHEAD, MessageFacts, RunningOn, ServerFacts
from jobq.queue import keys, presence
from jobq.queue.presence import WorkerEntry
from jobq.queue.queue import Queue
from jobq.queue.rules import KeyFacts
from jobq.queue.types import DeadMessage, WaitingHead, text_of

T = TypeVar("T")
#: Newest events in which a message's history is looked for, and how many are read at once.
MOST_EVENTS, EVENTS_PER_CALL = 5_000, 500
_SEPARATOR, _ATTEMPTS = SEPARATOR.encode(), frozenset(kind.encode() for kind in ATTEMPTS)
#: So many before a message are counted one by one.
FEW_AHEAD = 100
#: Over which time a rate is measured, and at least.
RATE_MS, LEAST_RATE_MS = 60_000, 1_000


class Collector:
    """Reads the facts of messages. unread: what could not be read -> why."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.unread: dict[str, str] = {}

    def collect(self, mid: str) -> MessageFacts:
        """Everything that `why` asks."""
        queue = self.queue
        status = queue.status(mid)
        job = self.job(mid)
        workers = self._workers()
        no_dead: list[DeadMessage] = []
        dead = self._try("dead messages", lambda: queue.admin.dead(mid=mid), no_dead)
        return MessageFacts(
            queue=queue.name,
            mid=mid,
            now_ms=queue.client.clock_ms(queue.wake_key),
            status=status,
            job=job,
            paused=self._try("counts", lambda: queue.admin.counts().paused, False),
            ahead=self._try("ready", lambda: self._ahead(mid), None),
            workers=tuple(workers),
            knows=self._try("jobs of workers", lambda: self._knows(job, workers), {}),
            run=self.run(mid, workers),
            starts_per_s=self._try("events", lambda: starts_per_s(queue), None),
            history=self.history(mid),
            dead=dead[0] if dead else None,
            line=self.line(mid),
            server=self._server(),
            member=member_of(mid),
            flow=None if status.word == "nil" else self.flow(mid),
        )

    def flow(self, mid: str) -> FlowView | None:
        """The flow that a message belongs to; None for another message, or a flow that is gone."""
        member = member_of(mid)
        if member is None:
            return None
        return self._try("flow", lambda: flow_view(self.queue.client, member.flow), None)

    def job(self, mid: str) -> str:
        """The job of a message, '' if that isn't known."""
        content = self.content(mid)
        try:
            return job_name(opened(seal_of(self.queue.client), self.queue.name, mid, content))
        except CodecError:
            return job_name(content)

    def content(self, mid: str) -> bytes:
        """The content of a live message, b'' if there is none."""
        return self._try("content", lambda: self.queue.content(mid) or b"", b"")

    def result(self, mid: str) -> tuple[bytes, int] | None:
        """What its job returned, and for how many seconds it is kept (-1: without end); None if nothing is stored."""
        return self._try("result", lambda: self._result(mid), None)

    def _result(self, mid: str) -> tuple[bytes, int] | None:
        key, client = self.queue.result_key(mid), self.queue.client
        found = client.command("LINDEX", key, 0)
        return None if found is None else (found, int(client.command("TTL", key)))

    def line(self, mid: str) -> KeyFacts | None:
        """The key of a message and what holds that up; None if the queue has no keys."""
        if not self._try("rules", self.queue.admin.has_keys, False):
            return None
        return self._try("keys", lambda: self.queue.why(mid), None)

    def run(self, mid: str, workers: list[WorkerEntry] | None = None) -> RunningOn | None:
        """Where this mid runs, as of the worker's last heartbeat."""
        among = self._workers() if workers is None else workers
        return self._try("running jobs", lambda: self._running_on(mid, among), None)

    def _workers(self) -> list[WorkerEntry]:
        return self._try("list of workers", self._serving, [])

    def _serving(self) -> list[WorkerEntry]:
        found = presence.workers(self.queue.client)
        return [worker for worker in found if worker.serves(self.queue.name)]

    def _knows(self, job: str, workers: list[WorkerEntry]) -> dict[str, bool]:
        names = presence.job_names(self.queue.client, (worker.jobs for worker in workers))
        known = {worker.name: names.get(worker.jobs) for worker in workers}
        return {name: job in jobs for name, jobs in known.items() if job and jobs is not None}

    def history(self, mid: str) -> tuple[Event, ...]:
        """The events of this mid among the newest of the queue, oldest first."""
        return self._try("events", lambda: tuple(history(self.queue, mid)), ())

    def _running_on(self, mid: str, workers: list[WorkerEntry]) -> RunningOn | None:
        names = [worker.name for worker in workers if worker.running]
        for name, children in presence.running(self.queue.client, names).items():
            for child in children or ():
                for job in child.running:
                    if (job.queue, job.mid) == (self.queue.name, mid):
                        return RunningOn(name, child.pid, job.started_at)
        return None

    def _server(self) -> ServerFacts:
        """Nothing for a user with a name: the roles have no INFO, and the server logs each refusal."""
        if urlsplit(self.queue.client.url).username not in (None, "", "default"):
            return ServerFacts()
        try:
            return server_facts(self.queue)
        except (ScriptError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and not self.queue.client.is_cluster:
                raise
            return ServerFacts()

    def _ahead(self, mid: str) -> int | None:
        ready = keys.key(self.queue.prefix, "ready")
        found = self.queue.client.command("LPOS", ready, mid, "MAXLEN", MOST_AHEAD)
        if found is not None and 0 < found <= FEW_AHEAD:
            # Mids that have left ready still stand in its list for a while; a page leaves them out.
            page = self.queue.admin.content("ready", 0, int(found))
            return len(page.entries) if page.following == found else int(found)
        if found is not None:
            return int(found)
        length = int(self.queue.client.command("LLEN", ready))
        return MOST_AHEAD if length > MOST_AHEAD else None

    def _try(self, what: str, read: Callable[[], T], default: T) -> T:
        """What `read` returns; the default if the key has another type, is closed to this user, or its node is away."""
        try:
            return read()
        except (ScriptError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and not self.queue.client.is_cluster:
                raise
            self.unread[what] = str(error)
            return default


def server_facts(queue: Queue) -> ServerFacts:
    """Ask the server of the queue's keys whether it takes writes."""
    info: dict[str, str] = {}
    for section in ("memory", "persistence"):
        reply = queue.client.command("INFO", section, routed_by=queue.wake_key)
        lines = text_of(reply).splitlines()
        info |= dict(line.split(":", 1) for line in lines if ":" in line)
    used, most = (int(info.get(name) or 0) for name in ("used_memory", "maxmemory"))
    failed = info.get("aof_enabled") == "1" and info.get("aof_last_write_status", "ok") != "ok"
    error = "it can't write its append-only file" if failed else _unsaved(queue, info)
    return ServerFacts(used, most, info.get("maxmemory_policy") != "noeviction", error)


def _unsaved(queue: Queue, info: dict[str, str]) -> str:
    """With save points a server that can't write its snapshot takes no writes, unless it is configured to."""
    if info.get("rdb_last_bgsave_status", "ok") == "ok":
        return ""
    names = ("save", "stop-writes-on-bgsave-error")
    reply = queue.client.command("CONFIG", "GET", *names, routed_by=queue.wake_key)
    found = dict(zip(map(text_of, reply[::2]), map(text_of, reply[1::2]), strict=True))
    stops = bool(found.get("save")) and found.get("stop-writes-on-bgsave-error") == "yes"
    return "it can't write its snapshot" if stops else ""


def job_name(content: bytes) -> str:
    """Return the job that an envelope names, '' for other or encrypted bytes. No signature is checked."""
    call = _envelope(content)
    name = call.get("job")
    return name if isinstance(name, str) else ""


def enqueued_at(content: bytes) -> int:
    """Return when an envelope says that it was enqueued, epoch ms by the producer's clock; 0 if it doesn't."""
    at = _envelope(content).get("enqueued_at")
    return at if isinstance(at, int) and not isinstance(at, bool) and 0 < at < 2**53 else 0


def head_enqueued_at(head: WaitingHead | None) -> int:
    """Return since when the message that is next has waited, epoch ms by its producer's clock; 0 if that is unknown.

    A retry was enqueued long before it waited; of a sealed call the time is unknown.
    """
    return enqueued_at(head.content) if head and not head.attempts else 0


def _envelope(content: bytes) -> dict[object, object]:
    try:
        call = msgspec.json.decode(unverified(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return call if isinstance(call, dict) else {}


def history(queue: Queue, mid: str) -> list[Event]:
    """The events of a mid among the newest MOST_EVENTS of its queue, oldest first."""
    wanted = f"{SEPARATOR}{mid}{SEPARATOR}".encode()
    found = [event_of(one) for one in newest(queue) if wanted in one.record]
    return [event for event in found[::-1] if event is not None and event.mid == mid]


def starts_per_s(queue: Queue) -> float | None:
    """Attempts that ended per second in the last minute, on a busy queue in the last seconds; None without events."""
    now_ms, number, since = queue.client.clock_ms(queue.wake_key), 0, 0
    for seen, one in enumerate(newest(queue, now_ms - RATE_MS), 1):
        if seen == MOST_EVENTS or (seen > EVENTS_PER_CALL and now_ms - one.at_ms > LEAST_RATE_MS):
            since = one.at_ms
            break
        number += one.record.partition(_SEPARATOR)[0] in _ATTEMPTS
    if not number and not queue.admin.sample().added:
        return None
    return number / max(LEAST_RATE_MS, min(RATE_MS, now_ms - since)) * 1000


class EndedRuns(NamedTuple):
    """What the newest events of a queue say. per_s: attempts that ended per second, in the last minute or less."""

    per_s: float
    mean_run_s: float


def ended_runs(queue: Queue) -> EndedRuns | None:
    """Return how often and how long attempts ran lately, from one page of events; None if none ran."""
    now_ms = queue.client.clock_ms(queue.wake_key)
    page = list(newest(queue, most=EVENTS_PER_CALL))
    found = [event_of(one) for one in page]
    ran = [event for event in found if event and event.kind in ATTEMPTS and event.run_us]
    if not ran:
        return None
    oldest = page[-1].at_ms if len(page) == EVENTS_PER_CALL else 0
    since = max(now_ms - RATE_MS, oldest)
    ended = sum(event.kind in ATTEMPTS and event.finished_at >= since for event in found if event)
    mean_s = sum(event.run_us for event in ran) / len(ran) / 1e6
    return EndedRuns(ended / max(LEAST_RATE_MS, now_ms - since) * 1000, mean_s)


class WrittenEvent(NamedTuple):
    """One entry of the stream. at_ms: when it was written."""

    entry_id: str
    at_ms: int
    version: bytes
    record: bytes


def newest(
    queue: Queue, since_ms: int = 0, before: str = "+", most: int = MOST_EVENTS
) -> Iterator[WrittenEvent]:
    """The newest entries, newest first. before: an entry's id behind `(`, to go on from there."""
    key, last, left = keys.key(queue.prefix, "events"), before, most
    while left > 0:
        wanted = min(left, EVENTS_PER_CALL)
        reply = queue.client.command("XREVRANGE", key, last, max(0, since_ms), "COUNT", wanted)
        for entry_id, fields in reply:
            at_ms = int(entry_id.partition(b"-")[0])
            yield WrittenEvent(entry_id.decode(), at_ms, *fields[:2])
        if len(reply) < wanted:
            return
        last, left = f"({reply[-1][0].decode()}", left - len(reply)


def event_of(written: WrittenEvent) -> Event | None:
    """The event of an entry, or what of it can be read; None if nothing can."""
    try:
        return decode(written.record, written.version)
    except BadRecordError:
        return named(written.record, written.version, written.at_ms)
