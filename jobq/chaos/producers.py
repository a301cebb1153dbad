"""Producers: threads that enqueue messages at a steady rate, and record each attempt and its outcome."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any, NamedTuple

from jobq.chaos.bad_jobs import HARD_TIMEOUT_S, KINDS
from jobq.chaos.ledger import KeyUse, Ledger
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
#: Errors after which nothing was changed. Every other error leaves the outcome unknown.
FAILED = (ServerFullError, ScriptError, CodecError, ConfigError)
#: How long the mid of a durable enqueue is rejected after the message's end.
DEDUPE_S = 5.0
#: How long a producer waits for its outage buffer to empty, and for one flush.
FLUSH_S, LOOK_S = 120.0, 1.0
#: One message in LONG_EVERY runs long enough for faults to hit it.
LONG_EVERY, LONG_S, SHORT_S = 25, 0.4, 0.01
#: With keys: concurrent messages per key, their run time, and how often a message has the producer's ordered key.
KEY_MAX, KEYED_S, ORDERED_EVERY = 2, 0.1, 5
#: One message in CROWDED_EVERY has a key of the few that all producers share. The others have many keys, each of which
#: comes TOGETHER times in a row, so that its limit is needed.
CROWDED_EVERY, TOGETHER, MANY = 4, 3, 10_000


#: The batch job of `batch_jobs`, and how long its calls wait for others.
BATCH_JOB, LINGER_S = "jobq.chaos.batch", 0.3


class ProducerLoad(NamedTuple):
    """The work of one producer: how many messages it enqueues, spread over about `seconds`.

    Attributes:
        poison_every: Number of messages between two messages that crash their process, or 0 for no such messages.
        crash_limit: The workers' crash limit.
        keys: Number of keys with many messages, in addition to up to 10,000 other keys. With 0, messages don't have
            keys.
    """

    messages: int
    seconds: float
    seed: int
    poison_every: int = 0
    crash_limit: int = 0
    keys: int = 0


class Producer(threading.Thread):
    """Enqueues messages to a queue, and records each attempt and its outcome."""

    def __init__(
        self, settings: ServerSettings, queue: str, ledger: Ledger, name: str, load: ProducerLoad
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._client = connect(settings=settings)
        self._queue = Queue(queue, self._client)
        self._ledger = ledger
        self._load = load
        self._pause_s = load.seconds / max(1, load.messages)
        self._random = random.Random(f"{load.seed} {name}")
        self._stopped = threading.Event()
        self._buffered: list[str] = []

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self._load.messages):
            if self._stopped.wait(max(0.0, began + number * self._pause_s - time.monotonic())):
                break
            self._enqueue(f"{self.name}-{number}", number)
        self._flush()
        self._client.close()

    def stop(self) -> None:
        self._client.should_give_up = lambda: True
        self._stopped.set()

    def _enqueue(self, mid: str, number: int) -> None:
        every = self._load.poison_every
        if every and number % every == 0:
            kind = list(KINDS)[number // every % len(KINDS)]
            limit = self._load.crash_limit
            enqueue_poison(self._queue, self._ledger, f"{mid}-{kind}", kind, limit)
        longest_s = KEYED_S if self._load.keys else SHORT_S
        seconds = LONG_S if number % LONG_EVERY == 0 else self._random.uniform(0, longest_s)
        use = self._key_use(number) if self._load.keys else None
        if (
            enqueue_content(self._queue, self._ledger, mid, contents(mid, seconds), use)
            == "buffered"
        ):
            self._buffered.append(mid)

    def _key_use(self, number: int) -> KeyUse:
        if number % ORDERED_EVERY == 0:
            return KeyUse(f"ordered-{self.name}", 1, ordered=True)
        if number % CROWDED_EVERY == 0:
            return KeyUse(f"k{number % self._load.keys}", KEY_MAX, ordered=False)
        return KeyUse(f"{self.name}-{number // TOGETHER % MANY}", KEY_MAX, ordered=False)

    def _flush(self) -> None:
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
    """Enqueue a job that takes `seconds`, record the outcome, and return the queue's action, if any."""
    return enqueue_content(queue, ledger, mid, contents(mid, seconds, padding))


def enqueue_poison(queue: Queue, ledger: Ledger, mid: str, kind: str, limit: int) -> None:
    """Enqueue a message that must be dead-lettered after `limit` runs."""
    timed = kind == "spin"
    ledger.write("poison", mid=mid, limit=limit, timed=timed)
    call: dict[str, object] = {"job": "jobq.chaos.poison", "args": [mid, kind]}
    if timed:
        call["options"] = {"hard_timeout": HARD_TIMEOUT_S}
    enqueue_content(queue, ledger, mid, json.dumps(call).encode())


def enqueue_content(
    queue: Queue, ledger: Ledger, mid: str, content: bytes, use: KeyUse | None = None
) -> str:
    """Enqueue a message and record the outcome. After NotDurableError, enqueue it again with the same mid.

    The outcome of a buffered message is unknown until the buffer is flushed.
    """
    again = False
    keyed: dict[str, Any] = {"key": use.key, "ordered": use.ordered} if use else {}
    ledger.write("enqueue", mid=mid, **(use._asdict() if use else {}))
    while True:
        outcome, action = "info", ""
        try:
            action = queue.enqueue(content, mid=mid, until=_until(queue), **keyed).action
            outcome = "info" if action == "buffered" else "ok"
        except NotDurableError:
            ledger.write("enqueued", mid=mid, outcome=outcome, action=action, again=again)
            again = True
            if not queue.client.should_give_up():
                continue
        except FAILED:
            outcome = "info" if again else "fail"
        except (JobqError, OSError):
            pass
        break
    ledger.write("enqueued", mid=mid, outcome=outcome, action=action, again=again)
    return action


def contents(mid: str, seconds: float, padding: int = 0) -> bytes:
    """Return the content of a message that calls the job in `workload`."""
    more = ["x" * padding] if padding else []
    return json.dumps({"job": "jobq.chaos", "args": [mid, seconds, *more]}).encode()


def _until(queue: Queue) -> float | None:
    # A message may run before its durability is confirmed. Otherwise, the repetition would add it again.
    return None if queue.client.durability == "memory" else DEDUPE_S
