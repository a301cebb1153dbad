"""Dead messages put back from the lake, also those that the server no longer has: each death once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from jobq.pipeline.replay import Pace, Replayed, note_key
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL


class Death(NamedTuple):
    """One archived dead message."""

    dead_id: str
    mid: str
    died_at_ms: int
    content: bytes


def deaths(rows: Iterable[dict[str, Any]]) -> list[Death]:
    """Of rows of the table `dead` the newest of each mid, in the order in which they died."""
    newest: dict[str, Death] = {}
    for row in rows:
        one = Death(row["dead_id"], row["mid"], row["died_at"] // 1000, bytes(row["content"]))
        known = newest.get(one.mid)
        if known is None or one.died_at_ms >= known.died_at_ms:
            newest[one.mid] = one
    return sorted(newest.values(), key=lambda one: (one.died_at_ms, one.dead_id))


class Revival:
    """Puts deaths back into their queue, under their own mids, as new messages with attempts 0.

    Which were put back is noted behind each call, for remember_s; see replay_queue for the call between.
    What of them is still among the queue's dead goes from there.
    """

    def __init__(self, queue: Queue, replay: str, *, dedupe_s: float, remember_s: float) -> None:
        self._queue, self._dedupe_s, self._remember_ms = queue, dedupe_s, round(remember_s * 1000)
        self._note = note_key(queue, "", replay)

    def run(
        self, found: list[Death], pace: Pace, tell: Callable[[int], object] = lambda _: None
    ) -> Replayed:
        """All of them that weren't put back yet. A mid that lives is left alone."""
        began = time.monotonic()
        todo = self._left(found)
        sent = 0
        step = pace.most(PER_CALL)
        for start in range(0, len(todo), step):
            some = todo[start : start + step]
            sent += self._put_back(list(self._not_again(some)) if start < PER_CALL else some)
            self._noted(some)
            tell(sent)
            pace.wait(len(some))
        behind = len(found) - len(todo)
        seconds = round(time.monotonic() - began, 3)
        return Replayed(sent, len(todo) - sent, behind, 0, 0, seconds)

    def _left(self, found: list[Death]) -> list[Death]:
        if not found:
            return []
        left = []
        for start in range(0, len(found), 1_000):
            some = found[start : start + 1_000]
            known = self._queue.client.command("SMISMEMBER", self._note, *(d.dead_id for d in some))
            left += [death for death, there in zip(some, known, strict=True) if not there]
        return left

    def _not_again(self, some: Iterable[Death]) -> Iterator[Death]:
        """Without those that the last run put back before it was killed, and that died anew."""
        for death in some:
            now = self._queue.admin.dead(mid=death.mid)
            if not now or now[0].dead_id == death.dead_id or now[0].died_at < death.died_at_ms:
                yield death

    def _put_back(self, some: list[Death]) -> int:
        if not some:
            return 0
        done = self._queue.enqueue_many(
            [(one.mid, one.content) for one in some], dedupe=self._dedupe_s
        )
        ids = {one.mid: one.dead_id for one in some}
        added = [ids[one.mid] for one in done if one.action == "added"]
        if added:
            self._queue.admin.purge(*added)
        return len(added)

    def _noted(self, some: list[Death]) -> None:
        client = self._queue.client
        client.command("SADD", self._note, *(one.dead_id for one in some))
        client.command("PEXPIRE", self._note, self._remember_ms)
