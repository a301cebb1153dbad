"""Applies Sidekiq's retry rules in a worker's children, and counts Ruby jobs and their failures.

The message itself stores the maximum number of retries. This module has the other rules:

- Waits grow as in Sidekiq, for jobs that don't declare a `retry=` policy.
- `retry_for` limits how long after the first failure a job is retried.
- If `retry_queue` differs from the job's queue, a failed job goes to Sidekiq's retry set.
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

import msgspec

from jobq.client.connection import Client
from jobq.durations import DAY_MS
from jobq.errors import JobAborted, JobqError, Outcome
from jobq.jobs.context import Context
from jobq.jobs.retry import MAX_S, Decision
from jobq.protocols.ruby.job_format import ORIGIN, epoch_ms, origin, retry_queue
from jobq.protocols.ruby.key_names import RubyQueueName, System

logger = logging.getLogger("jobq")
_CELLS, _WORDS = 4096, 4
_MAX_COUNT = 10_000
_MAX_TEXT_LENGTH = 10_000
_write = msgspec.json.Encoder().encode


class RubyJobCounts:
    """Counts of Ruby jobs and their failures, in memory that all children of a worker share."""

    def __init__(self) -> None:
        # Each child has words of shared memory that no other child writes, so that no child waits for another.
        self._words = memoryview(mmap.mmap(-1, 8 * _WORDS * _CELLS)).cast("q")

    def add(self, system: System, failed: bool) -> None:
        """Count an executed job, and whether it failed."""
        word = _WORDS * (os.getpid() % _CELLS) + 2 * (system == "resque")
        self._words[word] += 1
        self._words[word + 1] += failed

    def totals(self, system: System) -> tuple[int, int]:
        """Return the number of executed jobs, and of failed jobs among them."""
        words, first = self._words.tolist(), 2 * (system == "resque")
        return sum(words[first::_WORDS]), sum(words[first + 1 :: _WORDS])


class RubyRetries:
    """Middleware that records the failures of Ruby jobs as Ruby does. Other messages pass unchanged.

    Attributes:
        client: Client for recording first failures.
        ruby: Client of the server with Ruby's keys.
    """

    def __init__(self, client: Client, counts: RubyJobCounts, ruby: Client | None = None) -> None:
        self._client, self._counts, self._ruby = client, counts, ruby or client

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Run a sync job, and record its failure."""
        with self._watched(context):
            return next()

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async job, and record its failure."""
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
            source = origin(context.headers)
            if source is not None:
                retried_in_s = self._apply_rules(context, error, source[1])
                if retried_in_s is not None and self._moved(context, error, source, retried_in_s):
                    return
            raise
        self._counts.add(system, failed=False)

    def _apply_rules(
        self, context: Context, error: BaseException, fields: dict[str, Any]
    ) -> float | None:
        """Apply Ruby's rules. Return the seconds until the job is retried, or None if it isn't retried."""
        if isinstance(error, Outcome):
            return None
        decision = context.decide(error)
        if decision.outcome != "retry":
            return None
        window_s = fields.get("retry_for")
        if isinstance(window_s, int | float) and not isinstance(window_s, bool):
            window_s = min(max(0.0, window_s), MAX_S)
            began = self._first_failure(context, error, fields, window_s)
            if began + window_s * 1000 < time.time() * 1000:
                why = f"attempt {context.failures}, retry_for of {window_s:g} s is over"
                context.overrule(error, Decision("dead", why=why))
                return None
        if fields.get("retry") is None or context.own_policy:
            return decision.after_s
        decision = Decision("retry", wait_s(_retry_count(context, fields)))
        context.overrule(error, decision)
        return decision.after_s

    def _moved(
        self,
        context: Context,
        error: BaseException,
        origin: tuple[RubyQueueName, dict[str, Any]],
        after_s: float,
    ) -> bool:
        """Move the job to Sidekiq's retry set if it names another queue for retries; return whether it was moved."""
        ruby_queue, fields = origin
        queue, count = retry_queue(fields), _retry_count(context, fields)
        if not queue or queue == ruby_queue.queue or ruby_queue.system != "sidekiq":
            return False
        now: float = time.time()
        noted_at = round(now * 1000) if isinstance(fields.get("created_at"), int) else now
        noted = {
            **fields, "queue": queue, "retry_count": count, "error_class": type(error).__name__,
            "error_message": str(error)[:_MAX_TEXT_LENGTH], "failed_at": fields.get("failed_at", noted_at),
        }  # fmt: skip
        if count:
            noted["retried_at"] = noted_at
        try:
            where = ruby_queue.key("retry")
            self._ruby.command("ZADD", where, repr(now + after_s), _write(noted))
        except JobqError as unknown:
            logger.warning(
                "%s will be retried in queue %s, because it could not be added to Sidekiq's retry set: %s",
                context.mid, ruby_queue.queue, unknown,
            )  # fmt: skip
            return False
        logger.warning(
            "%s failed (%r) and was added to Sidekiq's retry set, because its retry_queue is %s",
            context.mid,
            error,
            queue,
        )
        return True

    def _first_failure(
        self, context: Context, error: BaseException, fields: dict[str, Any], window_s: float
    ) -> int:
        """Return the time of the first failure in epoch ms.

        The time is stored in a key of its own, because the message doesn't contain it.
        """
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
            # Don't hide the job's error. One try too many is harmless.
            logger.warning("%s failed (%r), and the time of its first failure can't be read: %s",
                           context.mid, error, unknown)  # fmt: skip
            return now


def _retry_count(context: Context, fields: dict[str, Any]) -> int:
    """Return how often the job was retried before, counted as Sidekiq does."""
    used = fields.get("retry_count")
    return context.failures - 1 + (used + 1 if type(used) is int else 0)


def wait_s(count: int, draw: Callable[[], float] = random.random) -> float:
    """Return Sidekiq's wait in seconds before the next retry after `count` retries: at least 15 s, growing to weeks."""
    # A job may say that it was retried any number of times; no queue waits longer than that.
    count = min(max(0, count), _MAX_COUNT)
    return min(float(count**4 + 15 + int(draw() * 10) * (count + 1)), MAX_S)
