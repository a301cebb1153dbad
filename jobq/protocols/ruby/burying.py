"""Jobs that are given up, where Ruby keeps such: Sidekiq's dead set, Resque's failed list.

Sidekiq's web interface and API show them there and can retry them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from jobq.errors import CodecError
from jobq.protocols.ruby.activejob import WRAPPERS
from jobq.protocols.ruby.places import Place
from jobq.protocols.ruby.pushing import append
from jobq.protocols.ruby.reading import MOST_BYTES, UNREADABLE, epoch_ms, read_fields

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.queue.types import DeadMessage

logger = logging.getLogger("jobq")
#: As Sidekiq keeps its dead by default.
MOST_DEAD = 10_000
LONGEST_S = 180 * 86_400
#: The class of error of a job that no call could be made of.
REFUSED = "jobq.errors.CodecError"
_write = msgspec.json.Encoder().encode


def bury(client: Client, place: Place, fields: dict[str, Any], died: DeadMessage) -> bool:
    """Show a dead message to Ruby; False for a Sidekiq job that wants no grave (`dead: false`, `retry: false`)."""
    kind, _, text = died.reason.partition("\n")[0].partition(": ")
    if not text:
        kind, text = "jobq", kind
    if place.system == "resque":
        record = _failure(fields, place.queue, kind, text, died)
        return append(client, place.key("failed"), "RIGHT", [record], once=died.dead_id)
    if fields.get("dead") is False or fields.get("retry", True) is False:
        return False
    job = _sidekiq_job(fields, kind, text, died)
    if not _shows(fields):
        job = with_reason(_write(fields), place.queue, died.mid, text, kind)
    bury_raw(client, place.namespace, job, died.died_at / 1000)
    return True


def bury_raw(client: Client, namespace: str, job: bytes, at: float | None = None) -> None:
    """Put a job into Sidekiq's dead set as it is; the set forgets as Sidekiq's does."""
    at = at or time.time()
    dead = Place("sidekiq", namespace, "").key("dead")
    client.command("ZADD", dead, repr(at), job)
    client.command("ZREMRANGEBYSCORE", dead, "-inf", repr(at - LONGEST_S))
    client.command("ZREMRANGEBYRANK", dead, 0, -MOST_DEAD - 1)


def refuse(client: Client, place: Place, raw: bytes, why: str, once: str) -> None:
    """Keep a job that no queue of jobq can hold where Ruby keeps what it gave up."""
    logger.error("a job of %s can't be taken in: %s; it is kept with what Ruby gave up", place, why)
    _bury_refused(client, place, raw, why, once, once, time.time())


def bury_refused(client: Client, place: Place, raw: bytes, why: str, died: DeadMessage) -> None:
    """Show Ruby a job that no call could be made of, and why."""
    _bury_refused(client, place, raw, why, died.mid, died.dead_id, died.died_at / 1000)


def _bury_refused(
    client: Client, place: Place, raw: bytes, why: str, jid: str, once: str, at: float
) -> None:
    if place.system == "sidekiq":
        bury_raw(client, place.namespace, with_reason(raw, place.queue, jid, why), at)
        return
    text = raw.decode("utf-8", "backslashreplace")
    fields = _fields(raw)
    whole = _is_call(fields)
    record: dict[str, Any] = {
        "failed_at": _resque_time(at),
        "payload": fields if whole else {"class": UNREADABLE, "args": [text]},
        "exception": REFUSED, "error": why, "backtrace": [], "worker": "jobq",
        "queue": place.queue, "raw": text,
    }  # fmt: skip
    append(client, place.key("failed"), "RIGHT", [_write(record)], once=once)


def with_reason(raw: bytes, queue: str, jid: str, why: str, kind: str = REFUSED) -> bytes:
    """A Sidekiq job and why it is given up: else byte for byte what it was, so that it can be retried.

    One of over 8 MiB stays without the reason, which the log has.
    One that Sidekiq's API and web interface couldn't show is the only argument of a job that they can; queue
    and jid are those of that one.
    """
    if len(raw) > MOST_BYTES:
        return raw  # with more around it, it might be longer than a server takes
    noted = _write({"error_class": kind, "error_message": why})
    fields = _fields(raw)
    if _is_call(fields) and _shows(fields):
        # Behind the others: where a name comes twice, the last counts.
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
    """Whether Ruby's API can show it: one job that it can't keeps its web page from showing any."""
    args = fields["args"]
    if fields["class"] in WRAPPERS and not _shows_wrapped(fields.get("wrapped"), args):
        return False
    # What Ruby takes for none.
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
    """The job as Sidekiq would have noted its failures, in the unit of time that it came with."""
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
