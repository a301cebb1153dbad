"""The number of a queue's partitions changes under load, on a Cluster of three masters with a replica each.

Producers know maps of any age and repeat mids; workers and `jobq partitions` are killed, slots move, and a master dies.
The ledger of the round shows that each message ran, once but for faults, and that each key kept its order.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from jobq.chaos.ledger import History, KeyUse, Ledger, Run, read_history
from jobq.chaos.producers import QUEUE, contents
from jobq.chaos.round import WakeupMonitor, collected
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import TargetServer
from jobq.chaos.verdict import FinalState, Verdict, verdict_of
from jobq.chaos.worker_faults import host_loss
from jobq.chaos.workers import WorkerGroup, WorkerOptions, wait_until
from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.queue.directory import queue_names
from jobq.queue.partitioning import Left, left_in, tidy
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from tests.client.deployments import HOST, Node, Spread
from tests.conftest import binary, kinds

from .conftest import JOBS, SEED, broken

pytestmark = [pytest.mark.one_server, pytest.mark.long]

NAMESPACE, LEASE_S, CHILDREN, PRODUCERS = "chaos", 3.0, 2, 3
#: `make chaos` asks for many more jobs: then there are a thousand keys.
KEYS = min(1_000, JOBS // 3)
ROUNDS = max(6, JOBS // 1_000)
#: Keyed messages, and one without a key for each, in one call.
TOGETHER = 10
#: How long a repetition is refused after its first message is done.
DEDUPE_S = 5.0
PATIENCE_S = 60.0
DRAIN_S = 240.0
LONG_SHARE, LONG_S = 0.02, 0.5


class Producer(threading.Thread):
    """Enqueues the messages of its keys, round by round, with queues whose maps are of different ages.

    Attributes:
        queues: Used at random; each knows the map from its last use.
        again: mid -> when a repetition of the mid was accepted as a new message.
    """

    def __init__(self, settings: ServerSettings, ledger: Ledger, number: int) -> None:
        super().__init__(name=f"p{number}", daemon=True)
        self._chance, self._ledger = random.Random(SEED + number), ledger
        self.queues = [Queue(QUEUE, connect(settings=settings)) for _ in range(3)]
        self._keys = [f"{self.name}-key{at}" for at in range(KEYS // PRODUCERS)]
        self.round, self.sent, self.repeated = 0, 0, 0
        self.again: dict[str, float] = {}
        self.error: BaseException | None = None
        self._gave_up = threading.Event()

    def run(self) -> None:
        """Enqueue all messages."""
        try:
            for self.round in range(ROUNDS):
                for first in range(0, len(self._keys), TOGETHER):
                    self._send(self._keys[first : first + TOGETHER])
        except BaseException as error:
            self.error = error
        finally:
            for queue in self.queues:
                queue.client.close()

    def give_up(self) -> None:
        """Stop waiting for the servers."""
        for queue in self.queues:
            queue.client.should_give_up = lambda: True
        self._gave_up.set()

    def _send(self, some: list[str]) -> None:
        uses = {f"{key}-{self.round}": KeyUse(key, 1, ordered=True) for key in some}
        keyed = [(mid, contents(mid, self._seconds()), use.key) for mid, use in uses.items()]
        for mid, use in uses.items():
            self._ledger.write("enqueue", mid=mid, **use._asdict())
        plain = [(f"plain-{mid}", contents(f"plain-{mid}", 0.0)) for mid in uses]
        for mid, _ in plain:
            self._ledger.write("enqueue", mid=mid)
        self._surely(keyed, ordered=True)
        self._surely(plain)
        self.sent += 2 * len(some)
        for message in self._chance.sample(keyed, 1):
            self._repeat(message, ordered=True)
        for message in self._chance.sample(plain, 1):
            self._repeat(message)

    def _seconds(self) -> float:
        """Some jobs are so long that messages of their keys still wait when the next change comes."""
        return LONG_S if self._chance.random() < LONG_SHARE else self._chance.uniform(0, 0.004)

    def _queue(self) -> Queue:
        """The last is used so rarely that its map is of an earlier change."""
        return self._chance.choices(self.queues, (60, 38, 2))[0]

    def _surely(self, messages: list[Any], **options: Any) -> None:
        """Enqueue, and repeat the call until it succeeds."""
        again = False
        while True:
            try:
                done = self._queue().enqueue_many(messages, until=DEDUPE_S, **options)
            except JobqError:
                again = True
                if self._gave_up.wait(0.05):
                    raise
                continue
            for accepted in done:
                self._ledger.write(
                    "enqueued", mid=accepted.mid, outcome="ok", action=accepted.action, again=again
                )
            return

    def _repeat(self, message: tuple[Any, ...], **options: Any) -> None:
        """Enqueue a message again, with a queue that may know an older or a newer map."""
        mid, content, *key = message
        if key:
            options["key"] = key[0]
        try:
            done = self._queue().enqueue(content, mid=mid, until=DEDUPE_S, **options)
        except JobqError:
            return
        self.repeated += 1
        if done.action != "exists":
            self.again[mid] = time.monotonic()


class Change:
    """`jobq partitions`, killed as soon as its first step is visible, and said again until it succeeds."""

    def __init__(self, setup: RoundSetup, folder: Path) -> None:
        self._setup, self._log = setup, folder / "partitions.log"

    def to(self, count: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Change the number."""
        client, doomed = self._setup.client, self._say(count)
        wait_until(
            lambda: doomed.poll() is not None or read_map(client, QUEUE).newest.size == count,
            "no new map", DRAIN_S,
        )  # fmt: skip
        doomed.kill()
        doomed.wait()
        if meanwhile:
            meanwhile()
        wait_until(lambda: self._say(count).wait(DRAIN_S) == 0, "no success", DRAIN_S)

    def _say(self, count: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "jobq", "partitions", QUEUE, str(count)]
        env = {**self._setup.workers.env, "JOBQ_DURABILITY": "replicas=1"}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def places(client: Client) -> list[Queue]:
    """All queues that this queue ever consisted of."""
    queues = [Queue(name, client) for name in queue_names(client)]
    for queue in queues:
        queue.is_alone = True
    return queues


