"""Decides what happens to a Ruby job whose jid is already the mid of a message in its queue.

The job may be the same call, the next run of that call, or a different call, which gets a message of its own. A waiting
message is never replaced, because another process may have changed it since it was read. If an intake crashes before it
settles a claim, the next intake decides again, and may run a duplicate.
"""

from __future__ import annotations

import logging

from jobq.client.numbered_calls import Caller
from jobq.errors import CodecError
from jobq.jobs.signing import Seal, opened
from jobq.protocols.ruby.job_format import Arrival, call_of
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue.queue import EnqueueOptions, Queue

logger = logging.getLogger("jobq")
TRIES = 5


class DuplicateJids:
    """Resolves conflicts between the jids of jobs from `ruby_queue` and the mids in the jobq queue `queue`."""

    def __init__(self, ruby_queue: RubyQueueName, queue: Queue, seal: Seal | None) -> None:
        self._ruby_queue, self._queue, self._seal = ruby_queue, queue, seal

    def apart(self, arrivals: list[tuple[str, Arrival]]) -> list[tuple[str, Arrival]]:
        """If different calls have the same mid, give them different mids. Drop repeated calls."""
        by_mid: dict[str, tuple[str, Arrival]] = {}
        for own, arrival in arrivals:
            known = by_mid.get(arrival.mid)
            if known is None:
                by_mid[arrival.mid] = own, arrival
            elif call_of(known[1].content) == call_of(arrival.content):
                self._log_repeated(arrival.mid)
            else:
                self._warn(arrival.mid, own)
                by_mid[own] = own, arrival._replace(mid=own)
        return list(by_mid.values())

    def settle(self, own: str, arrival: Arrival, sealed: bytes, sealed_as_own: bytes) -> None:
        """Ensure that the job in `arrival` runs although its mid is in use. Repeated calls have no effect."""
        mid, plain = arrival.mid, arrival.content
        options: EnqueueOptions = {}
        if arrival.key:
            options = {"key": arrival.key, "ordered": arrival.ordered}
        caller = Caller()
        caller.id = own
        for _ in range(TRIES):
            answer = self._compared(mid, plain)
            if answer == "one":
                self._log_repeated(mid)
                return
            if answer == "another":
                break
            # Not on_conflict="replace": the waiting message may be another call.
            again: EnqueueOptions = {**options, "on_conflict": "requeue"}
            if self._queue.enqueue(sealed, mid=mid, caller=caller, **again).action != "exists":
                return
        self._warn(mid, own)
        self._queue.enqueue(sealed_as_own, mid=own, caller=caller, **options)

    def _compared(self, mid: str, plain: bytes) -> str:
        """Return 'one' if the same call waits, 'another' if a different call uses the mid, or else 'next'."""
        word = self._queue.status(mid).word
        waits = word.endswith("-with-requeue")
        if word == "nil" or (word.startswith("done") and not waits):
            return "next"
        stored = self._stored("requeue" if waits else "messages", mid)
        if stored is None:
            return "next"
        if waits:
            stored = stored.partition(b":")[2]
        if self._call_of(mid, stored) != call_of(plain):
            return "another"
        return "next" if word == "locked" else "one"

    def _stored(self, name: str, mid: str) -> bytes | None:
        """Return a message's field in the hash `name` of the queue or one of its partitions."""
        for place in (self._queue, *self._queue.partitions()):
            stored: bytes | None = place.client.command("HGET", f"{place.prefix}{name}", mid)
            if stored is not None:
                return stored
        return None

    def _call_of(self, mid: str, stored: bytes) -> bytes:
        try:
            return call_of(opened(self._seal, self._queue.name, mid, stored))
        except CodecError:
            return stored

    def _log_repeated(self, mid: str) -> None:
        logger.info(
            "%s: jid %s was pushed again before its first run, so it runs only once",
            self._ruby_queue,
            mid,
        )

    def _warn(self, mid: str, own: str) -> None:
        logger.warning(
            "%s: jid %s is already used by a job with another class or other arguments; this job runs as %s",
            self._ruby_queue, mid, own,
        )  # fmt: skip
