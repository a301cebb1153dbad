"""`python -m bench.fleet`: needs of 1 to 30 servers and of 10 to 1,000 idle hosts, from slopes measured on one machine.

Each part is measured at two or three sizes, and only the slope between them counts:

messages: server CPU and memory of 20,000 and 60,000 messages in batches, of 5,000 and 15,000 one by one.
idle: round trips, commands and connections of 1, 2 and 4 idle workers of 8 children, over a minute.
cluster: connections of 1 and 2 such workers on a Cluster of three nodes, with one queue and with three.
partitions: instructions per message on one node and on three, and the largest share of a partition; connections and
commands of 1 and 2 idle workers. Callgrind counts the instructions, and a busy machine doesn't change them.
readers: a reading of the dashboard with 100 and 1,000 workers, and with 10 and 100 queues.
ingest: CPU of `jobq lake ingest`, and of the server, for 200,000 and 1,000,000 events.

The tables multiply these slopes. They assume that the load spreads evenly over the servers, and that each server's
thread is 70 % busy. Measurements are kept by part; --report writes all of them into bench/results/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import count as counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jobq
from bench.dashboard import fill as fill_dashboard
from bench.instructions import CONTENT, RECORD, WARM, counted, drain, dumped
from bench.machine import adopt_orphans, described
from bench.page import head, put
from bench.peers.venvs import FOLDER
from bench.server import ROOT, fields_of, info, private_server, redis_binary, server_s
from bench.stage import wait_for
from bench.worker import running_worker
from jobq import Ending, Queue
from jobq.chaos.servers import OwnCluster
from jobq.events import MAXLEN, MAXLENS
from jobq.queue.partitioning import left_in, partition, tidy
from jobq.queue.partitions import read_map
from jobq.queue.types import Dequeued

RESULTS = FOLDER / "fleet.json"
PAGE = ROOT / "bench" / "results" / "fleet.md"
COMMAND = "python -m bench.fleet --report"
NODES, HOSTS, CHILDREN = (1, 3, 10, 30), (10, 100, 1_000), 8
#: Messages per enqueue and per dequeue, and the smaller number of messages; the larger is three times as many.
BATCHES = {"one by one": (1, 1, 5_000), "in batches": (250, 64, 20_000)}
TURNS = 3
POOLS = (1, 2, 4)
#: The naps of idle children grow to 30 s in less time than the first.
SETTLE_S, WINDOW_S = 45.0, 60.0
READINGS = 15
#: Numbers of partitions, messages whose instructions are counted, messages whose spread is.
PARTITIONS, COUNTED, SPREAD = (1, 2, 4, 8), 4_000, 20_000
INSTRUCTIONS = "thousands of instructions per message, "
EVENTS = (200_000, 1_000_000)
#: Assumptions: busy share of a server's thread, seconds of a backlog, default `maxclients`.
BUSY, BACKLOG_S, MAX_CLIENTS = 0.7, 600, 10_000
#: The two limits that are looked for.
MANY_MESSAGES, MANY_CHILDREN = 1_000_000, 10_000
Figures = dict[str, float]


def messages() -> Figures:
    """Measure server CPU per message, memory per waiting message and per event."""
    figures: Figures = {}
    for name, (enqueued, fetched, size) in BATCHES.items():
        cpu: dict[int, list[float]] = {size: [], 3 * size: []}
        memory: dict[int, float] = {}
        for turn in range(TURNS):
            for count in list(cpu)[:: -1 if turn % 2 else 1]:
                with private_server() as client:
                    queue = Queue("bench", client)
                    _run(queue, 250, 250, 64)  # brings the scripts
                    empty, before = _memory(client), server_s(client)
                    _enqueue(queue, count, enqueued)
                    memory[count] = _memory(client) - empty
                    _drain(queue, fetched)
                    cpu[count].append(server_s(client) - before)
                    key = "jobq:{bench}:events"
                    used = int(client.command("MEMORY", "USAGE", key, "SAMPLES", 0))
                    figures["bytes per event in a stream"] = used / int(client.command("XLEN", key))
        spent = min(cpu[3 * size]) - min(cpu[size])
        figures[f"µs of server CPU per message, {name}"] = spent / (2 * size) * 1e6
        figures["bytes per waiting message"] = (memory[3 * size] - memory[size]) / (2 * size)
    return figures


def _enqueue(queue: Queue, count: int, enqueued: int) -> None:
    for _ in range(count // enqueued):
        queue.enqueue_many([CONTENT] * enqueued)


def _run(queue: Queue, count: int, enqueued: int, fetched: int) -> None:
    _enqueue(queue, count, enqueued)
    _drain(queue, fetched)


def _drain(queue: Queue, fetched: int) -> None:
    dequeued: Dequeued | None = queue.dequeue(fetched)
    while dequeued is not None and dequeued.messages:
        endings = [
            Ending(mid=message.mid, token=message.token, record=RECORD)
            for message in dequeued.messages
        ]
        dequeued = queue.finish(endings, dequeue=fetched).dequeued


def _memory(client: jobq.Client) -> float:
    return float(info(client, "memory")["used_memory"])


def idle() -> Figures:
    """Measure idle pools of each size at the same time, each on its own server."""
    with ExitStack() as stack:
        clients = {hosts: stack.enter_context(_pool(hosts)) for hosts in POOLS}
        time.sleep(SETTLE_S)
        before = {hosts: _counts(client) for hosts, client in clients.items()}
        began = time.monotonic()
        time.sleep(WINDOW_S)
        passed_s = time.monotonic() - began
        after = {hosts: _counts(client) for hosts, client in clients.items()}
        found = {
            f"{name} per second": _fitted(
                {hosts: (after[hosts][name] - before[hosts][name]) / passed_s for hosts in POOLS}
            )
            for name in ("round trips", "commands", "µs in commands")
        }
        found["connections"] = _fitted(
            {hosts: _counts(client)["connections"] for hosts, client in clients.items()}
        )
        found["bytes per connection"] = _connection_bytes(clients[POOLS[-1]])
        found["bytes in the list of workers"] = _fitted(
            {hosts: _counts(client)["bytes"] for hosts, client in clients.items()}
        )
    per_host = {f"idle host: {name}": value for name, value in found.items()}
    return {**per_host, "µs per round trip of a PING": _ping_us()}


@contextmanager
def _pool(hosts: int) -> Iterator[jobq.Client]:
    with private_server() as client, ExitStack() as stack:
        for number in range(hosts):
            stack.enter_context(
                running_worker(client, client.url, CHILDREN, "--name", f"host-{number}")
            )
        _wait_for_workers(client, hosts)
        yield client


def _wait_for_workers(client: jobq.Client, hosts: int) -> None:
    wait_for(lambda: client.command("HLEN", "jobq:workers") == hosts, 120, 0.5)


def _counts(client: jobq.Client) -> Figures:
    stats = info(client, "stats")
    used = info(client, "commandstats").values()
    return {
        "round trips": float(stats["total_reads_processed"]),
        "commands": float(stats["total_commands_processed"]),
        "µs in commands": sum(float(each.split("usec=")[1].split(",")[0]) for each in used),
        "connections": float(info(client, "clients")["connected_clients"]),
        "bytes": sum(len(each) for each in client.command("HVALS", "jobq:workers")),
    }


def _connection_bytes(client: jobq.Client) -> float:
    lines = client.command("CLIENT", "LIST").decode().splitlines()
    sizes = [float(line.split("tot-mem=")[1].split(" ")[0]) for line in lines]
    return sum(sizes) / len(sizes)


def _ping_us() -> float:
    with private_server() as client:
        before, count = server_s(client), 20_000
        for _ in range(count):
            client.command("PING")
        return (server_s(client) - before) / count * 1e6


def _fitted(values: Mapping[int, float]) -> float:
    """Return the slope of the least squares."""
    mean_x, mean_y = sum(values) / len(values), sum(values.values()) / len(values)
    over = sum((x - mean_x) * (y - mean_y) for x, y in values.items())
    return over / sum((x - mean_x) ** 2 for x in values)


def cluster() -> Figures:
    """Count the connections per idle host of a Cluster, to all nodes together."""
    figures: Figures = {}
    with (
        TemporaryDirectory(prefix="jobq-bench-") as folder,
        closing(OwnCluster(Path(folder))) as place,
    ):
        # One queue on each node; `running_worker` names the first.
        names = {place.shard_of("{bench}"): "bench"}
        for number in range(50):
            names.setdefault(place.shard_of(f"{{bench{number}}}"), f"bench{number}")
        for queues in (1, 3):
            served = list(names.values())[1:queues]
            counted = {hosts: _connected(place, hosts, served) for hosts in (1, 2)}
            what = f"{queues} queue{'s' * (queues > 1)}"
            figures[f"idle host on 3 nodes, {what}: connections"] = _fitted(counted)
    return figures


def _connected(place: OwnCluster, hosts: int, queues: list[str]) -> float:
    """Return the connections to all nodes of idle hosts that also serve these queues."""
    with closing(place.client("jobq")) as client, ExitStack() as stack:
        for number in range(hosts):
            options = ["--name", f"host-{number}"]
            for queue in queues:
                options += ["--queues", queue]
            stack.enter_context(running_worker(client, place.url, CHILDREN, *options))
        _wait_for_workers(client, hosts)
        time.sleep(SETTLE_S)
        lists = _of_nodes(client, "CLIENT", "LIST", "TYPE", "normal")
        return float(sum(len(text.splitlines()) for text in lists))


def partitions() -> Figures:
    """Measure the instructions per message, the spread of messages, and idle workers with partitions."""
    figures: Figures = {}
    for nodes in (1, 3):
        for size in PARTITIONS:
            what = f"{size} partition{'s' * (size > 1)} on {nodes} node{'s' * (nodes > 1)}"
            with _counting(nodes) as servers:
                spent = _instructions_per_message(*servers, size)
            figures[f"{INSTRUCTIONS}{what}"] = spent / 1e3
    figures |= _spread()
    with private_server() as client:
        figures |= _idle_with_partitions(client, client.url, "1 node")
    with (
        TemporaryDirectory(prefix="jobq-bench-") as folder,
        closing(OwnCluster(Path(folder))) as place,
        closing(place.client("jobq")) as client,
    ):
        figures |= _idle_with_partitions(client, place.url, "3 nodes")
    return figures


@contextmanager
def _counting(nodes: int) -> Iterator[tuple[jobq.Client, Callable[[], int]]]:
    """Yield a client of servers under callgrind, and a function for their instructions since its last call."""
    if nodes == 1:
        with counted() as server:
            yield server.client, server.instructions
        return
    with TemporaryDirectory(prefix="jobq-bench-") as name:
        folder = Path(name)
        program = folder / "counted-server"
        call = f"valgrind --tool=callgrind --callgrind-out-file={folder}/counted.%p"
        program.write_text(f'#!/bin/sh\nexec {call} {redis_binary()} "$@"\n')
        program.chmod(0o755)
        options = ("--cluster-node-timeout", "60000", "--appendonly", "no")
        with (
            closing(OwnCluster(folder, str(program), options)) as place,
            closing(place.client("jobq")) as client,
        ):
            client.patience_s = 120
            pids = [int(each["process_id"]) for each in _infos(client, "server")]
            ndumps = counter(1)
            yield client, lambda: dumped(folder, pids, next(ndumps))


def _instructions_per_message(
    client: jobq.Client, instructions: Callable[[], int], size: int
) -> float:
    """Return the instructions to enqueue a message in a batch, and to hand it out and end it in another."""
    queue, more = Queue("bench", client), WARM * PARTITIONS[-1]
    partition(client, "bench", size)
    places = [Queue(name, client) for name in read_map(client, "bench").newest.names("bench")]

    def warm() -> None:
        for place in places:
            _enqueue(place, more // size, 250)

    def drain_all() -> None:
        for place in places:
            drain(place, BATCHES["in batches"][1], 1_700_000_000_000)

    warm()
    drain_all()  # brings the scripts
    # While a hash is small the server searches it from its beginning. A longer queue costs more, so its length is the
    # same for each number of partitions.
    warm()
    instructions()
    _enqueue(queue, COUNTED, 250)
    enqueued = instructions()
    drain_all()
    return enqueued / COUNTED + instructions() / (COUNTED + more)


def _spread() -> Figures:
    """Return how much more than its even share the fullest of 8 partitions gets, of messages without keys."""
    with private_server() as client:
        partition(client, "bench", PARTITIONS[-1])
        queue = Queue("bench", client)
        for _ in range(SPREAD):
            queue.enqueue(CONTENT)
        known = read_map(client, "bench")
        sizes = [left_in(client, name).messages for name in known.newest.names("bench")]
    return {
        f"fullest of {len(sizes)} partitions, % above its even share of {SPREAD:,} messages": (
            100 * (max(sizes) * len(sizes) / SPREAD - 1)
        )
    }


def _idle_with_partitions(client: jobq.Client, url: str, where: str) -> Figures:
    """Measure 1 and 2 idle workers of a queue with 8 partitions."""
    tidy(client, partition(client, "bench", PARTITIONS[-1]))
    name, per_host = f"{PARTITIONS[-1]} partitions", defaultdict[str, dict[int, float]](dict)
    with ExitStack() as stack:
        for hosts in (1, 2):
            stack.enter_context(running_worker(client, url, CHILDREN, "--name", f"host-{hosts}"))
            _wait_for_workers(client, hosts)
            time.sleep(SETTLE_S)
            before, began = _totals(client), time.monotonic()
            time.sleep(WINDOW_S)
            passed_s, after = time.monotonic() - began, _totals(client)
            for figure in ("round trips", "commands"):
                per_host[figure][hosts] = (after[figure] - before[figure]) / passed_s
            per_host["connections"][hosts] = after["connections"]
    found = {figure: _fitted(values) for figure, values in per_host.items()}
    return {
        f"idle host on {where}, {name}: connections": found["connections"],
        f"idle child, {name} on {where}: round trips per second": found["round trips"] / CHILDREN,
        f"idle child, {name} on {where}: commands per second": found["commands"] / CHILDREN,
    }


def _totals(client: jobq.Client) -> Figures:
    """Return counters of all nodes together."""
    fields = (
        ("round trips", "stats", "total_reads_processed"), ("commands", "stats", "total_commands_processed"),
        ("connections", "clients", "connected_clients"),
    )  # fmt: skip
    return {
        figure: sum(float(each[field]) for each in _infos(client, section))
        for figure, section, field in fields
    }


def _infos(client: jobq.Client, section: str) -> list[dict[str, str]]:
    """Return a section of INFO of each node."""
    return [fields_of(text) for text in _of_nodes(client, "INFO", section)]


def _of_nodes(client: jobq.Client, *words: str) -> list[bytes]:
    """Return each node's reply to a command."""
    replies = []
    for connection in client.open_everywhere():
        connection.connect()
        connection.send_command(*words)
        replies.append(connection.read_response())
        connection.disconnect()
    return replies


