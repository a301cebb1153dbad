"""What each executor of a drain did, by the events that the server wrote: also that of executors that were lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobq.errors import BadRecord
from jobq.events import decode
from jobq.pipeline import offsets
from jobq.pipeline.drain_slot import executor_of

if TYPE_CHECKING:
    from jobq.engine.queue import Queue

READ = 2_000
#: Kinds of events by the column that counts them.
COUNTED = {
    "done": "done",
    "retry": "retried",
    "snoozed": "retried",
    "dead": "dead",
    "crashed": "crashed",
}


@dataclass
class Counted:
    """One executor's figures. workers: how many it started; busy_s: its jobs' time."""

    executor: str
    done: int = 0
    retried: int = 0
    dead: int = 0
    crashed: int = 0
    busy_s: float = 0.0
    workers: set[str] = field(default_factory=set)


class Followed:
    """The event streams of some queues from now on."""

    def __init__(self, drain: str, queues: Sequence[Queue]) -> None:
        self._drain = drain
        self._queues = queues
        self._keys = [offsets.events_key(q.client.namespace, q.name) for q in queues]
        self._began = [offsets.tail(q.client, k) for q, k in zip(queues, self._keys, strict=True)]
        self._last = [tail.id for tail in self._began]
        self._read = [0] * len(queues)
        self._found: dict[str, Counted] = {}

    @property
    def total(self) -> int:
        """How many attempts of this drain have ended."""
        return sum(one.done + one.retried + one.dead + one.crashed for one in self._found.values())

    def table(self) -> list[Counted]:
        """By executor, in the order of their names."""
        return [one for _, one in sorted(self._found.items())]

    def read(self) -> None:
        """What was written since the last time."""
        for index, queue in enumerate(self._queues):
            while True:
                start = f"({self._last[index]}"
                reply = queue.client.command("XRANGE", self._keys[index], start, "+", "COUNT", READ)
                self._read[index] += len(reply)
                for _, fields in reply:
                    self._take(fields[-1])
                if reply:
                    self._last[index] = reply[-1][0].decode()
                if len(reply) < READ:
                    break

    def lost(self) -> int:
        """Events that were dropped before `read` came by; what their executors did isn't counted."""
        ends = [offsets.tail(q.client, k) for q, k in zip(self._queues, self._keys, strict=True)]
        pairs = zip(ends, self._began, self._read, strict=True)
        return sum(max(0, end.n - began.n - read) for end, began, read in pairs)

    def _take(self, value: bytes) -> None:
        if self._drain.encode() not in value:
            return
        try:
            event = decode(value)
        except (BadRecord, ValueError):
            return
        executor = executor_of(event.worker, self._drain)
        column = COUNTED.get(event.kind)
        if not executor or column is None:
            return
        one = self._found.setdefault(executor, Counted(executor))
        setattr(one, column, getattr(one, column) + 1)
        one.busy_s += event.run_us / 1e6
        one.workers.add(event.worker)
