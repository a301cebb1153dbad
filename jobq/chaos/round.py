"""Runs one round: injects a fault while producers and workers run, then drains the queue and checks the ledger."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jobq.chaos.call_records import short_lived
from jobq.chaos.ledger import Ledger
from jobq.chaos.producers import KEY_MAX, QUEUE, Producer, ProducerLoad
from jobq.chaos.proxy import Proxy
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.servers import TargetServer, keys_of
from jobq.chaos.verdict import FinalState, Verdict, verdict_of
from jobq.chaos.workers import WorkerGroup, WorkerOptions
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.queue.audit import Audit
from jobq.queue.queue import Queue
from jobq.queue.types import Place

WORKERS, PRODUCERS = 2, 2
DRAIN_S = 60.0
#: How long producers repeat a call; a failover takes a while.
PATIENCE_S = 60.0
#: How long a producer with an outage buffer waits for a reply.
QUICK_S = 0.3
#: Messages per second; a slower drain counts as stopped.
SLOWEST = 25
#: Keys without a TTL that may stay: the listings, the queue's settings, limits and events, and one wake marker.
LASTING = ("events", "jobs", "limits", "meta", "queues", "rules", "running", "wake", "workers")
#: How often the machine's delay is measured.
WAKEUP_S = 0.02


class RoundPlan(NamedTuple):
    """The plan of a round. Rounds with the same seed inject faults at the same moments, unless the machine is too slow.

    Attributes:
        events: The queue's event level. At "all", the round also audits its events.
    """

    fault: Fault
    jobs: int
    seed: int
    durability: str = "memory"
    events: str = "attempts"


class Injection(NamedTuple):
    """One injection of a fault.

    `number` counts the injections of a round from 0; `pause_s` is the pause before the injection.
    """

    number: int
    pause_s: float
    random: random.Random


def injections(seed: int, fault: Fault) -> Iterator[Injection]:
    """Yield an endless series of injections, which depends only on the seed.

    Each injection has its own random numbers, so an injection doesn't change the following injections.
    """
    for number in itertools.count():
        rng = random.Random(f"{seed} {fault.name} {number}")
        yield Injection(number, rng.uniform(*fault.pause_s), rng)


class WakeupMonitor(threading.Thread):
    """Measures how late this machine wakes a sleeping thread. `worst_s` is the longest delay.

    It records delays of at least a quarter of a lease. Leases are renewed three times per lease duration, so such a
    delay may let leases expire.
    """

    def __init__(self, ledger: Ledger, lease_s: float) -> None:
        super().__init__(name="wakeups", daemon=True)
        self.worst_s = 0.0
        self._ledger, self._stall_s = ledger, lease_s / 4
        self._stopped = threading.Event()

    def run(self) -> None:
        """Measure until stopped."""
        while not self._stopped.is_set():
            target = time.monotonic() + WAKEUP_S
            time.sleep(WAKEUP_S)
            woken = time.monotonic()
            self.worst_s = max(self.worst_s, woken - target)
            if woken - target >= self._stall_s:
                self._ledger.write("stall", at=target, until=woken)

    def stop(self) -> float:
        self._stopped.set()
        self.join()
        return self.worst_s


def run_round(server: TargetServer, plan: RoundPlan, folder: Path) -> Verdict:
    """Run a whole round. The ledger and the logs are written to `folder`."""
    namespace, fault = f"chaos-{secrets.token_hex(4)}", plan.fault
    with short_lived(fault.record_s), _proxied(server, plan) as (proxies, (url, side)):
        client = server.client(namespace)
        workers = WorkerGroup(folder, url, namespace, worker_options(fault), side)
        proxy, second_proxy = [*proxies, None, None][:2]
        setup = RoundSetup(workers, server, client, proxy, second_proxy)
        queue = Queue(QUEUE, client)
        queue.admin.events_level(plan.events)
        if fault.keys:
            queue.rules(key_max=KEY_MAX)
        wakeups = WakeupMonitor(workers.ledger, fault.lease_s)
        wakeups.start()
        try:
            producers = _producers(url, namespace, workers, plan)
            _work(setup, plan, producers)
            waiting = drained(queue, plan.jobs)
            exited = workers.exited()
            workers.stop()
            workers.ledger.write("late", worst=wakeups.stop())
            verdict = verdict_of(workers.ledger.lines(), _final(queue, workers, waiting, exited))
            return verdict._replace(audited=Audit(queue).result() if plan.events == "all" else None)
        finally:
            wakeups.stop()
            workers.kill()
            _forget(client)


def _work(setup: RoundSetup, plan: RoundPlan, producers: list[Producer]) -> None:
    if plan.fault.preload:
        _run(producers)
        _start(setup.workers)
    else:
        _start(setup.workers)
        _inject(setup, plan, producers)


def worker_options(fault: Fault) -> WorkerOptions:
    """Return the options of workers for tests of this fault."""
    return WorkerOptions(
        fault.lease_s,
        fault.crash_limit,
        fault.event_loops,
        fault.queues,
        fault.record_s,
        fault.threads,
        fault.module,
    )


def _start(workers: WorkerGroup) -> None:
    for _ in range(WORKERS):
        workers.start()
    workers.ready()


@contextmanager
def _proxied(server: TargetServer, plan: RoundPlan) -> Iterator[tuple[list[Proxy], list[str]]]:
    """Yield the proxies, the URL for clients, and the URL for every second worker ('' for the same URL)."""
    needs = plan.fault.needs
    if "own" in needs and not server.own:
        raise ConfigError(f"{plan.fault.name} needs a server of its own; leave out --url")
    count = ("proxy" in needs) + ("side" in needs)
    if count and server.target is None:
        raise ConfigError(
            f"{plan.fault.name} needs a plain redis:// or unix:// URL, because it uses a proxy"
        )
    proxies = [Proxy(server.target, plan.seed + n) for n in range(count) if server.target]
    urls = [server.through(proxy.port) for proxy in proxies]
    try:
        yield proxies, [*(urls or [server.url]), ""][:2]
    finally:
        for proxy in proxies:
            proxy.close()


def _producers(url: str, namespace: str, workers: WorkerGroup, plan: RoundPlan) -> list[Producer]:
    settings = ServerSettings(
        url=url, namespace=namespace, durability=plan.durability, patience_s=PATIENCE_S
    )
    if plan.fault.record_s:
        settings = replace(settings, outage_buffer=plan.jobs, socket_timeout_s=QUICK_S)
    fault = plan.fault
    seconds = 0.0 if fault.preload else plan.jobs / fault.per_second
    load = ProducerLoad(
        plan.jobs // PRODUCERS,
        seconds,
        plan.seed,
        fault.poison_every,
        fault.crash_limit,
        fault.keys,
    )
    return [Producer(settings, QUEUE, workers.ledger, f"p{n}", load) for n in range(PRODUCERS)]


def _run(producers: list[Producer]) -> None:
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()


def _inject(setup: RoundSetup, plan: RoundPlan, producers: list[Producer]) -> None:
    """Inject the fault at least once, and again while producers run."""
    for producer in producers:
        producer.start()
    try:
        for injection in injections(plan.seed, plan.fault):
            time.sleep(injection.pause_s)
            setup.workers.ledger.write(
                "injection", number=injection.number, pause=injection.pause_s
            )
            plan.fault.inject(setup._replace(random=injection.random))
            if not any(producer.is_alive() for producer in producers):
                break
    except BaseException:
        for producer in producers:
            producer.stop()
        raise
    finally:
        for producer in producers:
            producer.join()


def drained(queue: Queue, jobs: int, deadline: float | None = None) -> frozenset[str]:
    """Wait until the queue is empty. Return the mids of the messages still there at the deadline.

    The default deadline depends on the number of jobs.
    """
    deadline = deadline or time.monotonic() + DRAIN_S + jobs / SLOWEST
    while queue.admin.counts().messages and time.monotonic() < deadline:
        time.sleep(0.05)
    parts: tuple[Place, ...] = ("ready", "lines", "due", "circle")
    left = (entry for part in parts for entry in queue.admin.iter_entries(part))
    return frozenset(entry.mid for entry in left if not entry.status.startswith("done"))


def collected(queue: Queue, settled: bool) -> tuple[frozenset[str], tuple[str, ...]]:
    """Remove all done messages. Return the ids of dead messages and the findings of fsck."""
    while any(queue.admin.collect(1000)) and settled:
        time.sleep(0.01)
    dead = frozenset(message.mid for message in queue.admin.iter_dead())
    return dead, tuple(f"{violation.rule}: {violation.mid}" for violation in queue.admin.fsck())


def _final(
    queue: Queue, workers: WorkerGroup, waiting: frozenset[str], exited: tuple[str, ...]
) -> FinalState:
    dead, broken = collected(queue, not waiting)
    leaked = tuple(_leaked(queue.client, bool(dead)))
    return FinalState(waiting, dead, leaked, broken, workers.tracebacks(), exited)


def _leaked(client: Client, dead: bool) -> Iterator[str]:
    for name in keys_of(client):
        last = name.rpartition(":")[2]
        if last in LASTING or (dead and last.endswith(("dead", "dead-messages"))):
            continue
        if client.command("PTTL", name) == -1:
            yield name


def _forget(client: Client) -> None:
    for name in keys_of(client):
        client.command("DEL", name)
    client.close()
