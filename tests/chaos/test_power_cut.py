"""A power cut: only synced writes survive a restart of the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.ledger import Ledger
from jobq.chaos.producers import QUEUE, enqueue
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.servers import OwnServer
from jobq.chaos.workers import wait_until
from jobq.client.connection import Client, connect
from jobq.errors import ConfigError
from jobq.queue.queue import Queue
from tests.conftest import binary, kinds
from tests.tools import compiled

from .conftest import JOBS, SEED, broken

pytestmark = pytest.mark.needs("gcc")


class Sync(NamedTuple):
    """How much of a file is on disk: all that was answered before `since`, as `end` is when that was known.

    `since` is the end of the sync before: while one is under way the server answers first and writes later.
    """

    since: float
    end: float
    size: int


class Powered(OwnServer):
    """A server that loses its power instead of being killed. `cuts`: per cut, the time of the last surviving write."""

    def __init__(self, folder: Path, command: str, fsync: str) -> None:
        self._log = folder / "synced"
        self._kept: dict[str, Sync] = {}
        self._torn = fsync == "always"
        self.cuts: list[float] = []
        shim = compiled(Path(__file__).with_name("power_cut.c"), folder)
        env = {"LD_PRELOAD": shim, "SYNC_LOG": str(self._log)}
        super().__init__(folder, command, ("--appendfsync", fsync), env)

    def restart(self) -> None:
        self.close()
        self._cut()
        self._start()
        if self._torn:
            self._rewrite()

    def freeze(self) -> None:
        """Block writes and syncs until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def has(self, mid: str) -> bool:
        """Whether a power cut now would leave anything of this message."""
        return any(mid.encode() in file.read_bytes()[:size] for file, size in self._synced())

    def _rewrite(self) -> None:
        """The settings required by docs/operating/durability.md: else half a transaction stays in the file, and
        counts next time."""
        client = self.client("rewrite")
        client.command("BGREWRITEAOF", routed_by="")
        over = b"aof_rewrite_in_progress:0", b"aof_rewrite_scheduled:0"
        wait_until(lambda: all(word in told(client) for word in over), "no rewritten file", 100)
        client.close()

    def _synced(self) -> Iterator[tuple[Path, int]]:
        known = self._syncs()
        for file in self._folder.glob("appendonlydir/*.incr.aof"):
            yield file, known[str(file)].size if str(file) in known else 0

    def _syncs(self) -> dict[str, Sync]:
        known = dict(self._kept)
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        for end, size, path in (line.split(" ", 2) for line in lines):
            since = known[path].end if path in known else 0.0
            known[path] = Sync(since, int(end) / 1e9, int(size))
        return {path: sync for path, sync in known.items() if ".incr." in path}

    def _cut(self) -> None:
        self.cuts.append(max((sync.since for sync in self._syncs().values()), default=0.0))
        for file, size in self._synced():
            # The disk may also have got part of the rest, cut anywhere.
            torn = (file.stat().st_size - size) // 2 if self._torn else 0
            os.truncate(file, size + torn)
            self._kept[str(file)] = Sync(time.monotonic(), time.monotonic(), size + torn)
        self._log.unlink(missing_ok=True)


def told(client: Client) -> bytes:
    """Return the server's view of its files."""
    return bytes(client.command("INFO", "persistence"))


@pytest.fixture
def powered(folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Powered]]:
    """powered(kind, fsync): such a server; a number names a server of this run."""
    made: list[Powered] = []
    there = kinds(request.config)

    def start(number: int, fsync: str) -> Powered:
        made.append(Powered(folder, binary(there[number % len(there)]) or "", fsync))
        return made[-1]

    yield start
    for one in made:
        one.thaw()
        one.close()


def both(short: int) -> list[object]:
    """The kinds of server that a test tries: one of them in the short form."""
    return [short] if JOBS == 300 else [0, 1]


@pytest.mark.parametrize("kind", both(1))
def test_nothing_that_was_enqueued_at_disk_is_lost_in_a_power_cut(powered, folder, kind):
    place = powered(kind, "always")
    fault = FAULTS["server-restart"]._replace(name="power-cut")
    verdict = run_round(place, RoundPlan(fault, JOBS, SEED, "disk"), folder)
    assert broken(verdict) == {}
    assert verdict.attempts == JOBS
    assert verdict.faults == len(place.cuts) > 0
    assert verdict.duplicates == 0


def cut(setup: RoundSetup) -> None:
    """When an acknowledged message waits that isn't synced."""
    place, queue = setup.server, Queue(QUEUE, setup.client)
    assert isinstance(place, Powered)
    queue.admin.pause()
    with setup.injected("power-cut", cuts=True):
        while True:
            mid = f"last-{setup.random.getrandbits(32):x}"
            enqueue(queue, setup.workers.ledger, mid, 0.0)
            place.freeze()
            if not place.has(mid):
                break
            place.thaw()
        place.restart()
    queue.admin.resume()


def acknowledged(ledger: Ledger) -> dict[str, float]:
    """When each message was, in that order."""
    done = [
        line for line in ledger.lines() if line["word"] == "enqueued" and line["outcome"] == "ok"
    ]
    return {line["mid"]: line["at"] for line in sorted(done, key=lambda line: line["at"])}


@pytest.mark.parametrize("kind", both(0))
def test_what_a_power_cut_takes_from_memory_level_was_acknowledged_since_the_last_sync(
    powered, folder, kind
):
    place = powered(kind, "everysec")
    with pytest.raises(ConfigError, match="appendfsync always"):
        Queue(QUEUE, connect(place.url, durability="disk")).enqueue(b"v")
    fault = Fault("power-cut", "a cut", cut, lease_s=2.0)
    verdict = run_round(place, RoundPlan(fault, JOBS, SEED), folder)
    lost = verdict.broken["lost"]
    assert lost
    assert not verdict.holds
    times = acknowledged(Ledger(str(folder / "ledger")))
    ends = {fault["until"]: since for fault, since in zip(faults(folder), place.cuts, strict=True)}
    early = [
        mid for mid in lost if not any(since < times[mid] < end for end, since in ends.items())
    ]
    assert early == []
    assert verdict.broken["fsck"] == verdict.broken["leaked"] == []


def faults(folder: Path) -> list[dict[str, float]]:
    lines = Ledger(str(folder / "ledger")).lines()
    return sorted((one for one in lines if one["word"] == "fault"), key=lambda one: one["at"])
