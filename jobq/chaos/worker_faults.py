"""Strokes against workers: their children, their supervisors, the machine they are on."""

from __future__ import annotations

import os
import signal
import time

from jobq.chaos.crew import alive, children_of, signalled
from jobq.chaos.stage import Stage

ORPHAN_S = 20.0


def child_kill(stage: Stage) -> None:
    """kill -9 of one child."""
    children = children_of(stage.worker().pid)
    if children:
        pid = stage.random.choice(children)
        with stage.fault("child-kill", [pid], cuts=True, spares=True):
            signalled(pid, signal.SIGKILL)


def worker_kill(stage: Stage) -> None:
    """kill -9 of one supervisor, whose children must go with it; then a new worker."""
    worker = stage.worker()
    children = children_of(worker.pid)
    stage.crew.drop(worker)
    with stage.fault("worker-kill", [worker.pid, *children], cuts=True):
        worker.kill()
        worker.wait()
    _bury(stage, children)
    stage.crew.start()


def host_loss(stage: Stage) -> None:
    """kill -9 of a worker and its children at once, as when their machine is gone; a new worker elsewhere."""
    worker = stage.worker()
    children = children_of(worker.pid)
    stage.crew.drop(worker)
    with stage.fault("host-loss", [worker.pid, *children], cuts=True):
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    _bury(stage, children)
    stage.crew.start()


def _bury(stage: Stage, children: list[int]) -> None:
    """Wait for the end of children whose supervisor is gone; who lives on is an orphan."""
    deadline = time.monotonic() + ORPHAN_S
    while left := list(filter(alive, children)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        stage.crew.ledger.write("orphan", pid=pid)
        signalled(pid, signal.SIGKILL)


def worker_stop(stage: Stage) -> None:
    """SIGSTOP of a worker and its children beyond their leases, then SIGCONT."""
    worker = stage.worker()
    pids = [worker.pid, *children_of(worker.pid)]
    with stage.fault("worker-stop", pids, cuts=True):
        try:
            for pid in pids:
                signalled(pid, signal.SIGSTOP)
            time.sleep(stage.crew.lease_s * stage.random.uniform(1.3, 1.8))
        finally:
            for pid in pids:
                signalled(pid, signal.SIGCONT)


def worker_term(stage: Stage) -> None:
    """TERM to one worker, which drains; a new one at once."""
    with stage.fault("worker-term"):
        stage.crew.leave(stage.worker())
    stage.crew.start()
