"""The engine in plain Python: the required answers of the scripts, without lists, notes or fences.

Messages are objects, places are computed, and upkeep (promote, recover, collect) is complete whenever asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jobq.queue.types import Counts

LEASE_MS = 10_000
CRASH_LIMIT = 3


@dataclass
class Newer:
    """Content that waits for the current run, or for the end of a dedupe backoff."""

    content: bytes
    not_before: int | None
    dedupe_ms: int | None


@dataclass
class Live:
    """One live message."""

    content: bytes
    not_before: int = 0
    dedupe_ms: int | None = None
    token: str = ""
    lock_expires_at: int = 0
    attempts: int = 0
    ncrashes: int = 0
    generation: str = ""
    newer: Newer | None = None
    done: bool = False
    deduped: bool = False

    def restart(self) -> None:
        """Begin a new life with the newer content."""
        assert self.newer is not None
        newer = self.newer
        self.__init__(newer.content, newer.not_before or 0, newer.dedupe_ms)  # type: ignore[misc]


@dataclass
class Reference:
    """The reference of one queue."""

    now: int
    live: dict[str, Live] = field(default_factory=dict)
    dead: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    paused: bool = False

    def status(self, mid: str) -> str:
        """One of Carmine's eight words."""
        one = self.live.get(mid)
        if one is None:
            return "nil"
        later = one.not_before > self.now
        if one.done:
            if one.newer:
                return "done-with-requeue"
            return "done-with-backoff" if later else "done-awaiting-gc"
        if one.lock_expires_at > self.now:
            return "locked-with-requeue" if one.newer else "locked"
        return "queued-with-backoff" if later else "queued"

    def counts(self) -> Counts:
        """Count like the server: by place, so that what is over but not looked at yet still counts."""
        held = [one for one in self.live.values() if one.token and not one.done]
        waiting = [one for one in self.live.values() if not one.token and not one.done]
        delayed = [one for one in waiting if one.not_before]
        done = [one for one in self.live.values() if one.done]
        return Counts(
            messages=len(self.live), ready=len(waiting) - len(delayed), delayed=len(delayed),
            deduped=sum(one.deduped for one in done), locked=len(held),
            done=sum(not one.deduped for one in done),
            requeued=sum(one.newer is not None for one in self.live.values()), dead=len(self.dead),
            circle=0, paused=self.paused, paused_partitions=int(self.paused),
        )  # fmt: skip

    def enqueue(
        self,
        mid: str,
        content: bytes,
        delay_ms: int | None,
        update: bool,
        requeue: bool,
        dedupe_ms: int | None,
    ) -> tuple[str, str]:
        """Action and reason."""
        word, one = self.status(mid), self.live.get(mid)
        not_before = None if delay_ms is None else self.now + delay_ms
        if one is None:
            self.live[mid] = Live(content, self._later(not_before), dedupe_ms)
            return "added", ""
        newer = Newer(content, not_before, dedupe_ms)
        if one.done:
            return self._enqueue_done(one, word, newer, update, requeue)
        if word.startswith("queued"):
            if not update:
                return "exists", word
            self._update(one, newer)
            return "updated", ""
        if word == "locked-with-requeue" and update:
            one.newer = newer
            return "updated", ""
        if requeue:
            one.newer = newer
            return "requeued", ""
        return "exists", word

    def _enqueue_done(
        self, one: Live, word: str, newer: Newer, update: bool, requeue: bool
    ) -> tuple[str, str]:
        if word == "done-with-requeue" and update:
            one.newer = newer
            return "updated", ""
        # A call with a dedupe time of its own takes a mid that is done, unless a dedupe time runs that was asked for.
        again = newer.dedupe_ms is not None and word != "done-with-requeue"
        if not requeue and not (again and (word == "done-awaiting-gc" or one.dedupe_ms is None)):
            return "exists", word
        one.newer = newer
        if word != "done-awaiting-gc":
            return "requeued", ""
        self._restart(one)
        return "added", ""

    def _update(self, one: Live, newer: Newer) -> None:
        if one.token:  # under an expired lock: the newer content waits for the recovery
            if newer.dedupe_ms is None and one.newer is None:
                newer.dedupe_ms = one.dedupe_ms
            one.newer = newer
            return
        one.content = newer.content
        if newer.dedupe_ms is not None:
            one.dedupe_ms = newer.dedupe_ms
        if newer.not_before is not None:
            one.not_before = self._later(newer.not_before)

    def eligible(self) -> dict[str, Live]:
        """Messages that a dequeue may hand out, after upkeep."""
        return {} if self.paused else {
            mid: one for mid, one in self.live.items()
            if not one.done and not one.token and not one.not_before
        }  # fmt: skip

    def hand_out(self, mid: str, token: str, lease_ms: int = LEASE_MS) -> Live:
        """Lock one message."""
        one = self.live[mid]
        one.token, one.lock_expires_at = token, self.now + lease_ms
        one.attempts += 1
        one.generation = one.generation or token
        return one

    def holds(self, mid: str, token: str) -> bool:
        """Whether that attempt may still end it."""
        return mid in self.live and self.live[mid].token == token

    def finish(self, mid: str, token: str, outcome: str, backoff: float | None) -> str:
        """The reply's word."""
        if not self.holds(mid, token):
            return "stale"
        one = self.live[mid]
        if outcome == "crashed":
            return "dead" if self._crash(mid) else "ok"
        if outcome == "dead":
            self._bury(mid)
        elif one.newer:
            self._restart(one)
        elif outcome == "done":
            self._done(one, one.dedupe_ms if backoff is None else round(backoff * 1000))
        else:
            one.attempts -= outcome in ("snooze", "release")
            one.token, one.lock_expires_at = "", 0
            one.not_before = self._later(self.now + round((backoff or 0) * 1000))
        return "ok"

    def extend(self, mid: str, token: str) -> bool:
        """Renew a lock."""
        held = self.holds(mid, token)
        if held:
            self.live[mid].lock_expires_at = self.now + LEASE_MS
        return held

    def cancel(self, mid: str) -> str:
        """'cancelled', or the status that leaves nothing to cancel."""
        word, one = self.status(mid), self.live.get(mid)
        if one is None or word in ("done-awaiting-gc", "done-with-backoff"):
            return word
        if one.done:
            one.newer = None
        elif one.token:
            # Its holder may run until its lock ends: nothing else of this mid runs before.
            one.deduped = one.lock_expires_at > self.now
            one.not_before = one.lock_expires_at if one.deduped else 0
            one.newer, one.done, one.token, one.lock_expires_at = None, True, "", 0
        else:
            del self.live[mid]
        return "cancelled"

    def revive(self, dead_id: str) -> str:
        """'revived', 'exists' or 'nil'."""
        if dead_id not in self.dead:
            return "nil"
        mid = dead_id.partition("#")[0]
        if mid in self.live:
            return "exists"
        content, dedupe_ms = self.dead.pop(dead_id)
        self.live[mid] = Live(content, 0, dedupe_ms)
        return "revived"

    def upkeep(self) -> None:
        """Promote, recover, collect, all of it."""
        for mid, one in list(self.live.items()):
            over = one.not_before <= self.now
            if one.done and one.deduped and over and one.newer:
                self._restart(one)
            elif one.done and over:
                del self.live[mid]
            elif one.token and not one.done and one.lock_expires_at <= self.now:
                self._crash(mid)
            elif one.not_before and over and not one.done:
                one.not_before = 0
        # A message restarted with a past due time is ready.
        for one in self.live.values():
            if not one.done and one.not_before <= self.now:
                one.not_before = 0

    def _crash(self, mid: str) -> bool:
        one = self.live[mid]
        one.ncrashes += 1
        if one.ncrashes >= CRASH_LIMIT:
            self._bury(mid)
            return True
        if one.newer:
            self._restart(one)
        else:
            one.token, one.lock_expires_at, one.not_before = "", 0, 0
        return False

    def _bury(self, mid: str) -> None:
        one = self.live[mid]
        self.dead[f"{mid}#{one.generation}"] = (one.content, one.dedupe_ms)
        if one.newer:
            self._restart(one)
        else:
            del self.live[mid]

    def _done(self, one: Live, dedupe_ms: int | None) -> None:
        one.done, one.token, one.lock_expires_at = True, "", 0
        one.deduped = bool(dedupe_ms)
        one.not_before = self.now + (dedupe_ms or 0)

    def _restart(self, one: Live) -> None:
        one.restart()
        one.not_before = self._later(one.not_before)

    def _later(self, moment: int | None) -> int:
        return moment if moment is not None and moment > self.now else 0
