"""`python -m bench.remembered`: the cost of a remembered end for the server, compared with other ends.

It prints bytes of memory, and instructions counted by callgrind, as `bench.instructions` counts them.
"""

from __future__ import annotations

import argparse
import re
import shutil
from typing import Any, NamedTuple

from bench.instructions import BATCH, CONTENT, NOW, WARM, Counted, counted, drain
from jobq import Queue
from jobq.jobs.codec import remembered

TTL_MS = 600_000
DONE = b'{"end":"done","attempt":1,"at":%d}' % NOW


class Cost(NamedTuple):
    """Per message: instructions to enqueue it among 250, to hand it out and end it among 64; bytes left."""

    enqueued: float
    ended: float
    left: float


def cost(count: int, remember: bool) -> Cost:
    """Measure one server."""
    stored: dict[str, Any] = {"result": DONE, "result_ttl": TTL_MS / 1000} if remember else {}
    content = remembered(CONTENT, TTL_MS) if remember else CONTENT
    with counted() as server:
        queue = Queue("bench", server.client)
        queue.admin.events_level("off")
        queue.enqueue_many([content] * WARM, now=NOW)
        drain(queue, BATCH, NOW, **stored)
        empty(queue, NOW + 10**4)
        before = used_bytes(server)
        # While a hash is small the server searches it from its beginning.
        queue.enqueue_many([content] * WARM, now=NOW + 10**5)
        server.instructions()
        queue.enqueue_many([content] * count, now=NOW + 10**6)
        enqueued, number = server.instructions(), WARM + count
        drain(queue, BATCH, NOW + 10**6, **stored)
        ended = server.instructions()
        empty(queue, NOW + 10**7)
        return Cost(enqueued / count, ended / number, (used_bytes(server) - before) / number)


def empty(queue: Queue, now: int) -> None:
    """Remove the finished messages."""
    while queue.admin.counts().done:
        queue.admin.collect(1_000, now=now)


def used_bytes(server: Counted) -> int:
    """Return the memory that the server uses."""
    found = re.search(rb"^used_memory:(\d+)", server.client.command("INFO", "memory"), re.M)
    assert found
    return int(found[1])


def line(without: Cost, used: Cost) -> str:
    """Return the sentences of the guide."""
    more = Cost(*(new - old for new, old in zip(used, without, strict=True)))
    return (
        f"A remembered end without a result takes {more.left:.0f} bytes of the server's memory, and "
        f"{more.ended / 1000:.0f},000 instructions in addition to {without.ended / 1000:.0f},000 for a message's "
        f"hand-out and end. The enqueue of a call that says so takes {more.enqueued:,.0f} instructions more."
    )


def main() -> None:
    """Print both, and the sentences."""
    parser = argparse.ArgumentParser(prog="python -m bench.remembered", description=__doc__)
    parser.add_argument("--messages", type=int, default=8_000)
    chosen = parser.parse_args()
    if not shutil.which("valgrind"):
        parser.error("valgrind is not installed")
    without, used = cost(chosen.messages, False), cost(chosen.messages, True)
    print(f"not remembered: {without}\nremembered: {used}\n{line(without, used)}")


if __name__ == "__main__":
    main()
