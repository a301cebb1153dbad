"""Jobs that fork, and whose fork goes on in the job's own code: it leaves by return, by an exception or at once.

A fork that comes out of the job's code with a copy of its child's state would be a second worker under the same caller.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from jobq.chaos.crew import signalled
from jobq.chaos.producing import QUEUE, offer
from jobq.queue.queue import Queue

if TYPE_CHECKING:
    from jobq.chaos.stage import Stage

#: A fork has nothing to do: one that runs for so long took up its parent's work.
LEFT_S, LOOK_S = 5.0, 0.01


def give_back() -> None:
    """Comes out of the job as its parent does."""


def leave() -> None:
    """As a script ends itself."""
    sys.exit(0)


def fail() -> None:
    """As any job fails. What it prints then is expected, so it isn't printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    raise RuntimeError("the fork of a job fails")


def vanish() -> None:
    """As a fork should leave."""
    os._exit(0)


WAYS = {"return": give_back, "exit": leave, "raise": fail, "_exit": vanish}


def gone(pid: int) -> bool:
    """Whether a fork of this process has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def outlived(pid: int, began: float) -> bool:
    """Whether a fork runs for so long that it took up other work; it is killed then."""
    if time.monotonic() - began < LEFT_S:
        return False
    signalled(pid, signal.SIGKILL)
    return True


def fork(stage: Stage) -> None:
    """One job that forks, and leaves the fork in one of these ways."""
    way = stage.random.choice(list(WAYS))
    mid = f"fork-{way}-{stage.random.getrandbits(32):x}"
    content = json.dumps({"job": "jobq.chaos.fork", "args": [mid, way]}).encode()
    with stage.fault("fork"):
        offer(Queue(QUEUE, stage.client), stage.crew.ledger, mid, content)
