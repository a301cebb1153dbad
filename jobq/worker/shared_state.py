"""What one child holds, in memory it shares with the supervisor.

The child writes it, the supervisor reads it to renew leases, to take messages back, and after the child's
death to end what it held. `lock` guards every change that both must agree on. The supervisor only ever
tries it, and needs it no more once the child is dead, so a child that dies or is stopped inside blocks
nobody.

Two pages of words and bytes, then a record per slot: queue's index, lengths, mid, token.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Sequence
from multiprocessing import get_context
from typing import NamedTuple

from jobq.client.clock import boot_ns
from jobq.queue.types import Message

COUNT = 256

# Words of 8 bytes in the header; 0 and 1 hold the caller's id.
STATE = 2
STARTED_AT = 3  # of the job begun last, boot_ns
FINISHED = 4  # how many jobs ended
CONTROL = 5
SUSPECT = 6  # what this child reads: a slot's number + 1, ALL_HANDED or 0
HARD = 32  # one per slot: kill at this boot_ns, 0 never
UNTIL = HARD + COUNT  # one per slot: until when it is surely held, boot_ns

NEVER = 2**62
#: SUSPECT while the last reply is read and nothing in it has a slot yet.
ALL_HANDED = -1
# STATE
BOOTING, WORKING, IDLE, LEAVING = range(4)
# CONTROL, a set
QUIET, DRAIN, HURRY = 1, 2, 4
# A slot's state
FREE, HELD, RUNNING, ENDED, REPORTING, TAKEN = range(6)

_STATES = 8 * (UNTIL + COUNT)
_LOST = _STATES + COUNT
_RECORDS = 8192
_RECORD = 640


class HeldMessage(NamedTuple):
    """One message that a child holds."""

    slot: int
    state: int
    queue: int
    mid: str
    token: str


class SharedSlots:
    """Made by the supervisor before it forks the child."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, _RECORDS + COUNT * _RECORD))
        self._memory = memory
        self.words = memory.cast("q")
        self.states = memory[_STATES:_LOST]
        self.lost = memory[_LOST : _LOST + COUNT]
        self.lock = get_context("fork").Lock()
        # The child's own: slots from here on are parked, and no batch touches them.
        self._top = COUNT

    def reset(self) -> None:
        """For the next child; the last one is dead."""
        self._memory[:_RECORDS] = bytes(_RECORDS)
        self.lock = get_context("fork").Lock()

    @property
    def caller(self) -> str:
        """Id of the child's caller, '' before it has one."""
        return bytes(self._memory[:16]).rstrip(b"\0").decode()

    @caller.setter
    def caller(self, caller_id: str) -> None:
        self._memory[:16] = caller_id.encode().ljust(16, b"\0")

    def publish(self, queue: int, messages: Sequence[Message], deadline: int) -> None:
        """The child's holding from now on, beside what is parked: these, none of them begun."""
        with self.lock:
            self.states[: self._top] = _ALL_FREE[: self._top]
            self.lost[: self._top] = _ALL_FREE[: self._top]
            for slot, message in enumerate(messages):
                self._write(slot, queue, message)
            self.states[: len(messages)] = _ALL_HELD[: len(messages)]
            self.words[UNTIL : UNTIL + len(messages)] = array("q", [deadline]) * len(messages)
            self.words[SUSPECT] = 0

    def add(self, slot: int, queue: int, message: Message, deadline: int) -> None:
        """One more message."""
        with self.lock:
            self._write(slot, queue, message)
            self.lost[slot] = 0
            self.words[UNTIL + slot] = deadline
            self.states[slot] = HELD

    @property
    def room(self) -> int:
        """How many messages a batch may have."""
        return self._top

    def park(self) -> list[int]:
        """Keep what the batch holds, under slots that no later batch touches; which ones."""
        parked = []
        with self.lock:
            for slot in range(self._top):
                if self.states[slot] == FREE:
                    continue
                to = next(
                    n for n in range(COUNT - 1, slot - 1, -1) if not self.states[n] or n == slot
                )
                if to != slot:
                    self._copy(slot, to)
                parked.append(to)
            self._top = min([self._top, *parked])
        return parked

    def unpark(self, parked: Sequence[int]) -> None:
        """Free what was parked."""
        with self.lock:
            for slot in parked:
                self.states[slot] = FREE
            used = (slot for slot in range(self._top, COUNT) if self.states[slot] != FREE)
            self._top = min(used, default=COUNT)

    def start(self, slot: int, kill_after_s: float | None = None) -> bool:
        """Begin a message, unless it was taken back, lost, or its lease may be over."""
        words = self.words
        with self.lock:
            now = boot_ns()
            words[SUSPECT] = 0
            if self.states[slot] != HELD or self.lost[slot] or now >= words[UNTIL + slot]:
                return False
            words[STARTED_AT] = now
            words[HARD + slot] = now + round(kill_after_s * 1e9) if kill_after_s else 0
            self.states[slot] = RUNNING
            return True

    def held(self, taken: bool = False) -> list[HeldMessage]:
        """Everything held; for the supervisor, under the lock or after the child's death.

        taken: also what was to be given back, and perhaps was.
        """
        wanted = _HOLDING | {TAKEN} if taken else _HOLDING
        states = enumerate(self.states)
        return [self._read(slot, state) for slot, state in states if state in wanted]

    def overdue(self, now: int) -> list[int]:
        """Slots whose job ran past its hard timeout."""
        return [
            slot
            for slot, state in enumerate(self.states)
            if state == RUNNING and 0 < self.words[HARD + slot] <= now
        ]

    def deadline(self) -> int:
        """Until when all that runs is surely held, less what is known to be lost; NEVER for nothing."""
        running = (
            slot
            for slot, state in enumerate(bytes(self.states))
            if state == RUNNING and not self.lost[slot]
        )
        return min((self.words[UNTIL + slot] for slot in running), default=NEVER)

    @property
    def busy(self) -> bool:
        """Whether anything is held."""
        return any(state in _HOLDING for state in bytes(self.states))

    def _copy(self, slot: int, to: int) -> None:
        start, end = _RECORDS + slot * _RECORD, _RECORDS + to * _RECORD
        self._memory[end : end + _RECORD] = self._memory[start : start + _RECORD]
        self.words[UNTIL + to] = self.words[UNTIL + slot]
        self.lost[to] = self.lost[slot]
        self.states[to] = self.states[slot]
        self.states[slot] = FREE

    def _write(self, slot: int, queue: int, message: Message) -> None:
        mid, token = message.mid.encode(), message.token.encode()
        start = _RECORDS + slot * _RECORD
        record = bytes((queue >> 8, queue & 255, len(token))) + len(mid).to_bytes(2) + token + mid
        self._memory[start : start + len(record)] = record

    def _read(self, slot: int, state: int) -> HeldMessage:
        start = _RECORDS + slot * _RECORD
        head = bytes(self._memory[start : start + 5])
        middle = start + 5 + head[2]
        end = middle + int.from_bytes(head[3:])
        token = bytes(self._memory[start + 5 : middle]).decode()
        mid = bytes(self._memory[middle:end]).decode()
        return HeldMessage(slot, state, head[0] << 8 | head[1], mid, token)


_HOLDING = frozenset((HELD, RUNNING, ENDED, REPORTING))
_ALL_FREE = bytes(COUNT)
_ALL_HELD = bytes([HELD]) * COUNT


def lease_and_margin(lease_ms: int) -> tuple[int, int]:
    """Return, in ns, a lease's length and how long before its end a child must have stopped."""
    return lease_ms * 1_000_000, min(lease_ms * 100_000, 500_000_000)
