"""Collect facts about a message, such as its status, its events and its queue's workers.

The number of calls is bounded. The facts are read in several calls, so on a busy queue they may be milliseconds apart.
Facts that can't be read are left out, and `Collector.unread` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall
from jobq.client.pipelining import Read, read_together
from jobq.client.scripts import Argument
from jobq.errors import BadRecordError, CodecError, ConfigError, ScriptError, UnavailableError
from jobq.events import ATTEMPTS, SEPARATOR, Event, decode, named
from jobq.flows.identity import Member, member_of
from jobq.flows.state import FlowView
from jobq.flows.store import FlowStore
from jobq.jobs.envelope import envelope_of
from jobq.jobs.signing import opened, seal_of
from jobq.jobs.states import ENDED, StateWord, state_word
from jobq.observe.runs import RunningMessage, longest_by_queue, runs_in, usual_times
from jobq.observe.why import MAX_AHEAD, GatheredOn, MessageFacts, RunningOn, ServerFacts
from jobq.queue import keys, presence
from jobq.queue.presence import ChildEntry
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Page, Sample, Status, text_of

#: Maximum number of latest events to search for a message's history, and events per call.
MAX_EVENTS, EVENTS_PER_CALL = 5_000, 500
_SEPARATOR, _ATTEMPTS = SEPARATOR.encode(), frozenset(kind.encode() for kind in ATTEMPTS)
#: Up to this number, the ready messages before a message are counted one by one.
FEW_AHEAD = 100
#: How much the clocks of a heartbeat and of an event may differ.
CLOCKS_APART_MS = 1_000
#: Maximum number of queues to check among the queues that a worker empties first.
MAX_FIRST = 50
#: Maximum and minimum time over which a rate is measured.
RATE_MS, MIN_RATE_MS = 60_000, 1_000
#: A call to the server, or a number that is already known.
Asked: TypeAlias = Read | ScriptCall[Any] | int
#: Sections of INFO that show whether the server accepts writes.
SECTIONS = ("memory", "persistence")
_NEEDED = ("status", "clock")
#: Kind of a message's last event -> state of the message.
_STATES: dict[str, StateWord] = {
    "done": "done", "cancelled": "cancelled", "expired": "expired", "dead": "failed", "evicted": "failed",
}  # fmt: skip
#: Texts shown for unreadable parts.
_SAID = {
    "content": "content", "counts": "counts", "dead": "dead messages", "ahead": "ready list", "length": "ready list",
    "has keys": "rules", "line": "keys", "events": "events", "more events": "events", "workers": "list of workers",
    "flow": "flow", "result": "result", "result ttl": "result", "jobs": "jobs of workers", "page": "ready list",
}  # fmt: skip


class Collector:
    """Reads the facts about a message.

    Attributes:
        result: True to also read the job's result.
        unread: Facts that can't be read, with the reason for each.
        found_content: Content of the last message collected.
        found_result: Result of the last message collected, and the seconds until it expires (-1 if it never expires).
    """

    def __init__(self, queue: Queue, *, result: bool = False) -> None:
        self.queue = queue
        self.unread: dict[str, str] = {}
        self.found_content = b""
        self.found_result: tuple[bytes, int] | None = None
        self._wants_result = result

    def collect(self, mid: str) -> MessageFacts:
        """Return all facts for `jobq why`. This takes two round trips, or more on a Cluster."""
        queue, member = self.queue, member_of(mid)
        first = self._ask(self._asked_first(mid, member))
        status: Status = first["status"]
        self.found_content = first.get("content") or b""
        if first.get("result") is not None:
            self.found_result = first["result"], int(first.get("result ttl") or -1)
        job = job_in(queue, mid, self.found_content)
        workers = [
            worker for worker in presence.workers_in(first.get("workers") or ()) if worker.serves(queue.name)
        ]  # fmt: skip
        now_ms = _clock_of(first["clock"])
        digests = sorted({worker.jobs for worker in workers if worker.jobs}) if job else []
        held = status.word.startswith("locked")
        busy = [
            worker.name for worker in workers if worker.running or (held and worker.is_live(now_ms))
        ]
        firsts = list(dict.fromkeys(
            name for worker in workers if worker.is_live(now_ms) for name in worker.before(queue.name)
        ))[:MAX_FIRST]  # fmt: skip
        second = self._ask(
            self._asked_second(mid, first, digests, busy) | self._asked_of_others(firsts)
        )
        events = [*entries(first.get("events") or ()), *entries(second.get("more events") or ())]
        names = presence.job_names_in(digests, second.get("jobs") or [None] * len(digests))
        known = {worker.name: names.get(worker.jobs) for worker in workers}
        sample: Sample | None = first.get("counts")
        dead: list[DeadMessage] = first.get("dead") or []
        longest = self._longest(
            second, busy, {worker.name for worker in workers if worker.is_live(now_ms)}, events, mid
        )
        history = tuple(_of_mid(events, mid))
        running = _running_of(second, busy)
        return MessageFacts(
            queue=queue.name,
            mid=mid,
            now_ms=now_ms,
            status=status,
            # Events outlive the content of a finished message.
            job=job or next((event.job for event in reversed(history) if event.job), ""),
            paused=sample is not None and sample.counts.paused,
            pause_ends=sample.pause_ends if sample else 0,
            flow_entries=sample.flow_entries if sample else 0,
            ahead=_ahead(first.get("ahead"), first.get("length"), second.get("page")),
            workers=tuple(workers),
            knows={name: job in jobs for name, jobs in known.items() if job and jobs is not None},
            run=_among(running, queue.name, mid, history),
            gathered=_gathered(running, queue.name, mid) if held else None,
            starts_per_s=_rate(events, now_ms, sample is None or sample.records_attempts)
            if "events" in first
            else None,
            history=history,
            dead=dead[0] if dead else None,
            line=second.get("line"),
            server=_server(queue, first),
            # A flow that can't be read isn't gone.
            member=member if "flow" in first else None,
            first=_ready_of(firsts, second),
            flow=FlowView(facts) if (facts := first.get("flow")) else None,
            longest=longest if status.word in ("queued", "done-with-requeue") else None,
        )  # fmt: skip

    def _longest(
        self, second: dict[str, Any], busy: Sequence[str], live: set[str], events: Sequence[WrittenEvent], mid: str
    ) -> RunningMessage | None:  # fmt: skip
        queue = self.queue
        runs = [
            run
            for name, children in _running_of(second, busy).items()
            if name in live
            for run in runs_in(name, children or ())
        ]
        longest = longest_by_queue(runs).get(queue.name)
        if longest is None or longest.mid == mid:
            return None
        key = keys.key(queue.prefix, "messages")
        content = self._ask({"content": plain("HGET", key, longest.mid)}).get("content") or b""
        job = job_in(queue, longest.mid, content)
        usual = usual_times(event_of(event) for event in events)
        return longest._replace(job=job, usual_ms=usual.get(job))

    def _asked_first(self, mid: str, member: Member | None) -> dict[str, Asked]:
        queue, near = self.queue, self.queue.wake_key
        prefix, namespace = queue.prefix, queue.client.namespace
        clock = queue.client.clock
        now = None if clock is None else clock()
        ready = keys.key(prefix, "ready")
        asked: dict[str, Asked] = {
            "status": queue.status_call(mid, now=now),
            "clock": plain("TIME", near=near) if now is None else now,
            "content": plain("HGET", keys.key(prefix, "messages"), mid),
            "counts": queue.admin.sample_call(),
            "dead": queue.admin.dead_call(mid),
            "ahead": plain("LPOS", ready, mid, "MAXLEN", MAX_AHEAD),
            "length": plain("LLEN", ready),
            "has keys": plain("HEXISTS", keys.key(prefix, "meta"), "turn"),
            "events": events_before(prefix, "+", EVENTS_PER_CALL),
            "workers": plain("HGETALL", keys.workers(namespace)),
        }
        if member is not None:
            asked["flow"] = FlowStore(queue.client, member.run).facts_call()
        if self._wants_result:
            result = queue.result_key(mid)
            asked |= {"result": plain("LINDEX", result, 0), "result ttl": plain("TTL", result)}
        if may_ask_info(queue.client):
            asked |= {name: plain("INFO", name, near=near) for name in SECTIONS}
        return asked

    def _asked_second(
        self, mid: str, first: dict[str, Any], digests: list[str], busy: list[str]
    ) -> dict[str, Asked]:
        queue, namespace = self.queue, self.queue.client.namespace
        clock = queue.client.clock
        page: list[Any] = first.get("events") or []
        now = None if clock is None else clock()
        asked: dict[str, Asked] = {}
        if digests:
            asked["jobs"] = plain("HMGET", keys.jobs(namespace), *digests)
        for at in range(0, len(busy), presence.PER_CALL):
            some = busy[at : at + presence.PER_CALL]
            asked[f"running {at}"] = plain("HMGET", keys.running(namespace), *some)
        if first.get("has keys"):
            asked["line"] = queue.why_call(mid, now=now)
        ahead = first.get("ahead")
        if ahead is not None and 0 < ahead <= FEW_AHEAD:
            # Ids of messages that have left ready remain in its list for a while; a page skips them.
            asked["page"] = queue.admin.content_call("ready", 0, int(ahead), now=now)
        if len(page) == EVENTS_PER_CALL:
            oldest = f"({page[-1][0].decode()}"
            asked["more events"] = events_before(queue.prefix, oldest, MAX_EVENTS - len(page))
        return asked

    def _asked_of_others(self, queues: Sequence[str]) -> dict[str, Asked]:
        """Return calls that read the message counts of `queues`. Invalid names are skipped."""
        client = self.queue.client
        calls: dict[str, Asked] = {}
        for name in queues:
            with suppress(ConfigError):  # the names may come from any program
                calls[f"counts of {name}"] = Queue(name, client).admin.sample_call()
        return calls

    def _ask(self, asked: dict[str, Asked]) -> dict[str, Any]:
        reads = {name: call for name, call in asked.items() if not isinstance(call, int)}
        answers: dict[str, Any] = {name: n for name, n in asked.items() if isinstance(n, int)}
        replies = read_together(self.queue.client, list(reads.values()))
        for name, reply in zip(reads, replies, strict=True):
            if not isinstance(reply, Exception):
                answers[name] = reply
            elif name in _NEEDED or not isinstance(reply, ScriptError | UnavailableError):
                raise reply
            elif name not in SECTIONS:
                self.unread[
                    _SAID.get(name) or ("running jobs" if name.startswith("running") else name)
                ] = str(reply)
        return answers

    def logs(self, mid: str, attempts: Sequence[int]) -> dict[int, bytes]:
        """Return the attempts' logs by attempt number, in one round trip. Attempts without a log are left out."""
        admin = self.queue.admin
        reads = [plain(*admin.log_words(mid, number)) for number in attempts]
        replies = read_together(self.queue.client, reads)
        # If the user may not read a key, or the key has another type, there is no log.
        return {
            number: reply
            for number, reply in zip(attempts, replies, strict=True)
            if reply and not isinstance(reply, Exception)
        }


