"""`python -m bench.enqueueing`: every way to enqueue, in turn, compared with a bare loop and Sidekiq's `push_bulk`.

Each row: the median rate, the fastest and slowest round, CPU of the producer and of the server per message. The
bare loop sends the same script with the same arguments on a socket, with hiredis alone, and again on an event loop.
Sidekiq is left out if it isn't installed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import hiredis

import jobq
from bench.peers.venvs import Missing
from bench.server import OVER_TCP, free_port, private_server, server_s
from bench.stage import stage
from jobq.client.aio import Reply
from jobq.client.numbered_calls import Caller
from jobq.client.scripts import packed

SINGLES, BULK, IN_FLIGHT, ALREADY = 3_000, 50_000, 1_000, 1_000_000


class Round(NamedTuple):
    """One measurement, per message: seconds, CPU seconds of the producer and of the server."""

    wall: float
    producer: float
    server: float


@jobq.job(queue="bench")
def example(number: int, text: str) -> None:
    """Do nothing; no worker runs it."""


def timed(client: jobq.Client, act: Callable[[], object], count: int) -> Round:
    """Measure `act`, which makes `count` messages."""
    server, cpu, wall = server_s(client), time.process_time(), time.perf_counter()
    act()
    wall = time.perf_counter() - wall
    return Round(
        wall / count, (time.process_time() - cpu) / count, (server_s(client) - server) / count
    )


def commands(client: jobq.Client) -> Callable[[], bytes]:
    """Return a function that calls the script of `enqueue` for a message without options."""
    queue, caller = jobq.Queue("bench", client), Caller()
    bound = queue.scripts["enqueue_plain"]
    keys = (*bound.keys, f"{queue.prefix}call:{caller.id}")
    content = b'{"job":"bench.enqueueing.example","args":[12345,"short text"],"enqueued_at":1700000000000}'

    def following() -> bytes:
        words: tuple[Any, ...] = (
            "EVALSHA",
            bound.script.sha,
            len(keys),
            *keys,
            caller.id,
            caller.next(),
            f"{time.time_ns():014x}"[-14:],
            content,
        )
        return packed(words)

    return following


def connected(client: jobq.Client) -> socket.socket:
    """Open a separate socket to the server."""
    if client.url.startswith("redis://"):
        host, port = client.url.removeprefix("redis://").split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(client.url.removeprefix("unix://"))
    return connection


def bare(client: jobq.Client) -> Callable[[], object]:
    """Return a function that only calls the script, once per message."""
    following, connection, reader = commands(client), connected(client), hiredis.Reader()

    def act() -> None:
        for _ in range(SINGLES):
            connection.sendall(following())
            while (reply := reader.gets()) is False:
                reader.feed(connection.recv(65536))
            assert reply[0] == b"added", reply

    return act


async def bare_awaited(client: jobq.Client) -> None:
    """Enqueue with a coroutine: measures only the turns of an event loop."""
    following, connection, reader = commands(client), connected(client), hiredis.Reader()
    loop = asyncio.get_running_loop()
    awaited: list[Reply] = []

    def receive() -> None:
        reader.feed(connection.recv(65536))
        if (reply := reader.gets()) is not False:
            awaited.pop().arrived(reply)

    loop.add_reader(connection, receive)
    for _ in range(SINGLES):
        awaited.append(Reply(loop))
        connection.send(following())
        assert (await awaited[0])[0] == b"added"
    loop.remove_reader(connection)


async def awaited(job: Any, lanes: int, count: int) -> None:
    """Enqueue `count` messages with `aenqueue`, from `lanes` coroutines."""

    async def lane() -> None:
        for _ in range(count // lanes):
            await job.aenqueue(12345, "short text")

    await asyncio.gather(*[lane() for _ in range(lanes)])


def ways(client: jobq.Client) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yield each way to enqueue: its name, the action, and its number of messages."""
    job = example.options(client=client)
    job.enqueue(12345, "a longer text than the others: contents up to its length are plain")
    many = [(12345, "short text")] * BULK
    with asyncio.Runner() as runner:
        yield "bare EVALSHA", bare(client), SINGLES
        yield (
            "bare EVALSHA, on an event loop",
            lambda: runner.run(bare_awaited(client)),
            SINGLES,
        )
        yield "enqueue", lambda: [job.enqueue(12345, "short text") for _ in range(SINGLES)], SINGLES
        yield "aenqueue, one at a time", lambda: runner.run(awaited(job, 1, SINGLES)), SINGLES
        yield (
            f"aenqueue, {IN_FLIGHT:,} in flight",
            lambda: runner.run(awaited(job, IN_FLIGHT, BULK)),
            BULK,
        )
        yield "enqueue_many", lambda: job.enqueue_many(many), BULK
        yield (
            "enqueue_many, of a generator",
            lambda: job.enqueue_many((number, "short text") for number in range(BULK)),
            BULK,
        )
        yield "aenqueue_many", lambda: runner.run(job.aenqueue_many(many)), BULK


def by_sidekiq() -> Round:
    """Enqueue with `push_bulk` of Sidekiq's client."""
    with stage("sidekiq") as on:
        _, bulk_s = on.inside("rates", 1, BULK)
        return Round(bulk_s / BULK, 0, 0)


def delayed(client: jobq.Client) -> None:
    """Enqueue a million messages due in an hour."""
    example.options(client=client, delay=3600).enqueue_many((n, "") for n in range(ALREADY))


def main() -> None:
    """Print medians over the rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.enqueueing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--delayed", action="store_true", help="with a million delayed messages in the queue"
    )
    parser.add_argument("--tcp", action="store_true", help="over TCP instead of a unix socket")
    chosen = parser.parse_args()
    if chosen.tcp:
        os.environ[OVER_TCP] = "1"
    found: dict[str, list[Round]] = {}
    for _ in range(chosen.rounds):
        port = free_port() if chosen.tcp else 0
        with private_server(port=port) as local:
            client = jobq.connect(f"redis://127.0.0.1:{port}") if port else local
            if chosen.delayed:
                delayed(client)
            for name, act, count in ways(client):
                found.setdefault(name, []).append(timed(client, act, count))
        with suppress(Missing):
            round_ = by_sidekiq()
            found.setdefault("Sidekiq's push_bulk", []).append(round_)
    print(
        f"{'':32}{'per second':>12}{'slowest':>10}{'fastest':>10}{'producer µs':>13}{'server µs':>11}"
    )
    for name, rounds in found.items():
        rates = sorted(1 / round_.wall for round_ in rounds)
        cpu = [
            statistics.median(part) * 1e6
            for part in zip(*[round_[1:] for round_ in rounds], strict=True)
        ]
        print(
            f"{name:32}{statistics.median(rates):12,.0f}{rates[0]:10,.0f}{rates[-1]:10,.0f}{cpu[0]:13.1f}{cpu[1]:11.1f}"
        )


if __name__ == "__main__":
    main()
