"""`python -m bench.rsmq [--runs N]`: RSMQ, ours beside its Node client on the same server in one run.

Messages a second that were sent, received and deleted, by one process on one connection. Others on the machine
only take away, so the best runs are compared: `x` is the ratio to Node's with one call at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.server import ROOT, private_server
from jobq.compat.rsmq import Message, Rsmq
from jobq.engine.connection import Client
from jobq.engine.inflight import Flights

MESSAGES = 10_000
BATCH = 1_000
NODE = "rsmq@0.12.4"
FOLDER = ROOT / ".bench" / "rsmq"


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.rsmq", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for name, rate in one_run().items():
            rates[name].append(rate)
    alone = max(rates.get("Node, 1 in flight", [0]))
    for name, values in rates.items():
        best, middle = max(values), statistics.median(values)
        ratio = f"{best / alone:5.1f} x" if alone else ""
        print(f"{name:32} best {best:>9,.0f}/s {ratio:9} median {middle:>9,.0f}/s, {runs} runs")


def one_run() -> dict[str, float]:
    """Rates on one server, Node's first where node and npm are there."""
    with private_server() as client:
        node = theirs(client) if shutil.which("node") and shutil.which("npm") else {}
        rates = {f"Node, {in_flight} in flight": rate for in_flight, rate in node.items()}
        return rates | {f"jobq, {name}": timed(cycles) for name, cycles in ours(client).items()}


class Ours:
    """Each method does so many cycles."""

    def __init__(self, client: Client) -> None:
        self.queue = Rsmq(client)
        self.queue.create_queue("bench")
        self.flights, self.requests = Flights(client), self.queue.requests

    def one_at_a_time(self, cycles: int) -> None:
        for _ in range(cycles):
            self.queue.send_message("bench", "hello")
            message = self.queue.receive_message("bench")
            assert message
            self.queue.delete_message("bench", message.id, receipt=message.receipt)

    def turns(self, cycles: int) -> None:
        done: list[Message] = []
        for _ in range(cycles):
            self.queue.send_message("bench", "hello")
            _, done = self.queue.next_messages("bench", done)
        self.queue.delete_messages("bench", done)

    def in_flight(self, cycles: int) -> None:
        for _ in range(cycles // BATCH):
            self.flights.run([self.requests.send("bench", ["hello"], None) for _ in range(BATCH)])
            found = self.flights.run([self.requests.receive("bench", 1, None)] * BATCH)
            held = [(one.id, one.receipt) for received in found for one in received.messages]
            assert all(self.flights.run([self.requests.delete("bench", [one]) for one in held]))

    def batches(self, cycles: int) -> None:
        for _ in range(cycles // BATCH):
            self.queue.send_messages("bench", ["hello"] * BATCH)
            found = self.queue.receive_messages("bench", BATCH)
            assert all(self.queue.delete_messages("bench", found))


def ours(client: Client) -> dict[str, Callable[[int], None]]:
    """By name."""
    made = Ours(client)
    return {
        "one at a time": made.one_at_a_time,
        "one at a time, next_messages": made.turns,
        f"{BATCH:,} in flight": made.in_flight,
        f"batches of {BATCH:,}": made.batches,
    }


def timed(cycles: Callable[[int], None]) -> float:
    """Cycles a second, after a few to warm up."""
    cycles(BATCH)
    began = time.perf_counter()
    cycles(MESSAGES)
    return MESSAGES / (time.perf_counter() - began)


def theirs(client: Client) -> dict[str, float]:
    """The same of Node, in a process of its own, by how many calls are in flight."""
    modules = FOLDER / "node_modules"
    if not modules.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        install = [
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(FOLDER),
            NODE,
        ]
        subprocess.run(install, check=True, capture_output=True)
    socket = client.url.removeprefix("unix://")
    program = str(Path(__file__).with_suffix(".js"))
    ran = subprocess.run(
        ["node", program, str(modules), socket, str(MESSAGES)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    main()
