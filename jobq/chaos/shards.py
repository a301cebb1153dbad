"""A round on a Cluster: twelve queues on three shards, one shard killed for good, judged by what the others do."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from jobq.chaos.cluster import SHARDS, OwnCluster
from jobq.chaos.crew import Crew
from jobq.chaos.ledger import Line
from jobq.chaos.producing import Producer, enqueue
from jobq.chaos.pulse import Pulse
from jobq.chaos.round import DRAIN_S, SLOWEST, Plan, collected, drained
from jobq.chaos.schedule import schedule
from jobq.chaos.stage import Stage
from jobq.chaos.verdict import Final, Verdict, judge
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.queue.queue import Queue

QUEUES, WORKERS, CHILDREN = 12, 2, 5
#: Before and after the kill: longer than a lease.
LEAST_S = 3.0
#: A message that ran so soon after its enqueue wasn't held up.
SOON_S = 2.0
#: Long jobs, two a shard, begin so long before the kill and end after every lease: each worker then holds leases
#: that can't be renewed beside others that can.
LONG_BEFORE_S, LONG_JOBS = 1.0, 2
PATIENCE_S = 1.0


def play_on_shards(place: OwnCluster, plan: Plan, folder: Path) -> Verdict:
    """The whole round. `share` of the verdict: what ran soon after the kill, of what did before."""
    namespace, fault = f"chaos-{secrets.token_hex(4)}", plan.fault
    client, names = place.client(namespace), queues_on(place, namespace)
    # As the stroke will draw it.
    gone = next(schedule(plan.seed, fault)).luck.randrange(SHARDS)
    healthy = [name for name in names if place.shard_of(_key(namespace, name)) != gone]
    crew = Crew(folder, place.url, namespace, fault.lease_s, fault.crash_limit, queues=names)
    pulse = Pulse()
    pulse.start()
    with ExitStack() as after:
        after.callback(crew.kill)
        after.callback(client.close)
        after.callback(pulse.stop)
        for _ in range(WORKERS):
            crew.start(CHILDREN)
        crew.ready()
        span_s = max(LEAST_S, plan.jobs / fault.per_second / 2)
        stage = Stage(crew, place, client, random=next(schedule(plan.seed, fault)).luck)
        killed_at = _work(stage, plan, names, healthy, span_s)
        queues = [Queue(name, client) for name in healthy]
        deadline = time.monotonic() + DRAIN_S + plan.jobs / SLOWEST
        waiting = frozenset().union(*[drained(queue, plan.jobs, deadline) for queue in queues])
        exited = crew.exited()
        crew.stop()
        crew.ledger.write("late", most=pulse.stop())
        lines = list(of_queues(crew.ledger.lines(), healthy))
        verdict = judge(lines, _final(queues, crew, waiting, exited))
        verdict.broken["aborted"] = sorted(cut_short(lines))
        return verdict._replace(share=kept_up(lines, killed_at, span_s))


def queues_on(place: OwnCluster, namespace: str) -> list[str]:
    """Names of queues, as many on each shard."""
    found: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
    for number in itertools.count():
        name = f"q{number}"
        there = found[place.shard_of(_key(namespace, name))]
        if len(there) < QUEUES // SHARDS:
            there.append(name)
        if all(len(names) == QUEUES // SHARDS for names in found.values()):
            return [name for names in zip(*found.values(), strict=True) for name in names]
    raise AssertionError("count() ended")


def _work(
    stage: Stage, plan: Plan, names: Sequence[str], healthy: Sequence[str], span_s: float
) -> float:
    """Enqueue at a steady pace, and kill the shard halfway; when that was."""
    crew, client = stage.crew, stage.client
    settings = ServerSettings(
        url=stage.place.url,
        namespace=client.namespace,
        durability=plan.durability,
        patience_s=PATIENCE_S,
    )
    share = max(4, plan.jobs // len(names))
    producers = [
        Producer(settings, name, crew.ledger, name, share, 2 * span_s, plan.seed) for name in names
    ]
    _warm_up(crew, client, names)
    for producer in producers:
        producer.start()
    try:
        time.sleep(max(0.0, span_s - LONG_BEFORE_S))
        long_s = LONG_BEFORE_S + max(span_s, 1.5 * plan.fault.lease_s)
        # The first three names are of three shards, and so on.
        for number, name in enumerate(names[: SHARDS * LONG_JOBS]):
            enqueue(Queue(name, client), crew.ledger, f"{name}-long{number}", long_s)
        time.sleep(LONG_BEFORE_S)
        killed_at = time.monotonic()
        crew.ledger.write("stroke", number=0, pause=span_s)
        plan.fault.stroke(stage)
        time.sleep(span_s)
    finally:
        for producer, name in zip(producers, names, strict=True):
            if name not in healthy:
                producer.stop()
        for producer in producers:
            producer.join()
    return killed_at


def _warm_up(crew: Crew, client: Client, names: Sequence[str]) -> None:
    """One message of each queue runs, so that every worker knows its way."""
    for name in names:
        enqueue(Queue(name, client), crew.ledger, f"{name}-first", 0.0)
    for name in names:
        drained(Queue(name, client), 0)


def of_queues(lines: Iterable[Line], names: Sequence[str]) -> Iterator[Line]:
    """The lines that tell of messages of these queues, and those that tell of none. A mid begins with its queue."""
    known = frozenset(names)

    def ours(mid: str) -> bool:
        return mid.partition("-")[0] in known

    calls: set[str] = set()
    finished: list[Line] = []
    for line in lines:
        word = line["word"]
        if word == "handed":
            yield {**line, "messages": [one for one in line["messages"] if ours(one[0])]}
        elif word == "finish":
            # All of a call are of one queue.
            if all(ours(mid) for mid, *_ in line["endings"]):
                calls.add(line["call"])
                yield line
        elif word == "finished":
            finished.append(line)
        elif "mid" not in line or ours(line["mid"]):
            yield line
    yield from (line for line in finished if line["call"] in calls)


def cut_short(lines: Iterable[Line]) -> set[str]:
    """The mids of runs that began and didn't come to their end."""
    began, ended = set[tuple[str, int, int]](), set[tuple[str, int, int]]()
    for line in lines:
        if line["word"] in ("start", "end"):
            run = (line["mid"], line["fence"], line["pid"])
            (began if line["word"] == "start" else ended).add(run)
    return {mid for mid, *_ in began - ended}


def kept_up(lines: Sequence[Line], killed_at: float, span_s: float) -> float:
    """What was enqueued so long after a moment and ran soon, of what was enqueued so long before it and did."""
    asked, ended = dict[str, float](), dict[str, float]()
    for line in lines:
        if line["word"] == "enqueue":
            asked[line["mid"]] = line["at"]
        elif line["word"] == "end":
            ended[line["mid"]] = min(line["at"], ended.get(line["mid"], line["at"]))
    before = after = 0
    for mid, at in asked.items():
        if ended.get(mid, at + 2 * SOON_S) - at <= SOON_S:
            before += killed_at - span_s <= at < killed_at
            after += killed_at <= at < killed_at + span_s
    return after / before if before else 0.0


def _final(
    queues: Sequence[Queue], crew: Crew, waiting: frozenset[str], exited: tuple[str, ...]
) -> Final:
    parts = [collected(queue, not waiting) for queue in queues]
    return Final(
        waiting, frozenset().union(*[dead for dead, _ in parts]), (),
        tuple(one for _, broken in parts for one in broken), crew.tracebacks(), exited,
    )  # fmt: skip


def _key(namespace: str, name: str) -> str:
    return f"{namespace}:{{{name}}}:ready"
