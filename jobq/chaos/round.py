"""One round: producers and workers at their work, a fault struck again and again, a drain, a verdict."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jobq.chaos.crew import Crew
from jobq.chaos.place import Place, keys_of
from jobq.chaos.producing import QUEUE, Producer
from jobq.chaos.proxy import Proxy
from jobq.chaos.pulse import Pulse
from jobq.chaos.records import short_lived
from jobq.chaos.schedule import schedule
from jobq.chaos.stage import Fault, Stage
from jobq.chaos.verdict import Final, Verdict, judge
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.queue.audit import Audit
from jobq.queue.queue import Queue

WORKERS, PRODUCERS = 2, 2
DRAIN_S = 60.0
#: Of producers: a failover takes a while.
PATIENCE_S = 60.0
#: How long a producer with an outage buffer waits for a reply.
QUICK_S = 0.3
#: Messages per second: a drain slower than that has come to a halt.
SLOWEST = 25
#: What may stay for good: the two listings, the queue's settings and history, one marker that wakes.
LASTING = ("events", "meta", "queues", "wake", "workers")


class Plan(NamedTuple):
    """What to play. The same seed strikes at the same moments, as far as the machine keeps time.

    `events`: the queue's level; at "all" the round is audited by them, too.
    """

    fault: Fault
    jobs: int
    seed: int
    durability: str = "memory"
    events: str = "attempts"


def play(place: Place, plan: Plan, folder: Path) -> Verdict:
    """The whole round; `folder` keeps the ledger and the logs."""
    namespace, fault = f"chaos-{secrets.token_hex(4)}", plan.fault
    with short_lived(fault.record_s), _proxied(place, plan) as (proxies, (url, side)):
        client = place.client(namespace)
        crew = Crew(
            folder,
            url,
            namespace,
            fault.lease_s,
            fault.crash_limit,
            side,
            fault.loops,
            fault.queues,
        )
        proxy, side_road = [*proxies, None, None][:2]
        stage = Stage(crew, place, client, proxy, side_road)
        queue = Queue(QUEUE, client)
        queue.admin.events_level(plan.events)
        pulse = Pulse()
        pulse.start()
        try:
            producers = _producers(url, namespace, crew, plan)
            _work(stage, plan, producers)
            waiting = drained(queue, plan.jobs)
            exited = crew.exited()
            crew.stop()
            crew.ledger.write("late", most=pulse.stop())
            verdict = judge(crew.ledger.lines(), _final(queue, crew, waiting, exited))
            return verdict._replace(audited=Audit(queue).result() if plan.events == "all" else None)
        finally:
            pulse.stop()
            crew.kill()
            _forget(client)


def _work(stage: Stage, plan: Plan, producers: list[Producer]) -> None:
    if plan.fault.crowd is None:
        _begin(stage.crew)
        _trouble(stage, plan, producers)
    else:
        _run(producers)
        _begin(stage.crew)


def _begin(crew: Crew) -> None:
    for _ in range(WORKERS):
        crew.start()
    crew.ready()


@contextmanager
def _proxied(place: Place, plan: Plan) -> Iterator[tuple[list[Proxy], list[str]]]:
    """The proxies, and the URLs of jobq and of every other worker, '' for the same."""
    needs = plan.fault.needs
    if "own" in needs and not place.own:
        raise ConfigError(f"{plan.fault.name} needs a server of its own; leave out --url")
    count = ("proxy" in needs) + ("side" in needs)
    if count and place.target is None:
        raise ConfigError(
            f"{plan.fault.name} needs a plain redis:// or unix:// URL to come between"
        )
    proxies = [Proxy(place.target, plan.seed + n) for n in range(count) if place.target]
    urls = [place.through(proxy.port) for proxy in proxies]
    try:
        yield proxies, [*(urls or [place.url]), ""][:2]
    finally:
        for proxy in proxies:
            proxy.close()


def _producers(url: str, namespace: str, crew: Crew, plan: Plan) -> list[Producer]:
    settings = ServerSettings(
        url=url, namespace=namespace, durability=plan.durability, patience_s=PATIENCE_S
    )
    if plan.fault.record_s:
        settings = replace(settings, outage_buffer=plan.jobs, socket_timeout_s=QUICK_S)
    crowd = plan.fault.crowd
    share, seconds = (
        plan.jobs // PRODUCERS,
        0.0 if crowd is not None else plan.jobs / plan.fault.per_second,
    )
    return [
        Producer(
            settings, QUEUE, crew.ledger, f"p{n}", share, seconds, plan.seed, crowd or 0,
            plan.fault.crash_limit,
        )
        for n in range(PRODUCERS)
    ]  # fmt: skip


def _run(producers: list[Producer]) -> None:
    """To their end."""
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()


def _trouble(stage: Stage, plan: Plan, producers: list[Producer]) -> None:
    """Strike as long as somebody produces, and once at least."""
    for producer in producers:
        producer.start()
    try:
        for stroke in schedule(plan.seed, plan.fault):
            time.sleep(stroke.pause_s)
            stage.crew.ledger.write("stroke", number=stroke.number, pause=stroke.pause_s)
            plan.fault.stroke(stage._replace(random=stroke.luck))
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
    """Wait until nothing is left to do; what still is when time is over, by default as many jobs may take."""
    deadline = deadline or time.monotonic() + DRAIN_S + jobs / SLOWEST
    while queue.admin.counts().messages and time.monotonic() < deadline:
        time.sleep(0.05)
    places = (queue.admin.every_entry(place) for place in ("ready", "due", "circle"))
    left = (entry for entries in places for entry in entries)
    return frozenset(entry.mid for entry in left if not entry.status.startswith("done"))


def collected(queue: Queue, settled: bool) -> tuple[frozenset[str], tuple[str, ...]]:
    """The mids of the dead, and what is wrong with the queue, once all that is done was collected."""
    while any(queue.admin.collect(1000)) and settled:
        time.sleep(0.01)
    dead = frozenset(one.mid for one in queue.admin.every_dead())
    return dead, tuple(f"{one.rule}: {one.mid}" for one in queue.admin.fsck())


def _final(queue: Queue, crew: Crew, waiting: frozenset[str], exited: tuple[str, ...]) -> Final:
    dead, broken = collected(queue, not waiting)
    leaked = tuple(_leaked(queue.client, bool(dead)))
    return Final(waiting, dead, leaked, broken, crew.tracebacks(), exited)


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
