"""Data from the lake about the time before this dashboard started, and about deleted messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from msgspec import structs

from jobq.errors import LakeError
from jobq.observe.chart import Mark
from jobq.observe.why import MessageFacts
from jobq.web.contents import Contents
from jobq.web.history import PastPoint, RunRow, Span
from jobq.web.lake import LakeHistory
from jobq.web.site import Site
from jobq.web.sources import sources_of

#: Ranges in seconds, beyond a dashboard's day, that need a lake.
LONG_RANGES = {"7d": 604_800, "30d": 2_592_000}
#: How long an answer is reused, in seconds: for a range of up to a day, and for a longer range.
KEPT_S, LONG_KEPT_S = 60.0, 300.0
MAX_KEPT = 100


class Past(NamedTuple):
    """Attempts and deploys in a range.

    Attributes:
        since_s: Time of the lake's oldest event, epoch seconds.
        error: Reason why the lake can't be read, or ''.
    """

    points: Sequence[PastPoint] = ()
    step_s: float = 60.0
    marks: Sequence[Mark] = ()
    since_s: float = 0.0
    error: str = ""


class PastReader:
    """Queries the lake at most once a minute for each queue and range. It is thread-safe."""

    def __init__(self, lake: LakeHistory) -> None:
        self._lake = lake
        self._lock = Lock()
        self._known: dict[tuple[str, str], tuple[float, Past]] = {}

    def past_of(self, word: str, span: Span, queue: str = "") -> Past:
        """Return the attempts and deploys in a range, for one queue or, if `queue` is '', for all queues.

        Args:
            word: Name of the range, such as `24h`.
        """
        asked, now = (word, queue), time.monotonic()
        with self._lock:
            until, known = self._known.get(asked, (0.0, Past()))
            if now < until:
                return known
            try:
                marks = [Mark(mark.at / 1000, mark.name) for mark in self._lake.marks(span)]
                begins_s = self._lake.begins_at() / 1000
                past = Past(self._lake.outcomes(span, queue), span.step / 1000, marks, begins_s)
            except LakeError as error:
                past = Past(error=str(error))
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            kept_s = LONG_KEPT_S if word in LONG_RANGES else KEPT_S
            self._known[asked] = (time.monotonic() + kept_s, past)
            return past


class EarlierLives(NamedTuple):
    """Events of a message that only the lake stores, latest first.

    Attributes:
        error: Reason why the lake can't be read, or ''.
    """

    rows: Sequence[RunRow] = ()
    error: str = ""


def earlier_lives(site: Site, contents: Contents, facts: MessageFacts) -> EarlierLives | None:
    """Return the events of a message that only the lake stores. Return None without a lake."""
    lake = sources_of(site).lake
    if lake is None:
        return None
    here = {(event.kind, event.finished_at) for event in facts.history}
    try:
        message = lake.message(facts.queue, facts.mid)
    except LakeError as error:
        return EarlierLives(error=str(error))
    rows = [row for row in message if (row.kind, row.at) not in here]
    return EarlierLives(
        [
            structs.replace(row, error=contents.error(row.error, row.job or facts.job))
            for row in rows
        ]
    )


def past_of(site: Site, word: str, since_s: float, until_s: float, queue: str = "") -> Past | None:
    """Return the lake's data for a range; None without a lake."""
    lake = sources_of(site).lake
    if lake is None:
        return None
    reader = site.part(PastReader, lambda _: PastReader(lake))
    return reader.past_of(word, Span(round(since_s * 1000), round(until_s * 1000)), queue)