def readers() -> Figures:
    """Measure a reading of the dashboard: CPU of the server and of the dashboard, bytes."""
    from jobq.web.sampler import Sampling

    def reading(queues: int, workers: int) -> tuple[float, ...]:
        with private_server() as client:
            fill_dashboard(client, queues, queues * 20, workers)
            sampling = Sampling(client)
            sampling.catch_up()
            sent = float(info(client, "stats")["total_net_output_bytes"])
            used, began = server_s(client), time.process_time()
            for _ in range(READINGS):
                sampling.take_snapshot()
            took, used = time.process_time() - began, server_s(client) - used
            sent = float(info(client, "stats")["total_net_output_bytes"]) - sent
            return used / READINGS * 1e6, took / READINGS * 1e6, sent / READINGS

    names = ("µs of server CPU", "µs of CPU of the dashboard", "bytes")
    figures: Figures = {}
    for kind, (less, more), size in (
        ("worker", ((10, 100), (10, 1_000)), 900), ("queue", ((10, 100), (100, 100)), 90),
    ):  # fmt: skip
        for name, low, high in zip(names, reading(*less), reading(*more), strict=True):
            figures[f"a dashboard's reading: {name} per {kind}"] = (high - low) / size
    return figures


def ingest() -> Figures:
    """Measure `jobq lake ingest` on new lakes: CPU of its process and of the server per event."""
    from bench.history import QUEUES, events, fill
    from bench.scale import PER_MESSAGE, spent
    from jobq.pipeline.lake import Lake

    adopt_orphans()
    cpu: list[float] = []
    served: list[float] = []
    counts: list[int] = []
    for number in EVENTS:
        with private_server() as client, TemporaryDirectory(dir=FOLDER) as folder:
            lake = Lake.create(str(Path(folder, "lake")))
            for name in QUEUES:
                Queue(name, client).admin.events_maxlen(MAXLENS[1])
            counts.append(fill(client, events(round(number / PER_MESSAGE), days=1)))
            before = server_s(client)
            one = spent(
                "lake", "ingest", "--once", "--lake", lake.store.uri, "--url", client.url, "--engine", "local",
                "--rollup", "0",
            )  # fmt: skip
            served.append(server_s(client) - before)
            cpu.append(one.cpu_s)
    more = counts[1] - counts[0]
    return {
        "µs of CPU of the ingest per event": (cpu[1] - cpu[0]) / more * 1e6,
        "µs of server CPU per ingested event": (served[1] - served[0]) / more * 1e6,
    }


