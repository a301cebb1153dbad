"""Messages that no job of this process can run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobq.events import attempt_record, trace_id
from jobq.jobs import log
from jobq.jobs.failure import class_name, clean, one_column, summary
from jobq.queue.types import Ending, Message

#: After this many different names the log stops to tell new ones apart.
MOST_NAMES = 1_000


@dataclass(frozen=True)
class UnknownJobs:
    """How long messages whose job isn't known here are tried again, in seconds.

    Each wait is twice as long as the one before, from 1 s to `longest_wait_s`. Once the waits add up to `for_s`,
    the message is dead. None of that counts as an attempt of the job.
    """

    longest_wait_s: float = 60.0
    for_s: float = 900.0

    def wait_s(self, times: int) -> float | None:
        """How long to wait after the `times`-th such hand-out, from 0; None: no more."""
        waited = 0.0
        for number in range(times):
            waited += self._wait_s(number)
            if waited >= self.for_s:
                return None
        return self._wait_s(times) if self.for_s > 0 else None

    def _wait_s(self, number: int) -> float:
        return float(min(self.longest_wait_s, 2 ** min(number, 40)))


class Absent:
    """The endings of messages that this process can't run."""

    def __init__(self, worker: str, rules: UnknownJobs) -> None:
        self._worker, self._rules = worker, rules
        self._seen: set[tuple[str, str]] = set()

    def ending(
        self,
        queue: str,
        message: Message,
        name: str,
        why: str,
        headers: Mapping[str, str] | None = None,
    ) -> Ending:
        """For a job or an envelope that a newer deploy may know: tried again for a while, then dead."""
        record = self._record(message, name, "jobq.errors.JobNotFoundError", headers or {})
        wait_s = self._rules.wait_s(message.unknowns)
        if wait_s is None:
            return self._dead(queue, message, why, record)
        # One line per job, not per message: a deploy may leave thousands of them.
        level = logging.DEBUG if (queue, name) in self._seen else logging.WARNING
        if len(self._seen) < MOST_NAMES:
            self._seen.add((queue, name))
        log.failures.log(
            level,
            "%s of queue %s: %s Its messages are tried again for %g s, by workers that know it",
            message.mid, queue, clean(why), self._rules.for_s,
        )  # fmt: skip
        return Ending(
            mid=message.mid, token=message.token, outcome="unknown",
            backoff_ms=round(wait_s * 1000), record=record,
        )  # fmt: skip

    def broken(self, queue: str, message: Message, error: Exception) -> Ending:
        """Where reading it fails as it never should, a log handler included: tried again for a while, then dead."""
        why = f"reading it failed: {summary(error)}"
        record = self._record(message, "", class_name(error), {})
        with suppress(Exception):
            log.failures.error("%s of queue %s: %s", message.mid, queue, why, exc_info=error)
        ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
        wait_s = self._rules.wait_s(message.unknowns)
        if wait_s is None:
            return Ending(outcome="dead", reason=why, **ending)
        return Ending(outcome="unknown", backoff_ms=round(wait_s * 1000), **ending)

    def unreadable(self, queue: str, message: Message, why: str) -> Ending:
        """For content that no version reads: dead at once."""
        record = self._record(message, "", "jobq.errors.CodecError", {})
        return self._dead(queue, message, why, record)

    def _dead(self, queue: str, message: Message, why: str, record: str) -> Ending:
        why = clean(why)
        log.failures.error("%s of queue %s is dead: %s", message.mid, queue, why)
        return Ending(
            mid=message.mid, token=message.token, outcome="dead", reason=why, record=record
        )

    def _record(self, message: Message, name: str, kind: str, headers: Mapping[str, str]) -> str:
        return attempt_record(
            one_column(name), message.attempt, 0, 0, 0, 0, self._worker, kind,
            nbytes=len(message.content), trace_id=trace_id(headers),
        )  # fmt: skip
