"""Adds dead jobs of Ruby programs to Sidekiq's dead set or Resque's failed list.

Sidekiq's web interface and API can retry the jobs in its dead set.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import CodecError, JobqError, ScriptError
from jobq.jobs.signing import opened, seal_of, shown_text
from jobq.protocols.ruby.activejob import WRAPPERS
from jobq.protocols.ruby.job_format import (
    MAX_BYTES,
    UNREADABLE,
    epoch_ms,
    read_back,
    read_fields,
    refused_back,
)
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.lists import append
from jobq.queue.keys import key
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, text_of

logger = logging.getLogger("jobq")
#: Sidekiq's default limits for its dead set.
MAX_DEAD = 10_000
MAX_S = 180 * 86_400
#: The error class of a job that can't become a call.
REFUSED = "jobq.errors.CodecError"
_write = msgspec.json.Encoder().encode


def show_dead(
    client: Client, ruby_queue: RubyQueueName, fields: dict[str, Any], died: DeadMessage
) -> bool:
    """Add a dead message to Ruby's dead jobs.

    Return False if the Sidekiq job forbids that (`dead: false`, `retry: false`).
    """
    kind, _, text = died.reason.partition("\n")[0].partition(": ")
    if not text:
        kind, text = "jobq", kind
    if ruby_queue.system == "resque":
        record = _failure(fields, ruby_queue.queue, kind, text, died)
        return append(client, ruby_queue.key("failed"), "RIGHT", [record], once=died.dead_id)
    if fields.get("dead") is False or fields.get("retry", True) is False:
        return False
    job = _sidekiq_job(fields, kind, text, died)
    if not _shows(fields):
        job = with_reason(_write(fields), ruby_queue.queue, died.mid, text, kind)
    add_dead(client, ruby_queue.namespace, job, died.died_at / 1000)
    return True


def add_dead(client: Client, namespace: str, job: bytes, at: float | None = None) -> None:
    """Put a job unchanged into Sidekiq's dead set, and trim the set as Sidekiq does."""
    at = at or time.time()
    dead = RubyQueueName("sidekiq", namespace, "").key("dead")
    client.command("ZADD", dead, repr(at), job)
    client.command("ZREMRANGEBYSCORE", dead, "-inf", repr(at - MAX_S))
    client.command("ZREMRANGEBYRANK", dead, 0, -MAX_DEAD - 1)


def refuse(client: Client, ruby_queue: RubyQueueName, raw: bytes, why: str, once: str) -> None:
    """Move a job to Ruby's dead jobs, because no jobq queue can store it."""
    logger.error("rejected a job of %s: %s; it was moved to Ruby's dead jobs", ruby_queue, why)
    _show_refused(client, ruby_queue, raw, why, once, once, time.time())


def show_refused(
    client: Client, ruby_queue: RubyQueueName, raw: bytes, why: str, died: DeadMessage
) -> None:
    """Add a job to Ruby's dead jobs, with the reason why it couldn't be converted."""
    _show_refused(client, ruby_queue, raw, why, died.mid, died.dead_id, died.died_at / 1000)


def _show_refused(
    client: Client, ruby_queue: RubyQueueName, raw: bytes, why: str, jid: str, once: str, at: float
) -> None:
    if ruby_queue.system == "sidekiq":
        add_dead(client, ruby_queue.namespace, with_reason(raw, ruby_queue.queue, jid, why), at)
        return
    text = raw.decode("utf-8", "backslashreplace")
    fields = _fields(raw)
    whole = _is_call(fields)
    record: dict[str, Any] = {
        "failed_at": _resque_time(at),
        "payload": fields if whole else {"class": UNREADABLE, "args": [text]},
        "exception": REFUSED, "error": why, "backtrace": [], "worker": "jobq",
        "queue": ruby_queue.queue, "raw": text,
    }  # fmt: skip
    append(client, ruby_queue.key("failed"), "RIGHT", [_write(record)], once=once)


