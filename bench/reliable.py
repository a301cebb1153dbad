"""`python -m bench.reliable`: RELIABLEQ compared with a bare LPUSH / LMOVE / LREM loop; medians of three runs."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from bench.server import private_server
from jobq import Client
from jobq.protocols.reliable import ReliableQueue

MESSAGES = 20_000
PENDING = 1_000
WARMED_UP = 500
RUNS = 3
CONTENT = b"x" * 40


def measured() -> Iterator[tuple[str, float]]:
    """Measure cycles of push, pop and ack: single and by the hundred; bare, and bare with many pending."""
    with private_server() as client:
        queue = ReliableQueue(client)
        for count in (1, 10, 100):
            yield f"reliable: push + pop + ack, {count} a call", _rate(_cycle(queue, count), count)
        yield "bare: LPUSH + LMOVE + LREM", _rate(_bare(client), 1)
        ids = queue.push("held", *[CONTENT] * PENDING)
        assert len(queue.pop(PENDING, 0, "held") or ()) == len(ids)
        yield f"reliable: the same with {PENDING:,} pending", _rate(_cycle(queue, 1, "held"), 1)
        client.command("LPUSH", "busy", *[b"held%d" % n for n in range(PENDING)])
        yield f"bare: the same with {PENDING:,} pending", _rate(_bare(client, "busy"), 1)


def _cycle(queue: ReliableQueue, count: int, key: str = "mails") -> Callable[[], object]:
    contents = [CONTENT] * count

    def cycle() -> object:
        queue.push(key, *contents)
        popped = queue.pop(count, 0, key)
        return queue.ack(key, *[one.id for one in popped or ()])

    return cycle


def _bare(client: Client, busy: str = "bare-busy") -> Callable[[], object]:
    """The pattern from Redis' manual: no ids, no counts, no ages, so no recovery; LREM finds the newest element
    immediately.
    """
    command = client.command

    def cycle() -> object:
        command("LPUSH", "bare", CONTENT)
        content = command("LMOVE", "bare", busy, "RIGHT", "LEFT")
        return command("LREM", busy, 1, content)

    return cycle


def _rate(cycle: Callable[[], object], count: int) -> float:
    for _ in range(max(1, WARMED_UP // count)):
        cycle()
    cycles = MESSAGES // count
    started = time.perf_counter()
    for _ in range(cycles):
        assert cycle()
    return cycles * count / (time.perf_counter() - started)


def main() -> None:
    """Messages per second of each, and between what they moved."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(RUNS):
        for name, rate in measured():
            found[name].append(rate)
    for name, rates in found.items():
        spread = f"({min(rates):,.0f} – {max(rates):,.0f})"
        print(f"{name:50} {statistics.median(rates):>10,.0f} msg/s  {spread}")


if __name__ == "__main__":
    main()
