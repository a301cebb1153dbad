"""Measure how busy a server's main thread is, and estimate how much of its load each queue causes.

A server counts the CPU time of its main thread and of all scripts together, but not of each queue. Therefore, this time
is distributed among the queues in proportion to the messages that they enqueued and started, as if every message cost
the same. MONITOR would slow down a busy server, and SLOWLOG shows only slow calls.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.pipelining import run_each
from jobq.errors import JobqError
from jobq.queue.doctor import ASK_ADMIN, Finding, Node
from jobq.queue.queue import Queue
from jobq.queue.types import Sample, text_of

#: Time between two readings of the servers; then, if a server is busier than QUIET, of the servers and the queues.
GLANCE_S, WINDOW_S = 0.1, 1.0
#: Limits, as shares of one core.
QUIET, HALF, BUSY = 0.25, 0.5, 0.8
#: Share of a script's time that the commands called by it take (measured: 0.2 to 0.4). The server counts it twice.
COUNTED_TWICE = 0.4
#: Above this many calls per message, larger batches help; above this many events per started message, fewer events.
MANY_CALLS, MANY_EVENTS = 0.25, 0.5
#: If other queues and applications cause more than this share of the busy time, moving them away helps.
OTHERS = 0.2
MAX_NAMED = 3
_SCRIPTS = ("eval", "evalsha", "fcall", "eval_ro", "evalsha_ro", "fcall_ro")


class NodeCounters(NamedTuple):
    """Counters of one server since its start.

    Attributes:
        at_s: When the counters were read.
        cpu_s: CPU time of the main thread.
        scripts_us: Time of all scripts, including the commands that they called.
        commands_us: Time of all commands, including scripts and the commands that they called.
        calls: Number of script calls.
        reads: Number of reads from connections: one per round trip.
    """

    at_s: float
    cpu_s: float
    scripts_us: int
    commands_us: int
    calls: int
    reads: int


class QueueLoad(NamedTuple):
    """One queue during a measurement.

    Attributes:
        share: Estimated share of one core.
        per_s: Messages enqueued or started per second.
        events: Events per started message.
    """

    name: str
    share: float
    per_s: float
    events: float


class NodeLoad(NamedTuple):
    """One server during a measurement.

    Attributes:
        busy: Share of one core that the main thread used.
        others: Part of `busy` that scripts didn't cause.
        calls: Script calls per message enqueued or started.
        queues: The active queues, largest share first. Empty if no server was busy, because the queues
            aren't measured then.
    """

    name: str
    busy: float
    others: float = 0.0
    calls: float = 0.0
    queues: Sequence[QueueLoad] = ()


Counters = Mapping[Hashable, NodeCounters]
Samples = Mapping[str, tuple[Hashable, Sample]]


class LoadWatch:
    """Measures the CPU load of a client's servers. `close` closes the connections."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        wait: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._names, self._wait, self._now = client, names, wait, now
        self._nodes: dict[Hashable, Node | Client] = {client.topology.locate(""): client}
        if client.is_cluster:
            self._nodes = {place: Node(client, place) for place in client.topology.nodes()}
        #: Name of a node -> why its load is unknown.
        self.unknown: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections to the nodes."""
        for node in self._nodes.values():
            if isinstance(node, Node):
                node.close()

    def measure(self) -> list[NodeLoad]:
        """Return the load of each server whose counters can be read. This takes 0.1 s, or 1.1 s if a server is busy."""
        before = self._counters()
        self._wait(GLANCE_S)
        after = self._counters()
        shares = {place: busy(before[place], after[place]) for place in after if place in before}
        if all(share < QUIET for share in shares.values()):
            return [NodeLoad(self._name(place), share) for place, share in shares.items()]
        sampled, before = self._samples(), self._counters()
        self._wait(WINDOW_S)
        after = self._counters()
        measured = loads(before, after, sampled, self._samples())
        return [load._replace(name=self._name(place)) for place, load in measured.items()]

    def _name(self, place: Hashable) -> str:
        node = self._nodes[place]
        return node.name if isinstance(node, Node) else ""

    def _counters(self) -> dict[Hashable, NodeCounters]:
        counters: dict[Hashable, NodeCounters] = {}
        for place, node in self._nodes.items():
            try:
                lines = text_of(node.command("INFO", "cpu", "stats", "commandstats")).splitlines()
                counters[place] = _counters(
                    dict(line.split(":", 1) for line in lines if ":" in line), self._now()
                )
            except (JobqError, LookupError, ValueError) as error:
                self.unknown[self._name(place)] = str(error)
        return counters

    def _samples(self) -> dict[str, tuple[Hashable, Sample]]:
        queues = [Queue(name, self._client) for name in self._names]
        samples = run_each(self._client, [queue.admin.sample_call() for queue in queues])
        home = self._client.topology.locate
        return {
            queue.name: (home(queue.wake_key if self._client.is_cluster else ""), sample)
            for queue, sample in zip(queues, samples, strict=True)
            if isinstance(sample, Sample)
        }


def _counters(info: Mapping[str, str], at_s: float) -> NodeCounters:
    used = {
        name.removeprefix("cmdstat_"): dict(part.split("=", 1) for part in text.split(","))
        for name, text in info.items()
        if name.startswith("cmdstat_")
    }
    scripts = [used[name] for name in _SCRIPTS if name in used]
    return NodeCounters(
        at_s, float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"]),
        sum(int(each["usec"]) for each in scripts), sum(int(each["usec"]) for each in used.values()),
        sum(int(each["calls"]) for each in scripts), int(info["total_reads_processed"]),
    )  # fmt: skip


def busy(before: NodeCounters, after: NodeCounters) -> float:
    """Return the share of one core that a server's main thread used."""
    passed_s = after.at_s - before.at_s
    return max(0.0, after.cpu_s - before.cpu_s) / passed_s if passed_s > 0 else 0.0


