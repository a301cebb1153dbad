"""In the worker's children: Sidekiq's rules for retries, and how many Ruby jobs ran and failed.

`retry: 5` travels with the message. Here the rest is kept: waits that grow as Sidekiq's do, for jobs that
declare no `retry=` policy of their own, and `retry_for`, the time after the first failure in which to try again.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobq.client.connection import Client
from jobq.durations import DAY_MS
from jobq.errors import JobAborted, JobqError, Outcome
from jobq.jobs.context import Context
from jobq.jobs.retry import LONGEST_S, Decision
from jobq.protocols.ruby.job_format import ORIGIN, epoch_ms, origin
from jobq.protocols.ruby.key_names import System

logger = logging.getLogger("jobq")
_CELLS, _WORDS = 4096, 4
_MOST_COUNT = 10_000


class RubyJobCounts:
    """How many Ruby jobs ran and failed, counted by children in memory made before they were forked."""

    def __init__(self) -> None:
        # Each child has words of shared memory that no other child writes, so that none waits for another.
        self._words = memoryview(mmap.mmap(-1, 8 * _WORDS * _CELLS)).cast("q")

    def add(self, system: System, failed: bool) -> None:
        """One more, by this process."""
        word = _WORDS * (os.getpid() % _CELLS) + 2 * (system == "resque")
        self._words[word] += 1
        self._words[word + 1] += failed

    def totals(self, system: System) -> tuple[int, int]:
        """Ran, and of those failed."""
        words, first = self._words.tolist(), 2 * (system == "resque")
        return sum(words[first::_WORDS]), sum(words[first + 1 :: _WORDS])


class RubyRetries:
    """Middleware; other messages pass untouched. `client`: where first failures are noted."""

    def __init__(self, client: Client, counts: RubyJobCounts) -> None:
        self._client, self._counts = client, counts

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Around a sync job."""
        with self._watched(context):
            return next()

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async job."""
        with self._watched(context):
            return await next()

    @contextmanager
    def _watched(self, context: Context) -> Iterator[None]:
        known = context.headers.get(ORIGIN)
        if known is None:
            yield
            return
        system: System = "resque" if known.startswith("resque ") else "sidekiq"
        try:
            yield
        except (JobAborted, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self._counts.add(system, failed=True)
            found = origin(context.headers)
            if found is not None:
                self._apply_rules(context, error, found[1])
            raise
        self._counts.add(system, failed=False)

    def _apply_rules(self, context: Context, error: BaseException, fields: dict[str, Any]) -> None:
        if isinstance(error, Outcome) or context.decide(error).outcome != "retry":
            return
        window_s = fields.get("retry_for")
        if isinstance(window_s, int | float) and not isinstance(window_s, bool):
            window_s = min(max(0.0, window_s), LONGEST_S)
            began = self._first_failure(context, error, fields, window_s)
            if began + window_s * 1000 < time.time() * 1000:
                why = f"attempt {context.failures}, retry_for of {window_s:g} s is over"
                context.overrule(error, Decision("dead", why=why))
                return
        if fields.get("retry") is not None and not context.own_policy:
            used = fields.get("retry_count")
            count = context.failures - 1 + (used + 1 if type(used) is int else 0)
            context.overrule(error, Decision("retry", wait_s(count)))

    def _first_failure(
        self, context: Context, error: BaseException, fields: dict[str, Any], window_s: float
    ) -> int:
        """Epoch ms; noted once, since a message that is tried again carries nothing new."""
        known = epoch_ms(fields.get("failed_at"))
        if known:
            return known
        now = round(time.time() * 1000)
        key = f"{self._client.namespace}:first-failure:{context.generation}"
        kept_ms = round(window_s * 1000) + DAY_MS
        try:
            self._client.command("SET", key, now, "NX", "PX", kept_ms)
            return int(self._client.command("GET", key) or now)
        except JobqError as unknown:
            # The job's own error is what counts; it is tried once more than it might be.
            logger.warning("%s failed (%r), and when it first failed is unknown: %s",
                           context.mid, error, unknown)  # fmt: skip
            return now


def wait_s(count: int, draw: Callable[[], float] = random.random) -> float:
    """Sidekiq's wait after the `count`-th retry, 0 for the first failure: 15 s, growing to weeks."""
    # A job may say that it was retried any number of times; no queue waits longer than that.
    count = min(max(0, count), _MOST_COUNT)
    return min(float(count**4 + 15 + int(draw() * 10) * (count + 1)), LONGEST_S)
