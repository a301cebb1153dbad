"""python -m tests.chaos.skewed URL FOLDER JOBS: a round in a process whose clock, and whose workers' clocks, are wrong.

Prints the verdict, and how far the clocks of producers and of the first workers are from the server's, in
seconds.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jobq.chaos.faults import FAULTS
from jobq.chaos.round import WORKERS, RoundPlan, run_round
from jobq.chaos.servers import TargetServer
from jobq.chaos.workers import WorkerGroup

SEED = 20261121

_start = WorkerGroup.start
_clocks: list[float] = []


def clock(folder: Path, seconds: int) -> str:
    """The file that makes a clock wrong by so much."""
    file = folder / f"clock{seconds:+d}"
    file.write_text(str(seconds))
    return str(file)


def skew(files: Iterator[str]) -> None:
    """Give each started worker the next clock."""

    def start(workers: WorkerGroup, children: int = 2) -> None:
        workers.env["CLOCK_FILE"] = next(files)
        if len(_clocks) < WORKERS:
            asked = subprocess.run(
                [sys.executable, "-c", "import time; print(time.time())"],
                env=workers.env, capture_output=True, text=True, check=True,
            )  # fmt: skip
            _clocks.append(float(asked.stdout))
        _start(workers, children)

    setattr(WorkerGroup, "start", start)  # noqa: B010


def main(url: str, folder: str, jobs: str) -> None:
    """Play the round."""
    skew(itertools.cycle([clock(Path(folder), 600), clock(Path(folder), -600)]))
    place = TargetServer(url)
    client = place.client("clock")
    seconds, _ = client.command("TIME")
    client.close()
    real, mine = int(seconds), time.time()
    verdict = run_round(place, RoundPlan(FAULTS["child-kill"], int(jobs), SEED), Path(folder))
    told = verdict._asdict()
    told["broken"] = {name: found for name, found in verdict.broken.items() if found}
    told["clocks"] = [mine - real, *(one - real for one in _clocks)]
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
