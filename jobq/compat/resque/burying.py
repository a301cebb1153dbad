"""Jobs that are given up, where Ruby keeps such: Sidekiq's dead set, Resque's failed list.

Sidekiq's web interface and API show them there and can retry them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from jobq.compat.resque.places import Place
from jobq.compat.resque.pushing import append
from jobq.compat.resque.reading import epoch_ms

if TYPE_CHECKING:
    from jobq.engine.connection import Client
    from jobq.engine.message import DeadMessage

logger = logging.getLogger("jobq")
#: As Sidekiq keeps its dead by default.
MOST_DEAD = 10_000
LONGEST_S = 180 * 86_400
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
    bury_raw(client, place.namespace, _sidekiq_job(fields, kind, text, died), died.died_at / 1000)
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
    if place.system == "sidekiq":
        bury_raw(client, place.namespace, raw)
        return
    record = {
        "failed_at": _resque_time(time.time()), "payload": {"class": "", "args": []},
        "exception": "jobq", "error": why, "backtrace": [], "worker": "jobq",
        "queue": place.queue, "raw": raw.decode("utf-8", "backslashreplace"),
    }  # fmt: skip
    append(client, place.key("failed"), "RIGHT", [_write(record)], once=once)


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
