"""The jobs and the producers of a round of flows.

`python -m jobq.chaos.flow_load QUEUE,… FLOWS MEMBERS PROGRESS` is one producer. It starts FLOWS flows of four steps, or
one flow with a map of MEMBERS members. It appends a line to PROGRESS for each started flow and for each thousandth
member. After a kill, it continues with the flow that it was starting.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobq.chaos.ledger import Ledger
from jobq.client.connection import Client, default_client
from jobq.flows.flow import Flow
from jobq.flows.identity import member_of
from jobq.jobs.context import current
from jobq.jobs.registry import job

FOLDER = "JOBQ_CHAOS_LEDGER"
ledger = Ledger(os.environ.get(FOLDER, ""))
#: One step in this many takes long enough to be killed while it runs.
LONG_EVERY, LONG_S = 7, 0.2
DIAMOND, WIDE = "diamond", "wide"
#: How long the flows of a round are kept: longer than a round lasts.
KEEP = "2h"
EACH_MEMBERS = 1_000
#: The first step of flow 0 and the members with these numbers wait for this many faults, because a fast machine
#: would otherwise end the flows before the first fault.
FAULTS_BEFORE_MEMBER = {2_000: 1, 6_000: 2, 10_000: 3}
FAULTS_BEFORE_DIAMOND, MAX_WAIT_S, WAIT_STEP_S = 2, 30.0, 0.02
INJECTED_FILE = "injected"


@job(name="jobq.chaos.part")
def part(number: int, *before: int) -> int:
    """Run one step of a flow: add the results of the earlier steps."""
    _note("start")
    if number == 0:
        _await_injected(FAULTS_BEFORE_DIAMOND)
    if number % LONG_EVERY == 0:
        time.sleep(LONG_S)
    _note("end")
    return number + sum(before)


@job(name="jobq.chaos.member")
def member(number: int) -> None:
    """Run one member of a map."""
    _await_injected(FAULTS_BEFORE_MEMBER.get(number, 0))
    ledger.write("member", number=number)


@job(name="jobq.chaos.callback", result_ttl=KEEP)
def callback(*before: int) -> int:
    """Run the last step of a flow: return the sum of the earlier steps' results."""
    _note("start")
    _note("end")
    return sum(before)


def write_injected(to: Ledger) -> None:
    """Record that a fault was injected, for other steps that wait for the fault."""
    _append(Path(to.folder, INJECTED_FILE), "injected")


def _await_injected(count: int) -> None:
    file, deadline = Path(ledger.folder, INJECTED_FILE), time.monotonic() + MAX_WAIT_S
    while count and time.monotonic() < deadline:
        if file.exists() and len(file.read_text().splitlines()) >= count:
            return
        time.sleep(WAIT_STEP_S)


def address_of(mid: str) -> str:
    """Return the name of a step without its flow's run id, so that the name is the same in every run."""
    return step.address if (step := member_of(mid)) else mid


def _note(word: str) -> None:
    # Read the time first, so that a process stopped in between doesn't claim an expired lease.
    at, context = time.monotonic(), current()
    ledger.write(
        word, at=at, mid=address_of(context.mid), attempt=context.attempt, fence=context.fence,
        pid=os.getpid(), thread=threading.get_native_id(), left=min(context.lease_left, 3600.0),
        generation=context.generation,
    )  # fmt: skip


def diamond(number: int, queues: Sequence[str], client: Client) -> Flow:
    """Return a flow of four steps on four queues. Its result is `diamond_result(number)`."""
    flow = Flow(DIAMOND, id=str(number), keep=KEEP, client=client)
    at = [queues[(number + turn) % len(queues)] for turn in range(4)]
    top = flow.step(part.options(queue=at[0]), number, name="top")
    left = flow.step(part.options(queue=at[1]), number + 1, top.result, name="left")
    right = flow.step(part.options(queue=at[2]), number + 2, top.result, name="right")
    flow.step(callback.options(queue=at[3]), left.result, right.result, name="last")
    return flow


def diamond_result(number: int) -> int:
    """Return the expected result of the flow `diamond(number)`."""
    return 4 * number + 3


def wide(members: int, queues: Sequence[str], client: Client, progress: Path) -> Flow:
    """Return a flow with one map and a step after the map."""
    flow = Flow(WIDE, id="0", keep=KEEP, client=client)
    numbers = _counted(members, progress)
    every = flow.map(member.options(queue=queues[0]), numbers, name="every")
    flow.step(callback.options(queue=queues[1]), after=every, name="last")
    return flow


def _counted(members: int, progress: Path) -> Iterator[int]:
    """Yield the numbers of a map's members.

    After every EACH_MEMBERS members, record the progress and the peak memory.
    """
    for number in range(members):
        if number % EACH_MEMBERS == 0:
            _append(progress, f"{number}")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            ledger.write("producer", made=number, peak_kb=peak, pid=os.getpid())
        yield number


def _append(progress: Path, text: str) -> None:
    with progress.open("a") as lines:
        lines.write(f"{text}\n")


def main(names: str, flows: str, members: str, progress: str) -> None:
    """Run one producer, until it has started all flows or is killed."""
    queues, client, path = names.split(","), default_client(), Path(progress)
    if int(members):
        wide(int(members), queues, client, path).start()
        return
    made = len(path.read_text().split()) if path.exists() else 0
    for number in range(made, int(flows)):
        diamond(number, queues, client).start()
        _append(path, str(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
