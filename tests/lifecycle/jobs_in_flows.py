"""Members of flows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from jobq import current, job
from jobq.flows.definition import Failure

FOLDER = Path(os.environ.get("FLOWS_FOLDER", "."))


def note(text: str) -> None:
    """Add a line, whole whatever other processes write."""
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{text}\n")


@job(queue="low", retries=0)
def load(number: int, *, unlucky: int = -1) -> dict[str, int]:
    """Return a row; fail for the unlucky number until the file `lucky` is there."""
    if number == unlucky and not (FOLDER / "lucky").exists():
        raise ValueError("no luck")
    note(f"load {number}")
    return {"number": number}


@job(queue="low", result_ttl=60)
def listed(many: int) -> list[int]:
    """Return the numbers below `many`."""
    return list(range(many))


@job(queue="high")
def total(rows: list[dict[str, int]], title: str = "") -> str:
    """Add numbers up."""
    return f"{title}{sum(row['number'] for row in rows)}"


@job(queue="high")
def tell(text: str, more: Any = None) -> str:
    """Note what was passed."""
    note(f"{text} {more}".removesuffix(" None"))
    return text


@job(queue="low")
def alert(failures: list[Failure]) -> None:
    """Note what failed."""
    for one in failures:
        note(f"failed {one['index']} {one['reason'].partition(chr(10))[0]}")


@job(queue="low")
def grow(many: int) -> None:
    """Add a map and its sum; die once after that."""
    flow = current().flow
    more = flow.map(load, range(100, 100 + many), name="more", results=True)
    flow.step(total.args(more.results, title="more "), name="sum")
    flow.step(tell, "grown", name="grown", after=[more, "sum"])
    if current().attempt == 1:
        note(f"grow {flow.id} {flow.step_name} {flow.index}")
        os.kill(os.getpid(), 9)


@job(queue="low")
def hold(gate: str) -> None:
    """Run until a file is there."""
    note("holds")
    while not (FOLDER / gate).exists():
        time.sleep(0.01)


if os.environ.get("LIFECYCLE_LOOP") == "yes":

    @job(queue="low")
    async def greet(name: str) -> str:
        """Return a greeting."""
        return f"hello {name}"