def left(client: Client) -> dict[str, int]:
    """How many messages the queues hold, done ones too."""
    return {
        queue.name: count for queue in places(client) if (count := queue.admin.counts().messages)
    }


def out_of_order(history: History) -> Iterator[str]:
    """Yield keys of which a message started after a later one, unless a failover between them took a finish away."""
    failovers = [fault for fault in history.faults if fault.name == "failover"]
    runs: dict[str, list[Run]] = defaultdict(list)
    for mid, use in history.keys.items():
        runs[use.key] += history.started[mid]
    number = {mid: at for at, mid in enumerate(history.keys)}
    for key, started in runs.items():
        latest: Run | None = None
        for run in sorted(started, key=lambda run: run.start):
            if latest is not None and number[run.mid] < number[latest.mid]:
                if not any(f.at <= run.start and latest.start <= f.until for f in failovers):
                    yield key
                continue
            latest = run


def added_twice(history: History, producers: list[Producer]) -> Iterator[str]:
    """Yield mids that a repetition added although the first message was still there, or had just ended."""
    for producer in producers:
        for mid, at in producer.again.items():
            if at < DEDUPE_S + min(run.last for run in history.started[mid] if run.ended):
                yield mid


def owner(spread: Spread, slot: int) -> Node:
    """The master of a slot."""
    slots = spread.nodes[0].redis.execute_command("CLUSTER", "SLOTS")
    [port] = [int(master[1]) for first, last, master, *_ in slots if first <= slot <= last]
    return next(node for node in spread.nodes if node.port == port)


