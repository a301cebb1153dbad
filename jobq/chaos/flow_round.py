"""A round of flows on a Cluster: workers and producers are killed, and each step must be accepted exactly once."""

from __future__ import annotations

import itertools
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from jobq.chaos import flow_load
from jobq.chaos.cluster_round import queues_on
from jobq.chaos.flow_load import address_of
from jobq.chaos.ledger import Line
from jobq.chaos.round import LASTING, RoundPlan, WakeupMonitor, injections
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import OwnCluster, keys_of
from jobq.chaos.verdict import FinalState, Verdict, verdict_of
from jobq.chaos.workers import WorkerGroup, WorkerOptions
from jobq.client.connection import Client
from jobq.flows.identity import member_mid
from jobq.flows.run import FlowRun
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Place

QUEUES, WORKERS, CHILDREN = 6, 2, 2
#: Members of the map per requested job, requested jobs per flow of four steps, and the minimum number of such flows.
MEMBERS_EACH, JOBS_EACH, MIN_FLOWS = 50, 100, 6
#: The share of kills that hit a producer.
PRODUCER_SHARE = 0.3
#: How long all flows may take, and how much longer for each member of the map.
SETTLE_S, MEMBER_S = 120.0, 0.02
#: Allowed growth of a producer's memory while it makes the members of a map.
GROWTH_KB = 32 * 1024
#: The listing of flows stays, like the listings of queues and workers, and an empty outbox.
KEPT = (*LASTING, "flows", "flow-outbox")
PARTS: tuple[Place, ...] = ("ready", "lines", "due", "circle")
#: When the mids of steps are free again, and how many calls remove what is done.
LATER_MS, COLLECTS = 7_200_000, 10_000


class FlowLoad(NamedTuple):
    """How many flows of four steps a round runs, and how many members the last flow's map has."""

    flows: int
    members: int

    @property
    def mids(self) -> Iterator[str]:
        """Yield the mid of every separately counted step, without the run id of its flow."""
        for number in range(self.flows):
            for step in ("top", "left", "right", "last"):
                yield member_mid(f"{flow_load.DIAMOND}:{number}", step)
        yield member_mid(f"{flow_load.WIDE}:0", "last")


