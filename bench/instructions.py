"""`python -m bench.instructions [CASE…]`: server cost per message, in instructions counted by callgrind.

Unlike times, these counts are nearly the same on a busy machine. They need valgrind, and Debian's redis-server, since
valgrind can't run every build of Valkey. In a CASE * stands for any text, as in "10 held, by 1,*". Counts of two
commits are compared by a run in a checkout of each.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
RECORD = "app.f\x1f1\x1f120\x1f110\x1f0\x1fworker:1\x1f\x1f"
BATCH, WARM, HOUR_S = 64, 1_000, 3_600


class Counted:
    """A server under callgrind."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], client: jobq.Client) -> None:
        self.folder, self.process, self.client, self.dumps = folder, process, client, 0

    def instructions(self) -> int:
        """Return the instructions since the last call."""
        self.dumps += 1
        return dumped(self.folder, [self.process.pid], self.dumps)


def dumped(folder: Path, pids: Sequence[int], number: int) -> int:
    """Return the instructions of these servers since the dump before this number."""
    total = 0
    for pid in pids:
        dump = folder / f"counted.{pid}.{number}"
        subprocess.run(["callgrind_control", "-d", str(pid)], check=True, capture_output=True)
        # The server's own timer ends the wait.
        while not (
            dump.exists() and (match := re.search(r"^totals: (\d+)", dump.read_text(), re.M))
        ):
            time.sleep(0.02)
        total += int(match[1])
    return total


@contextmanager
def counted() -> Iterator[Counted]:
    """Yield a server, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as name:
        folder = Path(name)
        command = [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counted.%p", redis_binary(), "--port", "0",
            "--unixsocket", f"{folder}/s", "--save", "", "--dir", name, "--hz", "1",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Counted(folder, process, connected(f"unix://{folder}/s", patience_s=60))
        finally:
            process.kill()
            process.wait(10)


def drain(
    queue: Queue,
    batch: int,
    now: int,
    after: Callable[[], object] = lambda: None,
    **stored: Any,
) -> None:
    """Drain the queue: each call ends a batch and fetches the next; `after` follows each call.

    `stored`: the result and result_ttl of each ending.
    """
    endings: list[Ending] = []
    while True:
        now += 1
        dequeued = queue.finish(endings, dequeue=batch, now=now).dequeued
        assert dequeued is not None
        if not dequeued.messages and not endings:
            return
        after()
        endings = [
            Ending(mid=message.mid, token=message.token, **stored) for message in dequeued.messages
        ]


def in_batches(
    count: int, keys: int = 0, key_max: int | None = None, delayed: int = 0
) -> tuple[float, float]:
    """Instructions per message: to enqueue it among 250, and to hand it out and end it among 64.

    `delayed`: so many more wait for an hour.
    """

    def rows(number: int) -> list[Any]:
        if not keys:
            return [CONTENT] * number
        return [(None, CONTENT, f"customer-{index % keys}") for index in range(number)]

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
    """Measure like in_batches, for a flow's step; if `taken`, including the delivery of endings to the flow."""
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
                mids = [member_mid(store.run, "rows", start + index) for index in range(PER_CHUNK)]
                queue.enqueue_members([(mid, CONTENT) for mid in mids], in_order=True, now=NOW)

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
            {"key": f"customer-{index % keys}"} if keys else {} for index in range(count)
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


def held(many: int, batch: int, waiting: int, listpack: int, _: int) -> tuple[float, float]:
    """Measure like one_by_one, with `many` held jobs; each call ends a batch of them, and fetches another.

    `waiting`: so many messages are left in the end. `listpack`: the server's hash-max-listpack-entries.
    """
    calls = max(5, 160 // batch)
    lap = 2 * max(many, batch) // batch
    with counted() as server:
        server.client.command("CONFIG", "SET", "hash-max-listpack-entries", str(listpack))
        queue, now = Queue("bench", server.client), NOW
        queue.enqueue_many([CONTENT] * (waiting + max(many, batch) + lap * batch), now=now)
        messages = list(queue.dequeue(max(many, batch), now=now).messages)

        def run(calls: int) -> None:
            nonlocal now
            for _ in range(calls):
                now += 1
                endings = [
                    Ending(mid=each.mid, token=each.token, record=RECORD)
                    for each in messages[:batch]
                ]
                dequeued = queue.finish(endings, dequeue=batch, now=now).dequeued
                assert dequeued is not None
                messages[:] = messages[batch:] + list(dequeued.messages)

        run(lap)
        queue.enqueue(CONTENT)  # which loads the script
        server.instructions()
        for _ in range(calls * batch):
            queue.enqueue(CONTENT)
        enqueued = server.instructions() / (calls * batch)
        run(calls)
        return enqueued, server.instructions() / (calls * batch)


HELD, BATCHES, WAITING = (1, 10, 50, 200), (1, 2, 4, 8, 64), (0, 1_200)
# Redis's default, and the embedded server's setting.
LISTPACKS = {"": 512, ", listpacks of 8": 8}


def held_cases() -> dict[str, Callable[[int], tuple[float, float]]]:
    """Return the cases by name."""
    cases: dict[str, Callable[[int], tuple[float, float]]] = {}
    for many, batch, waiting in itertools.product(HELD, BATCHES, WAITING):
        for word, listpack in LISTPACKS.items():
            name = f"{many} held, by {batch}, {waiting:,} waiting{word}"
            cases[name] = functools.partial(held, many, batch, waiting, listpack)
    return cases


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
    **held_cases(),
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
    patterns = chosen.cases or ["*"]
    for name in (
        name for name in CASES if any(fnmatch.fnmatchcase(name, each) for each in patterns)
    ):
        enqueued, ran = CASES[name](chosen.messages)
        print(f"| {name} | {enqueued / 1000:.1f} | {ran / 1000:.1f} |", flush=True)


if __name__ == "__main__":
    main()
