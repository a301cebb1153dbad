"""Facts for the page of a message: its state with the reasons, its attempts, its content and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from msgspec import structs

from jobq.client.connection import Client
from jobq.client.pipelining import run_each
from jobq.events import ATTEMPTS
from jobq.jobs.receipt_calls import state_in
from jobq.jobs.states import StateWord, state_text, state_word
from jobq.observe.facts import Collector, public_state
from jobq.observe.why import MessageFacts, Reason, why
from jobq.queue.mids import checked_mid
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.web.contents import Contents, ShownCall, ShownResult

#: Public state -> the name of its glyph and colour.
_GLYPHS: dict[StateWord, str] = {
    "scheduled": "delayed", "queued": "ready", "running": "running", "retrying": "retry", "done": "done",
    "failed": "dead", "cancelled": "paused", "expired": "dead", "unknown": "unknown",
}  # fmt: skip
#: Kind of an event -> name of its glyph and colour.
_KINDS = {
    "done": "done", "retry": "retry", "dead": "dead", "crashed": "retry", "recovered": "retry", "snoozed": "delayed",
    "enqueued": "ready", "revived": "ready", "tick": "ready",
}  # fmt: skip
_NOWHERE = ("nil", "")
#: Maximum number of attempts whose logs are shown.
MAX_LOGS = 5


class StateShown(NamedTuple):
    """A state as a page shows it.

    Attributes:
        name: Name of the state's glyph and colour.
    """

    name: str
    word: str


class AttemptShown(NamedTuple):
    """One attempt, ended or running. Times are epoch ms, and None means unknown.

    Attributes:
        ended_at: 0 while the attempt is running.
        wait_ms: Time from the enqueue, or from the end of the previous attempt, to the start of this attempt.
    """

    number: int
    state: StateShown
    worker: str = ""
    child: int = 0
    started_at: int = 0
    ended_at: int = 0
    wait_ms: int | None = None
    run_ms: int | None = None
    cpu_ms: int | None = None
    rss_kib: int = 0
    error: str = ""
    fingerprint: str = ""
    trace: str = ""
    place: str = ""
    traceback: str = ""


class TimelinePoint(NamedTuple):
    """A point of a timeline.

    Attributes:
        after_ms: Time since the end of the previous point; None for the first.
        lasts_ms: Duration of an attempt.
    """

    at_ms: int
    state: StateShown
    text: str
    after_ms: int | None = None
    lasts_ms: int | None = None


@dataclass(frozen=True)
class MessageShown:
    """The parts of a message that the current user may see.

    Attributes:
        public: The state's name in the API.
        unread: Part of the message -> why this part can't be read.
        logs: Pairs of attempt number and log, latest first.
    """

    facts: MessageFacts
    reasons: list[Reason]
    call: ShownCall
    public: StateWord
    state: StateShown
    attempts: list[AttemptShown]
    timeline: list[TimelinePoint]
    reason: str = ""
    result: ShownResult | None = None
    result_ttl_s: int = 0
    progress: str = ""
    checkpoint: Any = None
    unread: dict[str, str] = field(default_factory=dict)
    logs: list[tuple[int, str]] = field(default_factory=list)

    @property
    def enqueued_at(self) -> int:
        """When the message was enqueued, in epoch ms, from its content or its events; 0 if unknown."""
        history = reversed(self.facts.history)
        return self.call.enqueued_at or next((at for event in history if (at := event.enqueued_at)), 0)  # fmt: skip

    @property
    def is_known(self) -> bool:
        """Return whether the message is in the queue, in its dead-letter set, or in its latest events."""
        return self.facts.status.word not in _NOWHERE or bool(self.facts.history)


def read_message(client: Client, contents: Contents, queue_name: str, mid: str) -> MessageShown:
    """Read everything about one message, even if it is in another partition of the queue.

    Raises ConfigError for an invalid queue name or message id.
    """
    queue, mid = Queue(queue_name, client), checked_mid(mid)
    collector = Collector(queue, result=True)
    facts = collector.collect(mid)
    if facts.status.word in _NOWHERE and (partition := queue.place_of(mid)):
        queue = partition
        collector = Collector(queue, result=True)
        facts = collector.collect(mid)
    content = collector.found_content or (facts.dead.content if facts.dead else b"")
    call = contents.call(queue.name, mid, content) if content else ShownCall()
    job = facts.job or call.job
    facts = _seen(replace(facts, job=job), contents)
    stored = collector.found_result
    status = facts.status
    end: StateWord = state_in(queue, mid, status).word if stored else "unknown"
    word = public_state(status, facts.history, end)
    attempts = _with_traceback(facts, contents, list(attempts_of(facts)))
    return MessageShown(
        facts,
        why(facts),
        call,
        word,
        state_of(status, word),
        attempts,
        list(timeline(facts, call.enqueued_at, attempts)),
        facts.dead.reason if facts.dead else "",
        contents.result(queue.name, facts.job, mid, stored[0]) if stored else None,
        stored[1] if stored else 0,
        contents.text("progress", queue.name, mid, status.progress, job=facts.job) if status.progress else "",
        contents.value("checkpoint", queue.name, mid, status.checkpoint, job=facts.job) if status.checkpoint else None,
        collector.unread,
        list(_logs(collector, facts, max([status.attempts, *(attempt.number for attempt in attempts)]), contents)),
    )  # fmt: skip


def _logs(
    collector: Collector, facts: MessageFacts, newest: int, contents: Contents
) -> Iterator[tuple[int, str]]:
    numbers = range(newest, max(0, newest - MAX_LOGS), -1) if contents.may_see else ()
    for number, log in collector.logs(facts.mid, numbers).items():
        text = log.decode("utf-8", "replace")
        yield number, contents.text("log", facts.queue, facts.mid, text, job=facts.job)


def _with_traceback(
    facts: MessageFacts, contents: Contents, attempts: list[AttemptShown]
) -> list[AttemptShown]:
    """Return the attempts, with the stored traceback added to the failed attempt."""
    status, dead = facts.status, facts.dead
    number = status.failed_attempt
    text = contents.traceback(facts.queue, facts.mid, status.traceback, facts.job)
    if dead is not None and not text:
        number, text = dead.attempts, dead.reason.partition("\n\n")[2]
    for index in range(len(attempts) - 1, -1, -1):
        # An earlier life of the message may have an attempt with the same number.
        if text and attempts[index].number == number and attempts[index].error:
            attempts[index] = attempts[index]._replace(traceback=text)
            break
    return attempts


def _seen(facts: MessageFacts, contents: Contents) -> MessageFacts:
    """Return the facts with the texts of errors reduced to the parts that this user may see."""
    dead = facts.dead
    if dead is not None:
        dead = dead._replace(
            reason=contents.text("reason", facts.queue, facts.mid, dead.reason, job=facts.job)
        )
    history = tuple(
        structs.replace(
            event,
            error=contents.error(event.error, event.job or facts.job),
            place=contents.traceback(facts.queue, facts.mid, event.place, facts.job),
        )
        for event in facts.history
    )
    return replace(facts, dead=dead, history=history)


def state_of(status: Status, public: StateWord | None = None) -> StateShown:
    """Return a message's state for a page: from `public` if given, otherwise from its status."""
    word = public or state_word(status)
    expired = status.word == "queued" and status.lock_expires_at
    return StateShown("retry" if expired else _GLYPHS[word], state_text(status, word))


