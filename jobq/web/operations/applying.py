"""Apply an operation to its frozen messages, or undo an operation.

Messages are processed in chunks, at up to 2,000 a second. Results are stored after every chunk. If the process is
killed during a chunk, another process repeats the chunk, and messages already in the bin count as done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from jobq.queue.bin import Bin
from jobq.queue.queue import Queue
from jobq.queue.types import Rescheduled
from jobq.web.operations.freezing import present
from jobq.web.operations.store import (
    APPLIED,
    CHANGED,
    DAMAGED,
    GONE,
    NO_ROOM,
    FrozenChunk,
    OperationPhase,
    OperationState,
    OperationStore,
)
from jobq.web.operations.verbs import verb_of

#: Maximum number of messages per second.
RATE = 2_000
#: Letters of an undo. KEPT is a message that the undo left alone, because it was started, changed or enqueued again.
KEPT, RESTORED = "ku"
_WORDS = {
    "taken": APPLIED, "in bin": APPLIED, "revived": APPLIED, "moved": APPLIED, "cancelled": APPLIED, "purged": APPLIED,
    "changed": CHANGED, "exists": CHANGED, "same": CHANGED, "nil": GONE, "done-awaiting-gc": GONE,
    "done-with-backoff": GONE, "full": NO_ROOM, "damaged": DAMAGED, "sealed": CHANGED,
}  # fmt: skip
#: Words for results, including results of an undo.
RESULTS = {
    APPLIED: "applied",
    CHANGED: "changed",
    GONE: "gone",
    NO_ROOM: "full",
    DAMAGED: "damaged",
}
UNDONE = {RESTORED: "restored", KEPT: "changed", GONE: "gone", DAMAGED: "damaged"}
_BACK = {
    "restored": RESTORED, "moved": RESTORED, "same": RESTORED, "exists": KEPT, "changed": KEPT, "nil": GONE,
    "damaged": DAMAGED, "sealed": KEPT,
}  # fmt: skip


class Applier:
    """Applies or undoes one operation.

    Attributes:
        ended: Function that returns whether to stop.
        pause: Function that sleeps.
        token: Token of the operation's lock.
    """

    def __init__(
        self, store: OperationStore, state: OperationState, ended: Callable[[], bool] = bool,
        pause: Callable[[float], object] = time.sleep, token: str = "",
    ) -> None:  # fmt: skip
        self.store, self.state, self.ended, self.pause, self.token = (
            store,
            state,
            ended,
            pause,
            token,
        )
        self.verb = verb_of(state.verb)

    def apply(self) -> None:
        """Apply the operation to the remaining messages."""
        state = self.state
        letters = self.store.letters(state.id, "r", state.nchunks)
        first = self._firsts()
        for number in self._order():
            if letters[number]:
                continue
            if self._is_stopped():
                self._end("stopped")
                return
            began = time.monotonic()
            again = self.store.field(state.id, f"b{number}") is not None
            chunk = self._chunk(number)
            self.store.save(state, **{f"b{number}": 1})
            letters[number] = self._done(number, chunk, again, first[number])
            state.results = _counted(letters, RESULTS)
            self.store.save(state, **{f"r{number}": letters[number]})
            self._keep_pace(len(chunk.ids), began)
        self._end("done")

    def undo(self) -> None:
        """Undo the operation."""
        state = self.state
        done = self.store.letters(state.id, "r", state.nchunks)
        letters = self.store.letters(state.id, "u", state.nchunks)
        # The last chunk comes first, because a restored due message goes before messages already in the queue.
        for number in reversed(range(state.nchunks)):
            if letters[number] or APPLIED not in done[number]:
                continue
            if self._is_stopped():
                self._end("stopped")
                return
            began = time.monotonic()
            again = self.store.field(state.id, f"v{number}") is not None
            chunk = self._chunk(number)
            self.store.save(state, **{f"v{number}": 1})
            letters[number] = self._restored(number, chunk, done[number], again)
            state.undone = _counted(letters, UNDONE)
            self.store.save(state, **{f"u{number}": letters[number]})
            self._keep_pace(len(chunk.ids), began)
        self._end("undone")

    def _end(self, phase: OperationPhase) -> None:
        self.state.phase, self.state.ended_at = phase, self.store.client.clock_ms()
        self.store.save(self.state)

    def _is_stopped(self) -> bool:
        if self.ended():
            raise InterruptedError
        self.state.stopped_by = self.store.field(self.state.id, "stop") or ""
        return bool(self.state.stopped_by)

    def _chunk(self, number: int) -> FrozenChunk:
        chunk = self.store.chunk(self.state.id, number)
        return chunk or FrozenChunk("", [])

    def _order(self) -> Iterator[int]:
        """Yield the chunk numbers. Dead messages are listed newest first, but revived oldest first."""
        every = range(self.state.nchunks)
        return iter(reversed(every) if self.verb.is_dead else every)

    def _firsts(self) -> dict[int, int]:
        """Return how many messages precede each chunk; 0 for every chunk if starts aren't spread over time."""
        if not self.state.spread_ms:
            return dict.fromkeys(range(self.state.nchunks), 0)
        firsts, before = {}, 0
        for number in self._order():
            firsts[number] = before
            before += len(self._chunk(number).ids)
        return firsts

    def _keep_pace(self, number: int, began: float) -> None:
        if self.token:
            self.store.renew(self.state.id, self.token)
        self.pause(max(0.0, number / RATE - (time.monotonic() - began)))

    def _bin(self, queue: str) -> Bin:
        keep = None if self.state.why_no_undo else 3_600.0
        return Bin(queue, self.store.client, self.state.id, keep)

    def _done(self, number: int, chunk: FrozenChunk, again: bool, first: int) -> str:
        """Apply the operation to one chunk. Return the results, one letter per message."""
        if not chunk.ids:
            return "-"
        if self.verb.is_dead:
            return self._done_to_dead(chunk, again, first)
        now = present(self.store.client, chunk.queue, chunk.ids, chunk.sizes)
        letters = [
            CHANGED if digest and digest != frozen else ""
            for (_, digest), frozen in zip(now, chunk.digests, strict=True)
        ]
        left = [place for place, letter in enumerate(letters) if not letter]
        words = self._done_to_waiting(number, chunk, left, now, again) if left else []
        for place, word in zip(left, words, strict=True):
            letters[place] = _WORDS.get(word, DAMAGED)
        if again and self.verb.undone == "waiting" and not self.state.why_no_undo:
            # Another message may have the id of a taken message.
            held = self._bin(chunk.queue).holds("waiting", *chunk.ids)
            letters = [
                APPLIED if taken else letter for letter, taken in zip(letters, held, strict=True)
            ]
        return "".join(letters)

    def _done_to_dead(self, chunk: FrozenChunk, again: bool, first: int) -> str:
        own = self._bin(chunk.queue)
        # Oldest dead messages first.
        ids = chunk.ids[::-1]
        if self.verb.name == "revive":
            starts = [self._at(first + n) for n in range(len(ids))]
            words = own.revive(*zip(ids, starts, strict=True))
            if "sealed" in words:
                admin = Queue(chunk.queue, self.store.client).admin
                words = admin.revive_moved(ids, words, starts)
        else:
            words = own.take_out_dead(*ids)
        letters = [_WORDS.get(word, DAMAGED) for word in words]
        if again and not self.state.why_no_undo:
            held = own.holds("revived" if self.verb.name == "revive" else "dead", *ids)
            letters = [
                APPLIED if taken else letter for letter, taken in zip(letters, held, strict=True)
            ]
        return "".join(letters[::-1])

    def _at(self, place: int) -> int | None:
        """Return the start time of the message at this position; None to start it immediately."""
        state = self.state
        if not state.spread_ms or not place:
            return None
        return state.began_at + state.spread_ms * place // max(1, state.number - 1)

    def _done_to_waiting(
        self, number: int, chunk: FrozenChunk, left: list[int], now: list[tuple[str, str]], again: bool
    ) -> list[str]:  # fmt: skip
        some = [(chunk.ids[place], chunk.generations[place]) for place in left]
        if self.verb.name == "cancel":
            return self._bin(chunk.queue).take_out(*some)
        queue = Queue(chunk.queue, self.store.client)
        if self.verb.name == "run-now":
            moved = queue.admin.reschedule([(mid, generation, None) for mid, generation in some])
            self._keep_formers(number, moved)
            return ["moved" if again and move.word == "same" else move.word for move in moved]
        same = [now[place][0] == chunk.generations[place] for place in left]
        mids = [mid for (mid, _), is_same in zip(some, same, strict=True) if is_same]
        words = iter(queue.cancel(*mids))
        return [next(words) if is_same else "changed" for is_same in same]

    def _keep_formers(self, number: int, moved: list[Rescheduled]) -> None:
        formers = {move.mid: move.former_ms for move in moved if move.former_ms is not None}
        text = self.store.field(self.state.id, f"t{number}") or "{}"
        known = {**msgspec.json.decode(text, type=dict[str, int]), **formers}
        self.store.save(self.state, **{f"t{number}": msgspec.json.encode(known)})

    def _restored(self, number: int, chunk: FrozenChunk, done: str, again: bool) -> str:
        places = [place for place, letter in enumerate(done) if letter == APPLIED]
        ids = [chunk.ids[place] for place in places]
        if self.verb.undone == "time":
            words = self._moved_back(number, chunk, places)
        elif self.verb.undone:
            words = self._bin(chunk.queue).put_back(self.verb.undone, *ids)
        else:
            words = ["changed"] * len(ids)
        letters = ["-"] * len(chunk.ids)
        for place, word in zip(places, words, strict=True):
            # Messages already restored by an earlier try are no longer in the bin.
            letters[place] = RESTORED if again and word == "nil" else _BACK.get(word, DAMAGED)
        return "".join(letters)

    def _moved_back(self, number: int, chunk: FrozenChunk, places: list[int]) -> list[str]:
        text = self.store.field(self.state.id, f"t{number}") or "{}"
        formers = msgspec.json.decode(text, type=dict[str, int])
        # If the process was killed before the reply, use the time from the preview.
        wanted = [
            (chunk.ids[place], chunk.generations[place] or "",
             formers.get(chunk.ids[place], chunk.formers[place] or None))
            for place in places
        ]  # fmt: skip
        moved = Queue(chunk.queue, self.store.client).admin.reschedule(wanted)
        return [move.word for move in moved]


def _counted(letters: list[str], words: dict[str, str]) -> dict[str, int]:
    counted = Counter("".join(letters))
    return {word: counted[letter] for letter, word in words.items() if counted[letter]}
