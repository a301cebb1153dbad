"""`jobq status`, `cancel` and `queue peek`: find messages and show them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, cast

import click
import msgspec

from jobq.cli import exits, output
from jobq.cli.options import option, queues_option
from jobq.cli.session import Session, command
from jobq.errors import ConfigError
from jobq.jobs.signing import unverified
from jobq.queue.admin import SHORT_PAGE
from jobq.queue.queue import Queue
from jobq.queue.types import Entry, Place


def content_facts(content: bytes, wanted: bool) -> dict[str, Any]:
    """`job`, and if `wanted` the `content` as text; `content_base64` too where it is none."""
    facts: dict[str, Any] = {"job": job_name(content)}
    if wanted:
        text = facts["content"] = content.decode("utf-8", "backslashreplace")
        if text.encode() != content:
            facts["content_base64"] = base64.b64encode(content).decode()
    return facts


def job_name(content: bytes) -> str:
    """The job that an envelope names, '' for bytes that are none or are encrypted; no seal is checked."""
    try:
        envelope = msgspec.json.decode(unverified(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    name = envelope.get("job") if isinstance(envelope, dict) else None
    return name if isinstance(name, str) else ""


UNKNOWN = "nil"


@command(
    "status", examples="jobq status resize:a.jpg\njobq status resize:a.jpg --queues low --json"
)
@click.argument("mid")
@queues_option
def status(session: Session, mid: str, queues: str | None) -> int:
    """Show where the message MID is in its life. Exit code 1: no queue knows it.

    That is so (nil) for what was never enqueued, and for what is done or cancelled and was collected.
    """
    found = [record for record in _statuses(session, mid, queues) if record["status"] != UNKNOWN]
    # A queue that can't be read may know it.
    nowhere = [] if session.problems else [{"mid": mid, "queue": None, "status": UNKNOWN}]
    for record in found or nowhere:
        session.say(record, _sentence(record))
    return exits.OK if found else exits.NO


def _sentence(record: dict[str, Any]) -> str:
    """`resize:a.jpg: locked  queue low  attempts 1  lock at 2026-11-21 08:00:15`."""
    times = {key: output.moment(record.get(key) or 0) for key in ("not_before", "lock_at")}
    facts = {key: value for key, value in (record | times).items() if value}
    if record["status"] == UNKNOWN:
        return f"{record['mid']}: nil, no queue knows it: never enqueued, or over"
    told = [f"{key.replace('_', ' ')} {facts[key]}" for key in list(facts)[1:] if key != "status"]
    return "  ".join([f"{record['mid']}: {record['status']}", *told])


def _statuses(session: Session, mid: str, names: str | None) -> Iterator[dict[str, Any]]:
    def one(queue: Queue) -> Iterator[dict[str, Any]]:
        facts = queue.status(mid)._asdict()
        facts["progress"] = session.shown("progress", queue.name, mid, facts["progress"])
        yield {"mid": mid, "queue": queue.name, "status": facts.pop("word"), **facts}

    yield from session.from_each(names, one)


@command(
    "messages",
    examples="""
        jobq messages --queues low
        jobq messages --queues low --place due --all --json
        jobq messages --queues low --content
    """,
)
@queues_option
@option("--place", type=click.Choice(["ready", "due", "circle"]), default="ready", show_default=True,
        help="ready: to run now; due: delayed; circle: handed out.")  # fmt: skip
@option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Skip so many.")
@option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Show so many."
)
@option("--all", "everything", is_flag=True, help="Show all from --offset on.")
@option("--content", is_flag=True, help="Show contents too. They may hold secrets.")
def messages(
    session: Session,
    queues: str | None,
    place: str,
    offset: int,
    limit: int,
    everything: bool,
    content: bool,
) -> None:
    """List messages of a queue, by default those ready to run."""
    columns = {
        "queue": "queue",
        "mid": "mid",
        "status": "status",
        "job": "job",
        "attempts": "attempts",
    }
    columns |= (
        {"not before": "when"}
        if place == "due"
        else {"lock until": "when"}
        if place == "circle"
        else {}
    )
    found = session.from_each(
        queues,
        lambda queue: _listed(
            session, queue, cast("Place", place), offset, None if everything else limit, content
        ),
    )
    session.say_all(found, columns | ({"content": "content"} if content else {}))


def _listed(
    session: Session, queue: Queue, place: Place, offset: int, limit: int | None, content: bool
) -> Iterator[dict[str, Any]]:
    following: int | None = offset
    end = None if limit is None else offset + limit
    while following is not None and (end is None or following < end):
        wanted = SHORT_PAGE if end is None else min(SHORT_PAGE, end - following)
        page = queue.admin.content(place, following, wanted)
        yield from (_record(session, queue.name, place, entry, content) for entry in page.entries)
        following = page.following
    if following is not None and queue.admin.content(place, following, 1).entries:
        session.note(f"{queue.name} has more: --offset {following}, or --all")


def _record(
    session: Session, queue: str, place: str, entry: Entry, content: bool
) -> dict[str, Any]:
    facts = {key: value for key, value in entry._asdict().items() if key != "content"}
    record = {"queue": queue, "place": place, **facts, **content_facts(entry.content, content)}
    if not session.as_json:
        record["when"] = output.moment(entry.not_before if place == "due" else entry.lock_at)
    return record


@command(
    "cancel",
    changes=True,
    examples="jobq cancel resize:a.jpg\njobq cancel resize:a.jpg resize:b.jpg --queues low --json",
)
@click.argument("mids", metavar="MID...", nargs=-1, required=True)
@queues_option
def cancel(session: Session, mids: tuple[str, ...], queues: str | None) -> int:
    """Cancel messages. A running job is told at the next renewal of its lease, and its outcome is refused.

    Exit code 1: one of them wasn't there to cancel.
    """
    words = [_cancelled(session, mid, queues) for mid in mids]
    return exits.OK if all(word == "cancelled" for word in words) else exits.NO


def _cancelled(session: Session, mid: str, names: str | None) -> str:
    def holder(queue: Queue) -> Iterator[Queue]:
        if queue.status(mid).word not in (UNKNOWN, "dead"):
            yield queue

    asked = session.readable(names)
    holding = asked if len(asked) == 1 else list(session.from_each([q.name for q in asked], holder))
    if len(holding) > 1:
        both = ", ".join(queue.name for queue in holding)
        raise ConfigError(f"mid {mid!r} is in {both}; say which by --queues")
    word = holding[0].cancel(mid)[0] if holding else UNKNOWN
    record = {"mid": mid, "queue": holding[0].name if holding else None, "action": word}
    session.say(record, f"{mid}: {word}" if holding else f"{mid}: {word}, no queue knows it")
    return word