def plain(*words: Argument, near: str = "") -> Read:
    """Return a plain Redis command that can be sent together with other calls.

    Args:
        near: On a Cluster, send the command to the node with this key, by default the command's first argument.
    """
    return Read(near or str(words[1]), words)


def _clock_of(reply: Any) -> int:
    """Convert a reply to the command TIME to epoch milliseconds. A number is returned unchanged."""
    return reply if isinstance(reply, int) else int(reply[0]) * 1000 + int(reply[1]) // 1000


def _ahead(place: Any, length: Any, page: Page | None) -> int | None:
    """Return how many ready messages come before this message, at most MAX_AHEAD. Return None if this message isn't
    ready.
    """
    if place is not None:
        whole = page is not None and page.next_offset == place
        return len(page.entries) if page is not None and whole else int(place)
    return MAX_AHEAD if length is not None and int(length) > MAX_AHEAD else None


def _ready_of(queues: Sequence[str], second: dict[str, Any]) -> dict[str, int]:
    counts = {
        name: second[f"counts of {name}"].counts for name in queues if f"counts of {name}" in second
    }
    return {name: count.ready for name, count in counts.items() if not count.paused}


def _running_of(
    second: dict[str, Any], busy: Sequence[str]
) -> dict[str, tuple[ChildEntry, ...] | None]:
    children: dict[str, tuple[ChildEntry, ...] | None] = {}
    for at in range(0, len(busy), presence.PER_CALL):
        some = busy[at : at + presence.PER_CALL]
        children |= presence.running_in(some, second.get(f"running {at}") or [None] * len(some))
    return children


