"""Records of the queues of Sidekiq and Resque, for commands and pages."""

from __future__ import annotations

from jobq.client.connection import Client
from jobq.client.names import is_name, is_partition
from jobq.errors import ConfigError
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.queue import Queue
from jobq.queue.types import text_of
from jobq.records import JsonRecord


def queues_of(client: Client, system: RubyQueueName) -> list[RubyQueueName]:
    """Return the queues in a Ruby system's set of queue names, sorted."""
    names = sorted(map(text_of, client.command("SMEMBERS", system.key("queues"))))
    return [system._replace(queue=name) for name in names]


def usable_queues(client: Client, system: RubyQueueName) -> list[RubyQueueName]:
    """Return the queues whose names are valid for jobq. Ruby's list may contain any names."""
    names = client.command("SMEMBERS", system.key("queues"))
    usable = (name.decode() for name in names if is_name("queue", name))
    return sorted(system._replace(queue=name) for name in usable if not is_partition(name))


class RubyQueueRecord(JsonRecord):
    """Counts of the jobs of one queue.

    Attributes:
        waiting: Jobs in the Ruby queue.
        taken: Jobs that jobq has claimed but not yet enqueued.
        held: Waiting, running and retrying messages of the jobq queue with this name.
    """

    system: str
    queue: str
    waiting: int
    taken: int
    held: int


def queue_record(client: Client, ruby_queue: RubyQueueName) -> RubyQueueRecord:
    """Count the jobs of one queue."""
    taken = sum(claim.njobs for claim in Claims(client, ruby_queue).waiting())
    waiting = client.command("LLEN", ruby_queue.list_key)
    return RubyQueueRecord(
        ruby_queue.system, ruby_queue.queue, waiting, taken, _held(client, ruby_queue.queue)
    )


def _held(client: Client, name: str) -> int:
    try:
        counts = Queue(name, client).admin.counts()
    except ConfigError:  # a name that no queue of jobq can have
        return 0
    return counts.ready + counts.delayed + counts.locked
