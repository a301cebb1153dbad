"""Counts lives of messages by their events: from each acceptance to the ending that belongs to it."""

from __future__ import annotations

from typing import TypedDict

from jobq.events import Event

ENDINGS = frozenset(("done", "dead", "cancelled"))
#: The attempt is over, and the message goes on unless newer content waits.
GOES_ON = frozenset(("retry", "snoozed", "crashed", "recovered"))
RAN_AGAIN = frozenset(("crashed", "recovered"))


class Figures(TypedDict):
    """What a tally comes to."""

    accepted: int
    finished: int
    duplicates: int
    lost: int
    live: int
    superseded: int
    earlier: int
    lost_mids: list[str]


class _Life:
    """An accepted message that hasn't ended: 1 where it counts, else 0.

    `newer`: the same of content that runs after the current run, None without.
    """

    __slots__ = ("counted", "newer")

    def __init__(self, counted: int) -> None:
        self.counted = counted
        self.newer: int | None = None

    @property
    def weight(self) -> int:
        """How many acceptances hang on it."""
        return self.counted + (self.newer or 0)

    def start_newer(self) -> None:
        """The current run is over, and the newer content takes its place."""
        self.counted, self.newer = self.newer or 0, None


class Tally:
    """Takes events in the stream's order; what is accepted after `until_ms` isn't counted."""

    def __init__(self, until_ms: int | None = None) -> None:
        self._until_ms = until_ms
        self._open: dict[str, _Life] = {}
        self._ended: set[str] = set()
        self._lost: list[str] = []
        self.accepted = self.finished = self.duplicates = self.superseded = self.earlier = 0

    def take(self, at_ms: int, event: Event) -> None:
        """One event, written at `at_ms`."""
        if event.kind in ("enqueued", "revived"):
            counted = self._until_ms is None or at_ms <= self._until_ms
            self._accept(event.mid, event.error or "added", int(counted))
        elif event.kind in ENDINGS:
            self._end(event.mid, event.kind)
        elif event.kind in GOES_ON:
            self._go_on(event.mid, event.kind)
        elif event.kind == "superseded":
            self._replace(event.mid)
        elif event.kind == "cleared":
            self.finished += sum(life.weight for life in self._open.values())
            self._open.clear()

    def open(self) -> list[str]:
        """The mids of counted lives that haven't ended."""
        return [mid for mid, life in self._open.items() if life.weight]

    def figures(self, gone: list[str]) -> Figures:
        """The figures, once it is known which of the open ones the queue doesn't hold any more."""
        lost = [*self._lost, *(mid for mid in gone for _ in range(self._open[mid].weight))]
        live = sum(self._open[mid].weight for mid in self._open.keys() - set(gone))
        return Figures(
            accepted=self.accepted, finished=self.finished, duplicates=self.duplicates, lost=len(lost),
            live=live, superseded=self.superseded, earlier=self.earlier, lost_mids=lost,
        )  # fmt: skip

    def _accept(self, mid: str, action: str, counted: int) -> None:
        if action == "updated":
            return  # the same life with other content
        self.accepted += counted
        life = self._open.get(mid)
        if action == "requeued" and life is not None:
            self.superseded += life.newer or 0
            life.newer = counted
            return
        if life is not None:
            # The server knew nothing of it any more when it took the mid anew.
            self._lost += [mid] * life.weight
        self._open[mid] = _Life(counted)

    def _end(self, mid: str, kind: str) -> None:
        life = self._open.get(mid)
        if life is None:
            known = mid in self._ended
            self.duplicates += known and kind == "done"
            self.earlier += not known
            self._ended.add(mid)
            return
        self.finished += life.counted
        if life.newer is not None and kind != "cancelled":
            life.start_newer()
            return
        self.superseded += life.newer or 0
        del self._open[mid]
        self._ended.add(mid)

    def _go_on(self, mid: str, kind: str) -> None:
        life = self._open.get(mid)
        if life is None:
            return
        if life.newer is not None:
            self.superseded += life.counted
            life.start_newer()
        elif kind in RAN_AGAIN:
            self.duplicates += life.counted

    def _replace(self, mid: str) -> None:
        life = self._open.get(mid)
        if life is None:
            return
        self.superseded += life.counted
        if life.newer is not None:
            life.start_newer()
        else:
            del self._open[mid]
            self._ended.add(mid)