def _among(
    running: dict[str, tuple[ChildEntry, ...] | None],
    queue: str,
    mid: str,
    history: Sequence[Event],
) -> RunningOn | None:
    """Return the process and the start time of the message's current run.

    Ignore runs that started before the latest end in `history`: a lost worker's last heartbeat may still list such
    runs.
    """
    ended_at = max((event.finished_at for event in history if event.kind in ATTEMPTS), default=0)
    runs = [
        run
        for name, children in running.items()
        for run in runs_in(name, children or ())
        if (run.queue, run.mid) == (queue, mid) and run.started_at > ended_at - CLOCKS_APART_MS
    ]
    if not runs:
        return None
    latest = max(runs, key=lambda run: run.started_at)
    return RunningOn(latest.worker, latest.pid, latest.started_at)


def _gathered(
    children_of: dict[str, tuple[ChildEntry, ...] | None], queue: str, mid: str
) -> GatheredOn | None:
    for name, children in children_of.items():
        for child in children or ():
            for call in child.gathering:
                if (call.queue, call.mid) == (queue, mid):
                    return GatheredOn(name, child.pid, call.starts_at)
    return None


def _server(queue: Queue, read: dict[str, Any]) -> ServerFacts:
    """Return facts about the server. If a section of INFO can't be read, all facts are empty."""
    if not all(section in read for section in SECTIONS):
        return ServerFacts()
    try:
        return server_facts(queue, [read[section] for section in SECTIONS])
    except (ScriptError, UnavailableError) as error:
        if queue.client.is_lost(error):
            raise
        return ServerFacts()