def load_of(jobs: int) -> FlowLoad:
    """Return how much work to enqueue in a round with this many jobs."""
    return FlowLoad(max(MIN_FLOWS, jobs // JOBS_EACH), jobs * MEMBERS_EACH)


class ProducerProcess:
    """A producer process. After each kill, it is restarted until it has started all of its flows."""

    def __init__(
        self, workers: WorkerGroup, names: Sequence[str], load: FlowLoad, part: str
    ) -> None:
        self._env, self._progress = workers.env, Path(workers.ledger.folder, f"{part}.progress")
        self._command = [
            sys.executable, "-P", "-m", "jobq.chaos.flow_load", ",".join(names), str(load.flows),
            str(load.members if part == flow_load.WIDE else 0), str(self._progress),
        ]  # fmt: skip
        self._log = Path(workers.ledger.folder).parent / f"worker-producer-{part}.log"
        self._start()

    def running(self) -> bool:
        code = self._process.poll()
        if code is not None and code < 0:
            self._start()
            return True
        return code is None

    @property
    def failed(self) -> bool:
        return bool(self._process.poll())

    def kill(self) -> None:
        if self._process.poll() is None and self._made() != self._began_at:
            self.close()

    def close(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.wait()

    def _made(self) -> int:
        return self._progress.stat().st_size if self._progress.exists() else 0

    def _start(self) -> None:
        self._began_at = self._made()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def run_flow_round(server: OwnCluster, plan: RoundPlan, folder: Path) -> Verdict:
    """Run a whole round. The ledger and the logs are written to `folder`."""
    namespace, fault, load = f"chaos-{secrets.token_hex(4)}", plan.fault, load_of(plan.jobs)
    client, names = server.client(namespace), queues_on(server, namespace, QUEUES)
    options = WorkerOptions(
        fault.lease_s, fault.crash_limit, queues=names, module="jobq.chaos.flow_load"
    )
    workers = WorkerGroup(folder, server.url, namespace, options)
    wakeups = WakeupMonitor(workers.ledger, fault.lease_s)
    wakeups.start()
    with ExitStack() as after:
        after.callback(workers.kill)
        after.callback(client.close)
        after.callback(wakeups.stop)
        for _ in range(WORKERS):
            workers.start(CHILDREN)
        workers.ready()
        producers = [
            ProducerProcess(workers, names, load, part)
            for part in (flow_load.WIDE, flow_load.DIAMOND)
        ]
        for producer in producers:
            after.callback(producer.close)
        setup = RoundSetup(workers, server, client)
        _disturb(setup, plan, producers, load)
        queues = [Queue(name, client) for name in names]
        exited = workers.exited()
        workers.stop()
        workers.ledger.write("late", worst=wakeups.stop())
        lines = list(workers.ledger.lines())
        verdict = verdict_of([*accepted(load), *lines], _final(queues, workers, exited))
        of_flows = {
            "flows": sorted(wrong_ends(client, load)),
            "callbacks": sorted(not_once(lines, load)),
            "members": sorted(missing(lines, load)),
            "producers": [
                *grown(lines),
                *(str(producer) for producer in producers if producer.failed),
            ],
        }
        return verdict._replace(broken={**verdict.broken, **of_flows})


def _disturb(
    setup: RoundSetup, plan: RoundPlan, producers: Sequence[ProducerProcess], load: FlowLoad
) -> None:
    """Kill workers and producers until all flows have ended, or a time limit has passed."""
    deadline = time.monotonic() + SETTLE_S + load.members * MEMBER_S
    left = runs_of(setup.client, load)
    for injection in injections(plan.seed, plan.fault):
        time.sleep(injection.pause_s)
        producing = [producer.running() for producer in producers]
        if not any(producing):
            left = [run for run in left if not ended(run)]
        if not left or time.monotonic() > deadline:
            return
        setup.workers.ledger.write("injection", number=injection.number, pause=injection.pause_s)
        if injection.random.random() < PRODUCER_SHARE:
            producer = injection.random.choice(producers)
            with setup.injected("producer-kill"):
                producer.kill()
        else:
            plan.fault.inject(setup._replace(random=injection.random))
        flow_load.write_injected(setup.workers.ledger)


def runs_of(client: Client, load: FlowLoad) -> list[FlowRun]:
    """Return the runs of all flows in the load."""
    diamonds = [FlowRun(flow_load.DIAMOND, str(n), client=client) for n in range(load.flows)]
    return [*diamonds, FlowRun(flow_load.WIDE, "0", client=client)]


def ended(run: FlowRun) -> bool:
    """Return whether a flow is done, failed or cancelled."""
    return run.status().state in ("done", "failed", "cancelled")


def wrong_ends(client: Client, load: FlowLoad) -> Iterator[str]:
    """Yield an error for each flow that didn't end as `done` with the right result."""
    for number, run in enumerate(runs_of(client, load)):
        state = run.status().state
        if state != "done":
            yield f"{run.name}:{run.id} is {state}"
        elif run.name == flow_load.DIAMOND:
            result = run.result("last", timeout=1)
            if result != flow_load.diamond_result(number):
                yield f"{run.name}:{run.id} has the result {result}"


def accepted(load: FlowLoad) -> Iterator[Line]:
    """Yield the ledger lines that producers would write if they enqueued each step as a separate message."""
    for mid in load.mids:
        yield {"word": "enqueue", "mid": mid, "at": 0.0}
        yield {"word": "enqueued", "mid": mid, "outcome": "ok", "action": "added", "at": 0.0}


def not_once(lines: Iterable[Line], load: FlowLoad) -> Iterator[str]:
    """Yield steps that weren't accepted exactly once. Repeated attempts of one message count once."""
    known: dict[str, set[str]] = {mid: set() for mid in load.mids}
    for line in lines:
        if line["word"] == "start" and line["mid"] in known:
            known[line["mid"]].add(line["generation"])
    yield from (f"{mid}: {len(times)} times" for mid, times in known.items() if len(times) != 1)


def missing(lines: Iterable[Line], load: FlowLoad) -> Iterator[str]:
    """Yield the numbers of up to ten map members that never ran."""
    ran = {line["number"] for line in lines if line["word"] == "member"}
    left = (number for number in range(load.members) if number not in ran)
    yield from (str(number) for number in itertools.islice(left, 10))


def grown(lines: Iterable[Line]) -> Iterator[str]:
    """Yield producers whose memory grew with the number of members that they added."""
    peaks: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line["word"] == "producer":
            peaks[line["pid"]].append(line["peak_kb"])
    for pid, peak in peaks.items():
        # The first thousand fill connections and scripts.
        if max(peak) - peak[min(1, len(peak) - 1)] > GROWTH_KB:
            yield f"{pid} grew from {peak[0]:,} to {max(peak):,} kB"


def _final(queues: Sequence[Queue], workers: WorkerGroup, exited: tuple[str, ...]) -> FinalState:
    later = queues[0].client.clock_ms() + LATER_MS
    waiting, dead, broken = set[str](), set[str](), list[str]()
    for queue in queues:
        # The mids of steps stay taken for an hour.
        for _ in range(COLLECTS):
            if not any(queue.admin.collect(1000, now=later)):
                break
        waiting |= {
            address_of(entry.mid) for part in PARTS for entry in queue.admin.iter_entries(part)
        }
        waiting |= {f"{queue.name}: {entry.entry_id}" for entry in queue.flow_outbox()}
        dead |= {address_of(message.mid) for message in queue.admin.iter_dead()}
        broken += [f"{violation.rule}: {violation.mid}" for violation in queue.admin.fsck()]
    leaked = tuple(_leaked(queues))
    return FinalState(
        frozenset(waiting), frozenset(dead), leaked, tuple(broken), workers.tracebacks(), exited
    )


def _leaked(queues: Sequence[Queue]) -> Iterator[str]:
    client = queues[0].client
    kept = {keys.flow_secret(client.namespace, queue.name) for queue in queues}
    for name in keys_of(client):
        if name in kept:
            continue
        if name.rpartition(":")[2] not in KEPT and client.command("PTTL", name) == -1:
            yield name
