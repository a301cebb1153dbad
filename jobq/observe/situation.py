"""Read the facts about a deployment for `jobq.observe.incidents`, in a few bounded round trips.

Facts that can't be read are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.numbered_calls import ScriptCall
from jobq.client.pipelining import Read, read_together, run_each
from jobq.errors import ConfigError, JobqError, UnavailableError
from jobq.events import ATTEMPTS, Event
from jobq.jobs.envelope import head_enqueued_at, head_job
from jobq.jobs.states import state_word
from jobq.observe.facts import (
    MIN_RATE_MS,
    RATE_MS,
    SECTIONS,
    entries,
    event_of,
    events_before,
    job_in,
    may_ask_info,
    plain,
    server_facts,
)
from jobq.observe.incidents import QueueFacts, Situation
from jobq.observe.runs import RunningMessage, longest_by_queue, runs_in, usual_times
from jobq.observe.why import ServerFacts
from jobq.queue import keys, presence
from jobq.queue.directory import queue_names
from jobq.queue.folding import by_base, summed
from jobq.queue.presence import ChildEntry, WorkerEntry
from jobq.queue.queue import Queue
from jobq.queue.types import Sample, Status, text_of

#: Maximum number of queues to read events and messages of, largest first; and events per queue.
MAX_QUEUES, EVENTS_OF_EACH = 30, 200
#: Maximum number of unknown jobs' messages to read per queue; with more, the numbers by job are estimates.
MAX_UNKNOWN = 100
#: A longer content isn't read for the name of its job, and no more messages are asked for in one call.
MAX_CONTENT, PER_CALL = 1 << 16, 500


def read_situation(client: Client, names: Sequence[str] | None = None) -> Situation:
    """Read the facts about a deployment.

    `Situation.unread` lists the queues whose facts can't be read.

    Args:
        names: Queues to read, by default all.
    """
    queues = [Queue(name, client) for name in (queue_names(client) if names is None else names)]
    samples = run_each(client, [queue.admin.sample_call() for queue in queues])
    workers: list[WorkerEntry] | None = None
    try:
        workers = presence.workers(client)
    except UnavailableError:
        raise
    except JobqError:
        pass  # the roles may not, or the key is damaged
    readable = {
        queue.name: sample
        for queue, sample in zip(queues, samples, strict=True)
        if isinstance(sample, Sample)
    }
    unread = {
        queue.name: str(sample)
        for queue, sample in zip(queues, samples, strict=True)
        if not isinstance(sample, Sample)
    }
    return replace(situation_of(client, client.clock_ms(), workers, readable), unread=unread)


def situation_of(
    client: Client,
    now_ms: int,
    workers: Sequence[WorkerEntry] | None,
    samples: Mapping[str, Sample],
) -> Situation:
    """Read the remaining facts about a deployment. The workers and the queues' samples are already known.

    A queue's facts include the facts of its partitions.
    """
    queues = {name: Queue(name, client) for name in _busiest(samples)}
    busy = [worker.name for worker in workers or () if worker.running][: presence.PER_CALL]
    digests = _digests(workers or (), samples)
    asked: dict[str, Read | ScriptCall[Any]] = {}
    if busy:
        asked["running"] = plain("HMGET", keys.running(client.namespace), *busy)
    if digests:
        asked["jobs"] = plain("HMGET", keys.jobs(client.namespace), *digests)
    for name, queue in queues.items():
        if samples[name].added:
            asked[f"events {name}"] = events_before(queue.prefix, "+", EVENTS_OF_EACH)
    if may_ask_info(client) and not client.is_cluster:
        asked |= {
            name: plain("INFO", name, near=keys.workers(client.namespace)) for name in SECTIONS
        }
    known = _ask(client, asked)
    running = presence.running_in(busy, known.get("running") or [None] * len(busy))
    live = {worker.name for worker in workers or () if worker.is_live(now_ms)}
    longest = longest_by_queue(
        run for name, children in running.items() if name in live for run in runs_in(name, children or ())
    )  # fmt: skip
    jobs = jobs_of(
        client, [(run.queue, run.mid) for run in longest.values() if run.queue in queues]
    )
    unknown = unknown_jobs(client, {name: samples[name] for name in queues})
    names = presence.job_names_in(digests, known.get("jobs") or [None] * len(digests))
    facts = {
        name: _facts(
            name, sample, now_ms, _events(known.get(f"events {name}") or ()), unknown.get(name, {}), jobs,
            longest.get(name),
        )
        for name, sample in samples.items()
    }  # fmt: skip
    return Situation(
        now_ms, _server(client, known), workers, _folded(_with_deleted(client, queues, facts)),
        {digest: jobs for digest, jobs in names.items() if jobs is not None},
        {name: sum(len(child.running) for child in children or ()) for name, children in running.items()},
    )  # fmt: skip


def _busiest(samples: Mapping[str, Sample]) -> list[str]:
    """Return the queues to read. Queues with unknown jobs come first, then the queues with the most messages."""

    def rank(name: str) -> tuple[int, ...]:
        sample = samples[name]
        counts = sample.counts
        return -sample.unknowns, -counts.ready, -counts.locked, -counts.messages, -counts.dead

    used = [
        name for name, sample in samples.items() if sample.counts.messages or sample.counts.dead
    ]
    return sorted(used, key=rank)[:MAX_QUEUES]


def _digests(workers: Iterable[WorkerEntry], samples: Mapping[str, Sample]) -> list[str]:
    if not any(sample.unknowns for sample in samples.values()):
        return []
    return sorted({worker.jobs for worker in workers if worker.jobs})[: presence.PER_CALL]


def _ask(client: Client, asked: Mapping[str, Read | ScriptCall[Any]]) -> dict[str, Any]:
    replies = read_together(client, list(asked.values()))
    return {
        name: reply
        for name, reply in zip(asked, replies, strict=True)
        if not isinstance(reply, Exception)
    }


def _server(client: Client, known: Mapping[str, Any]) -> ServerFacts:
    if not all(section in known for section in SECTIONS):
        return ServerFacts()
    try:
        return server_facts(Queue("any", client), [known[section] for section in SECTIONS])
    except UnavailableError:
        raise
    except JobqError:
        return ServerFacts()


def _events(reply: Iterable[Any]) -> list[Event]:
    events = [event_of(entry) for entry in entries(reply)]
    return [event for event in events if event is not None]


def _facts(
    name: str, sample: Sample, now_ms: int, events: Sequence[Event], unknown: Mapping[str, int],
    jobs: Mapping[tuple[str, str], str], longest: RunningMessage | None,
) -> QueueFacts:  # fmt: skip
    if longest is not None:
        longest = with_jobs([longest], jobs, {name: usual_times(events)})[0]
    at = head_enqueued_at(sample.head)
    return QueueFacts(
        sample.counts, max(0, now_ms - at) if at else None,
        unknown, longest, [event for event in events if event.is_crash],
        _rate(events, now_ms) if sample.records_attempts else None, _last_kinds(events),
        job=head_job(sample.head),
    )  # fmt: skip


def _with_deleted(
    client: Client, queues: Mapping[str, Queue], facts: Mapping[str, QueueFacts]
) -> dict[str, QueueFacts]:
    calls: dict[tuple[str, str], ScriptCall[Status]] = {}
    for name, queue in queues.items():
        for mid in dict.fromkeys(crash.mid for crash in facts[name].crashes):
            if facts[name].last_kinds.get(mid) != "done" and len(calls) < PER_CALL:
                with suppress(ConfigError):  # another program wrote that event
                    calls[name, mid] = queue.status_call(mid)
    deleted: dict[str, set[str]] = {}
    for (name, mid), reply in zip(calls, run_each(client, list(calls.values())), strict=True):
        if isinstance(reply, Status) and state_word(reply) in ("done", "unknown"):
            deleted.setdefault(name, set()).add(mid)
    return {
        name: row._replace(deleted=frozenset(deleted.get(name, ()))) for name, row in facts.items()
    }


def _folded(facts: Mapping[str, QueueFacts]) -> dict[str, QueueFacts]:
    return {base: _sum([facts[name] for name in names]) for base, names in by_base(facts).items()}


def _sum(facts: Sequence[QueueFacts]) -> QueueFacts:
    if len(facts) == 1:
        return facts[0]
    unknown = Counter[str]()
    for row in facts:
        unknown.update(row.unknown)
    longest = [row.longest for row in facts if row.longest is not None]
    rates = [row.starts_per_s for row in facts if row.starts_per_s is not None]
    crashes = [crash for row in facts for crash in row.crashes]
    return QueueFacts(
        summed([row.counts for row in facts]),
        max((row.oldest_ms for row in facts if row.oldest_ms is not None), default=None),
        unknown,
        min(longest, key=lambda run: run.started_at, default=None),
        sorted(crashes, key=lambda crash: -crash.finished_at),
        sum(rates) if rates else None,
        {mid: kind for row in facts for mid, kind in row.last_kinds.items()},
        frozenset().union(*(row.deleted for row in facts)),
        next((row.job for row in facts if row.job), ""),
    )


def _last_kinds(events: Sequence[Event]) -> dict[str, str]:
    crashed = {event.mid for event in events if event.is_crash}
    return {event.mid: event.kind for event in reversed(events) if event.mid in crashed}


def unknown_jobs(client: Client, samples: Mapping[str, Sample]) -> dict[str, dict[str, int]]:
    """Count the waiting messages that a worker returned because it didn't know the job.

    Return the numbers by queue and job; an unreadable job is ''. At most MAX_QUEUES queues are read. The numbers are
    estimates if a queue has many such messages.
    """
    names = [name for name, sample in samples.items() if sample.unknowns][:MAX_QUEUES]
    reads = [
        plain("HRANDFIELD", keys.key(Queue(name, client).prefix, "nunknowns"), MAX_UNKNOWN)
        for name in names
    ]
    replies = read_together(client, reads)
    mids = {
        name: [text_of(mid) for mid in reply or ()]
        for name, reply in zip(names, replies, strict=True)
        if not isinstance(reply, Exception)
    }
    jobs = jobs_of(client, [(name, mid) for name, some in mids.items() for mid in some])
    return {
        name: _numbers(samples[name].unknowns, [jobs.get((name, mid), "") for mid in some])
        for name, some in mids.items()
    }


def _numbers(number: int, jobs: Sequence[str]) -> dict[str, int]:
    more = number / len(jobs) if len(jobs) >= MAX_UNKNOWN and number > len(jobs) else 1.0
    return {job: round(count * more) for job, count in Counter(jobs).items()}


def _rate(events: Sequence[Event], now_ms: int) -> float:
    since = now_ms - RATE_MS
    if len(events) >= EVENTS_OF_EACH:
        since = max(since, events[-1].finished_at)
    ended = sum(event.kind in ATTEMPTS and event.finished_at >= since for event in events)
    return ended / max(MIN_RATE_MS, now_ms - since) * 1000


def with_jobs(
    runs: Sequence[RunningMessage],
    jobs: Mapping[tuple[str, str], str],
    usual: Mapping[str, Mapping[str, int]],
) -> list[RunningMessage]:
    """Add to each run its job, and the job's usual run time in the queue."""
    return [
        run._replace(job=job, usual_ms=usual.get(run.queue, {}).get(job))
        for run in runs
        for job in [jobs.get((run.queue, run.mid), "")]
    ]