def may_ask_info(client: Client) -> bool:
    """Return whether the client uses the default user, who may run INFO."""
    # The server logs rejected commands of other users.
    return urlsplit(client.url).username in (None, "", "default")


def server_facts(queue: Queue, sections: Sequence[bytes] = ()) -> ServerFacts:
    """Return facts about the queue's server, such as whether the server accepts writes.

    Args:
        sections: Replies to `INFO` commands, if already known.
    """
    near = queue.wake_key
    info: dict[str, str] = {}
    for reply in sections or [
        queue.client.command("INFO", name, routed_by=near) for name in SECTIONS
    ]:
        lines = text_of(reply).splitlines()
        info |= dict(line.split(":", 1) for line in lines if ":" in line)
    used, most = (int(info.get(name) or 0) for name in ("used_memory", "maxmemory"))
    failed = info.get("aof_enabled") == "1" and info.get("aof_last_write_status", "ok") != "ok"
    error = "it can't write its append-only file" if failed else _unsaved(queue, info)
    return ServerFacts(used, most, info.get("maxmemory_policy") != "noeviction", error)


def _unsaved(queue: Queue, info: dict[str, str]) -> str:
    """Return why the server rejects writes after a failed snapshot, or '' if it accepts writes."""
    if info.get("rdb_last_bgsave_status", "ok") == "ok":
        return ""
    names = ("save", "stop-writes-on-bgsave-error")
    reply = queue.client.command("CONFIG", "GET", *names, routed_by=queue.wake_key)
    config = dict(zip(map(text_of, reply[::2]), map(text_of, reply[1::2]), strict=True))
    stops = bool(config.get("save")) and config.get("stop-writes-on-bgsave-error") == "yes"
    return "it can't write its snapshot" if stops else ""


def public_state(
    status: Status, history: Sequence[Event] = (), end: StateWord = "unknown"
) -> StateWord:
    """Return the public state of a message.

    For all finished messages, a queue stores the same status. If `end` is unknown, the message's latest event
    determines the state.

    Args:
        end: The stored final state of the message, if there is one.
    """
    word = state_word(status)
    if end != "unknown" or word not in ENDED or word == "failed" or not history:
        return word if end == "unknown" else end
    return _STATES.get(history[-1].kind, word)


def job_in(queue: Queue, mid: str, content: bytes) -> str:
    """Return the name of a message's job, or '' if the content can't be read, for example because it is encrypted."""
    try:
        return job_name(opened(seal_of(queue.client), queue.name, mid, content))
    except CodecError:
        return job_name(content)


def job_name(content: bytes) -> str:
    """Return the name of the job in a message's content, or '' if it can't be read. Signatures aren't checked."""
    name = envelope_of(content).get("job")
    return name if isinstance(name, str) else ""


