"""One round: producers and workers at their work, a fault struck again and again, a drain, a verdict."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jobq.chaos.crew import Crew
from jobq.chaos.faults import Fault, Stage
from jobq.chaos.place import Place, keys_of
from jobq.chaos.producing import QUEUE, Producer
from jobq.chaos.proxy import Proxy
from jobq.chaos.verdict import Final, Verdict, judge
from jobq.config import ServerSettings
from jobq.engine.connection import Client
from jobq.engine.queue import Queue
from jobq.errors import ConfigError

WORKERS, PRODUCERS = 2, 2
PER_SECOND = 150
DRAIN_S = 60.0
#: What may stay for good: the two listings, the queue's settings and history, one marker that wakes.
LASTING = ("events", "meta", "queues", "wake", "workers")


class Plan(NamedTuple):
    """What to play. The same seed strikes at the same moments, as far as the machine keeps time."""

    fault: Fault
    jobs: int
    seed: int
    durability: str = "memory"


def play(place: Place, plan: Plan, folder: Path) -> Verdict:
    """The whole round; `folder` keeps the ledger and the logs."""
    namespace = f"chaos-{secrets.token_hex(4)}"
    with _proxied(place, plan) as (proxy, url):
        client = place.client(namespace)
        queue = Queue(QUEUE, client)
        crew = Crew(folder, url, namespace, plan.fault.lease_s, plan.fault.crash_limit)
        luck = random.Random(f"{plan.seed} {plan.fault.name}")
        stage = Stage(crew, place, client, proxy, luck)
        try:
            for _ in range(WORKERS):
                crew.start()
            crew.ready()
            _trouble(stage, plan, _producers(url, namespace, crew, plan))
            waiting = _drained(queue)
            crew.stop()
            return judge(crew.ledger.lines(), _final(queue, crew, waiting))
        finally:
            crew.kill()
            _forget(client)


@contextmanager
def _proxied(place: Place, plan: Plan) -> Iterator[tuple[Proxy | None, str]]:
    if "own" in plan.fault.needs and not place.own:
        raise ConfigError(f"{plan.fault.name} needs a server of its own; leave out --url")
    if "proxy" not in plan.fault.needs:
        yield None, place.url
        return
    if place.target is None:
        raise ConfigError(
            f"{plan.fault.name} needs a plain redis:// or unix:// URL to come between"
        )
    proxy = Proxy(place.target, plan.seed)
    try:
        yield proxy, place.through(proxy.port)
    finally:
        proxy.close()


def _producers(url: str, namespace: str, crew: Crew, plan: Plan) -> list[Producer]:
    settings = ServerSettings(url=url, namespace=namespace, durability=plan.durability)
    share, seconds = plan.jobs // PRODUCERS, plan.jobs / PER_SECOND
    return [
        Producer(settings, QUEUE, crew.ledger, f"p{n}", share, seconds, plan.seed)
        for n in range(PRODUCERS)
    ]


def _trouble(stage: Stage, plan: Plan, producers: list[Producer]) -> None:
    """Strike as long as somebody produces, and once at least."""
    for producer in producers:
        producer.start()
    try:
        while True:
            time.sleep(stage.random.uniform(*plan.fault.pause_s))
            plan.fault.stroke(stage)
            if not any(producer.is_alive() for producer in producers):
                break
    except BaseException:
        for producer in producers:
            producer.stop()
        raise
    finally:
        for producer in producers:
            producer.join()


def _drained(queue: Queue) -> frozenset[str]:
    """Wait until nothing is left to do; what still is when time is over."""
    deadline = time.monotonic() + DRAIN_S
    while queue.counts().messages and time.monotonic() < deadline:
        time.sleep(0.05)
    places = (queue.content(place, limit=1000) for place in ("ready", "due", "circle"))
    left = (entry for page in places for entry in page.entries)
    return frozenset(entry.mid for entry in left if not entry.status.startswith("done"))


def _final(queue: Queue, crew: Crew, waiting: frozenset[str]) -> Final:
    while any(queue.collect(1000)) and not waiting:
        time.sleep(0.01)
    dead = frozenset(one.mid for one in queue.dead(limit=1000))
    broken = tuple(f"{one.rule}: {one.mid}" for one in queue.fsck())
    leaked = tuple(_leaked(queue.client, bool(dead)))
    return Final(waiting, dead, leaked, broken, crew.tracebacks())


def _leaked(client: Client, dead: bool) -> Iterator[str]:
    """Keys that nothing will ever remove."""
    for name in keys_of(client):
        last = name.rpartition(":")[2]
        if last in LASTING or (dead and last.endswith(("dead", "dead-messages"))):
            continue
        if client.command("PTTL", name) == -1:
            yield name


def _forget(client: Client) -> None:
    """Leave nothing of the round on the server."""
    for name in keys_of(client):
        client.command("DEL", name)
    client.close()
