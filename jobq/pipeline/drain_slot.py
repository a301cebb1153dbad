"""What runs in a Spark partition of a drain: one `jobq worker --burst`, and nothing of jobq in this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Order(NamedTuple):
    """What every executor is to run. It travels in the closure, which neither UI nor plan shows.

    env: variables of the worker, secrets among them. folders: where the driver found modules; of use where
    the executor sees the same disk. until: epoch seconds, 0 = no end.
    """

    drain: str
    args: tuple[str, ...]
    env: dict[str, str]
    folders: tuple[str, ...]
    until: float


class Ended(NamedTuple):
    """How one worker ended. said: the last lines it wrote."""

    executor: str
    worker: str
    code: int
    seconds: float
    said: str


def executor_of(worker: str, drain: str) -> str:
    """The executor in a worker's name; '' for somebody else's worker."""
    executor, slash, rest = worker.rpartition("/")
    return executor if slash and rest.partition(".")[0] == drain else ""


class Slot(NamedTuple):
    """One place to run, in an executor."""

    order: Order

    def run_all(self, partition: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        """For a Spark partition of one element."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        for _ in partition:
            yield tuple(self.run(attempt))

    def run(self, attempt: int) -> Ended:
        """Run the worker to its end. Killed meanwhile, this process takes the worker along."""
        order = self.order
        # This process's parent is the daemon of PySpark, of which each executor has its own.
        executor = f"{socket.gethostname()}:{os.getppid()}"
        name = f"{executor}/{order.drain}.{attempt}"
        if order.until and time.time() >= order.until:
            return Ended(executor, name, 0, 0.0, "")
        command = [
            sys.executable,
            "-P",
            "-m",
            "jobq.pipeline.tether",
            str(order.until),
            *order.args,
        ]
        # Whatever ends this block lets go of the tether.
        with subprocess.Popen(
            [*command, "--name", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=self._environ(), cwd=self._folder(), start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            told = process.stdout.read()
        if not told:
            raise RuntimeError(f"the worker's tether ended with {process.returncode} and no word")
        ended = json.loads(told)
        return Ended(executor, name, ended["code"], ended["seconds"], ended["said"])

    def _environ(self) -> dict[str, str]:
        """The executor's own, and what the driver said."""
        # What Spark brought here (--py-files) is on this process's path, and then on the worker's.
        path = [*filter(None, sys.path), *self.order.folders]
        found = os.pathsep.join(dict.fromkeys(path))
        return {**os.environ, **self.order.env, "PYTHONPATH": found}

    def _folder(self) -> str | None:
        """The driver's working folder where there is one like it: jobs may open files beside them."""
        here = self.order.folders[0] if self.order.folders else ""
        return here if os.path.isdir(here) else None
