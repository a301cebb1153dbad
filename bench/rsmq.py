"""`python -m bench.rsmq [--runs N]`: RSMQ, ours compared with its Node client on the same server in one run.

Messages a second that were sent, received and deleted, by one process on one connection. They take turns, a tenth
of the messages each, so that what else the machine does is shared by all; `x` is the ratio to Node's with one
call at a time, the median over the runs. `AsyncRsmq` is measured by itself, through its own calls. CPU is
this process's alone, per message.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peers.venvs import node_modules
from bench.server import ROOT, private_server
from jobq.client.connection import Client
from jobq.client.pipelining import PipelinedCalls
from jobq.protocols.rsmq import AsyncRsmq, Rsmq, RsmqMessage

TURNS = 10
BATCH = 1_000
NODE = "rsmq@0.12.4"
FOLDER = ROOT / ".bench" / "rsmq"
ALONE = "Node, 1 in flight"
#: Does so many cycles; how many seconds that took.
Timed = Callable[[int], float]


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.rsmq", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = [one_run() for _ in range(parser.parse_args().runs)]
    for name in runs[0]:
        rates = [run[name].rate for run in runs]
        ratio = cpu = ""
        if ALONE in runs[0]:
            ratio = f"{statistics.median(run[name].rate / run[ALONE].rate for run in runs):5.1f} x"
        if not name.startswith("Node"):
            cpu = f", CPU {statistics.median(run[name].cpu_us for run in runs):.1f} µs"
        best, middle = max(rates), statistics.median(rates)
        print(
            f"{name:32} best {best:>9,.0f}/s {ratio:9} median {middle:>9,.0f}/s{cpu}, {len(runs)} runs"
        )


class Figures(NamedTuple):
    """Messages a second, and CPU of this process for each."""

    rate: float
    cpu_us: float


def one_run() -> dict[str, Figures]:
    """Return figures on one server, including Node's if node and npm are installed."""
    with private_server() as client, theirs(client) as node, asyncio.Runner() as runner:
        everybody = node | ours(client) | ours_async(client, runner)
        spent: dict[str, float] = defaultdict(float)
        cpu_s: dict[str, list[float]] = defaultdict(list)
        for cycles in everybody.values():
            cycles(BATCH)  # to warm up
        for _ in range(TURNS):
            for name, cycles in everybody.items():
                began = time.process_time()
                spent[name] += cycles(BATCH)
                cpu_s[name].append(time.process_time() - began)
        return {
            name: Figures(TURNS * BATCH / spent[name], statistics.median(cpu_s[name]) / BATCH * 1e6)
            for name in spent
        }


class Ours:
    """Each method does so many cycles."""

    def __init__(self, client: Client) -> None:
        self.queue = Rsmq(client)
        self.queue.create_queue("bench")
        self.flights, self.requests = PipelinedCalls(client), self.queue.requests

    def one_at_a_time(self, cycles: int) -> None:
        for _ in range(cycles):
            self.queue.send_message("bench", "hello")
            message = self.queue.receive_message("bench")
            assert message
            self.queue.delete_message("bench", message.id, receipt=message.receipt)

    def turns(self, cycles: int) -> None:
        done: list[RsmqMessage] = []
        for _ in range(cycles):
            self.queue.send_message("bench", "hello")
            _, done = self.queue.next_messages("bench", done)
        self.queue.delete_messages("bench", done)

    def in_flight(self, cycles: int) -> None:
        for _ in range(cycles // BATCH):
            self.flights.run([self.requests.send("bench", ["hello"], None) for _ in range(BATCH)])
            found = self.flights.run([self.requests.receive("bench", 1, None)] * BATCH)
            held = [
                (message.id, message.receipt) for received in found for message in received.messages
            ]
            assert all(self.flights.run([self.requests.delete("bench", [one]) for one in held]))

    def batches(self, cycles: int) -> None:
        for _ in range(cycles // BATCH):
            self.queue.send_messages("bench", ["hello"] * BATCH)
            found = self.queue.receive_messages("bench", BATCH)
            assert all(self.queue.delete_messages("bench", found))


def ours(client: Client) -> dict[str, Timed]:
    """Return timings by name."""
    made = Ours(client)
    return {
        "jobq, one at a time": timed(made.one_at_a_time),
        "jobq, one at a time, next_messages": timed(made.turns),
        f"jobq, {BATCH:,} in flight": timed(made.in_flight),
        f"jobq, batches of {BATCH:,}": timed(made.batches),
    }


class OursAsync:
    """Cycles of AsyncRsmq: each coroutine sends, receives and deletes one message after another."""

    def __init__(self, client: Client) -> None:
        self.queue = AsyncRsmq(client)
        self.queue.blocking.create_queue("async")

    async def cycles(self, coroutines: int, count: int) -> None:
        left = iter(range(count))
        await asyncio.gather(*(self._cycles(left) for _ in range(coroutines)))

    async def _cycles(self, left: Iterator[int]) -> None:
        for _ in left:
            await self.queue.send_message("async", "hello")
            message = await self.queue.receive_message("async")
            assert message
            await self.queue.delete_message("async", message.id, receipt=message.receipt)


def ours_async(client: Client, runner: asyncio.Runner) -> dict[str, Timed]:
    """Return timings by number of concurrent coroutines."""
    made = OursAsync(client)

    def among(coroutines: int) -> Timed:
        return timed(lambda count: runner.run(made.cycles(coroutines, count)))

    return {
        "AsyncRsmq, one at a time": among(1),
        "AsyncRsmq, 100 coroutines": among(100),
        f"AsyncRsmq, {BATCH:,} coroutines": among(BATCH),
    }


def timed(cycles: Callable[[int], None]) -> Timed:
    """Time cycles, in seconds."""

    def seconds(count: int) -> float:
        began = time.perf_counter()
        cycles(count)
        return time.perf_counter() - began

    return seconds


@contextmanager
def theirs(client: Client) -> Iterator[dict[str, Timed]]:
    """Yield Node's timings, from a separate process, by number of calls in flight."""
    if not (shutil.which("node") and shutil.which("npm")):
        yield {}
        return
    command = ["node", str(Path(__file__).with_suffix(".js")), str(node_modules(FOLDER, (NODE,)))]
    socket = client.url.removeprefix("unix://")
    with subprocess.Popen(
        [*command, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as node:
        assert node.stdin is not None and node.stdout is not None
        asked, told = node.stdin, node.stdout

        def among(in_flight: int) -> Timed:
            def seconds(count: int) -> float:
                asked.write(f"{in_flight} {count}\n")
                return float(told.readline())

            return seconds

        yield {f"Node, {in_flight} in flight": among(in_flight) for in_flight in (1, 100)}
        asked.close()


if __name__ == "__main__":
    main()