PARTS: dict[str, Callable[[], Figures]] = {
    "messages": messages, "idle": idle, "cluster": cluster, "partitions": partitions, "readers": readers,
    "ingest": ingest,
}  # fmt: skip


def rate(slope: Figures, kind: str = "in batches") -> float:
    """Return the messages per second of a server that is as busy as assumed."""
    return BUSY * 1e6 / slope[f"µs of server CPU per message, {kind}"]


def partitioned_cost(slope: Figures) -> float:
    """Return the largest cost of a message in one of several partitions, as a multiple of the cost in a single one."""
    costs = [value for name, value in slope.items() if name.startswith(INSTRUCTIONS)]
    return max(costs) / slope[f"{INSTRUCTIONS}1 partition on 1 node"] if costs else 1.0


def idle_share(slope: Figures) -> float:
    """Return the share of one core of the server that an idle host takes."""
    trips = slope["idle host: round trips per second"] * slope["µs per round trip of a PING"]
    return (slope["idle host: µs in commands per second"] + trips) / 1e6


def of_node(slope: Figures) -> dict[str, tuple[float, str]]:
    """Return figure -> its value for one server, and its format."""
    batches = rate(slope)
    backlog = f"memory of a backlog of {BACKLOG_S // 60} minutes, in batches, GB"
    return {
        "messages per second, in batches": (batches, ",.0f"),
        "messages per second of one queue with partitions on all servers, in batches": (
            batches / partitioned_cost(slope), ",.0f",
        ),
        "messages per second, one by one": (rate(slope, "one by one"), ",.0f"),
        backlog: (batches * BACKLOG_S * slope["bytes per waiting message"] / 1e9, ",.0f"),
        "events per second into the lake, one per message": (batches, ",.0f"),
        "cores for the ingest of these events": (
            batches * slope["µs of CPU of the ingest per event"] / 1e6, ",.1f",
        ),
        "memory of an hour of these events in streams, GB": (
            batches * 3_600 * slope["bytes per event in a stream"] / 1e9, ",.0f",
        ),
    }  # fmt: skip


