"""What people and dashboards ask of a queue: look, cancel, pause, collect, revive, clear."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.engine.binding import Binding, checked_mid, moment
from jobq.engine.caller import Caller
from jobq.engine.message import Counts, DeadMessage, Entry, Page, Place, Status, Violation
from jobq.errors import ConfigError
from jobq.events import LEVELS, MAXLENS

#: Most messages in a page.
PAGE = 1_000


class Administration(Binding):
    """The verbs of a queue that no hot path needs."""

    def status(self, mid: str, *, now: int | None = None) -> Status:
        """Where `mid` is in its life."""
        reply = self._run("status", checked_mid(mid), moment(now))
        word, attempts, ncrashes, not_before, lock_at, *texts = reply
        return Status(
            word.decode(), attempts, ncrashes, not_before, lock_at, *(_text(t) for t in texts)
        )

    def counts(self) -> Counts:
        """How many messages are where, in O(1)."""
        *numbers, paused = self._run("counts")
        return Counts._make([*numbers, bool(paused)])

    def content(
        self, place: Place = "ready", offset: int = 0, limit: int = 100, *, now: int | None = None
    ) -> Page:
        """One page of the messages in one place, of at most 1,000."""
        if place not in ("ready", "due", "circle"):
            raise ConfigError(f"place {place!r} is unknown; take 'ready', 'due' or 'circle'")
        _check_page(offset, limit)
        looked_at, *items = self._run("content", place, offset, limit, moment(now))
        entries = [Entry._make([_text(row[0]), _text(row[1]), *row[2:]]) for row in _rows(items, 7)]
        return Page(entries, offset + looked_at if looked_at == limit else None)

    def cancel(self, *mids: str, caller: Caller | None = None, now: int | None = None) -> list[str]:
        """Per mid 'cancelled', or the status that leaves nothing to cancel.

        A running job isn't stopped here: its outcome is refused, and its child hears of it at the next
        renewal of its lease.
        """
        if not mids:
            return []
        args = [moment(now), *(checked_mid(mid) for mid in mids)]
        with self._own(caller) as own:
            return [_text(item) for item in self._call("cancel", own, args)]

    def pause(self) -> None:
        """Hand nothing out until resume; running jobs go on."""
        self._run("pause")

    def resume(self) -> None:
        """End a pause."""
        self._run("resume")

    def collect(
        self, limit: int = 100, *, crash_limit: int = 3, now: int | None = None
    ) -> tuple[int, int]:
        """Promote what is due, recover expired locks, remove done messages: `limit` of each at most.

        Returns how many mids are left in the circle and in due.
        """
        _, circle, due = self._run("collect", moment(now), crash_limit, limit)
        return circle, due

    def dead(self, offset: int = 0, limit: int = 100, *, mid: str = "") -> list[DeadMessage]:
        """One page of the dead, newest first, of at most 1,000; with `mid` the newest of that one only."""
        _check_page(offset, limit)
        return [
            DeadMessage(
                _text(row[0]), _text(row[0]).rpartition("#")[0], int(row[1]), int(row[2]), int(row[3]),
                _text(row[4]), row[5],
            )
            for row in _rows(self._run("dead", mid, offset, limit), 6)
        ]  # fmt: skip

    def revive(
        self, *dead_ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Put dead messages back as new ones: per id 'revived', 'exists' (its mid lives) or 'nil'."""
        if not dead_ids:
            return []
        with self._own(caller) as own:
            return [_text(item) for item in self._call("revive", own, [moment(now), *dead_ids])]

    def purge(self, *dead_ids: str) -> int:
        """Forget dead messages; how many there were."""
        return sum(item == b"purged" for item in self._run("purge", *dead_ids)) if dead_ids else 0

    def clear(self, *, caller: Caller | None = None, now: int | None = None) -> int:
        """Drop every live message; running ones can't finish any more. The dead stay."""
        with self._own(caller) as own:
            return int(self._call("clear", own, [moment(now)])[1])

    def fsck(self) -> list[Violation]:
        """What doesn't hold of the invariants; nothing is mended. Bounded calls, safe while in use."""
        from jobq.engine.fsck import fsck

        return fsck(self)

    def events_level(self, level: str = "") -> str:
        """Set how much the event stream records ('off', 'attempts', 'all'), or ask."""
        if level and level not in LEVELS:
            raise ConfigError(f"event level {level!r} is unknown; take one of {', '.join(LEVELS)}")
        return _text(self._run("level", level, "")[0])

    def events_maxlen(self, length: int | None = None) -> int:
        """Set about how many events the stream keeps, or ask. Fewer than it has: they go as others come."""
        least, most = MAXLENS
        if length is not None and not least <= length <= most:
            raise ConfigError(f"maxlen={length!r} is out of range; take {least:,} to {most:,}")
        return int(self._run("level", "", "" if length is None else length)[1])


def _check_page(offset: int, limit: int) -> None:
    if not 0 <= offset < 2**53 or not 1 <= limit <= PAGE:
        raise ConfigError(f"offset={offset!r}, limit={limit!r}: take 0 or more, and 1 to {PAGE:,}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _rows(items: Sequence[object], width: int) -> list[tuple]:  # type: ignore[type-arg]
    return list(zip(*(iter(items),) * width, strict=True))
