"""`python -m bench.instructions [CASE…]`: what a message costs the server, counted in instructions by callgrind.

Unlike times, these counts are nearly the same on a busy machine. They need valgrind, and Debian's redis-server, since
valgrind can't run every build of Valkey. Counts of two commits are compared by a run in a checkout of each.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jobq
from bench.server import connected, redis_binary
from jobq import Ending, Queue
from jobq.flows.announcing import announce
from jobq.flows.draining import Drainer
from jobq.flows.identity import member_mid
from jobq.flows.store import FlowStore
from jobq.flows.types import PER_CHUNK, StoredFlow, StoredStep

NOW = 1_700_000_000_000
CONTENT = b'{"v":1,"job":"noop","args":[12345,"short text"]}'
BATCH, WARM, HOUR_S = 64, 1_000, 3_600


class Counted:
    """A server under callgrind."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], client: jobq.Client) -> None:
        self.folder, self.process, self.client, self.dumps = folder, process, client, 0

    def instructions(self) -> int:
        """Those since the last call."""
        self.dumps += 1
        dump = self.folder / f"counted.{self.dumps}"
        subprocess.run(
            ["callgrind_control", "-d", str(self.process.pid)], check=True, capture_output=True
        )
        while not (
            dump.exists() and (found := re.search(r"^totals: (\d+)", dump.read_text(), re.M))
        ):
            self.client.command("PING")
            time.sleep(0.02)
        return int(found[1])


@contextmanager
def counted() -> Iterator[Counted]:
    """A server that is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as name:
        folder = Path(name)
        command = [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counted", redis_binary(), "--port", "0",
            "--unixsocket", f"{folder}/s", "--save", "", "--dir", name, "--hz", "1",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Counted(folder, process, connected(f"unix://{folder}/s", patience_s=60))
        finally:
            process.kill()
            process.wait(10)


def drain(queue: Queue, batch: int, now: int, after: Callable[[], object] = lambda: None) -> None:
    """Run what there is: each call ends a batch and takes the next; `after` is called behind each."""
    endings: list[Ending] = []
    while True:
        now += 1
        dequeued = queue.finish(endings, dequeue=batch, now=now).dequeued
        assert dequeued is not None
        if not dequeued.messages and not endings:
            return
        after()
        endings = [Ending(mid=one.mid, token=one.token) for one in dequeued.messages]


def in_batches(
    count: int, keys: int = 0, key_max: int | None = None, delayed: int = 0
) -> tuple[float, float]:
    """Instructions per message: to enqueue it among 250, and to hand it out and end it among 64.

    `delayed`: so many more wait for an hour.
    """

    def rows(number: int) -> list[Any]:
        if not keys:
            return [CONTENT] * number
        return [(None, CONTENT, f"customer-{one % keys}") for one in range(number)]

    with counted() as server:
        queue = Queue("bench", server.client)
        if key_max:
            queue.rules(key_max=key_max)
        if delayed:
            queue.enqueue_many([CONTENT] * delayed, delay=HOUR_S, now=NOW + 10**6)
        # While a hash is small the server searches it from its beginning.
        queue.enqueue_many(rows(WARM), now=NOW)
        server.instructions()
        queue.enqueue_many(rows(count), now=NOW + 10**6)
        enqueued = server.instructions()
        drain(queue, BATCH, NOW + 10**6)
        return enqueued / count, server.instructions() / (WARM + count)


def members(count: int, taken: bool = True) -> tuple[float, float]:
    """As in_batches, of a step of a flow; with what takes each batch of endings to the flow, if `taken`."""
    count -= count % PER_CHUNK
    with counted() as server:
        queue, store = Queue("bench", server.client), FlowStore(server.client, "bench:1")
        rows = StoredStep("rows", "map", "bench", source="stream", call=CONTENT)
        store.create(StoredFlow((rows,), "hash", "bench", 60_000))
        announce(server.client, "bench", "begin", "bench:1")
        drainer = Drainer(server.client)
        drainer.drain("bench")

        def enqueue(first: int, number: int) -> None:
            for chunk in range(first, first + number // PER_CHUNK):
                start = store.reserve("rows", chunk, PER_CHUNK).first
                mids = [member_mid("bench:1", "rows", start + one) for one in range(PER_CHUNK)]
                queue.enqueue_members([(mid, CONTENT) for mid in mids], now=NOW)

        def after() -> None:
            if taken:
                drainer.drain("bench")
            else:
                queue.flow_outbox_drop([one.entry_id for one in queue.flow_outbox()])

        enqueue(0, WARM)
        drain(queue, BATCH, NOW, after)
        server.instructions()
        enqueue(WARM // PER_CHUNK, count)
        enqueued = server.instructions()
        drain(queue, BATCH, NOW + 10**6, after)
        return enqueued / count, server.instructions() / count


def one_by_one(count: int, keys: int = 0) -> tuple[float, float]:
    """Instructions per message: each call enqueues one; each call ends one and hands out one."""
    count //= 4
    with counted() as server:
        queue = Queue("bench", server.client)
        options: list[Any] = [
            {"key": f"customer-{one % keys}"} if keys else {} for one in range(count)
        ]
        for more in options[:50]:
            queue.enqueue(CONTENT, **more)
        drain(queue, 1, NOW)
        server.instructions()
        for more in options:
            queue.enqueue(CONTENT, **more)
        enqueued = server.instructions()
        drain(queue, 1, NOW + 10**6)
        return enqueued / count, server.instructions() / count


CASES: dict[str, Callable[[int], tuple[float, float]]] = {
    "in batches": in_batches,
    "in batches, 1 key": lambda count: in_batches(count, 1),
    "in batches, 1,000 keys": lambda count: in_batches(count, 1_000),
    "in batches, 1,000 keys, at most 5 of each at once": lambda count: in_batches(count, 1_000, 5),
    "in batches, beside 100,000 delayed": lambda count: in_batches(count, delayed=100_000),
    "in batches, members of a flow": members,
    "in batches, members of a flow, not taken to it": lambda count: members(count, taken=False),
    "one by one": one_by_one,
    "one by one, 1,000 keys": lambda count: one_by_one(count, 1_000),
}


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {'; '.join(CASES)}")
    parser.add_argument("--messages", type=int, default=8_000)
    chosen = parser.parse_args()
    if not shutil.which("valgrind"):
        parser.error("valgrind is not installed")
    print("| thousands of instructions per message | enqueue | hand out and end |")
    print("|---|---|---|")
    for name in chosen.cases or CASES:
        enqueued, ran = CASES[name](chosen.messages)
        print(f"| {name} | {enqueued / 1000:.1f} | {ran / 1000:.1f} |", flush=True)


if __name__ == "__main__":
    main()
