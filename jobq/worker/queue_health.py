"""Records which queues are available, in memory that all processes of a worker share, and logs outages.

If a queue's server is unavailable or rejects calls, children stop querying the queue for a while. After this pause, one
process tries again. Each failed try doubles the pause, so tries take little time from other queues. The writers don't
need a lock: at worst, two processes try simultaneously, or one process tries early.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jobq.client.clock import boot_ns
from jobq.durations import listed
from jobq.worker import logger

FINE, AWAY, BROKEN = range(3)
FIRST_PAUSE_NS = 50_000_000
MAX_PAUSE_NS = 5_000_000_000
#: A pause is at least this many times as long as the try before it, up to the longest pause of its kind: a try may
#: have waited for a server, or slept with the machine, for hours.
PAUSE_PER_TRY = 20
MAX_NS = {AWAY: 30_000_000_000, BROKEN: MAX_PAUSE_NS}

#: A shorter outage is not logged.
LOGGED_FROM_NS = 1_000_000_000
MAX_NAMES = 5

# Words of a queue.
_STATE, _SINCE, _AGAIN, _PAUSE, _LENGTH, _WORDS = 0, 1, 2, 3, 4, 5
_TEXT = 400


class QueueTrouble(NamedTuple):
    """Why a queue is unavailable, and when (boot_ns) the trouble began."""

    state: int
    since: int
    why: str


class QueueHealth:
    """The availability of all queues, by index. The object must be created before the first fork.

    `room` is the number of queues that can be added later.
    """

    def __init__(self, count: int, room: int = 0) -> None:
        self.count, self.room = count, room
        count += room
        words = 8 * (1 + _WORDS * count)
        memory = memoryview(mmap.mmap(-1, words + (_TEXT + 2) * count))
        # The first word is 1 if any queue is in trouble: a healthy worker reads only this word.
        self._words = memory[:words].cast("q")
        self._texts = memory[words : words + _TEXT * count]
        self._touched = memory[words + _TEXT * count : words + (_TEXT + 1) * count]
        self._retired = memory[words + (_TEXT + 1) * count :]
        self._none = bytes(count)
        #: Called for each failed try.
        self.on_failure: Callable[[], None] = lambda: None

    def grow(self, count: int) -> None:
        """Add `count` queues. Children that are already running don't serve these queues."""
        self.count, self.room = self.count + count, self.room - count

    @property
    def any_trouble(self) -> bool:
        """Return whether any queue is unavailable."""
        return bool(self._words[0])

    def touch(self, index: int) -> None:
        """Record that a child has queried this queue, so that the supervisor checks it for messages that become due."""
        self._touched[index] = 1

    def touched(self) -> list[int]:
        """Return the queues that children have queried since the last call."""
        if self._touched == self._none:
            return []
        seen = bytes(self._touched)
        indexes = [index for index, byte in enumerate(seen) if byte]
        for index in indexes:
            self._touched[index] = 0
        return indexes

    def retire(self, index: int, drained: bool) -> None:
        """Record whether this queue is a drained partition, which children needn't query."""
        self._retired[index] = drained
        if drained:
            self.answered(index)  # nobody will find out that its server is back

    def is_retired(self, index: int) -> bool:
        return bool(self._retired[index])

    def retired(self) -> frozenset[int]:
        """Return the drained partitions."""
        if self._retired == self._none:
            return frozenset()
        return frozenset(index for index, byte in enumerate(bytes(self._retired)) if byte)

    def may_ask(self, index: int) -> bool:
        """Return whether to query this queue now. Only one process may query an unavailable queue after each pause."""
        at = 1 + _WORDS * index
        if self._words[at + _STATE] == FINE:
            return True
        now = boot_ns()
        if now < self._words[at + _AGAIN]:
            return False
        self._words[at + _AGAIN] = now + max(FIRST_PAUSE_NS, self._words[at + _PAUSE])
        return True

    def wait_ms(self, index: int) -> int:
        """Return the ms until the child may query the queue again; at least 1."""
        return max(1, (self._words[1 + _WORDS * index + _AGAIN] - boot_ns()) // 1_000_000)

    def failed(self, indexes: Iterable[int], state: int, why: object, asked_at: int) -> None:
        """Record that these queues are unavailable. The failed call began at `asked_at` (boot_ns)."""
        self.on_failure()
        now = boot_ns()
        text = str(why).encode()[:_TEXT]
        for index in indexes:
            if self._retired[index]:
                continue
            at = 1 + _WORDS * index
            pause = max(2 * self._words[at + _PAUSE], FIRST_PAUSE_NS)
            took = min(PAUSE_PER_TRY * (now - asked_at), MAX_NS[state])
            pause = max(min(pause, MAX_PAUSE_NS), took)
            self._texts[_TEXT * index : _TEXT * index + len(text)] = text
            self._words[at + _LENGTH] = len(text)
            self._words[at + _PAUSE], self._words[at + _AGAIN] = pause, now + pause
            if self._words[at + _STATE] == FINE:
                self._words[at + _SINCE] = asked_at
            self._words[at + _STATE] = state
        self._words[0] = 1

    def answered(self, index: int) -> None:
        """Record that the queue's server has answered."""
        self._words[1 + _WORDS * index + _STATE] = self._words[1 + _WORDS * index + _PAUSE] = FINE

    def server_answered(self, indexes: Iterable[int]) -> None:
        """Record that the server of these queues answers, so none of the queues is unreachable."""
        for index in indexes:
            if self.state(index) == AWAY:
                self.answered(index)

    def state(self, index: int) -> int:
        """Return the queue's state: FINE, AWAY or BROKEN."""
        return self._words[1 + _WORDS * index]

    def troubles(self) -> dict[int, QueueTrouble]:
        """Return all unavailable queues. Only the supervisor may call this, because it resets `any_trouble`."""
        if not self._words[0]:
            return {}
        self._words[0] = 0
        troubles = {index: self._trouble(index) for index in range(self.count) if self.state(index)}
        if troubles:
            self._words[0] = 1
        return troubles

    def _trouble(self, index: int) -> QueueTrouble:
        at = 1 + _WORDS * index
        start = _TEXT * index
        why = bytes(self._texts[start : start + self._words[at + _LENGTH]]).decode(errors="replace")
        return QueueTrouble(self._words[at + _STATE], self._words[at + _SINCE], why)


class OutageLog:
    """Logs when an outage of queues begins and when it ends. Queues are given by index."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._logged: dict[int, QueueTrouble] = {}

    def update(self, troubles: Mapping[int, QueueTrouble]) -> None:
        """Log outages that began or ended since the last call."""
        if not troubles and not self._logged:
            return
        now = boot_ns()
        over = [index for index in self._logged if index not in troubles]
        for since in sorted({self._logged[index].since for index in over}):
            back = [index for index in over if self._logged[index].since == since]
            logger.info(
                "%s: the server answers again after %d s", self._named(back), (now - since) // 10**9
            )
        for index in over:
            del self._logged[index]
        new = {
            index: trouble
            for index, trouble in troubles.items()
            if index not in self._logged or self._logged[index].state != trouble.state
        }
        away = {
            index: trouble
            for index, trouble in new.items()
            if trouble.state == AWAY and now - trouble.since >= LOGGED_FROM_NS
        }
        others = self._others(troubles)
        if away:
            since = min(trouble.since for trouble in away.values())
            logger.warning(
                "%s: no answer from the server for %d s; %s: %s",
                self._named(away), (now - since) // 10**9, others, next(iter(away.values())).why,
            )  # fmt: skip
        broken = {index: trouble for index, trouble in new.items() if trouble.state != AWAY}
        for index, trouble in broken.items():
            logger.error(
                "%s: the server rejects its calls; %s: %s; jobq check fsck shows the damage",
                self._named([index]), others, trouble.why,
            )  # fmt: skip
        self._logged.update(away | broken)

    def _others(self, troubles: Mapping[int, QueueTrouble]) -> str:
        count = len(self._names) - len(troubles)
        if not count:
            return "no other queues continue"
        return "1 other queue continues" if count == 1 else f"{count} other queues continue"

    def _named(self, indexes: Iterable[int]) -> str:
        names = [self._names[index] for index in indexes]
        return f"queue{'s' * (len(names) > 1)} {listed(names, MAX_NAMES)}"
