"""Producers: threads that enqueue at a steady pace and note each attempt and its outcome."""

from __future__ import annotations

import json
import random
import threading
import time

from jobq.chaos.ledger import Ledger
from jobq.chaos.poison import HARD_TIMEOUT_S, KINDS
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import (
    CodecError,
    ConfigError,
    JobqError,
    NotDurableError,
    ScriptError,
    ServerFullError,
    UnavailableError,
)
from jobq.queue.queue import Queue

QUEUE = "chaos"
#: Refused before anything was changed. All else that goes wrong leaves the outcome unknown.
FAILED = (ServerFullError, ScriptError, CodecError, ConfigError)
#: How long a mid of a durable enqueue isn't taken anew after its end.
DEDUPE_S = 5.0
#: How long a producer waits for its outage buffer, and between two looks at it.
FLUSH_S, LOOK_S = 120.0, 1.0
#: One in so many runs so long that faults find it running.
LONG_EVERY, LONG_S, SHORT_S = 25, 0.4, 0.01


class Producer(threading.Thread):
    """Enqueues `count` messages in about `seconds`; before one in `poison_every`, if any, a deadly one."""

    def __init__(
        self, settings: ServerSettings, queue: str, ledger: Ledger, name: str, count: int,
        seconds: float, seed: int, poison_every: int = 0, crash_limit: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._client = connect(settings=settings)
        self._queue = Queue(queue, self._client)
        self._ledger = ledger
        self._count = count
        self._poison_every, self._crash_limit = poison_every, crash_limit
        self._pause_s = seconds / max(1, count)
        self._random = random.Random(f"{seed} {name}")
        self._stopped = threading.Event()
        self._buffered: list[str] = []

    def run(self) -> None:
        """Until all are attempted, or it is stopped."""
        began = time.monotonic()
        for number in range(self._count):
            if self._stopped.wait(max(0.0, began + number * self._pause_s - time.monotonic())):
                break
            self._one(f"{self.name}-{number}", number)
        self._flush()
        self._client.close()

    def stop(self) -> None:
        """Attempt no more, and don't wait for the server any longer."""
        self._client.enough = lambda: True
        self._stopped.set()

    def _one(self, mid: str, number: int) -> None:
        if self._poison_every and number % self._poison_every == 0:
            kind = list(KINDS)[number // self._poison_every % len(KINDS)]
            deadly(self._queue, self._ledger, f"{mid}-{kind}", kind, self._crash_limit)
        seconds = LONG_S if number % LONG_EVERY == 0 else self._random.uniform(0, SHORT_S)
        if enqueue(self._queue, self._ledger, mid, seconds) == "buffered":
            self._buffered.append(mid)

    def _flush(self) -> None:
        """Wait until the outage buffer is empty, and note what became of what was in it."""
        unknown: set[str] = set()
        deadline = time.monotonic() + FLUSH_S
        while self._buffered and time.monotonic() < deadline and not self._stopped.is_set():
            try:
                self._client.flush(LOOK_S)
                break
            except UnavailableError as error:
                unknown |= {*error.mids}
        if self._client.nbuffered:
            return
        for mid in self._buffered:
            known = mid not in unknown
            self._ledger.write(
                "enqueued", mid=mid, outcome="ok" if known else "info",
                action="added" if known else "", again=False,
            )  # fmt: skip


def enqueue(queue: Queue, ledger: Ledger, mid: str, seconds: float, padding: int = 0) -> str:
    """One attempt at a job that takes so long, and how it came out; the action, if any."""
    return offer(queue, ledger, mid, contents(mid, seconds, padding))


def deadly(queue: Queue, ledger: Ledger, mid: str, kind: str, limit: int) -> None:
    """One message that must be dead after so many runs."""
    ledger.write("poison", mid=mid, limit=limit)
    call: dict[str, object] = {"job": "jobq.chaos.poison", "args": [mid, kind]}
    if kind == "spin":
        call["options"] = {"hard_timeout": HARD_TIMEOUT_S}
    offer(queue, ledger, mid, json.dumps(call).encode())


def offer(queue: Queue, ledger: Ledger, mid: str, content: bytes) -> str:
    """One attempt, and how it came out. What isn't durable as asked is enqueued again under its mid.

    What is only buffered is unknown so far.
    """
    again = False
    ledger.write("enqueue", mid=mid)
    while True:
        outcome, action = "info", ""
        try:
            action = queue.enqueue(content, mid=mid, dedupe=_dedupe(queue)).action
            outcome = "info" if action == "buffered" else "ok"
        except NotDurableError:
            ledger.write("enqueued", mid=mid, outcome=outcome, action=action, again=again)
            again = True
            if not queue.client.enough():
                continue
        except FAILED:
            outcome = "info" if again else "fail"
        except (JobqError, OSError):
            pass
        break
    ledger.write("enqueued", mid=mid, outcome=outcome, action=action, again=again)
    return action


def contents(mid: str, seconds: float, padding: int = 0) -> bytes:
    """A call of the job in `workload`."""
    more = ["x" * padding] if padding else []
    return json.dumps({"job": "jobq.chaos", "args": [mid, seconds, *more]}).encode()


def _dedupe(queue: Queue) -> float | None:
    # Else what ran before it was found to be durable would be added by the repetition, and run again.
    return None if queue.client.durability == "memory" else DEDUPE_S
