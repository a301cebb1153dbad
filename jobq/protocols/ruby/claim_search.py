"""Finds jobs that jobq has claimed from a Ruby queue but not yet enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.pipelining import read_together
from jobq.protocols.ruby.claims import LIMIT, Claims
from jobq.protocols.ruby.job_format import read_job
from jobq.protocols.ruby.key_names import RubyQueueName

#: Number of claims of a Ruby queue to search, the oldest first.
MAX_CLAIMS = 100


class ClaimedJob(NamedTuple):
    """A Ruby job that a worker has claimed but not yet enqueued.

    Attributes:
        lease_at: Time (epoch ms) when other workers may take over the claim.
    """

    ruby_queue: RubyQueueName
    claim_id: str
    lease_at: int


def claimed_job(
    client: Client, ruby_queues: Sequence[RubyQueueName], mid: str
) -> tuple[ClaimedJob | None, list[Exception]]:
    """Search the claims of these queues for the job with this mid.

    Return the claim in which the job waits, and the errors of failed reads.

    This needs two round trips on one server.
    """
    claims = [Claims(client, ruby_queue) for ruby_queue in ruby_queues]
    listed = read_together(client, [claim.listed_call(MAX_CLAIMS) for claim in claims])
    waiting = [
        (claim, claim_id, lease_at)
        for claim, reply in zip(claims, listed, strict=True)
        if not isinstance(reply, Exception)
        for claim_id, lease_at in claim.read_listed(reply)
    ]
    taken = read_together(client, [c.taken_call(claim_id, LIMIT) for c, claim_id, _ in waiting])
    unread = [reply for reply in (*listed, *taken) if isinstance(reply, Exception)]
    for (claim, claim_id, lease_at), jobs in zip(waiting, taken, strict=True):
        for place, raw in enumerate(() if isinstance(jobs, Exception) else jobs):
            if raw == claim_id.encode():  # the job is already in its queue
                continue
            if read_job(claim.ruby_queue, raw, f"{claim_id}.{place}", {}).mid == mid:
                return ClaimedJob(claim.ruby_queue, claim_id, lease_at), unread
    return None, unread
