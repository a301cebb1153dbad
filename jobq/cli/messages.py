"""`jobq status`, `cancel` and `queue peek`: find, show and cancel messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from jobq.cli import output
from jobq.cli.options import option, queues_option
from jobq.cli.session import Session, command
from jobq.client.pipelining import run_each
from jobq.durations import counted, lasting
from jobq.errors import (
    CodecError,
    ConfigError,
    JobFailedError,
    JobqError,
    ResultNotStoredError,
    ScriptError,
)
from jobq.events import ATTEMPTS, Event
from jobq.jobs.receipt_calls import state_in
from jobq.jobs.results import decode_result, opened_end
from jobq.jobs.signing import seal_of
from jobq.jobs.states import ENDED, state_text
from jobq.observe.facts import Collector, job_name, public_state
from jobq.observe.why import MessageFacts
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Status


def content_facts(content: bytes, wanted: bool) -> dict[str, Any]:
    """Return the name of the content's job. If `wanted` is true, also return the content."""
    return {"job": job_name(content), **(output.content_facts(content) if wanted else {})}


#: Maximum characters to print of a checkpoint or result; --json prints all of it.
MAX_SHOWN = 200
#: Maximum number of attempts whose logs are searched for.
MAX_LOGS = 20
#: Facts that have lines of their own.
_LISTED = (
    "history", "failed_attempt", "traceback", "state", "state_text", "unread", "result", "result_ttl_s",
)  # fmt: skip
#: Fact -> its name for people, where that isn't the field's.
_NAMES = {"not_before": "starts at", "lock_expires_at": "lease ends", "ncrashes": "crashes"}
#: Maximum number of attempts to print; --json prints all of them.
MAX_ATTEMPTS = 20
#: Maximum number of queues whose events and results are searched for a message that no queue has.
MAX_SEARCHED = 1_000
#: A queue's word for a message id that it doesn't have.
UNKNOWN = "nil"


mids_argument = click.argument("mids", metavar="MID...", nargs=-1, required=True)


@command("status", "resize:a.jpg", "resize:a.jpg resize:b.jpg --json", "resize:a.jpg --log")
@mids_argument
@queues_option
@option(
    "--log", "logged", "Also print the log of the latest attempt, if its job declares keep_logs."
)
def status(session: Session, mids: tuple[str, ...], queues: str | None, logged: bool) -> bool:
    """Show the state and attempts of messages.

    The attempts are taken from the latest 5,000 events of the queue; 'jobq report' finds older attempts in a lake. The
    checkpoint is data that the job saved for its next attempt. Without --json, only the first 200 characters of each
    value are printed. For the latest failed attempt, the traceback is printed; for earlier attempts, the error's class
    and its place in the code. Exit code 1: no queue, event, result or log has the message.
    """
    known = [_status(session, mid, queues, logged) for mid in mids]
    return all(known)


def _status(session: Session, mid: str, queues: str | None, logged: bool) -> bool:
    asked = queues_to_ask(session, session.readable(queues), mid)
    records = (
        list(session.from_each(asked, lambda queue: _statuses(session, queue, mid)))
        if asked
        else []
    )
    # A queue that can't be read may know it.
    nowhere: list[dict[str, Any]] = [{"mid": mid, "queue": None, "state": "unknown"}]
    known = bool(records)
    for record in records or nowhere[: not session.problems]:
        log = _log_of(session, record, queues) if logged else {}
        known = known or log.get("log_of_attempt") is not None
        session.say(
            record | log,
            _sentence(record),
            *outcome_lines(record),
            *_log_lines(log),
        )
    return known


def _sentence(record: dict[str, Any]) -> str:
    """Return a line such as `resize:a.jpg: running  queue low  attempts 1  lease ends 2026-11-21 08:00:15`."""
    times = {
        key: output.moment(record.get(key) or 0)
        for key in ("not_before", "lock_expires_at", "running_since")
    }
    facts = {key: value for key, value in (record | times).items() if value and key not in _LISTED}
    if record["state"] in ENDED and "not_before" in facts:
        facts["id_rejected_until"] = facts.pop("not_before")
    if record["queue"] is None:
        return f"{record['mid']}: not found: it was never enqueued here, or it ended long ago"
    if len(facts.get("checkpoint", "")) > MAX_SHOWN:
        facts["checkpoint"] = f"{facts['checkpoint'][:MAX_SHOWN]}…"
    shown = [f"{_NAMES.get(key, key.replace('_', ' '))} {facts[key]}" for key in list(facts)[1:]]
    return "  ".join([f"{record['mid']}: {record['state_text']}", *shown])


def _log_of(session: Session, record: dict[str, Any], names: str | None) -> dict[str, Any]:
    mid, attempts = record["mid"], [MAX_LOGS]
    if record["queue"]:
        names, attempts = record["queue"], [entry["attempt"] for entry in record["history"]]
    newest = max([record.get("attempts", 0), *attempts])
    numbers = range(newest, max(0, newest - MAX_LOGS), -1)
    for queue in session.queues(names)[:MAX_SEARCHED]:
        for attempt, text in Collector(queue).logs(mid, numbers).items():
            shown = session.shown("log", queue.name, mid, text.decode("utf-8", "replace"))
            return {"log_of_attempt": attempt, "log": shown}
    return {"log_of_attempt": None, "log": ""}