def state_of_kind(kind: str) -> StateShown:
    """Return the state that a page shows for a kind of event."""
    return StateShown(_KINDS.get(kind, "unknown"), kind)


def attempts_of(facts: MessageFacts) -> Iterator[AttemptShown]:
    """Yield a message's finished attempts from its events, oldest first, and then its running attempt."""
    before = 0
    for event in facts.history:
        if event.kind not in ATTEMPTS:
            before = event.finished_at if event.kind in ("enqueued", "revived") else before
            continue
        ran = bool(event.worker or event.run_us)
        since = before or event.enqueued_at
        yield AttemptShown(
            event.attempt, state_of_kind(event.kind), event.worker, 0, event.started_at, event.finished_at,
            max(0, event.started_at - since) if since and ran else None, event.run_us // 1000 if ran else None,
            event.cpu_us // 1000 if event.cpu_us else None, event.rss_kib, event.error,
            event.fingerprint, event.trace_id, event.place,
        )  # fmt: skip
        before = event.finished_at
    if facts.status.word.startswith("locked"):
        run, number = facts.run, facts.status.attempts
        started = run.started_at if run else 0
        yield AttemptShown(
            number, StateShown("running", "running"), run.worker if run else "", run.pid if run else 0, started,
            wait_ms=max(0, started - before) if started and before else None,
            run_ms=max(0, facts.now_ms - started) if started else None,
        )  # fmt: skip


def timeline(
    facts: MessageFacts, enqueued_at: int, attempts: Sequence[AttemptShown]
) -> Iterator[TimelinePoint]:
    """Yield a message's timeline: its enqueue, its attempts and users' actions, and then its current wait or its due
    time.
    """
    known = [
        TimelinePoint(
            attempt.started_at or facts.now_ms, attempt.state,
            f"attempt {attempt.number}" if attempt.number else "attempt", lasts_ms=attempt.run_ms,
        )
        for attempt in attempts
    ]  # fmt: skip
    known += [
        TimelinePoint(event.finished_at, state_of_kind(event.kind), event.kind)
        for event in facts.history
        if event.kind not in ATTEMPTS
    ]
    born = enqueued_at or next((event.enqueued_at for event in facts.history if event.enqueued_at), 0)  # fmt: skip
    if born and not any(timeline_point.text == "enqueued" for timeline_point in known):
        known.append(TimelinePoint(born, StateShown("ready", "enqueued"), "enqueued"))
    end = None
    for timeline_point in sorted(known, key=lambda moment: moment.at_ms):
        yield timeline_point._replace(
            after_ms=None if end is None else max(0, timeline_point.at_ms - end)
        )
        end = timeline_point.at_ms + (timeline_point.lasts_ms or 0)
    status = facts.status
    if status.word.startswith("queued") and end is not None:
        if status.not_before > facts.now_ms:
            yield TimelinePoint(
                status.not_before,
                StateShown("delayed", "scheduled"),
                "due",
                status.not_before - end,
            )
        else:
            yield TimelinePoint(facts.now_ms, state_of(status), "waits", max(0, facts.now_ms - end))


class FoundMessage(NamedTuple):
    """A queue that has a message, and the message's status."""

    queue: str
    status: Status


def find_mid(client: Client, names: Sequence[str], mid: str) -> list[FoundMessage]:
    """Return the queues that have this mid, alive or dead. On a Cluster, each queue takes a round trip."""
    calls = [Queue(name, client).status_call(mid) for name in names]
    return [
        FoundMessage(name, status)
        for name, status in zip(names, run_each(client, calls), strict=True)
        if isinstance(status, Status) and status.word not in _NOWHERE
    ]
