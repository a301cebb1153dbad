"""Jobs that write what happens to them; the first two arguments are the ledger and a name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jobq import DeadCall, HoldKey, JobAborted, Retry, current, job
from jobq.jobs import retry
from jobq.worker.shared_state import SharedSlots

HERE = {"queue": "low", "retry": retry.fixed(0.05)}
#: A worker without async jobs runs its jobs without an event loop.
LOOP = os.environ.get("LIFECYCLE_LOOP") != "no"


def ajob(**options: Any) -> Any:
    """@job of an async function, where there is to be a loop."""
    return job(**options) if LOOP else lambda function: function


def note(ledger: str, name: str, word: str, **more: object) -> None:
    """One happening; appended whole."""
    line = {"word": word, "name": name, "pid": os.getpid(), "at": time.monotonic(), **more}
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)


def rest() -> None:
    """A minute: a signal ends the wait in the main thread, an exception the next step in another."""
    if threading.current_thread() is threading.main_thread():
        time.sleep(60)
    for _ in range(12_000):
        time.sleep(0.005)


def gate(ledger: str, name: str) -> Path:
    """Return the file that a gated job waits for."""
    return Path(ledger).with_name(f"{name}.gate")


@job(name="quick", **HERE)
def quick(ledger: str, name: str) -> None:
    """A job that is done immediately."""
    note(ledger, name, "end", attempt=current().attempt)


def charge() -> None:
    """Fail in a function of the job's own."""
    raise ValueError("no route to redis://anna:hunter2@bank")


@job(name="unpaid", queue="low", retry=retry.fixed(600))
def unpaid(ledger: str, name: str) -> None:
    """Fails, and is retried in ten minutes."""
    charge()


@ajob(name="aunpaid", queue="low", retry=retry.fixed(600))
async def aunpaid(ledger: str, name: str) -> None:
    """A quick job on the event loop."""
    charge()


@job(name="gated", **HERE)
def gated(ledger: str, name: str) -> None:
    """Runs until its gate is there."""
    try:
        # Inside, since a worker may end the job as soon as a test reads that it started.
        note(ledger, name, "start", attempt=current().attempt, fence=current().fence)
        while not gate(ledger, name).exists():
            time.sleep(0.005)
    except JobAborted as aborted:
        note(ledger, name, "aborted", why=str(aborted), lease_left=current().lease_left)
        raise
    note(ledger, name, "end")


@job(name="logged", redact=("name", "pin"), keep_logs="1h", **HERE)
def logged(ledger: str, name: str) -> None:
    """Logs, and runs until its gate is there; its child is killed the first time."""
    log = current().logger
    log.warning("attempt %d of %s at redis://:secret@host", current().attempt, name)
    note(ledger, name, "start", attempt=current().attempt)
    while not gate(ledger, name).exists():
        time.sleep(0.005)
    if current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    log.warning("at the end")
    raise ValueError("no use")


@ajob(name="agated", **HERE)
async def agated(ledger: str, name: str) -> None:
    """This job on the event loop."""
    note(ledger, name, "start")
    try:
        while not gate(ledger, name).exists():
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        note(ledger, name, "aborted")
        raise
    note(ledger, name, "end")


@job(name="holds_gil", **HERE)
def holds_gil(ledger: str, name: str, seconds: float) -> None:
    """No Python code of this process runs meanwhile."""
    note(ledger, name, "start")
    # By the processor's time, so that it never takes less, however busy the machine is.
    began = time.process_time()
    sum(range(1_000_000))
    sum(range(round(1_000_000 * seconds / (time.process_time() - began))))
    note(ledger, name, "end")


