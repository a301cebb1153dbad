"""Errors that occur in the events of the last 15 minutes, but not in earlier events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from jobq.events import LOCK_EXPIRED, Event
from jobq.web.history import FAILED, group_of
from jobq.web.outcomes import StreamEntry
from jobq.web.tail import FOLLOWERS

#: An error is new for this long.
NEW_MS = 900_000
#: An error is only new if its queues' events were known for this long without it. Otherwise it may just be rare.
KNOWN_MS = NEW_MS // 10
#: Maximum number of error groups to keep; beyond it, groups unseen for the longest time are dropped.
MAX_KEPT = 5_000
#: Maximum number of jobs and queues to keep per group.
MAX_NAMES = 20


class NewError(NamedTuple):
    """A new group of errors.

    Attributes:
        failures, dead: Number of failed and dead attempts; an estimate if there are many events.
    """

    group: str
    error: str
    job: str
    jobs: int
    queues: tuple[str, ...]
    first_at: int
    failures: int
    dead: int


class _Group:
    __slots__ = ("counts", "error", "first_at", "jobs", "last_at", "queues")

    def __init__(self, at_ms: int) -> None:
        self.first_at = self.last_at = at_ms
        self.error = ""
        #: Attempts by kind.
        self.counts: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.queues: set[str] = set()

    def add(self, queue: str, at_ms: int, event: Event, count: int) -> None:
        if at_ms >= self.last_at:
            self.error = event.error or event.kind
        self.first_at, self.last_at = min(at_ms, self.first_at), max(at_ms, self.last_at)
        self.counts[event.kind] += count
        if event.job in self.jobs or len(self.jobs) < MAX_NAMES:
            self.jobs[event.job] += count
        if len(self.queues) < MAX_NAMES:
            self.queues.add(queue)


class ErrorGroups:
    """Records when each group of errors was first seen. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._groups: dict[str, _Group] = {}
        #: Queue -> time of the oldest event seen. An error of that time may have begun earlier.
        self._since: dict[str, int] = {}

    def take(self, queue: str, entries: Sequence[StreamEntry], weight: float = 1.0) -> None:
        """Count the events of a queue; see `Follower.take`."""
        if not entries:
            return
        count = max(1, round(weight))
        with self._lock:
            oldest = min(entry.at_ms for entry in entries)
            self._since[queue] = min(oldest, self._since.get(queue, oldest))
            for at_ms, event in entries:
                # An expired lease is a worker's fault, not an error in a job.
                if event.kind in FAILED and event.error != LOCK_EXPIRED:
                    group = group_of(event)
                    kept = self._groups.get(group) or self._groups.setdefault(group, _Group(at_ms))
                    kept.add(queue, at_ms, event, count)
            if len(self._groups) > MAX_KEPT:
                newest = sorted(self._groups.items(), key=lambda group: -group[1].last_at)
                self._groups = dict(newest[: MAX_KEPT // 2])

    def forget(self, names: Iterable[str]) -> None:
        """Drop data about deleted queues."""
        with self._lock:
            for name in names:
                self._since.pop(name, None)

    def new(self, now_ms: int, since_ms: Callable[[str], int | None], most: int) -> list[NewError]:
        """Return groups of errors first seen in the last 15 minutes, most frequent first.

        Args:
            since_ms: Returns when a queue's known events begin, or None.
        """
        with self._lock:
            news = [
                (group, seen) for group, seen in self._groups.items()
                if seen.first_at > now_ms - NEW_MS and self._is_known_before(seen, since_ms)
            ]  # fmt: skip
            news.sort(key=lambda pair: (-pair[1].counts.total(), pair[0]))
            return [
                NewError(
                    group, seen.error, seen.jobs.most_common(1)[0][0], len(seen.jobs), tuple(sorted(seen.queues)),
                    seen.first_at, seen.counts.total(), seen.counts["dead"],
                )
                for group, seen in news[:most]
            ]  # fmt: skip

    def _is_known_before(self, group: _Group, since_ms: Callable[[str], int | None]) -> bool:
        known = [
            None if (begun := since_ms(name)) is None else max(begun, self._since.get(name, begun))
            for name in group.queues
        ]
        return all(since is not None and group.first_at > since + KNOWN_MS for since in known)


FOLLOWERS.append(ErrorGroups)