def of_host(slope: Figures) -> dict[str, tuple[float, str]]:
    """Return figure -> its value for one idle host, and its format."""
    clustered = {
        f"connections, {name.removeprefix('idle host on ').removesuffix(': connections')}": (
            value,
            ",.0f",
        )
        for name, value in slope.items()
        if name.startswith("idle host on ")
    }
    connected = slope["idle host: connections"]
    read = "a dashboard's reading: {} per worker"
    return {
        "connections": (connected, ",.0f"),
        **clustered,
        "memory of the connections, MB": (
            connected * slope["idle host: bytes per connection"] / 1e6, ",.1f",
        ),
        "round trips per second": (slope["idle host: round trips per second"], ",.0f"),
        "commands per second, with commands of scripts": (
            slope["idle host: commands per second"], ",.0f",
        ),
        "share of the server's core": (idle_share(slope), ".1%"),
        "one reading of a dashboard, kB": (slope[read.format("bytes")] / 1e3, ",.0f"),
        "one reading of a dashboard, ms of the server's core": (
            slope[read.format("µs of server CPU")] / 1e3, ",.1f",
        ),
        "one reading of a dashboard, ms of its own core": (
            slope[read.format("µs of CPU of the dashboard")] / 1e3, ",.1f",
        ),
    }  # fmt: skip