@job(name="kills", **HERE)
def kills(ledger: str, name: str) -> None:
    """A poison message."""
    note(ledger, name, "start", attempt=current().attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@ajob(name="akills", **HERE)
async def akills(ledger: str, name: str) -> None:
    """A poison message among concurrent jobs."""
    note(ledger, name, "start", attempt=current().attempt)
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@job(name="overlong", timeout=1.5, retries=0, **HERE)
def overlong(ledger: str, name: str) -> None:
    """Past its soft timeout."""
    note(ledger, name, "start")
    rest()


@job(name="stubborn", timeout=1.0, hard_timeout=3.0, retries=0, **HERE)
def stubborn(ledger: str, name: str) -> None:
    """Heeds no soft timeout."""
    note(ledger, name, "start", attempt=current().attempt)
    while True:
        try:
            rest()
        except BaseException:
            note(ledger, name, "ignored")


class NotedSlots:
    """The slots of this process, once it has fetched ahead."""

    mine: SharedSlots | None = None
    fetching = SharedSlots.fetching


def _fetching(self: SharedSlots, queue: int, claim_at: int) -> None:
    NotedSlots.mine = self
    NotedSlots.fetching(self, queue, claim_at)


SharedSlots.fetching = _fetching  # type: ignore[method-assign]


def first_while_fetching(ledger: str) -> bool:
    """Whether this child's next batch is on its way, for the first time."""
    if NotedSlots.mine is None or not NotedSlots.mine.is_fetching:
        return False
    try:
        gate(ledger, "fetching").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@job(name="dies_fetching", **HERE)
def dies_fetching(ledger: str, name: str) -> None:
    """One of them kills its child while the next batch is on its way, as it is during jobs of a millisecond."""
    time.sleep(0.001)
    if first_while_fetching(ledger):
        os.kill(os.getpid(), signal.SIGKILL)
    note(ledger, name, "end")


@ajob(name="adies_fetching", **HERE)
async def adies_fetching(ledger: str, name: str) -> None:
    """This job on the event loop."""
    await asyncio.sleep(0.001)
    dies_fetching.function(ledger, name)


@job(name="hangs_fetching", **HERE)
def hangs_fetching(ledger: str, name: str) -> None:
    """One of them runs until its gate is there, while the next batch is on its way."""
    time.sleep(0.001)
    if first_while_fetching(ledger):
        gated.function(ledger, "hangs")
    note(ledger, name, "end")


@job(name="grows", **HERE)
def grows(ledger: str, name: str, megabytes: int) -> None:
    """Allocate memory and keep it."""
    KEPT.append(b"x" * (megabytes << 20))
    note(ledger, name, "end")


KEPT: list[bytes] = []


def tell(died: DeadCall) -> None:
    """Note a death."""
    ledger, name = died.args
    note(ledger, name, "died", job=died.job, crashes=died.crashes, reason=died.reason)


@job(name="dies", retries=0, on_dead=tell, **HERE)
def dies(ledger: str, name: str) -> None:
    """Fail, or end this process."""
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("bad")


@job(name="resumes", **HERE)
def resumes(ledger: str, name: str) -> None:
    """Run three steps. Its process is killed in the second one, once."""
    context = current()
    for step in range(context.checkpoint_value or 1, 4):
        note(ledger, name, "step", step=step)
        if step == 2 and context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        context.checkpoint(step + 1)


@job(name="again", retries=3, **HERE)
def again(ledger: str, name: str, times: int) -> None:
    """Asks to be retried."""
    note(ledger, name, "start", attempt=current().attempt)
    if current().attempt <= times:
        raise Retry(after=0.01)
    note(ledger, name, "end")


@job(name="later", queue="low", retries=3)
def later(ledger: str, name: str, after: float) -> None:
    """Runs again after so many seconds, once."""
    note(ledger, name, "start", attempt=current().attempt)
    if current().attempt == 1:
        raise Retry(after=after)
    note(ledger, name, "end")


@job(name="sockets", **HERE)
def sockets(ledger: str, name: str) -> None:
    """The sockets that this child and its supervisor have open."""
    note(ledger, name, "end", own=_sockets(os.getpid()), supervisor=_sockets(os.getppid()))


def _sockets(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return sorted(found)


@job(name="enqueues", **HERE)
def enqueues(ledger: str, name: str) -> None:
    """Calls another job, on the server that the worker was pointed at."""
    quick.options(mid=f"{name}-child").enqueue(ledger, f"{name}-child")


@job(name="loaded", **HERE)
def loaded(ledger: str, name: str, module: str) -> None:
    """Whether this process has imported a module."""
    note(ledger, name, "end", loaded=module in sys.modules)


@job(name="forks", **HERE)
def forks(ledger: str, name: str) -> None:
    """A pool of processes, ended by TERM as multiprocessing does it."""
    with get_context("fork").Pool(2) as pool:
        found = pool.map(abs, [-1, -2])
    note(ledger, name, "end", found=found)


ended_at_birth = False


def _end_at_birth() -> None:
    if ended_at_birth:
        os.kill(os.getpid(), signal.SIGTERM)


# Before what a worker's child registers, so that the signal comes between the fork and that.
os.register_at_fork(after_in_child=_end_at_birth)


@job(name="forks_in_vain", **HERE)
def forks_in_vain(ledger: str, name: str) -> None:
    """Forks a process that TERM meets before it is quite there."""
    global ended_at_birth
    ended_at_birth = True
    pid = os.fork()
    if not pid:
        os._exit(0)
    ended_at_birth = False
    note(ledger, name, "end", signal=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@ajob(name="refuses_cancel", **HERE)
async def refuses_cancel(ledger: str, name: str) -> None:
    """Swallow its cancellation, and continue until its gate is there."""
    note(ledger, name, "start")
    while not gate(ledger, name).exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            note(ledger, name, "ignored")
    note(ledger, name, "end")


@job(name="refuses_abort", **HERE)
def refuses_abort(ledger: str, name: str) -> None:
    """This job in a thread."""
    note(ledger, name, "start")
    while not gate(ledger, name).exists():
        try:
            time.sleep(0.01)
        except JobAborted:
            note(ledger, name, "ignored")
    note(ledger, name, "end")


@ajob(name="closes", retries=0, **HERE)
async def closes(ledger: str, name: str) -> None:
    """Raise the error that an event loop raises in closed tasks."""
    note(ledger, name, "start")
    raise GeneratorExit


@job(name="holds", **HERE)
def holds(ledger: str, name: str, seconds: float) -> None:
    """Holds its key the first time."""
    note(ledger, name, "start", attempt=current().attempt)
    mark = gate(ledger, f"held {name}")
    if not mark.exists():
        mark.touch()
        raise HoldKey(seconds)
