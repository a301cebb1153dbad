"""Run a flow: load many rows concurrently, add them up, wait for approval, and publish the sum."""

from __future__ import annotations

import sys

from jobq import Flow, FlowRun, job
from jobq.flows.definition import Failure


@job(name="nightly.load", queue="rows", retries=2)
def load(number: int) -> dict[str, int]:
    """Return one row. A real job would fetch it from a service."""
    return {"number": number, "price": 3 * number}


@job(name="nightly.add_up", queue="rows", result_ttl="1h")
def add_up(rows: list[dict[str, int]]) -> int:
    """Return the sum of all prices."""
    return sum(row["price"] for row in rows)


@job(name="nightly.publish", queue="office")
def publish(total: int, approved_by: str) -> str:
    """Print the total and its approver, and return the approver."""
    print(f"published {total}, approved by {approved_by}", flush=True)
    return approved_by


@job(name="nightly.alert", queue="office")
def alert(failures: list[Failure]) -> None:
    """Print the rows that could not be loaded."""
    for failure in failures:
        print("not loaded:", failure["index"], failure["reason"], flush=True)


def nightly(day: str, rows: int) -> Flow:
    """Return the import flow of one day. A second start of the same day has no effect."""
    flow = Flow("nightly", id=day)
    loaded = flow.map(load, range(rows), results=True)
    flow.step(alert, loaded.failures, after=loaded, when="failed")
    total = flow.step(add_up, loaded.results)
    approved = flow.wait("approved", timeout="1d", after=total)
    flow.step(publish, total.result, approved.value)
    return flow


if __name__ == "__main__":
    day, action = sys.argv[1], sys.argv[2]
    if action == "start":
        run = nightly(day, 1_000).start()
        print("total", run.result("add_up", timeout=60))
    else:
        run = FlowRun("nightly", day)
        run.signal("approved", "ann")
        print(run.wait(timeout=60).state)