class Round:
    """A Cluster, its workers, and producers that fill a queue while its partitions change."""

    def __init__(self, spread: Spread, folder: Path) -> None:
        self.spread = spread
        self.replicas = [spread.replica(number) for number in range(3)]
        hosts = ",".join(f"{HOST}:{node.port}" for node in (*spread.nodes, *self.replicas))
        url = f"redis+cluster://{hosts}"
        settings = ServerSettings(
            url=url, namespace=NAMESPACE, durability="replicas=1", patience_s=PATIENCE_S
        )
        self.client, self.chance = connect(settings=settings), random.Random(SEED)
        self.workers = WorkerGroup(folder, url, NAMESPACE, WorkerOptions(LEASE_S, 100))
        server = TargetServer(url)
        self.setup = RoundSetup(self.workers, server, self.client, random=self.chance)
        self.producers = [
            Producer(settings, self.workers.ledger, number) for number in range(PRODUCERS)
        ]
        self.change = Change(self.setup, folder)
        self._wakeups = WakeupMonitor(self.workers.ledger, LEASE_S)

    def start(self) -> None:
        """Start the workers, then the producers."""
        self._wakeups.start()
        for _ in range(2):
            self.workers.start(CHILDREN)
        self.workers.ready()
        for producer in self.producers:
            producer.start()

    def after(self, share: float) -> None:
        """Wait until this share is enqueued."""
        goal = share * 2 * (KEYS // PRODUCERS) * PRODUCERS * ROUNDS

        def is_there() -> bool:
            assert not any(producer.error for producer in self.producers)
            return sum(each.sent for each in self.producers) >= goal

        wait_until(is_there, "the producers don't go on", DRAIN_S)

    def move_slots(self) -> None:
        """Move the slots of an old partition on each node, and of a new one."""
        with self.setup.injected("slot-move"):
            old, new = read_map(self.client, QUEUE).epochs[-2:]
            for name in (*old.names(QUEUE)[1::5], new.names(QUEUE)[1]):
                slot = key_slot(f"{NAMESPACE}:{{{name}}}:ready".encode())
                giver = owner(self.spread, slot)
                others = [node for node in self.spread.nodes if node is not giver]
                self.spread.move(slot, giver, self.chance.choice(others))

    def fail_over(self) -> None:
        """Kill a master. Writes that its replica doesn't have are lost, among them ends of runs."""
        with self.setup.injected("failover", cuts=True):
            self.spread.nodes[1].kill()
            self.spread.promote(self.replicas[1], 1)

    def end(self) -> tuple[Verdict, History]:
        """Wait until all messages ran; return the verdict and the history."""
        for producer in self.producers:
            producer.join(DRAIN_S)
        self.after(1.0)
        wait_until(lambda: not left(self.client), "messages are left", DRAIN_S)
        exited = self.workers.exited()
        self.workers.stop()
        self.workers.ledger.write("late", worst=self._wakeups.stop())
        lines, checked = list(self.workers.ledger.lines()), list[str]()
        for queue in places(self.client):
            dead, broken_rules = collected(queue, settled=True)
            checked += [*(f"dead: {mid}" for mid in dead), *broken_rules]
        final = FinalState(fsck=tuple(checked), exited=exited, tracebacks=self.workers.tracebacks())
        return verdict_of(lines, final), read_history(lines)

    def close(self) -> None:
        """End all processes and threads."""
        self._wakeups.stop()
        for producer in self.producers:
            producer.give_up()
        self.workers.kill()
        self.client.close()


@pytest.fixture
def played(folder: Path, request: pytest.FixtureRequest) -> Iterator[Round]:
    spread = Spread(binary(kinds(request.config)[-1]) or "", folder)
    try:
        round_ = Round(spread, folder)
        yield round_
        round_.close()
    finally:
        spread.close()


def test_nothing_is_lost_doubled_or_reordered_when_partitions_change_among_faults(
    played: Round,
) -> None:
    """Messages that `replicas=1` confirmed outlive the master; runs whose ends it lost may be repeated, in order."""
    played.start()
    for share, count, meanwhile in (
        (0.1, 8, None), (0.4, 3, played.move_slots), (0.6, 16, played.fail_over),
    ):  # fmt: skip
        played.after(share)
        played.change.to(count, meanwhile)
        played.after(share + 0.15)
        host_loss(played.setup)
    verdict, history = played.end()

    # Fences of different queues can't be compared, so the order is checked by time.
    assert broken(verdict, "out_of_order") == {}
    assert sorted(out_of_order(history)) == []
    assert verdict.attempts == verdict.acknowledged == sum(each.sent for each in played.producers)
    assert sorted(added_twice(history, played.producers)) == []
    assert sum(each.repeated for each in played.producers) >= verdict.attempts * 0.09
    known = tidy(played.client, read_map(played.client, QUEUE))
    *earlier, newest = known.epochs
    assert [(epoch.size, epoch.drained) for epoch in earlier] == [(0, True), (8, True), (3, True)]
    assert newest.size == 16
    old = {queue.name for queue in places(played.client)} - {*newest.names(QUEUE)}
    assert [left_in(played.client, name) for name in old] == [
        Left(is_sealed=True, messages=0, kept=0)
    ] * (1 + 8 + 3)
