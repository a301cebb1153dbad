"""Faults that kill or stop a worker's child processes, its supervisor, or its whole machine."""

from __future__ import annotations

import json
import signal
import time

from jobq.chaos.ledger import STEM
from jobq.chaos.producers import BATCH_JOB, LINGER_S, QUEUE, enqueue_content
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.server_faults import clients_kill, memory_full, scripts_flush, server_restart
from jobq.chaos.workers import alive, children_of, signalled
from jobq.queue.queue import Queue

ORPHAN_S = 20.0
#: How long a call in a batch takes at most.
MAX_CALL_S = 0.1


def child_kill(setup: RoundSetup) -> None:
    """Kill -9 one process of a worker."""
    children = children_of(setup.worker().pid)
    if children:
        pid = setup.random.choice(children)
        with setup.injected("child-kill", [pid], cuts=True, spares=True):
            signalled(pid, signal.SIGKILL)


def limits_kill(setup: RoundSetup, count: int = 10) -> None:
    """Enqueue jobs with rate and concurrency limits, and kill -9 a process of a worker."""
    queue, ledger = Queue(QUEUE, setup.client), setup.workers.ledger
    for _ in range(count):
        mid = f"{STEM}{setup.random.getrandbits(48):x}"
        content = json.dumps({"job": "jobq.chaos.limited", "args": [mid]}).encode()
        enqueue_content(queue, ledger, mid, content)
    child_kill(setup)


def batches(setup: RoundSetup, count: int = 20) -> None:
    """Twice, enqueue calls of a batch job, cancel some calls, and inject a random fault."""
    queue, ledger = Queue(QUEUE, setup.client), setup.workers.ledger
    for fault in setup.random.sample(_IN_BATCHES, 2):
        mids = [f"batched-{setup.random.getrandbits(48):x}" for _ in range(count)]
        for mid in mids:
            content = {"job": BATCH_JOB, "args": [mid, setup.random.uniform(0, MAX_CALL_S)]}
            enqueue_content(queue, ledger, mid, json.dumps(content).encode())
        time.sleep(setup.random.uniform(0, 2 * LINGER_S))
        chosen = setup.random.sample(mids, count // 4)
        replies = zip(chosen, queue.cancel(*chosen), strict=True)
        ledger.write("cancelled", mids=[mid for mid, reply in replies if reply == "cancelled"])
        fault(setup)


def worker_kill(setup: RoundSetup) -> None:
    """Kill -9 one supervisor, whose child processes must then exit. Start a new worker."""
    _replace(setup, "worker-kill")


def host_loss(setup: RoundSetup) -> None:
    """Kill -9 a supervisor and its processes, as if their machine were lost. Then start a new worker."""
    _replace(setup, "host-loss", with_children=True)


def any_kill(setup: RoundSetup) -> None:
    """Kill a child, a worker or a whole machine, chosen at random."""
    setup.random.choice((child_kill, worker_kill, host_loss))(setup)


def _replace(setup: RoundSetup, name: str, with_children: bool = False) -> None:
    worker = setup.worker()
    _await_other(setup, worker.pid)
    children = children_of(worker.pid)
    setup.workers.remove(worker)
    with setup.injected(name, [worker.pid, *children], cuts=True):
        for pid in (worker.pid, *(children if with_children else ())):
            signalled(pid, signal.SIGKILL)
        worker.wait()
    _await_exit(setup, children)
    setup.workers.start()


def _await_other(setup: RoundSetup, pid: int) -> None:
    """Wait until another worker has started its processes, so that their start doesn't count as time to recover."""
    others = [other.pid for other in setup.workers.running if other.pid != pid]
    deadline = time.monotonic() + ORPHAN_S
    while others and not any(map(children_of, others)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _await_exit(setup: RoundSetup, children: list[int]) -> None:
    """Wait until the children of a dead supervisor exit. Record children that don't exit as orphans."""
    deadline = time.monotonic() + ORPHAN_S
    while left := list(filter(alive, children)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        setup.workers.ledger.write("orphan", pid=pid)
        signalled(pid, signal.SIGKILL)


def worker_stop(setup: RoundSetup) -> None:
    """Stop a worker and its processes with SIGSTOP, and continue them with SIGCONT after their leases have expired."""
    worker = setup.worker()
    pids = [worker.pid, *children_of(worker.pid)]
    with setup.injected("worker-stop", pids, cuts=True):
        try:
            for pid in pids:
                signalled(pid, signal.SIGSTOP)
            time.sleep(setup.workers.lease_s * setup.random.uniform(1.3, 1.8))
        finally:
            for pid in pids:
                signalled(pid, signal.SIGCONT)


def worker_term(setup: RoundSetup) -> None:
    """Send SIGTERM to a worker, and start a new worker without waiting until the old worker exits."""
    with setup.injected("worker-term"):
        setup.workers.terminate(setup.worker())
    setup.workers.start()


#: Faults while batches run or wait for more calls.
_IN_BATCHES = (
    child_kill, worker_kill, host_loss, worker_stop, worker_term,
    server_restart, clients_kill, scripts_flush, memory_full,
)  # fmt: skip
