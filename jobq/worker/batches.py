"""Which messages of a fetch run together, as a batch of one job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jobq.jobs.context import Call
from jobq.jobs.registry import Registry
from jobq.queue.types import Ending

#: Messages to run together, each with its slot.
Group = list[tuple[int, Call | Ending]]


def batch_sizes(registry: Registry, queues: Sequence[str]) -> list[int]:
    """Return for each queue the largest batch of its jobs; 0 if it has no batch job."""
    sizes = dict.fromkeys(queues, 0)
    for job in registry:
        if job.settings.batch is not None and job.queue in sizes:
            sizes[job.queue] = max(sizes[job.queue], job.settings.batch)
    return [sizes[name] for name in queues]


def groups(messages: Iterable[tuple[int, Call | Ending]]) -> Iterator[Group]:
    """Yield messages to run together: calls of a batch job once there are enough or at the end, others one by one."""
    gathered: dict[str, Group] = {}
    for slot, call in messages:
        most = call.job.settings.batch if isinstance(call, Call) else None
        if most is None or not isinstance(call, Call):
            yield [(slot, call)]
            continue
        group = gathered.setdefault(call.job.name, [])
        group.append((slot, call))
        if len(group) == most:
            yield gathered.pop(call.job.name)
    yield from gathered.values()