def _log_lines(log: dict[str, Any]) -> list[str]:
    if not log:
        return []
    if log["log_of_attempt"] is None:
        return [
            "    no log: its job doesn't declare keep_logs, nothing was logged, or the log expired"
        ]
    return [
        f"    log of attempt {log['log_of_attempt']}:",
        *(f"      {line}" for line in log["log"].splitlines()),
    ]


def _failure(
    session: Session, queue: str, mid: str, status: Status, dead: DeadMessage | None
) -> dict[str, Any]:
    number, text = status.failed_attempt, session.shown("reason", queue, mid, status.traceback)
    if dead is not None and not text:
        number = dead.attempts
        text = session.shown("reason", queue, mid, dead.reason).partition("\n\n")[2]
    return {"failed_attempt": number if text else 0, "traceback": text}


def outcomes(session: Session, collector: Collector, facts: MessageFacts) -> dict[str, Any]:
    """Return the message's ended attempts, the traceback of its latest failed attempt, and its stored result."""
    queue, mid = facts.queue, facts.mid
    return {
        "history": [_attempt(event) for event in facts.history if event.kind in ATTEMPTS],
        **_failure(session, queue, mid, facts.status, facts.dead), **_result(collector, facts),
        "unread": collector.unread,
    }  # fmt: skip


def _result(collector: Collector, facts: MessageFacts) -> dict[str, Any]:
    """Return a message's stored result and the time until it expires; None for both if there is no result."""
    none = {"result": None, "result_ttl_s": None}
    if collector.found_result is None:
        return none
    content, ttl_s = collector.found_result
    seal = seal_of(collector.queue.client)
    try:
        plain = opened_end(seal, facts.queue, facts.mid, content)
        return {"result": decode_result(plain, facts.job, facts.mid), "result_ttl_s": ttl_s}
    except CodecError as error:
        collector.unread["result"] = str(error)
    except (JobFailedError, ResultNotStoredError):
        pass  # a remembered end without a value
    return none


def outcome_lines(record: dict[str, Any]) -> list[str]:
    """Return lines that show a message's attempts, traceback and result."""
    history = record.get("history", ())
    more = len(history) - MAX_ATTEMPTS
    lines = [f"    {counted(more, 'earlier attempt')} (shown with --json)"] * (more > 0)
    lines += map(_attempt_line, history[-MAX_ATTEMPTS:])
    if record.get("traceback"):
        lines.append(f"    attempt {record['failed_attempt']} failed:")
        lines += (f"      {line}" for line in record["traceback"].split("\n"))
    if record.get("result_ttl_s") is not None:
        ttl_s, text = record["result_ttl_s"], msgspec.json.encode(record["result"]).decode()
        kept = f"  (stored for another {lasting(ttl_s)})" if ttl_s > 0 else ""
        lines.append(f"    result: {text[:MAX_SHOWN]}{'…' * (len(text) > MAX_SHOWN)}{kept}")
    elif "result" in record.get("unread", {}):
        lines.append(f"    result: can't be read: {record['unread']['result']}")
    return lines


def _attempt_line(attempt: dict[str, Any]) -> str:
    """Return a line such as `attempt 2 retry 2026-11-21 08:00:15 ran 30.0 s by web-7:4711 (Timeout)`."""
    number = f"attempt {attempt['attempt']}" if attempt["attempt"] else "attempt"
    place = f" at {attempt['place']}" if attempt["place"] else ""
    error = f"  ({attempt['error']}{place})" if attempt["error"] else ""
    by = f"  by {attempt['worker']}" if attempt["worker"] else ""
    ran = f"  ran {lasting(attempt['run_ms'] / 1000)}" if attempt["worker"] else ""
    at = output.moment(attempt["started_at"])
    return f"    {number}  {at}{ran}{by}  {attempt['outcome']}{error}"


def queues_to_ask(session: Session, queues: list[Queue], mid: str) -> list[str]:
    """Return the queues that have the message. If no queue has it, return queues whose events may mention it."""
    statuses = run_each(session.client, [queue.status_call(mid) for queue in queues])
    # A queue that can't be read may have it. Querying the queue reports the error.
    holding = [
        queue.name
        for queue, status in zip(queues, statuses, strict=True)
        if isinstance(status, JobqError) or status.word != UNKNOWN
    ]
    if holding:
        return holding
    if len(queues) > MAX_SEARCHED:
        session.remark(
            f"the events of only {MAX_SEARCHED:,} of {len(queues):,} queues were searched; choose others with --queues"
        )
    return [queue.name for queue in queues[:MAX_SEARCHED]]


