"""Memory that a child and the supervisor share: the child's messages and their progress.

The child records its messages here. The supervisor renews the messages' leases and records the renewals. It also takes
back unstarted messages, and reports or returns the messages of a dead child. A lock guards changes on which both
processes must agree. The supervisor waits for the lock only a few ms, and doesn't need it after the child's exit. So a
dead or stopped child that holds the lock doesn't block the supervisor.

The memory begins with words of 8 bytes. Three rows follow, each with one byte per slot: message states, lost locks, and
jobs in threads. Then each slot has a record with the queue's index, lengths, token and mid. The last part has log lines
that aren't written yet.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from struct import Struct
from typing import NamedTuple

from jobq.client.clock import boot_ns
from jobq.jobs.context import LINES_SIZE
from jobq.queue.types import Lease, Message
from jobq.worker.shared_lock import new_lock

#: Slots of one child.
COUNT = 256
#: The deadline of an idle child.
NEVER = 2**62
#: `suspect` while the last reply is read and none of its messages has a slot yet.
ALL_HANDED = -1
#: How long the supervisor waits for the lock of a child that may be stopped.
LOCK_WAIT_S = 0.005


class Phase(IntEnum):
    """The state of a child."""

    BOOTING = 0
    WORKING = 1
    IDLE = 2
    LEAVING = 3


class Control(IntFlag):
    """A request from the supervisor to a child.

    QUIET: Don't fetch messages. DRAIN: Exit once running jobs have finished. HURRY: Stop running jobs and exit.
    """

    QUIET = 1
    DRAIN = 2
    HURRY = 4


class SlotState(IntEnum):
    """The state of the message in a slot.

    ENDED: The job succeeded without a result, so the child or the supervisor can report it. REPORTING: The job has
    another outcome, which only the child can report. TAKEN: The process that took the message returns it to the queue.
    GATHERING: The message waits for the rest of its batch.
    """

    FREE = 0
    HELD = 1
    RUNNING = 2
    ENDED = 3
    REPORTING = 4
    TAKEN = 5
    GATHERING = 6


class HeldMessage(NamedTuple):
    """A message that a child holds.

    Attributes:
        in_thread: Whether the job runs outside the main thread.
    """

    slot: int
    state: int
    queue: int
    mid: str
    token: str
    in_thread: bool = False


class HeldTimes(NamedTuple):
    """The messages of a child with their times (boot_ns).

    Attributes:
        running: Running messages, each with its start time.
        gathering: Messages waiting for their batch, each with the latest start time of the batch.
    """

    running: Sequence[tuple[HeldMessage, int]] = ()
    gathering: Sequence[tuple[HeldMessage, int]] = ()


# Plain numbers: an enum's members cost more on each job's path.
_FREE, _HELD, _RUNNING, _ENDED, _REPORTING, _TAKEN, _GATHERING = map(int, SlotState)
_HOLDING = frozenset((_HELD, _RUNNING, _ENDED, _REPORTING, _GATHERING))
_UNSTARTED = (_HELD, _GATHERING)
_ALL_FREE, _ALL_HELD = bytes(COUNT), bytes([_HELD]) * COUNT

#: Means that the supervisor has taken the messages of a dequeue.
_CLAIMED = -1

# Words. 0 and 1 hold the id of the child's caller.
_PHASE = 2
_STARTED_AT = 3  # when the last job started, boot_ns
_FINISHED = 4  # number of ended jobs
_CONTROL = 5
_SUSPECT = 6  # the message being read by the child: slot + 1, ALL_HANDED, or 0
_FETCH = 7  # a dequeue with an unread reply: when the supervisor may take it (boot_ns); 0 for none, or _CLAIMED
_FETCH_QUEUE = 8
_LOOK_AT = 9  # when the main thread's timer is due (boot_ns)
_AGAIN_AT = (
    10  # deadline until which a burst waits for retries (boot_ns); the next child takes it over
)
_HARD = 32  # per slot: when the supervisor kills the child (boot_ns), 0 for never, or when a gathering ends
_UNTIL = _HARD + COUNT  # per slot: lease deadline, boot_ns
_SINCE = _UNTIL + COUNT  # per slot: when its job started, boot_ns
# Bytes.
_STATES = 8 * (_SINCE + COUNT)
_LOST = _STATES + COUNT
_IN_THREAD = _LOST + COUNT
_RECORDS = 8192
_RECORD = 640
_LINES = _RECORDS + COUNT * _RECORD
_HEAD = Struct(">HBH")  # queue, length of the token, length of the mid


class SharedSlots:
    """The memory that the supervisor shares with one child. The child's replacement uses the same memory."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, _LINES + LINES_SIZE))
        self._memory = memory
        #: The times at the last check.
        self._times = HeldTimes()
        self._words = memory.cast("q")
        self._states = memory[_STATES:_LOST]
        self._lost = memory[_LOST:_IN_THREAD]
        self._in_thread = memory[_IN_THREAD : _IN_THREAD + COUNT]
        #: The memory for a JobLines.
        self.lines = memory[_LINES:]
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock = new_lock()
        # As a context manager it costs two Python calls more, for each job.
        self._acquire, self._release = self._lock.acquire, self._lock.release

    # Both sides.

    @property
    def caller(self) -> str:
        """Return the id under which the child makes its calls; '' before it has an id."""
        return bytes(self._memory[:16]).rstrip(b"\0").decode()

    @caller.setter
    def caller(self, caller_id: str) -> None:
        self._memory[:16] = caller_id.encode().ljust(16, b"\0")

    @property
    def phase(self) -> Phase:
        return Phase(self._words[_PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[_PHASE] = phase

    @property
    def nfinished(self) -> int:
        return self._words[_FINISHED]

    def asks(self, control: int) -> bool:
        """Return whether the supervisor has requested any of the actions in `control`."""
        return bool(self._words[_CONTROL] & control)

    def ask(self, control: int) -> None:
        """Request the actions in `control` from the child, in addition to earlier requests."""
        self._words[_CONTROL] |= control

    def deadline(self) -> int:
        """Return the earliest lease deadline of running messages that still have their lock; NEVER if none."""
        running = (
            slot
            for slot, state in enumerate(bytes(self._states))
            if state == _RUNNING and not self._lost[slot]
        )
        return min((self._words[_UNTIL + slot] for slot in running), default=NEVER)

    # The child's.

    @property
    def nfree(self) -> int:
        return bytes(self._states).count(_FREE)

    def reply_arrived(self) -> None:
        """Record that messages arrived. If decoding them makes this child crash, one of them is the cause."""
        self._words[_SUSPECT] = ALL_HANDED

    def reading(self, slot: int) -> None:
        """Record that this message is being decoded. If the child dies now, the message counts as the cause."""
        self._words[_SUSPECT] = slot + 1

    def reading_done(self) -> None:
        """Record that no message is being decoded."""
        self._words[_SUSPECT] = 0

    def publish(self, queue: int, messages: Sequence[Message], deadline: int) -> Sequence[int]:
        """Record fetched messages, whose leases last until `deadline` (boot_ns). Return their slots."""
        count, words = len(messages), self._words
        slots = self._find(count)
        with self._lock:
            for slot, message in zip(slots, messages, strict=True):
                token, start = message.token, _RECORDS + slot * _RECORD
                text = f"{token}{message.mid}".encode()  # a token is ASCII
                head = _HEAD.pack(queue, len(token), len(text) - len(token))
                self._memory[start : start + _HEAD.size + len(text)] = head + text
            if isinstance(slots, range):
                first, end = slots.start, slots.stop
                words[_UNTIL + first : _UNTIL + end] = array("q", [deadline]) * count
                self._lost[first:end] = _ALL_FREE[:count]
                self._states[first:end] = _ALL_HELD[:count]
            else:
                for slot in slots:
                    words[_UNTIL + slot] = deadline
                    self._lost[slot] = 0
                    self._states[slot] = _HELD
            words[_SUSPECT] = 0
        return slots

    def _find(self, count: int) -> Sequence[int]:
        states = bytes(self._states)
        if states.startswith(_ALL_FREE[:count]):
            return range(count)
        slots, slot = [], -1
        for _ in range(count):
            slot = states.index(_FREE, slot + 1)
            slots.append(slot)
        return slots

    def fetching(self, queue: int, claim_at: int) -> None:
        """Record a dequeue call before sending it.

        From `claim_at` (boot_ns) on, the supervisor may claim the call's messages.
        """
        self._words[_FETCH_QUEUE], self._words[_FETCH] = queue, claim_at

    @property
    def is_fetching(self) -> bool:
        return self._words[_FETCH] != 0

    def fetched(self) -> bool:
        """Record that a reply arrived.

        Return False if the supervisor has claimed the reply's messages.
        """
        with self._lock:
            claimed, self._words[_FETCH] = self._words[_FETCH] == _CLAIMED, 0
        return not claimed

    def start(self, slot: int, kill_after_s: float | None = None, in_thread: bool = False) -> bool:
        """Mark a message as started; return False if the supervisor took it back or the lease may have expired.

        Args:
            in_thread: Whether the job runs outside the main thread, which may be decoding another message.
        """
        words, states = self._words, self._states
        self._acquire()
        try:
            now = boot_ns()
            if not in_thread:
                words[_SUSPECT] = 0
            is_lost = self._lost[slot] or now >= words[_UNTIL + slot]
            if states[slot] not in _UNSTARTED or is_lost:
                return False
            words[_STARTED_AT] = words[_SINCE + slot] = now
            words[_HARD + slot] = now + round(kill_after_s * 1e9) if kill_after_s else 0
            self._in_thread[slot] = in_thread
            states[slot] = _RUNNING
            return True
        finally:
            self._release()

    def gather(self, slots: Iterable[int], until: int) -> None:
        """Let unstarted messages wait until `until` (boot_ns) for more messages of their batch.

        Before that time, the supervisor doesn't take them back.
        """
        with self._lock:
            for slot in slots:
                if self._states[slot] in _UNSTARTED:
                    self._states[slot] = _GATHERING
                    self._words[_HARD + slot] = until

    def note_again(self, at: int) -> None:
        """Record that a message will be retried before `at` (boot_ns).

        A child that replaces this child can still read the record.
        """
        self._words[_AGAIN_AT] = max(self._words[_AGAIN_AT], at)

    @property
    def is_due_again(self) -> bool:
        """Return whether a message finished by this child, or by an earlier child, will soon run again."""
        return boot_ns() < self._words[_AGAIN_AT]

    def note_look(self, at: int) -> None:
        """Record the time (boot_ns) at which the timer of the job in the main thread expires."""
        self._words[_LOOK_AT] = at

    def ended(self, slot: int, plain: bool) -> None:
        """Record that a run finished. The child or the supervisor can report a success without a result (`plain`)."""
        self._states[slot] = _ENDED if plain else _REPORTING

    def count_ended(self, slots: Iterable[int]) -> int:
        return sum(self._states[slot] in (_ENDED, _REPORTING) for slot in slots)

    def free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._states[slot] = _FREE

    def withdraw(self, slots: Iterable[int]) -> tuple[list[int], dict[int, Lease]]:
        """Withdraw messages that haven't started.

        Return the slots of all these messages. Also return, by slot, the leases that the child must release itself.
        """
        unstarted, leases = [], {}
        with self._lock:
            for slot in slots:
                state = self._states[slot]
                if state in _UNSTARTED:
                    held = self._read(slot, state)
                    leases[slot] = Lease(held.mid, held.token)
                    self._states[slot] = _TAKEN
                if state in (*_UNSTARTED, _TAKEN):
                    unstarted.append(slot)
        return unstarted, leases

    def is_lost(self, slot: int) -> bool:
        return bool(self._lost[slot])

    def are_lost(self, slots: Iterable[int]) -> bool:
        """Return whether all running messages in these slots are known to have lost their locks."""
        ran = [slot for slot in slots if self._states[slot] == _RUNNING]
        return bool(ran) and all(self._lost[slot] for slot in ran)

    def is_running(self, slot: int) -> bool:
        return self._states[slot] == _RUNNING

    def run_time_ns(self, slot: int) -> int:
        has_started = self._states[slot] in (_RUNNING, _ENDED, _REPORTING)
        return boot_ns() - self._words[_SINCE + slot] if has_started else 0

    def is_expired(self, slot: int) -> bool:
        return boot_ns() >= self._words[_UNTIL + slot]

    def count_finished(self, count: int) -> None:
        self._words[_FINISHED] += count

    # The supervisor's.

    def reset(self, control: int = 0) -> None:
        """After a child's exit, empty the memory for the next child. `control` contains its first requests."""
        self._times, again_at = HeldTimes(), self._words[_AGAIN_AT]
        self._memory[:_RECORDS] = bytes(_RECORDS)
        self._words[_AGAIN_AT] = again_at
        self._new_lock()
        self._words[_CONTROL] = control

    def ask_no_more(self, control: int) -> None:
        self._words[_CONTROL] &= ~control

    @property
    def suspect(self) -> int:
        """Return the slot + 1 of the message that the child was decoding; 0 for no message, ALL_HANDED for all."""
        return self._words[_SUSPECT]

    @property
    def look_at(self) -> int:
        """Return when (boot_ns) the timer of the job in the main thread expires; 0 before the first job."""
        return self._words[_LOOK_AT]

    @property
    def is_busy(self) -> bool:
        return any(state in _HOLDING for state in bytes(self._states))

    @property
    def nrunning(self) -> int:
        return bytes(self._states).count(_RUNNING)

    @property
    def nwaiting(self) -> int:
        states = bytes(self._states)
        return states.count(_HELD) + states.count(_GATHERING)

    def ran_ns(self) -> int:
        """Return the ns since the last job started; 0 before the first job."""
        started_at = self._words[_STARTED_AT]
        return max(0, boot_ns() - started_at) if started_at else 0

    def began_at(self) -> int:
        """Return when (boot_ns) the earliest of the running jobs started; 0 if no job runs."""
        states = enumerate(bytes(self._states))
        began = (self._words[_SINCE + slot] for slot, state in states if state == _RUNNING)
        return min(began, default=0)

    def held(self, taken: bool = False) -> list[HeldMessage]:
        """Return all messages that the child holds. While the child is alive, call `snapshot` instead.

        With `taken`, also return messages that the supervisor has taken from the child.
        """
        wanted = _HOLDING | {_TAKEN} if taken else _HOLDING
        states = enumerate(self._states)
        return [self._read(slot, state) for slot, state in states if state in wanted]

    def running(self) -> list[HeldMessage]:
        """Return running messages. This doesn't acquire the lock, so a record may be half written."""
        return [held for held in self.held() if held.state == _RUNNING]

    def times(self) -> HeldTimes:
        """Return the times of running messages and waiting batches.

        While the child changes its records, return the last result.
        """
        held = self.snapshot()
        if held is not None:
            words = self._words
            self._times = HeldTimes(
                [(each, words[_SINCE + each.slot]) for each in held if each.state == _RUNNING],
                [(each, words[_HARD + each.slot]) for each in held if each.state == _GATHERING],
            )
        return self._times

    def note_lost(self, slots: Iterable[int]) -> None:
        """Mark unstarted messages whose leases were lost, so that the child doesn't start them."""
        with self._lock:
            for slot in slots:
                if self._states[slot] in _UNSTARTED:
                    self._lost[slot] = 1

    def snapshot(self) -> list[HeldMessage] | None:
        """Return all messages that the child holds, or None if the child is changing its records right now."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return None
        try:
            return self.held()
        finally:
            self._lock.release()

    def take_back(self) -> list[HeldMessage]:
        """Take unstarted messages, which the caller must give back to the queue.

        Return [] if the child is changing its records.
        """
        if not self._lock.acquire(block=False):
            return []
        try:
            taken = [held for held in self.held() if self._may_take(held)]
            for held in taken:
                self._states[held.slot] = _TAKEN
        finally:
            self._lock.release()
        return taken

    def _may_take(self, held: HeldMessage) -> bool:
        if held.state == _GATHERING:
            return self._words[_HARD + held.slot] < boot_ns()
        return held.state == _HELD

    def claim_fetch(self) -> tuple[int, str, frozenset[str]] | None:
        """Claim the messages of a dequeue call if the child hasn't read the reply in time; otherwise return None.

        Return the queue's index, the id under which the child made the call, and the tokens of messages that the child
        holds.
        """
        words = self._words
        if not 0 < words[_FETCH] <= boot_ns() or not self._lock.acquire(block=False):
            return None
        try:
            if not 0 < words[_FETCH] <= boot_ns():
                return None
            words[_FETCH] = _CLAIMED
            held = frozenset(message.token for message in self.held(taken=True))
            return words[_FETCH_QUEUE], self.caller, held
        finally:
            self._lock.release()

    def confirm(
        self, renewed: Iterable[HeldMessage], lost: Iterable[HeldMessage], deadline: int
    ) -> list[HeldMessage]:
        """Record renewed leases and lost locks. Return the messages that are newly recorded as lost."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return []
        try:
            # Tokens belong to a queue: two queues may use the same token.
            still = {(held.slot, held.queue, held.token): held for held in self.held()}
            gone = [
                still[key]
                for msg in lost
                if (key := (msg.slot, msg.queue, msg.token)) in still and not self._lost[msg.slot]
            ]
            for held in gone:
                self._lost[held.slot] = 1
            for message in renewed:
                if (message.slot, message.queue, message.token) in still:
                    self._words[_UNTIL + message.slot] = deadline
        finally:
            self._lock.release()
        return gone

    def overdue(self, now: int) -> list[int]:
        """Return the slots whose job has exceeded its hard timeout."""
        return [
            slot
            for slot, state in enumerate(self._states)
            if state == _RUNNING and 0 < self._words[_HARD + slot] <= now
        ]

    def _read(self, slot: int, state: int) -> HeldMessage:
        start = _RECORDS + slot * _RECORD
        queue, token_length, mid_length = _HEAD.unpack_from(self._memory, start)
        middle = start + _HEAD.size + token_length
        token = bytes(self._memory[start + _HEAD.size : middle]).decode()
        mid = bytes(self._memory[middle : middle + mid_length]).decode()
        return HeldMessage(slot, state, queue, mid, token, bool(self._in_thread[slot]))


def lease_and_margin(lease_s: float) -> tuple[int, int]:
    """Return a lease's duration and safety margin, in ns. A child stops its jobs when only the margin remains."""
    lease_ns = round(lease_s * 1e9)
    return lease_ns, min(lease_ns // 10, 500_000_000)


def lease_deadline(asked_at: int, lease_s: float) -> int:
    """Return the earliest time (boot_ns) at which a lock requested at `asked_at` can expire."""
    lease_ns, margin_ns = lease_and_margin(lease_s)
    return asked_at + lease_ns - margin_ns