def with_reason(raw: bytes, queue: str, jid: str, why: str, kind: str = REFUSED) -> bytes:
    """Add an error class and text to a dead Sidekiq job. Its other fields don't change, so Ruby can retry the job.

    Return a job over 8 MiB unchanged. If Sidekiq's web interface can't show a job, return a placeholder job with this
    queue and jid, whose only argument is the job's text.
    """
    if len(raw) > MAX_BYTES:
        return raw  # with a reason or a wrapper, the job might be longer than a server accepts
    noted = _write({"error_class": kind, "error_message": why})
    fields = _fields(raw)
    if _is_call(fields) and _shows(fields):
        # The reason comes last, because the last of several fields with one name counts.
        return raw.rstrip()[:-1] + b"," + noted[1:]
    text = raw.decode("utf-8", "backslashreplace")
    shown = {"class": UNREADABLE, "args": [text], "jid": jid, "retry": 0}
    return _write(shown | ({"queue": queue} if queue else {}))[:-1] + b"," + noted[1:]


def _fields(raw: bytes) -> dict[str, Any]:
    try:
        return read_fields(raw)
    except CodecError:
        return {}


def _is_call(fields: dict[str, Any]) -> bool:
    name = fields.get("class")
    return isinstance(name, str) and bool(name) and isinstance(fields.get("args"), list)


def _shows(fields: dict[str, Any]) -> bool:
    """Return whether Ruby's API can show a job. A single job that can't be shown breaks Ruby's web page."""
    args = fields["args"]
    if fields["class"] in WRAPPERS and not _shows_wrapped(fields.get("wrapped"), args):
        return False
    # Values that Ruby treats as false.
    given = {
        name: value for name, value in fields.items() if value is not None and value is not False
    }
    moments = (given.get(name, 0) for name in ("created_at", "enqueued_at", "failed_at"))
    texts = (given.get(name, "") for name in ("jid", "queue", "display_class"))
    return (
        all(type(moment) in (int, float) and abs(moment) < 2**53 for moment in moments)
        and all(isinstance(text, str) for text in texts)
        and isinstance(given.get("tags", []), list)
        and isinstance(given.get("error_backtrace", ""), str | list)
        and ("encrypt" not in given or bool(args))
    )


def _shows_wrapped(wrapped: object, args: list[Any]) -> bool:
    arguments = args[0].get("arguments") if args and isinstance(args[0], dict) else None
    if not isinstance(arguments, list):
        return False
    return wrapped != "ActionMailer::MailDeliveryJob" or isinstance(
        (arguments[3:] or [None])[0], dict
    )


def _sidekiq_job(fields: dict[str, Any], kind: str, text: str, died: DeadMessage) -> bytes:
    """Return the job in Sidekiq's format, with its failures. Times are in the unit that the job already uses."""
    in_ms = isinstance(fields.get("created_at"), int) and epoch_ms(fields["created_at"])
    died_at: float = died.died_at if in_ms else died.died_at / 1000
    used = fields.get("retry_count")
    failures = died.attempts - died.ncrashes + (used + 1 if type(used) is int else 0)
    noted = {
        "error_class": kind,
        "error_message": text,
        "failed_at": fields.get("failed_at", died_at),
    }
    if failures > 1:
        noted["retried_at"] = died_at
    return _write({**fields, **noted, "retry_count": max(0, failures - 1)})


def _failure(fields: dict[str, Any], queue: str, kind: str, text: str, died: DeadMessage) -> bytes:
    lines = [line.strip() for line in died.reason.splitlines()[1:] if line.strip()]
    return _write(
        {
            "failed_at": _resque_time(died.died_at / 1000), "payload": fields, "exception": kind,
            "error": text, "backtrace": lines, "worker": "jobq", "queue": queue,
        }
    )  # fmt: skip


def _resque_time(seconds: float) -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S UTC", time.gmtime(seconds))


logger = logging.getLogger("jobq")
PAGE = 100
#: Maximum number of passes over the pages while messages are added and removed.
PASSES = 20