def _of_mid(events: Iterable[WrittenEvent], mid: str) -> list[Event]:
    wanted = f"{SEPARATOR}{mid}{SEPARATOR}".encode()
    decoded = [event_of(event) for event in events if wanted in event.record]
    return [event for event in decoded[::-1] if event is not None and event.mid == mid]


def starts_per_s(queue: Queue) -> float | None:
    """Estimate how many attempts start per second from the attempts that finished in the last minute or less.

    Returns None if no attempt finished and the queue doesn't record attempts.
    """
    now_ms = queue.client.clock_ms(queue.wake_key)
    rate = _rate(newest(queue, now_ms - RATE_MS), now_ms, True)
    return rate if rate or queue.admin.sample().records_attempts else None


def _rate(events: Iterable[WrittenEvent], now_ms: int, records: bool) -> float | None:
    number, since = 0, 0
    for seen, event in enumerate(events, 1):
        if event.at_ms < now_ms - RATE_MS:
            break
        if seen == MAX_EVENTS or (seen > EVENTS_PER_CALL and now_ms - event.at_ms > MIN_RATE_MS):
            since = event.at_ms
            break
        number += event.record.partition(_SEPARATOR)[0] in _ATTEMPTS
    if not number and not records:
        return None
    return number / max(MIN_RATE_MS, min(RATE_MS, now_ms - since)) * 1000


class EndedRuns(NamedTuple):
    """Facts from the latest events of a queue.

    Attributes:
        per_s: Attempts finished per second, in the last minute or less.
    """

    per_s: float
    mean_run_s: float


def ended_runs(queue: Queue) -> EndedRuns | None:
    """Return the rate and the mean run time of recent attempts, or None if there are none."""
    now_ms = queue.client.clock_ms(queue.wake_key)
    page = list(newest(queue, most=EVENTS_PER_CALL))
    events = [event_of(entry) for entry in page]
    ran = [event for event in events if event and event.kind in ATTEMPTS and event.run_us]
    if not ran:
        return None
    oldest = page[-1].at_ms if len(page) == EVENTS_PER_CALL else 0
    since = max(now_ms - RATE_MS, oldest)
    ended = sum(event.kind in ATTEMPTS and event.finished_at >= since for event in events if event)
    mean_s = sum(event.run_us for event in ran) / len(ran) / 1e6
    return EndedRuns(ended / max(MIN_RATE_MS, now_ms - since) * 1000, mean_s)


class WrittenEvent(NamedTuple):
    """One entry of a queue's event stream.

    Attributes:
        at_ms: When the entry was written, in epoch ms.
    """

    entry_id: str
    at_ms: int
    version: bytes
    record: bytes


def newest(
    queue: Queue, since_ms: int = 0, before: str = "+", most: int = MAX_EVENTS
) -> Iterator[WrittenEvent]:
    """Yield the latest entries of a queue's event stream, latest first.

    Args:
        before: `(` and an id, to read only entries before that entry.
    """
    last, left = before, most
    while left > 0:
        wanted = min(left, EVENTS_PER_CALL)
        asked = events_before(queue.prefix, last, wanted, since_ms)
        reply = queue.client.command(*asked.words)
        yield from entries(reply)
        if len(reply) < wanted:
            return
        last, left = f"({reply[-1][0].decode()}", left - len(reply)


def events_before(prefix: str, last: str, most: int, since_ms: int = 0) -> Read:
    """Return a call that reads the latest entries of a queue's event stream, latest first.

    Args:
        last: `+` to start at the latest entry, or `(` and an id to read only entries before that entry.
    """
    return plain("XREVRANGE", keys.key(prefix, "events"), last, max(0, since_ms), "COUNT", most)


def entries(reply: Iterable[Any]) -> Iterator[WrittenEvent]:
    """Parse the entries in a reply to the command XREVRANGE."""
    for entry_id, fields in reply:
        at_ms = int(entry_id.partition(b"-")[0])
        yield WrittenEvent(entry_id.decode(), at_ms, *fields[:2])


def event_of(written: WrittenEvent) -> Event | None:
    """Return the event in an entry, or the event's readable part. Return None if no part is readable."""
    try:
        return decode(written.record, written.version)
    except BadRecordError:
        return named(written.record, written.version, written.at_ms)
