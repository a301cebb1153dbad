"""What commands and pages say of the queues of Sidekiq and Resque, as records."""

from __future__ import annotations

from typing import Any

from jobq.client.connection import Client
from jobq.client.names import is_name
from jobq.errors import ConfigError
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.queue import Queue
from jobq.queue.types import text_of


def queues_of(client: Client, system: RubyQueueName) -> list[RubyQueueName]:
    """Return the queues that a system lists, sorted."""
    names = sorted(map(text_of, client.command("SMEMBERS", system.key("queues"))))
    return [system._replace(queue=name) for name in names]


def usable_queues(client: Client, system: RubyQueueName) -> list[RubyQueueName]:
    """Return those that a queue of jobq can be named after: anything may stand in the list."""
    names = client.command("SMEMBERS", system.key("queues"))
    return sorted(system._replace(queue=name.decode()) for name in names if is_name("queue", name))


def queue_record(client: Client, ruby_queue: RubyQueueName) -> dict[str, Any]:
    """Count the jobs of one queue.

    waiting: in the Ruby queue. taken: claimed by a worker of jobq and not yet enqueued. held: messages of the jobq
    queue of that name that wait, run or wait for a retry.
    """
    taken = sum(claim.njobs for claim in Claims(client, ruby_queue).waiting())
    waiting = client.command("LLEN", ruby_queue.list_key)
    return {
        "system": ruby_queue.system, "queue": ruby_queue.queue, "waiting": waiting, "taken": taken,
        "held": _held(client, ruby_queue.queue),
    }  # fmt: skip


def _held(client: Client, name: str) -> int:
    try:
        counts = Queue(name, client).admin.counts()
    except ConfigError:  # a name that no queue of jobq can have
        return 0
    return counts.ready + counts.delayed + counts.locked