def table(
    first: str, sizes: tuple[int, ...], rows: Mapping[str, tuple[float, str]]
) -> Iterator[str]:
    """Yield a table of multiples, with two digits that count."""
    yield f"| {first} | {' | '.join(f'{size:,}' for size in sizes)} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for name, (each, form) in rows.items():
        cells = [format(float(f"{size * each:.2g}"), form) for size in sizes]
        yield f"| {name} | {' | '.join(cells)} |"


def limits(slope: Figures) -> Iterator[str]:
    """Yield what ends first at many messages, and at many children."""
    count = MANY_CHILDREN // CHILDREN
    connected = slope["idle host: connections"]
    per_host, read = of_host(slope), "one reading of a dashboard, ms of its own core"
    busy = f"servers, {BUSY:.0%} busy, for {MANY_MESSAGES:,} messages per second"
    yield "| first limits | |"
    yield "|---|---|"
    rows = {
        f"{busy}, in batches": f"{math.ceil(MANY_MESSAGES / rate(slope)):,}",
        f"{busy}, one by one": f"{math.ceil(MANY_MESSAGES / rate(slope, 'one by one')):,}",
        f"cores for the ingest of {MANY_MESSAGES:,} events per second": (
            f"{MANY_MESSAGES * slope['µs of CPU of the ingest per event'] / 1e6:,.1f}"
        ),
        f"seconds in which one queue per server fills a stream of the default {MAXLEN:,} events": (
            f"{MAXLEN / rate(slope):,.1f}"
        ),
        f"idle hosts until the default maxclients of {MAX_CLIENTS:,}": f"{MAX_CLIENTS / connected:,.0f}",
        f"connections of {MANY_CHILDREN:,} idle children": f"{count * connected:,.0f}",
        f"share of one core that {MANY_CHILDREN:,} idle children take": f"{count * idle_share(slope):.1%}",
        f"writes of heartbeats of {MANY_CHILDREN:,} children, per second": f"{count * 2 / 5:,.0f}",
        f"list of workers of {MANY_CHILDREN:,} children, kB": (
            f"{count * slope['idle host: bytes in the list of workers'] / 1e3:,.0f}"
        ),
        f"reading of a dashboard with {MANY_CHILDREN:,} children, ms of its own core": (
            f"{count * per_host[read][0]:,.0f}"
        ),
    }  # fmt: skip
    for name, value in rows.items():
        yield f"| {name} | {value} |"


