"""Groups fetched messages of a batch job into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from jobq.client.clock import boot_ns
from jobq.client.names import base_of
from jobq.jobs.calls import batch_of
from jobq.jobs.context import Call
from jobq.jobs.registry import Registry
from jobq.queue.types import Ending
from jobq.worker.shared_state import NEVER, SharedSlots

#: Messages to run together, each with its slot.
Group = list[tuple[int, Call | Ending]]


def batch_sizes(registry: Registry, queues: Sequence[str]) -> list[int]:
    """Return the maximum batch size of each queue's jobs; 0 for a queue without batch jobs."""
    sizes = dict.fromkeys(map(base_of, queues), 0)
    for job in registry:
        if job.settings.batch is not None and job.queue in sizes:
            sizes[job.queue] = max(sizes[job.queue], job.settings.batch)
    return [sizes[base_of(name)] for name in queues]


class Gathering:
    """Waiting calls of batch jobs. A call runs once its batch is full or the job's linger time has passed.

    Args:
        lingers: Whether a batch waits for calls of later fetches.
        renew: Called with a waiting batch's queue and calls before the batch starts. It detects cancelled calls.
    """

    def __init__(
        self, slots: SharedSlots, lingers: bool, renew: Callable[[int, Group], object]
    ) -> None:
        self._slots, self._lingers, self._renew = slots, lingers, renew
        # By queue, job and key: when its linger ends (boot_ns), and the calls.
        self._groups: dict[tuple[int, str, str | None], tuple[int, Group]] = {}
        # Batches with calls of an earlier fetch.
        self._waited: set[tuple[int, str, str | None]] = set()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def slots(self, index: int) -> set[int]:
        return {slot for group in self._of(index) for slot, _ in group}

    def largest(self, index: int) -> int:
        """Return the number of calls in the queue's largest waiting batch."""
        return max(map(len, self._of(index)), default=0)

    def _of(self, index: int) -> list[Group]:
        return [group for key, (_, group) in self._groups.items() if key[0] == index]

    def groups(self, index: int, messages: Iterable[tuple[int, Call | Ending]]) -> Iterator[Group]:
        """Yield messages to run now: full batches, batches after their linger time, and single messages."""
        for slot, call in messages:
            most = call.job.settings.batch if isinstance(call, Call) else None
            # A message with earlier crashes runs alone.
            if most is None or not isinstance(call, Call) or call.message.ncrashes:
                yield [(slot, call)]
                continue
            key, linger_s = (index, *batch_of(call)), call.job.settings.linger or 0.0
            until = boot_ns() + (round(linger_s * 1e9) if self._lingers else 0)
            _, group = self._groups.setdefault(key, (until, []))
            group.append((slot, call))
            if len(group) >= most:
                yield self._taken(key)
        yield from (group for _, group in self.due(index))
        self._slots.reading_done()
        for key, (until, group) in self._groups.items():
            if key[0] == index:
                self._waited.add(key)
                self._slots.gather([slot for slot, _ in group], until)

    def due(self, index: int | None = None) -> Iterator[tuple[int, Group]]:
        """Yield the queue and calls of each batch whose linger time has passed. `index` selects one queue.

        If the child has no free slot for more messages, yield all batches.
        """
        now = boot_ns() if self._slots.nfree else NEVER
        keys = [key for key, (until, _) in self._groups.items() if until <= now]
        for key in keys:
            if index in (None, key[0]):
                yield key[0], self._taken(key)

    def _taken(self, key: tuple[int, str, str | None]) -> Group:
        _, group = self._groups.pop(key)
        if key in self._waited:
            self._waited.remove(key)
            self._renew(key[0], group)
        return group

    def drop(self) -> list[tuple[int, int]]:
        """Remove all waiting calls.

        Return the queue and slot of each, so that the caller can give its message back to the queue.
        """
        dropped, self._groups = self._groups, {}
        self._waited.clear()
        return [(key[0], slot) for key, (_, group) in dropped.items() for slot, _ in group]

    def left_s(self) -> float | None:
        """Return the seconds until the next batch must start; None if no call waits."""
        times = [until for until, _ in self._groups.values()]
        return max(0.0, (min(times) - boot_ns()) / 1e9) if times else None