def jobs_of(client: Client, messages: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the job of each (queue, mid), in two round trips. The job is '' if the content is long, encrypted or
    unreadable.
    """
    messages = list(dict.fromkeys(messages))[:PER_CALL]
    held = {name: keys.key(Queue(name, client).prefix, "messages") for name, _ in messages}
    sizes = read_together(client, [plain("HSTRLEN", held[name], mid) for name, mid in messages])
    short = [
        message
        for message, size in zip(messages, sizes, strict=True)
        if not isinstance(size, Exception) and 0 < size <= MAX_CONTENT
    ]
    contents = read_together(client, [plain("HGET", held[name], mid) for name, mid in short])
    return {
        (name, mid): job_in(Queue(name, client), mid, content)
        for (name, mid), content in zip(short, contents, strict=True)
        if isinstance(content, bytes)
    }


def usual_by_queue(client: Client, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the usual run times in ms, by queue and job."""
    chosen = list(dict.fromkeys(names))[:MAX_QUEUES]
    reads = [events_before(Queue(name, client).prefix, "+", EVENTS_OF_EACH) for name in chosen]
    replies = read_together(client, reads)
    return {
        name: usual_times(_events(reply))
        for name, reply in zip(chosen, replies, strict=True)
        if not isinstance(reply, Exception)
    }


def runs_of(
    client: Client, children: Mapping[str, Sequence[ChildEntry] | None]
) -> list[RunningMessage]:
    """Return running messages with their jobs and usual run times. Messages that have run longest come first.

    Args:
        children: The children of each worker.
    """
    runs = [run for name, some in children.items() for run in runs_in(name, some or ())]
    runs.sort(key=lambda run: run.started_at)
    jobs = jobs_of(client, [(run.queue, run.mid) for run in runs])
    return with_jobs(runs, jobs, usual_by_queue(client, [run.queue for run in runs]))


def running(client: Client, queues: Sequence[str] = ()) -> list[RunningMessage]:
    """Return the running messages of live workers, longest-running first, in these queues (by default all)."""
    now_ms = client.clock_ms()
    busy = [
        worker.name
        for worker in presence.workers(client)
        if worker.running and worker.is_live(now_ms)
    ]
    runs = runs_of(client, presence.running(client, busy))
    return [
        run for run in runs if not queues or not {run.queue, base_of(run.queue)}.isdisjoint(queues)
    ]
