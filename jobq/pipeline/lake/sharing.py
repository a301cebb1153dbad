"""How a batch is shared out: small ranges together, large ones in parts that run beside one another.

Nobody knows the id of the millionth entry without walking there, so a large range is cut by time, which ids
tell. A part that turns out larger than its limit ends early; what was read behind it doesn't count then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from jobq.config import ServerSettings
from jobq.pipeline import offsets
from jobq.pipeline.decode import Bounds
from jobq.pipeline.lake.portion import Answer, Portion, Read, Stretch
from jobq.pipeline.lake.store import Store
from jobq.pipeline.offsets import Range, Tail

#: Entries that a task is made for.
ENTRIES = 100_000
#: How much more than that a part may hold before it is cut.
SLACK = 3
_LAST = 2**64 - 1


class Done(NamedTuple):
    """What was read of one range, in the order of the stream."""

    reads: tuple[Read, ...]

    @property
    def entries(self) -> int:
        """How many entries."""
        return sum(read.entries for read in self.reads)

    @property
    def last_id(self) -> str:
        """The last one's id; empty without any."""
        return next((read.last_id for read in reversed(self.reads) if read.entries), "")


def portions(
    table: str, settings: ServerSettings, store: Store, ranges: Sequence[Range],
    tails: Mapping[str, Tail], size: int = ENTRIES, bounds: Bounds | None = None,
) -> list[Portion]:  # fmt: skip
    """Tasks for the ranges: each of about `size` entries."""
    found: list[Portion] = []
    waiting: list[Stretch] = []
    entries = 0
    for one in sorted(ranges, key=_count):
        if _count(one) > size:
            parts = _parts(one, tails[one.queue], size)
            found += [Portion(table, settings, store, (part,), bounds) for part in parts]
            continue
        waiting += _whole(one)
        entries += _count(one)
        if entries >= size:
            found.append(Portion(table, settings, store, tuple(waiting), bounds))
            waiting, entries = [], 0
    return found + ([Portion(table, settings, store, tuple(waiting), bounds)] if waiting else [])


def _whole(one: Range) -> list[Stretch]:
    if "-" not in one.upto:
        return _by_index(one, 1)
    return [Stretch(one.queue, one.key, one.after, one.upto, one.limit)]


def _count(one: Range) -> int:
    return one.limit or one.expected


def _parts(one: Range, now: Tail, size: int) -> list[Stretch]:
    count = math.ceil(_count(one) / size)
    if "-" not in one.upto:
        return _by_index(one, count)
    first_id = max(now.first_id, offsets.following(one.after), key=offsets.parsed)
    upto, limit = one.upto, 0
    if one.limit:
        there = max(1, one.expected - max(0, now.dropped - one.start.n))
        low, high = offsets.parsed(first_id)[0], offsets.parsed(one.upto)[0]
        upto = f"{low + (high - low) * one.limit // there}-{_LAST}"
        limit = SLACK * size
    stretches = [
        Stretch(one.queue, one.key, after, end, limit)
        for after, end in offsets.parts(first_id, upto, count)
    ]
    # What came before the first entry there is counts as lost; it is in nobody's stretch.
    return [stretches[0]._replace(after=one.after), *stretches[1:]]


def _by_index(one: Range, count: int) -> list[Stretch]:
    low = offsets.parsed(one.after)[0]
    high = min(int(one.upto), low + one.limit) if one.limit else int(one.upto)
    ends = [low + (high - low) * i // count for i in range(count + 1)]
    return [Stretch(one.queue, one.key, str(a), str(b)) for a, b in pairwise(ends) if b > a]


def gathered(answers: Iterable[Answer]) -> tuple[dict[str, Done], list[Answer], list[Answer]]:
    """By queue what was read without a gap; the answers that hold it, and those that don't count."""
    reads: dict[str, list[Read]] = {}
    cut: set[str] = set()
    kept, dropped = [], []
    for answer in answers:
        names = {read.stretch.name for read in answer.reads}
        if names & cut:
            dropped.append(answer)
            continue
        kept.append(answer)
        for read in answer.reads:
            reads.setdefault(read.stretch.name, []).append(read)
            if read.cut:
                cut.add(read.stretch.name)
    return {name: Done(tuple(found)) for name, found in reads.items()}, kept, dropped
