"""Check a queue against its invariants, a bounded stretch at a time, while it runs.

A mid seen in two places is looked at again before it is reported, since messages move between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobq.engine.binding import Binding
from jobq.engine.message import Violation

#: Mids looked at in one call, which takes the server well under a millisecond.
LIMIT = 200
STRETCHES = ("totals", "ready", "circle", "due", "done", *(str(n) for n in range(1, 10)))


def fsck(queue: Binding, *, limit: int = LIMIT) -> list[Violation]:
    """Every violation found in one pass; nothing is mended."""
    return [violation for step in steps(queue, limit=limit) for violation in step]


def steps(queue: Binding, *, limit: int = LIMIT) -> Iterator[list[Violation]]:
    """The same pass, one call at a time: for progress bars."""
    first_seen: dict[bytes, str] = {}
    for stretch in STRETCHES:
        cursor: bytes | int = 0
        while True:
            following, nseen, _, *rest = _look(queue, stretch, cursor, limit)
            bad = rest[nseen:]
            found = [
                Violation(r.decode(), m.decode()) for r, m in zip(bad[::2], bad[1::2], strict=True)
            ]
            yield found + list(_twice(queue, stretch, rest[:nseen], first_seen, limit))
            if following == b"0":
                break
            cursor = following


def _look(queue: Binding, stretch: str, cursor: bytes | int, limit: int) -> Any:
    return queue._run("fsck", stretch, cursor, limit)


def _twice(
    queue: Binding, stretch: str, mids: list[bytes], first_seen: dict[bytes, str], limit: int
) -> Iterator[Violation]:
    for mid in mids:
        if first_seen.setdefault(mid, stretch) == stretch and mids.count(mid) == 1:
            continue
        places = _places(queue, mid, limit)
        if places > 1:
            yield Violation("in more than one place", mid.decode())


def _places(queue: Binding, mid: bytes, limit: int) -> int:
    """How many unnoted copies of one mid there are at one moment."""
    counted = 0
    for stretch in ("ready", "circle", "due"):
        cursor: bytes | int = 0
        while True:
            following, nseen, _, *rest = _look(queue, stretch, cursor, limit)
            counted += rest[:nseen].count(mid)
            if following == b"0":
                break
            cursor = following
    return counted
