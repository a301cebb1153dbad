"""The relay reads rows of the outbox in the order of their numbers, enqueues them, and deletes them.

Rows are deleted after the server has accepted their messages. If the relay, the server or the database dies before
that, the rows are sent again with the same mids. The server rejects a mid while its message waits or runs, and for a
day after the message is done, so the message doesn't run twice.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jobq.client.clock import Reminder, wall
from jobq.client.connection import Client
from jobq.errors import (
    ConfigError,
    JobqError,
    KeyFullError,
    NotDurableError,
    ScriptError,
    ServerFullError,
    UnavailableError,
)
from jobq.jobs.queues import QueueLike, queue_of
from jobq.outbox.rows import DAY_S, BadRowError, StoredRow
from jobq.outbox.tables import NOTIFIED_POLL_S, PIECE_S, Backlog, OutboxTable, RawRow, Refused
from jobq.queue.routing import PartlyAcceptedError, refusal_in

logger = logging.getLogger("jobq.outbox")
BATCH = 500
#: Pauses between attempts while a server is unavailable.
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
#: Pause between sweeps that leave rows in the outbox.
LEFT_PAUSE_S = 1.0
#: Errors of one row, or of similar rows. Such a row stays, and other rows are still sent.
_OF_ROW = (ConfigError, ScriptError)
#: After this many errors, the queue's other rows in this batch also stay, because each costs a call.
MAX_OF_ROWS = 20
#: Errors of a queue's node, on a Cluster.
_OF_NODE = (UnavailableError, ServerFullError)
_MAX_WHY_LENGTH = 1_000


@dataclass(frozen=True)
class RelayOptions:
    """Settings of a relay.

    Attributes:
        dedupe_s: Seconds for which the server rejects the mid of a done message.
        poll_s: Seconds between two reads of the table.
        limit: Maximum number of rows per batch.
        count_s: Seconds between two counts of waiting rows, for metrics; 0 turns counting off.
    """

    dedupe_s: float = DAY_S
    poll_s: float = 0.2
    limit: int = BATCH
    count_s: float = 0.0


@dataclass
class RelayTotals:
    """Counters of a relay since its start.

    Attributes:
        left: Number of rows that could not be sent, summed over all batches.
        errors: Number of batches that failed for one or more queues.
        well_at: Epoch time in seconds of the last successful batch.
    """

    sent: int = 0
    failed: int = 0
    left: int = 0
    errors: int = 0
    well_at: float = 0.0


class Relay:
    """Enqueues the rows of one outbox. It stops after a batch if `ending` returns True."""

    def __init__(
        self,
        table: OutboxTable,
        client: Client,
        options: RelayOptions | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._table, self._client = table, client
        self.options = options or RelayOptions()
        self._ending = ending
        self.totals = RelayTotals()
        #: The last row that this sweep has read, if rows stay in the outbox.
        self._after = 0
        self._left = False
        #: Lines of keys in which a row stayed; later rows of these lines wait until the next sweep.
        self._stopped: set[tuple[str, str]] = set()
        #: Queues that reject messages for now, with the reason; their rows wait until the next sweep.
        self._closed: dict[str, JobqError] = {}
        self._trouble = ""
        self._reminder = Reminder()
        #: When the loop last made progress, by time.monotonic().
        self.turned_at = time.monotonic()
        #: The last count of waiting rows; None if they aren't counted.
        self.waiting: Backlog | None = None
        self._count_at = 0.0

    @property
    def trouble(self) -> str:
        """Return why rows can't be sent; '' if they can be sent."""
        return self._trouble

    def run(self, *, once: bool = False) -> None:
        """Relay rows until `ending` returns True.

        Args:
            once: Whether to stop after one pass over all rows, and to raise errors.
        """
        pause_s = MIN_PAUSE_S
        try:
            while not self._ending():
                try:
                    more, closed = self.round(), list(self._closed.values())
                    self._note_trouble(str(closed[-1]) if closed else "")
                    self._count_waiting()
                    if not more:
                        self._closed.clear()
                    if not more and once and closed:
                        raise closed[-1]
                    if not more and once:
                        return
                    if not more:
                        self._wait()
                    pause_s = MIN_PAUSE_S
                except JobqError as error:
                    if once:
                        raise
                    self._note_trouble(str(error))
                    self._sleep(pause_s)
                    pause_s = min(MAX_PAUSE_S, pause_s * 2)
        finally:
            self._table.close()

    def round(self) -> bool:
        """Relay one batch of rows; return whether there may be more rows.

        If an error stops the batch, raise the error. Unsent rows stay in the table.
        """
        self.turned_at = time.monotonic()
        rows = self._table.batch(self._after, self.options.limit)
        sent: list[int] = []
        refused: list[Refused] = []
        trouble: JobqError | None = None
        try:
            for number in self._sending(rows, refused):
                sent.append(number)
        except JobqError as error:
            trouble = error
        if rows:
            self._table.settle(sent, refused, wall.ms())
        self._count(rows, sent, refused)
        if trouble is not None:
            raise trouble
        self.totals.well_at = time.time()
        if len(rows) < self.options.limit:
            self._after = 0
            self._stopped.clear()
            return False
        self._after = rows[-1].number if self._left else 0
        return True

    def backlog(self) -> Backlog:
        """Count waiting rows."""
        return self._table.backlog(wall.ms())

    def _count_waiting(self) -> None:
        now = time.monotonic()
        if self.options.count_s and now >= self._count_at:
            self.waiting = self.backlog()
            self._count_at = now + self.options.count_s

    def _count(
        self, rows: Sequence[RawRow], sent: Sequence[int], refused: Sequence[Refused]
    ) -> None:
        left = len(rows) - len(sent) - len(refused)
        # Whether any batch of this sweep left rows. A sweep begins with the first row.
        self._left = bool(left) or (self._left and self._after > 0)
        self.totals.sent += len(sent)
        self.totals.failed += len(refused)
        self.totals.left += left
        for row, why in refused:
            logger.error("row %s of the outbox (mid %s) was rejected: %s", row.number, row.mid, why)

    def _sending(self, rows: Sequence[RawRow], refused: list[Refused]) -> Iterator[int]:
        """Send rows to their queues. Yield the number of each row that a queue accepted."""
        queues: dict[str, list[StoredRow]] = defaultdict(list)
        for raw in rows:
            try:
                row = StoredRow(*raw)
            except BadRowError as error:
                refused.append(Refused(raw, str(error)[:_MAX_WHY_LENGTH]))
            else:
                queues[row.queue].append(row)
        now = wall.ms()
        for name, stored in queues.items():
            if name in self._closed:
                continue
            wrong = list[JobqError]()
            declared = (row.options.partitions for row in stored)
            queue = queue_of(name, self._client, next(filter(None, declared), None))
            groups = groupby(stored, lambda row: row.sending(now, self.options.dedupe_s))
            try:
                for options, group in groups:
                    yield from self._together(queue, list(group), options, wrong)
                    if len(wrong) >= MAX_OF_ROWS:
                        break
            except (NotDurableError, *_OF_NODE) as error:
                # Accepted rows stay, and are sent again under the same mids, which confirms them.
                if isinstance(error, _OF_NODE) and not self._client.is_cluster:
                    raise
                self._closed[name] = error

    def _together(
        self,
        queue: QueueLike,
        rows: Sequence[StoredRow],
        options: dict[str, Any],
        wrong: list[JobqError],
    ) -> Iterator[int]:
        """Send rows with the same options in one call.

        If the server rejects the call, send each row in a separate call. If only one key has too many waiting messages,
        do this only for rows with that key. Accepted rows aren't sent again.
        """
        left = [row for row in rows if _line(row) not in self._stopped]
        while left:
            try:
                _send(queue, left, options)
            except JobqError as error:
                refusal = refusal_in(error)
                if not isinstance(refusal, (KeyFullError, *_OF_ROW)):
                    raise
                accepted: set[str] = set()
                if isinstance(error, PartlyAcceptedError):
                    accepted = {done.mid for done in error.accepted} - {*error.mids}
                yield from [row.number for row in left if row.mid in accepted]
                left = [row for row in left if row.mid not in accepted]
                key = refusal.key if isinstance(refusal, KeyFullError) else ""
                alone = [row for row in left if row.options.key == key] if key else left
                yield from self._each(queue, alone, options, wrong)
                left = [row for row in left if row.options.key != key] if key else []
            else:
                yield from [row.number for row in left]
                return

    def _each(
        self,
        queue: QueueLike,
        rows: Sequence[StoredRow],
        options: dict[str, Any],
        wrong: list[JobqError],
    ) -> Iterator[int]:
        """Send each row in a separate call."""
        for row in rows:
            if _line(row) in self._stopped:
                continue
            try:
                _send(queue, [row], options)
            except (KeyFullError, *_OF_ROW) as error:
                is_full = isinstance(error, KeyFullError)
                if not is_full:
                    wrong.append(error)
                if is_full or row.line:
                    self._stopped.add(_line(row))
                if self._reminder.is_due(str(error)):
                    logger.warning(
                        "row %s of the outbox (%s) was not enqueued yet: %s",
                        row.number,
                        row.mid,
                        error,
                    )
                if len(wrong) >= MAX_OF_ROWS:
                    return
            else:
                yield row.number

    def _wait(self) -> None:
        poll_s = self.options.poll_s
        if self._left:
            self._sleep(max(poll_s, LEFT_PAUSE_S))
            return
        if self._table.notifies:
            poll_s = max(poll_s, NOTIFIED_POLL_S)
        self._sleep(poll_s, self._table.wait)

    def _sleep(self, seconds: float, wait: Callable[[float], object] = time.sleep) -> None:
        """Sleep in short steps, so that a stop request is noticed soon. A signal doesn't interrupt a step."""
        deadline = self.turned_at = time.monotonic()
        deadline += seconds
        while not self._ending() and (left := deadline - time.monotonic()) > 0:
            if wait(min(PIECE_S, left)):
                return

    def _note_trouble(self, trouble: str) -> None:
        if trouble:
            self.totals.errors += 1
            if not self._trouble:
                logger.warning("the relay stopped, and rows stay in the outbox: %s", trouble)
        elif self._trouble:
            logger.info("the relay continues")
        self._trouble = trouble


def _send(queue: QueueLike, rows: Sequence[StoredRow], options: dict[str, Any]) -> None:
    contents: list[Any] = [
        (row.mid, row.content, row.options.key) if row.options.key else (row.mid, row.content)
        for row in rows
    ]
    queue.enqueue_many(contents, **options)


def _line(row: StoredRow) -> tuple[str, str]:
    return row.queue, row.options.key or ""
