"""Which queues answer, as all processes of a worker know it: memory that they share.

A queue whose server is away, or whose calls the server refuses, is passed over until its pause is over; then one
process asks again. The pause doubles, and is long beside what asking takes: the other queues keep their rate.
The writers need no lock: at worst two processes ask at once, or one asks early.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jobq.client.clock import boot_ns
from jobq.worker import logger

FINE, AWAY, BROKEN = range(3)
FIRST_PAUSE_NS = 50_000_000
LONGEST_PAUSE_NS = 5_000_000_000
#: A pause is at least so many times as long as the try before it took, up to the longest one of its kind: a try may
#: have waited for a server, or slept with the machine, for hours.
RARELY = 20
LONGEST_NS = {AWAY: 30_000_000_000, BROKEN: LONGEST_PAUSE_NS}

#: A shorter outage is not logged.
LOGGED_FROM_NS = 1_000_000_000
MOST_NAMES = 5

# Words of a queue.
_STATE, _SINCE, _AGAIN, _PAUSE, _LENGTH, _WORDS = 0, 1, 2, 3, 4, 5
_TEXT = 400


class QueueTrouble(NamedTuple):
    """Why a queue is passed over, and since when (boot_ns)."""

    state: int
    since: int
    why: str


class QueueHealth:
    """Made before the first fork; queues by their index."""

    def __init__(self, count: int) -> None:
        self.count = count
        words = 8 * (1 + _WORDS * count)
        memory = memoryview(mmap.mmap(-1, words + (_TEXT + 1) * count))
        #: The first is 1 where any queue is in trouble: what a healthy worker looks at, and nothing more.
        self.words = memory[:words].cast("q")
        self._texts = memory[words : words + _TEXT * count]
        self._touched = memory[words + _TEXT * count :]
        self._untouched = bytes(count)

    def touch(self, index: int) -> None:
        """A child asked this queue, so it may owe work that only time brings: the supervisor looks."""
        self._touched[index] = 1

    def touched(self) -> list[int]:
        """Those since the last time."""
        if self._touched == self._untouched:
            return []
        seen = bytes(self._touched)
        found = [index for index, byte in enumerate(seen) if byte]
        for index in found:
            self._touched[index] = 0
        return found

    def may_ask(self, index: int) -> bool:
        """Whether to ask this queue now. True to one of those who want to, where it is in trouble."""
        at = 1 + _WORDS * index
        if self.words[at + _STATE] == FINE:
            return True
        now = boot_ns()
        if now < self.words[at + _AGAIN]:
            return False
        self.words[at + _AGAIN] = now + max(FIRST_PAUSE_NS, self.words[at + _PAUSE])
        return True

    def wait_ms(self, index: int) -> int:
        """Until the queue may be asked again; at least 1."""
        return max(1, (self.words[1 + _WORDS * index + _AGAIN] - boot_ns()) // 1_000_000)

    def failed(self, indexes: Iterable[int], state: int, why: object, asked_at: int) -> None:
        """These queues don't answer; `asked_at`: since when (boot_ns) the first of them was asked in vain."""
        now = boot_ns()
        text = str(why).encode()[:_TEXT]
        for index in indexes:
            at = 1 + _WORDS * index
            pause = max(2 * self.words[at + _PAUSE], FIRST_PAUSE_NS)
            took = min(RARELY * (now - asked_at), LONGEST_NS[state])
            pause = max(min(pause, LONGEST_PAUSE_NS), took)
            self._texts[_TEXT * index : _TEXT * index + len(text)] = text
            self.words[at + _LENGTH] = len(text)
            self.words[at + _PAUSE], self.words[at + _AGAIN] = pause, now + pause
            if self.words[at + _STATE] == FINE:
                self.words[at + _SINCE] = asked_at
            self.words[at + _STATE] = state
        self.words[0] = 1

    def answered(self, index: int) -> None:
        """This queue answers."""
        self.words[1 + _WORDS * index + _STATE] = self.words[1 + _WORDS * index + _PAUSE] = FINE

    def server_answered(self, indexes: Iterable[int]) -> None:
        """The server of these answers: none of them is away."""
        for index in indexes:
            if self.state(index) == AWAY:
                self.answered(index)

    def state(self, index: int) -> int:
        """FINE, AWAY or BROKEN."""
        return self.words[1 + _WORDS * index]

    def troubles(self) -> dict[int, QueueTrouble]:
        """All there are. For the supervisor: it alone notes that there are none."""
        if not self.words[0]:
            return {}
        self.words[0] = 0
        found = {index: self._trouble(index) for index in range(self.count) if self.state(index)}
        if found:
            self.words[0] = 1
        return found

    def _trouble(self, index: int) -> QueueTrouble:
        at = 1 + _WORDS * index
        start = _TEXT * index
        why = bytes(self._texts[start : start + self.words[at + _LENGTH]]).decode(errors="replace")
        return QueueTrouble(self.words[at + _STATE], self.words[at + _SINCE], why)


class OutageLog:
    """Queues by their index."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._told: dict[int, QueueTrouble] = {}

    def tell(self, troubles: Mapping[int, QueueTrouble]) -> None:
        """Log what has changed."""
        if not troubles and not self._told:
            return
        now = boot_ns()
        over = [index for index in self._told if index not in troubles]
        for since in sorted({self._told[index].since for index in over}):
            back = [index for index in over if self._told[index].since == since]
            logger.info("%s: back after %d s", self._named(back), (now - since) // 10**9)
        for index in over:
            del self._told[index]
        new = {
            index: trouble
            for index, trouble in troubles.items()
            if index not in self._told or self._told[index].state != trouble.state
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
                "%s: server away since %d s; %s: %s",
                self._named(away), (now - since) // 10**9, others, next(iter(away.values())).why,
            )  # fmt: skip
        broken = {index: trouble for index, trouble in new.items() if trouble.state != AWAY}
        for index, trouble in broken.items():
            logger.error(
                "%s: the server refuses its calls; %s: %s; jobq check fsck says what is wrong",
                self._named([index]), others, trouble.why,
            )  # fmt: skip
        self._told.update(away | broken)

    def _others(self, troubles: Mapping[int, QueueTrouble]) -> str:
        count = len(self._names) - len(troubles)
        if not count:
            return "no other queue goes on"
        return "1 other queue goes on" if count == 1 else f"{count} other queues go on"

    def _named(self, indexes: Iterable[int]) -> str:
        names = [self._names[index] for index in indexes]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"queue{'s' * (len(names) > 1)} {', '.join(names[:MOST_NAMES])}{more}"
