"""RSMQ: send + receive + delete, ours beside RSMQ's Node client on the same server in one run."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.server import private_server
from bench.worker import ROOT
from jobq.compat.rsmq import Message, Rsmq
from jobq.engine.connection import Client
from jobq.engine.inflight import Flights

MESSAGES = 10_000
BATCH = 1_000
NODE = "rsmq@0.12.4"
FOLDER = ROOT / ".bench" / "rsmq"
Row = tuple[str, float, str]


def rsmq() -> Iterator[Row]:
    """Messages a second that were sent, received and deleted, by one process on one connection."""
    with private_server() as client:
        node = theirs(client) if shutil.which("node") and shutil.which("npm") else {}
        for in_flight, rate in node.items():
            yield f"rsmq: Node, {in_flight} in flight", rate, "/s"
        for name, cycles in ours(client).items():
            rate = timed(cycles)
            yield f"rsmq: jobq, {name}", rate, "/s"
            if node:
                yield f"  over Node, 1 in flight: {name}", rate / node["1"], "x"


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