def document(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the measured slopes and the computed tables as Markdown."""
    slope: Figures = {}
    for figures in found["parts"].values():
        slope |= figures
    yield from head(found["heads"], "slopes between the sizes that `bench/fleet.py` names")
    yield from ("", "### Measured", "", "| slope | |", "|---|---|")
    for name, value in slope.items():
        yield f"| {name} | {value:,.{0 if value >= 1_000 else 1 if value >= 10 else 2}f} |"
    yield from ("", "### Computed: servers", "", *table("servers", NODES, of_node(slope)))
    first = f"idle hosts of {CHILDREN} children"
    yield from ("", "### Computed: idle hosts", "", *table(first, HOSTS, of_host(slope)))
    yield from ("", "### Computed: the first limits", "", *limits(slope))


def main() -> None:
    """Measure these parts; or write known figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    parser.add_argument("--report", action="store_true", help="only write known figures")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    loaded: dict[str, Any] = {"heads": [], "parts": {}}
    if RESULTS.exists():
        loaded = json.loads(RESULTS.read_text())
    if chosen.report:
        text = "\n".join(document(loaded))
        print(text)
        put(PAGE, COMMAND, text)
        return
    FOLDER.mkdir(exist_ok=True)
    loaded["heads"].append(described("bench.fleet"))
    for name in chosen.parts:
        loaded["parts"][name] = PARTS[name]()
        for figure, value in loaded["parts"][name].items():
            print(f"{value:,.2f} {figure}", flush=True)
        RESULTS.write_text(json.dumps(loaded))


if __name__ == "__main__":
    main()
