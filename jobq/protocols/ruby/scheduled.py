"""Moves Sidekiq's scheduled jobs and retries to their lists when they are due, by the server's clock.

Sidekiq's own poller does the same. Unlike that poller, this module never loses a job in a crash, and it moves
unreadable jobs to the dead set.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any

from jobq.client.bound_scripts import bound
from jobq.client.connection import Client
from jobq.client.numbered_calls import Values, error_code
from jobq.errors import CodecError, ScriptError
from jobq.protocols.ruby.dead_jobs import add_dead, with_reason
from jobq.protocols.ruby.job_format import read_fields
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.lists import push

logger = logging.getLogger("jobq")
SETS = ("schedule", "retry")
LIMIT = 100


def promote(client: Client, namespace: str) -> float:
    """Move up to 100 due jobs from each of Sidekiq's sorted sets to the queues. Return the seconds until the next call.

    The result is inf if no job waits. If a job is rejected, its error is raised after the other jobs are moved.
    """
    wait_s, refused = float("inf"), None
    for name in SETS:
        waiting = RubyQueueName("sidekiq", namespace, "").key(name)
        following_ms, *due = client.run(
            *bound("ruby", "due", {"waiting": waiting}.__getitem__, {"now": "", "limit": LIMIT})
        )
        for job, due_at in zip(due[::2], due[1::2], strict=True):
            try:
                _promote(client, namespace, waiting, job, due_at)
            except ScriptError as error:  # an error of one queue, such as a missing right
                refused = error
        if len(due) == 2 * LIMIT:
            wait_s = 0.0
        elif following_ms >= 0:
            wait_s = min(wait_s, following_ms / 1000)
    if refused is not None:
        raise refused
    return wait_s


def _promote(client: Client, namespace: str, waiting: str, job: bytes, due_at: bytes) -> None:
    try:
        fields = read_fields(job)
        queue = fields.get("queue")
        if not isinstance(queue, str) or not queue:
            raise CodecError("the job has no queue")
    except CodecError as error:
        _give_up(client, namespace, waiting, job, str(error))
        return
    ruby_queue = RubyQueueName("sidekiq", namespace, queue)
    try:
        _move(client, ruby_queue, waiting, job, fields, due_at)
    except ScriptError:
        if not _of_another_type(client, ruby_queue):
            raise
        # This job would block all later jobs.
        _give_up(
            client,
            namespace,
            waiting,
            job,
            f"the key {ruby_queue.list_key} of its queue is not a list",
        )


def _of_another_type(client: Client, ruby_queue: RubyQueueName) -> bool:
    try:
        client.command("LLEN", ruby_queue.list_key)
    except ScriptError as error:
        return error_code(error.__cause__) == "WRONGTYPE"
    return False


def _give_up(client: Client, namespace: str, waiting: str, job: bytes, why: str) -> None:
    jid = blake2b(job, digest_size=12).hexdigest()
    add_dead(client, namespace, with_reason(job, "", jid, why))
    client.command("ZREM", waiting, job)
    logger.error("could not enqueue a job of %s: %s; it was moved to the dead set", waiting, why)


def _move(
    client: Client,
    ruby_queue: RubyQueueName,
    waiting: str,
    job: bytes,
    fields: dict[str, Any],
    due_at: bytes,
) -> None:
    pushed = _stamped(client, job, fields)
    if not client.is_cluster:
        keys = {
            "waiting": waiting, "target": ruby_queue.list_key, "queues": ruby_queue.key("queues"),
        }  # fmt: skip
        values: Values = {"member": job, "job": pushed, "queue": ruby_queue.queue}
        client.run(*bound("ruby", "promote", keys.__getitem__, values))
        return
    # The set and the list are in two slots, so the job is in both for a moment. A mark ensures that it is pushed once.
    # If the same job is scheduled again, it is due at another time.
    mark = blake2b(b"%b %b %b" % (waiting.encode(), due_at, job), digest_size=12).hexdigest()
    push(client, ruby_queue, [pushed], once=mark)
    client.command("ZREM", waiting, job)


def _stamped(client: Client, job: bytes, fields: dict[str, Any]) -> bytes:
    """Return the job with the time when it was enqueued, in the job's own unit of time.

    All other bytes stay the same.
    """
    if "enqueued_at" in fields:
        return job
    seconds, micros = client.command("TIME")
    in_ms = isinstance(fields.get("created_at"), int)
    now = (
        f"{int(seconds) * 1000 + int(micros) // 1000}"
        if in_ms
        else f"{int(seconds)}.{int(micros):06}"
    )
    return job.replace(b"{", b'{"enqueued_at":' + now.encode() + b",", 1)