class DeadJobs:
    """Copies dead messages to Sidekiq's dead set or Resque's failed list. `ruby` is a client of Ruby's Redis server."""

    def __init__(self, ruby: Client, queues: Sequence[Queue]) -> None:
        self._ruby, self._queues = ruby, queues

    def __str__(self) -> str:
        return ", ".join(queue.name for queue in self._queues)

    def fill(self) -> int:
        """Copy messages dead-lettered since the last call; return their number.

        If a queue or partition can't be read, copy all other messages before raising the error.
        """
        number, errors = 0, list[JobqError]()
        for queue in self._queues:
            try:
                places = _places(queue)
            except JobqError as error:  # its map can't be read
                errors.append(error)
                continue
            for place in places:
                try:
                    number += self._fill(place)
                except JobqError as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return number

    def _fill(self, queue: Queue) -> int:
        name = f"{queue.prefix}shown-to-ruby"
        until, shown_then = _noted(queue.client.command("GET", name))
        fresh = self._died_since(queue, until, shown_then)
        if not fresh:
            return 0
        fresh.sort(key=_moment, reverse=True)
        for died in reversed(fresh):
            self._show(queue, died)
        latest = fresh[0].died_at
        ids = [died.dead_id for died in fresh if died.died_at == latest]
        if latest == until:
            ids += shown_then
        queue.client.command("SET", name, json.dumps([latest, ids]))
        return len(fresh)

    def _died_since(self, queue: Queue, until: int, shown: Sequence[str]) -> list[DeadMessage]:
        """Return messages dead-lettered at or after `until` (epoch ms), except ids in `shown`.

        Other clients may change the dead-letter set while it is read page by page. So the ids are read first, and then
        the pages, until all messages with these ids were seen.
        """
        wanted = self._ids(queue, until) - set(shown)
        by_id: dict[str, DeadMessage] = {}
        for _ in range(PASSES):
            if not wanted - by_id.keys():
                break
            for died in _pages(queue, until):
                by_id.setdefault(died.dead_id, died)
            wanted &= self._ids(queue, until)
        else:
            raise ScriptError(
                f"the dead-letter set of {queue.name} changes faster than it can be read"
            )
        return [died for dead_id, died in by_id.items() if dead_id not in shown]

    def _ids(self, queue: Queue, until: int) -> set[str]:
        dead = key(queue.prefix, "dead")
        return {
            text_of(raw) for raw in queue.client.command("ZRANGE", dead, until, "+inf", "BYSCORE")
        }

    def _show(self, queue: Queue, died: DeadMessage) -> None:
        seal = seal_of(queue.client)
        name = base_of(queue.name)
        reason = shown_text(seal, "reason", name, died.mid, died.reason)
        died = died._replace(reason=reason)
        try:
            content = opened(seal, name, died.mid, died.content)
            shown = self._shown(content, died)
        except CodecError:
            return
        except JobqError:
            raise
        except Exception:
            logger.exception(
                "could not add %s to Ruby's dead jobs; jobq dead list has it", died.mid
            )
            return
        if shown:
            logger.info("%s was also added to Ruby's dead jobs", died.mid)

    def _shown(self, content: bytes, died: DeadMessage) -> bool:
        if ruby_job := read_back(content):
            return show_dead(self._ruby, *ruby_job, died)
        if refused := refused_back(content):
            show_refused(self._ruby, *refused, died)
            return True
        return False


def _places(queue: Queue) -> Sequence[Queue]:
    return queue.alone() if queue.partitions() else [queue]


def _pages(queue: Queue, until: int) -> Iterator[DeadMessage]:
    """Yield messages dead-lettered at or after `until` (epoch ms), latest first."""
    offset = 0
    while page := queue.admin.dead(offset, PAGE):
        for died in page:
            if died.died_at < until:
                return
            yield died
        offset += len(page)


def _noted(stored: bytes | None) -> tuple[int, list[str]]:
    """Parse the death time and ids of the last copied messages; return (-1, []) if `stored` is unreadable."""
    try:
        until, shown = json.loads(stored or b"[-1,[]]")
        return int(until), [str(dead_id) for dead_id in shown]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return -1, []


def _moment(died: DeadMessage) -> int:
    return died.died_at
