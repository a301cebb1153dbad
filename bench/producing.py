"""One producer: a job at a time, and as fast as a peer can."""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers import PEERS
from bench.stage import Row, stage


def enqueue(name: str) -> Iterator[Row]:
    """Jobs per second; connected before."""
    peer = PEERS[name]
    bulk = peer.bulk or peer.jobs
    with stage(name) as place:
        singly_s, bulk_s = place.inside("rates", peer.singles, bulk)
    yield "enqueue one at a time", peer.singles / singly_s, "jobs/s"
    yield "enqueue in bulk", bulk / bulk_s, "jobs/s"