def loads(
    before: Counters, after: Counters, sampled: Samples, again: Samples
) -> dict[Hashable, NodeLoad]:
    """Return the load of each server, computed from two readings of the servers' counters and of the queues."""
    work: dict[Hashable, dict[str, tuple[int, float]]] = defaultdict(dict)
    for name, (place, now) in again.items():
        if name in sampled:
            units, started = _work(sampled[name][1], now)
            events = max(0, now.added - sampled[name][1].added) / started if started else 0.0
            if units:
                work[place][name] = units, events
    return {
        place: _load(before[place], after[place], work[place]) for place in after if place in before
    }


def _work(was: Sample, now: Sample) -> tuple[int, int]:
    """Return how many messages were enqueued or started between two samples, and how many were started."""
    started = max(0, now.fence - was.fence)
    ended = started - (now.counts.locked - was.counts.locked)
    more = (now.counts.messages - now.counts.done) - (was.counts.messages - was.counts.done)
    return max(0, ended + more) + started, started


def _load(
    before: NodeCounters, after: NodeCounters, work: Mapping[str, tuple[int, float]]
) -> NodeLoad:
    share, passed_s = busy(before, after), max(1e-9, after.at_s - before.at_s)
    ours = share * _of_scripts(before, after)
    total = sum(units for units, _ in work.values())
    queues = [
        QueueLoad(name, ours * units / total, units / passed_s, events)
        for name, (units, events) in work.items()
    ]
    queues.sort(key=lambda each: -each.share)
    calls = (after.calls - before.calls) / total if total else 0.0
    return NodeLoad("", share, share - ours, calls, queues)


def _of_scripts(before: NodeCounters, after: NodeCounters) -> float:
    """Return the fraction of CPU time that scripts used, including the network I/O of their calls."""
    scripts = after.scripts_us - before.scripts_us
    plain = max(0.0, after.commands_us - before.commands_us - scripts * (1 + COUNTED_TWICE))
    network = max(0.0, (after.cpu_s - before.cpu_s) * 1e6 - scripts - plain)
    trips = min(1.0, (after.calls - before.calls) / max(1, after.reads - before.reads))
    return (scripts + network * trips) / max(1.0, scripts + plain + network)


def load_findings(watch: LoadWatch) -> Iterator[Finding]:
    """Measure the servers, and yield a finding about each.

    A finding is a warning if the server's main thread is too busy, or if one queue uses more than half of a core.
    """
    for load in watch.measure():
        yield _finding(load)
    for name, why in watch.unknown.items():
        value = f"unknown, like the busiest queue: {why}"
        yield Finding("cpu", "warn", value, ASK_ADMIN, name)


def _finding(load: NodeLoad) -> Finding:
    largest = load.queues[0] if load.queues else None
    thread = f"the server's thread is {load.busy:.0%} busy"
    if largest and largest.share > HALF:
        value = (
            f"queue {largest.name} takes about {largest.share:.0%} of a core: {largest.per_s:,.0f} messages enqueued "
            f"or started per second; {thread}"
        )
        return Finding("cpu", "warn", value, "; ".join(steps(load)), load.name)
    shares = [f"{each.name} about {each.share:.0%}" for each in load.queues[:MAX_NAMED]]
    if shares or load.busy > BUSY:
        shares.append(f"other commands about {load.others:.0%}")
        thread += f": {', '.join(shares)}"
    if load.busy > BUSY:
        return Finding("cpu", "warn", thread, "; ".join(steps(load)), load.name)
    return Finding("cpu", "ok", thread, node=load.name)


def steps(load: NodeLoad) -> Iterator[str]:
    """Yield advice for a busy server, in the order of docs/operating/scaling.md."""
    largest = load.queues[0] if load.queues else None
    if largest and load.calls > MANY_CALLS:
        yield f"use enqueue_many and larger jobs: {load.calls:.1f} calls per message now"
    if largest and largest.events > MANY_EVENTS:
        yield f"stop writing events that nobody reads: jobq events level off --queues {largest.name}"
    rest = load.busy - largest.share if largest else load.busy
    if rest > OTHERS * load.busy:
        yield f"move other queues and applications, about {rest:.0%} of a core, to a server of their own"
    if largest:
        yield ("" if load.name else "use a Cluster, and ") + _distributing(largest.name)


def _distributing(name: str) -> str:
    """Return advice to distribute a queue over partitions, or a partition's queue over more partitions."""
    base = base_of(name)
    if base != name:
        return f"give queue {base} more partitions: jobq partitions {base} shows how many it has"
    return f"distribute the queue over the nodes: jobq partitions {base} 8"