def _statuses(session: Session, queue: Queue, mid: str) -> Iterator[dict[str, Any]]:
    collector = Collector(queue, result=True)
    facts = collector.collect(mid)
    status, run = facts.status, facts.run
    state = public_state(status, facts.history, state_in(queue, mid, status).word)
    is_known = (status.word, state) != (UNKNOWN, "unknown") or bool(facts.history)
    note_unread(session, queue.name, collector.unread, is_known)
    if not is_known:
        return
    known = status._asdict() | outcomes(session, collector, facts)
    known.pop("word")
    reason = session.shown("reason", queue.name, mid, facts.dead.reason) if facts.dead else ""
    for what in ("progress", "checkpoint"):
        known[what] = session.shown(what, queue.name, mid, known[what])
    attempts = [event for event in facts.history if event.kind in ATTEMPTS]
    last = attempts[-1] if attempts else None
    if (
        state in ENDED
    ):  # a queue removes the counts of a message that is over, and a heartbeat may be older
        run = None
        known["attempts"] = facts.dead.attempts if facts.dead else last.attempt if last else 0
        known["ncrashes"] = facts.dead.ncrashes if facts.dead else 0
    yield {
        "mid": mid, "queue": queue.name, "state": state, "state_text": state_text(status, state), **known,
        "key": facts.line.key if facts.line else "", "job": facts.job,
        "worker": run.worker if run else last.worker if last else "", "running_since": run.started_at if run else 0,
        "last_error": reason.partition("\n")[0] or (last.error if last else ""),
    }  # fmt: skip


def note_unread(session: Session, queue: str, unread: dict[str, str], is_known: bool) -> None:
    """Print which facts about a message can't be read.

    If no queue has the message, unreadable events or an unreadable result are a problem, because the message may exist.

    A user with few rights can't read many facts, so facts with the same error share a line. --json has every error.
    """
    if is_known and unread:
        more = " (see --json for all errors)" * (len(unread) > 1)
        session.note(
            f"{queue}: {', '.join(unread)} can't be read: {next(iter(unread.values()))}{more}"
        )
    if is_known:
        return
    for part, what in (("events", "unreadable events"), ("result", "an unreadable result")):
        if part in unread:
            session.problem(part, ScriptError(f"queue {queue} has {what}: {unread[part]}"))


def _attempt(event: Event) -> dict[str, Any]:
    return {
        "attempt": event.attempt, "outcome": event.kind, "worker": event.worker, "started_at": event.started_at,
        "finished_at": event.finished_at, "run_ms": event.run_us // 1000, "error": event.error,
        "place": event.place,
    }  # fmt: skip


@command(
    "cancel",
    "resize:a.jpg",
    "resize:a.jpg resize:b.jpg --queues low --json",
    changes=True,
    operation="cancel",
    server="joins",
)
@mids_argument
@queues_option
def cancel(session: Session, mids: tuple[str, ...], queues: str | None) -> bool:
    """Cancel the given messages.

    The worker stops a running job when it next renews the job's lease, and the queue rejects the job's result. Exit
    code 1: a message could not be cancelled, because it has ended or no queue has it.
    """
    with session.operation(queues, of_mids(mids)) as performed:
        words = [_cancelled(session, mid, queues) for mid in mids]
        performed.set(number=words.count("cancelled"))
    return all(word == "cancelled" for word in words)


def of_mids(mids: Iterable[str]) -> str:
    """Return the messages' ids in the format of the audit log's filter."""
    return " ".join(f"mid:{mid}" for mid in mids)


def _cancelled(session: Session, mid: str, names: str | None) -> str:
    def holder(queue: Queue) -> Iterator[Queue]:
        if queue.status(mid).word not in (UNKNOWN, "dead"):
            yield queue

    asked = session.readable(names)
    holding = asked if len(asked) == 1 else list(session.from_each([q.name for q in asked], holder))
    if len(holding) > 1:
        both = ", ".join(queue.name for queue in holding)
        raise ConfigError(f"mid {mid!r} is in {both}; choose a queue with --queues")
    word = holding[0].cancel(mid)[0] if holding else UNKNOWN
    state = word if word == "cancelled" else _state(session, mid, names)
    record = {
        "mid": mid,
        "queue": holding[0].name if holding else None,
        "action": word if word == "cancelled" else "none",
        "state": state,
    }
    shown = _NOT_CANCELLED.get(state, state) if word != "cancelled" else word
    if state == "unknown" and session.problems:
        shown += " in the queues that can be read"
    session.say(record, f"{mid}: {shown.format(mid=mid)}")
    return word


#: State of an ended message -> text of the command.
_NOT_CANCELLED = {
    "unknown": "not found", "done": "already done", "cancelled": "already cancelled", "expired": "already expired",
    "failed": "already failed; to delete it, use jobq dead purge {mid}",
}  # fmt: skip


def _state(session: Session, mid: str, names: str | None) -> str:
    asked = queues_to_ask(session, session.readable(names), mid)
    records = (
        session.from_each(asked, lambda queue: _statuses(session, queue, mid)) if asked else ()
    )
    return next((record["state"] for record in records), "unknown")
