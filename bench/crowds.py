"""Crowded queues: ready work next to 100,000 and a million delayed jobs, and a million ready jobs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jobq
from bench.drains import both, rate_of
from bench.latency import percentiles
from bench.peers import PEERS
from bench.server import private_server
from bench.stage import FILLINGS, Row, wait_for
from bench.work import again, due, noop
from bench.worker import running_worker
from jobq.queue.types import Ending

MILLION = 1_000_000
DUE, DUE_EVERY_MS = 100, 10
#: So long after they are enqueued the first are due: at rest, and while a backlog is still being drained.
REST_S, BEHIND_S, BACKLOG = 0.5, 1.5, 200_000
TICK_S = 0.004
RETRIED, RETRY_MS = 20, 100.0
BATCHES, BATCH = 300, 64


def beside(delayed: int) -> Callable[[str], Iterator[Row]]:
    """Measure a drain by two processes, with this many messages due in an hour and without."""

    def drained(name: str) -> Iterator[Row]:
        jobs = PEERS[name].jobs
        # jobq by turns with and without, since a target compares the two; the others' rate without is told elsewhere.
        for count in (0, delayed) if name == "own" else (delayed,):
            figure = f"no-op beside {count:,} delayed"
            # Of jobq the server's CPU too: a rate depends on the machine's other load.
            for row in both(name, "noop", 2, jobs, figure, count):
                if row[2] == "jobs/s" or (name == "own" and "CPU of the server" in row[0]):
                    yield row

    return drained


def punctual(delayed: int) -> Callable[[str], Iterator[Row]]:
    """Measure delays of due jobs and retries next to many delayed jobs: at rest, under load, with a backlog."""

    def late(name: str) -> Iterator[Row]:
        rate = rate_of(name) / 2
        with (
            private_server(contents=FILLINGS.of(name, "noop", 0, delayed)) as client,
            tempfile.TemporaryDirectory() as folder,
            running_worker(client, client.url, 2),
        ):
            found = {
                "due job late beside {}, at rest": _at_rest(client, Path(folder)),
                "retry of 100 ms beside {}": _retries(client, Path(folder)),
                "due job late beside {}, under load": _loaded(client, Path(folder), rate),
                "due job late beside {}, behind a backlog": _behind(client, Path(folder)),
            }
        for figure, values in found.items():
            yield from percentiles(figure.format(f"{delayed:,} delayed"), values, "ms")

    return late


def _at_rest(client: jobq.Client, folder: Path) -> list[float]:
    _due(client, folder / "rest", REST_S)
    return _values(folder / "rest", DUE)


def _loaded(client: jobq.Client, folder: Path, rate: float) -> list[float]:
    """Measure while jobs arrive at half the rate of one child's drain."""
    _due(client, folder / "load", REST_S)
    started, sent, bound = time.monotonic(), 0, noop.options(client=client)
    while (now := time.monotonic()) < started + REST_S + (DUE + 1) * DUE_EVERY_MS / 1000:
        coming = int((now - started) * rate) - sent
        bound.enqueue_many([()] * coming)
        sent += coming
        time.sleep(TICK_S)
    return _values(folder / "load", DUE)


def _behind(client: jobq.Client, folder: Path) -> list[float]:
    """Measure behind a backlog that the worker can't finish in time, so due jobs wait for their turn."""
    _due(client, folder / "behind", BEHIND_S)
    noop.options(client=client).enqueue_many([()] * BACKLOG)
    return _values(folder / "behind", DUE)


def _due(client: jobq.Client, ledger: Path, after_s: float) -> None:
    # All are there before the first is due: nobody is late because its producer was.
    first = time.time() + after_s
    for index in range(DUE):
        at = first + index * DUE_EVERY_MS / 1000
        due.options(client=client, at=at).enqueue(at * 1000, str(ledger))


def _retries(client: jobq.Client, folder: Path) -> list[float]:
    for index in range(RETRIED):
        again.options(client=client).enqueue(
            RETRY_MS, str(folder / "again"), str(folder / f"m{index}")
        )
        time.sleep(0.02)
    return _values(folder / "again", RETRIED)


def _values(ledger: Path, count: int) -> list[float]:
    def lines() -> list[str]:
        return ledger.read_text(encoding="ascii").split() if ledger.exists() else []

    wait_for(lambda: len(lines()) >= count, 60, 0.02)
    return [float(line) for line in lines()]


class Deep:
    """A server with a million ready messages, made once; closed with the run."""

    def __init__(self) -> None:
        self._server = private_server()
        self.client = self._server.__enter__()
        self.million = jobq.Queue("million", self.client)
        self.thousand = jobq.Queue("thousand", self.client)
        self.million.enqueue_many([b"{}"] * MILLION)

    def close(self) -> None:
        """End the server."""
        self._server.__exit__(None, None, None)


_deep: list[Deep] = []


def deep(_: str) -> Iterator[Row]:
    """Measure dequeue(64), alternating between a million and a thousand ready messages."""
    if not _deep:
        _deep.append(Deep())
    place = _deep[0]
    took: dict[jobq.Queue, list[float]] = {place.million: [], place.thousand: []}
    for _turn in range(BATCHES):
        if place.thousand.admin.counts().ready < 1_000:
            place.thousand.enqueue_many([b"{}"] * BATCH)
        for queue, values in took.items():
            values.append(_one_batch(queue))
    for figure, queue in (("1,000,000", place.million), ("1,000", place.thousand)):
        yield from percentiles(f"dequeue of {BATCH} with {figure} ready", took[queue], "ms")


def _one_batch(queue: jobq.Queue) -> float:
    started = time.perf_counter()
    handed = queue.dequeue(BATCH)
    seconds = time.perf_counter() - started
    queue.finish([Ending(mid=m.mid, token=m.token) for m in handed.messages])
    return seconds * 1000


def close() -> None:
    """Close resources that this module's cases keep between runs."""
    while _deep:
        _deep.pop().close()
