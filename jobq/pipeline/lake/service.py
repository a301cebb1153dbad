"""The ingest as a service: rounds until all is read, again and again, until somebody says enough."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from jobq.pipeline.lake import buried, lock
from jobq.pipeline.lake.commit import OVERTAKEN, CommitConflictError
from jobq.pipeline.lake.ingest import Batch, Ingest


class Round(NamedTuple):
    """What one round brought, all its batches together."""

    events: int = 0
    topics: int = 0
    dead: int = 0
    quarantined: int = 0
    batches: int = 0
    lost: Mapping[str, int] = MappingProxyType({})
    remade: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing."""
        return not (self.batches or self.dead)

    def plus(self, batch: Batch) -> Round:
        """The same with one more batch."""
        lost = dict(self.lost)
        for name, number in batch.lost.items():
            lost[name] = lost.get(name, 0) + number
        return self._replace(
            **{batch.table: getattr(self, batch.table) + batch.rows},
            quarantined=self.quarantined + batch.bad,
            batches=self.batches + (batch.rows + batch.bad > 0 or bool(batch.lost or batch.remade)),
            lost=lost,
            remade=(*self.remade, *batch.remade),
        )


def round_of(ingest: Ingest, told: Callable[[Batch], None], enough: Callable[[], bool]) -> Round:
    """Batches until what was there at the last one's begin is read, or `enough` between two of them."""
    found = Round()
    for step in (ingest.events, ingest.topics):
        more, overtaken = True, 0
        while more and not enough():
            try:
                batch = step()
            except CommitConflictError:
                overtaken += 1
                if overtaken >= OVERTAKEN:
                    raise
                continue
            more, found = batch.more, found.plus(batch)
            told(batch)
    if not enough():
        # CommitConflictError: another ingest has just kept them; what it didn't is kept by the next round.
        with suppress(CommitConflictError):
            found = found._replace(
                dead=buried.keep(ingest.lake, ingest.client, ingest.queues(), ingest.tolerating)
            )
    return found


class Ending:
    """Whether to end: set by TERM or INT, asked between batches."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self, *_: Any) -> None:
        """Say so."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep unless it is said meanwhile; whether it was."""
        return self._event.wait(max(0.0, seconds))


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """TERM and INT end the round that is on, between two batches; a second one ends the process as usual."""
    ending = Ending()
    before: dict[int, Any] = {}

    def once(number: int, frame: Any) -> None:
        ending.set()
        signal.signal(number, before[number])

    for number in (int(signal.SIGTERM), int(signal.SIGINT)):
        before[number] = signal.signal(number, once)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def rounds(
    ingest: Ingest, every_s: float | None, told: Callable[[Batch], None], ending: Ending,
    after: Callable[[Round], None], wait_s: float = 0.0,
) -> Iterator[Round]:  # fmt: skip
    """One round, or one every so often until the end is said; `after` each there is upkeep.

    Each holds the lake's lock, so that others get at the lake in between. The first waits `wait_s` for it,
    then LakeBusyError; the later ones for as long as it takes.
    """
    while True:
        began = time.monotonic()
        try:
            with lock.held(ingest.lake, wait_s=wait_s, enough=ending):
                found = round_of(ingest, told, ending)
                after(found)
        except lock.LakeBusyError:
            if wait_s < math.inf:
                raise
            return
        yield found
        if every_s is None or ending.wait(max(lock.PAUSE_S, began + every_s - time.monotonic())):
            return
        wait_s = math.inf
