"""Creates and logs an `Ending` for each failed attempt, and for each message that this process can't run.

An `Ending` has the outcome, the reason why a message is dead, the event's columns and the result to store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobq.errors import Dead, shortened
from jobq.events import ago_ms, attempt_record, in_utc, trace_id
from jobq.jobs.context import Call, Context, failure_log, job_logger
from jobq.jobs.failure import (
    class_name,
    clean,
    fingerprint,
    one_column,
    place,
    summary,
    traceback_text,
)
from jobq.jobs.failure import reason as error_reason
from jobq.jobs.results import encode_failure, ended
from jobq.jobs.retry import Decision, Rules, checked
from jobq.queue.types import Ending, Message, OutcomeWord

#: Figures of a run: run_us, cpu_us, rss_kib, worker.
Figures = tuple[int, int, int, str]
Stops = Callable[[BaseException], bool]
#: Maximum length of the reason in a `Dead` that a job raises.
MAX_VERDICT = 1_024
#: After this many different names, each message with a new name is logged as a warning.
MAX_NAMES = 1_000


@dataclass(frozen=True)
class UnknownJobs:
    """How long to retry messages whose job isn't registered here, in seconds.

    Each wait is twice as long as the previous wait, from 1 s to `longest_wait_s`. Once the waits add up to `for_s`, the
    message is dead-lettered. These retries don't count as attempts of the job.
    """

    longest_wait_s: float = 60.0
    for_s: float = 900.0

    def wait_s(self, times: int) -> float | None:
        """Return the next wait in seconds after `times` retries; None if the message must be dead-lettered."""
        waited = 0.0
        for number in range(times):
            waited += self._wait_s(number)
            if waited >= self.for_s:
                return None
        return self._wait_s(times) if self.for_s > 0 else None

    def _wait_s(self, number: int) -> float:
        return float(min(self.longest_wait_s, 2 ** min(number, 40)))


def failed_ending(
    context: Context,
    call: Call,
    error: BaseException,
    figures: Figures,
    stops: Stops,
    traced: bool = True,
) -> Ending:
    """Return the `Ending` of an attempt that raised `error`. If the job's rules also fail, the default policy decides.

    Args:
        stops: Returns whether an error interrupts the attempt; such an error is raised.
        traced: Whether to log and store the error's traceback.
    """
    try:
        return _ending(context, call, error, figures, stops, traced)
    except BaseException as broken:
        if stops(broken):
            raise
        # A log handler or the error's attributes are broken, but the message still needs an ending.
        return _plain_ending(call, broken, figures)


def _ending(
    context: Context, call: Call, error: BaseException, figures: Figures, stops: Stops, traced: bool
) -> Ending:
    decision = _decision(context, call, error, stops)
    # The error's traceback refers to frames that hold the context: avoid a reference cycle.
    context.forget_decision()
    message = call.message
    kind, mark = (
        ("", "")
        if decision.outcome in ("snooze", "hold")
        else (class_name(error), fingerprint(error))
    )
    traced = traced and bool(kind) and not _is_verdict(error)
    record = attempt_record(
        call.job.name, message.attempt, ago_ms(call.enqueued_at), *figures, kind, mark,
        len(message.content), trace_id(call.headers), place(error) if traced else "",
    )  # fmt: skip
    ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
    figured = _figured(call, decision.outcome, figures[0], kind, mark)
    if decision.outcome in ("snooze", "hold"):
        _log_wait(context, decision, figured)
        return Ending(outcome=decision.outcome, backoff=decision.after_s, **ending)
    trace = traceback_text(error) if traced else ""
    if decision.outcome != "dead":
        _log_failure(
            context, logging.WARNING, trace, figured, "%s %s attempt %d failed: %s; retrying in %.1f s",
            context.job, context.mid, context.attempt, summary(error), decision.after_s,
        )  # fmt: skip
        return Ending(outcome=decision.outcome, backoff=decision.after_s, traceback=trace, **ending)
    reason = _reason(error, decision.why, trace)
    _log_failure(
        context, logging.ERROR, trace, figured, "%s %s was dead-lettered: %s",
        context.job, context.mid, reason.partition("\n")[0],
    )  # fmt: skip
    if call.job.settings.remember_s is not None:
        failure = encode_failure(reason.partition("\n")[0], kind)
        ending["result"] = ended(failure, message.attempt)
        ending["result_ttl"] = call.job.settings.remember_s
    return Ending(outcome="dead", reason=reason, **ending)


def _plain_ending(call: Call, broken: BaseException, figures: Figures) -> Ending:
    decision = Rules(retries=call.job.settings.nretries).by_count(call.failures, broken)
    kind, message = class_name(broken), call.message
    record = attempt_record(
        call.job.name, message.attempt, ago_ms(call.enqueued_at), *figures, kind,
        nbytes=len(message.content),
    )  # fmt: skip
    with suppress(Exception):
        failure_log.error(
            "%s %s failed with an error that can't be described: %s", call.job.name, message.mid, summary(broken)
        )  # fmt: skip
    ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
    if decision.outcome == "dead":
        return Ending(outcome="dead", reason=summary(broken), **ending)
    return Ending(outcome="retry", backoff=decision.after_s, **ending)


def _decision(context: Context, call: Call, error: BaseException, stops: Stops) -> Decision:
    try:
        return checked(context.decide(error))
    except BaseException as broken:
        if stops(broken):
            raise
        # The job's policy is broken. The default policy decides, so that the message gets an ending.
        job_logger(context, failure_log).exception(
            "the retry policy of %s failed; the default policy is used for %s",
            context.job,
            context.mid,
        )
        return Rules(retries=call.job.settings.nretries).by_count(call.failures, error)


def _is_verdict(error: BaseException) -> bool:
    """Return whether the job raised `Dead` on purpose, not because of another error."""
    return isinstance(error, Dead) and error.__cause__ is None


def _reason(error: BaseException, why: str, trace: str) -> str:
    if isinstance(error, Dead) and _is_verdict(error):
        return clean(shortened(error.reason))[:MAX_VERDICT]
    return error_reason(error, why, trace)


def _figured(call: Call, outcome: str, run_us: int, kind: str, mark: str) -> dict[str, Any]:
    """Return the additional fields of a failed attempt's log line."""
    # The word that events use.
    word = "snoozed" if outcome in ("snooze", "hold") else outcome
    fields: dict[str, Any] = {"outcome": word, "run_ms": run_us / 1000}
    if call.enqueued_at:
        fields["wait_ms"] = max(0, round(call.age_s * 1000 - run_us / 1000))
    return fields | ({"error": kind} if kind else {}) | ({"fingerprint": mark} if mark else {})


def _log_wait(context: Context, decision: Decision, figured: dict[str, Any]) -> None:
    text = (
        "%s %s was snoozed for %.1f s"
        if decision.outcome == "snooze"
        else "%s %s held its key for %.1f s"
    )
    logger = job_logger(context, failure_log)
    logger.debug(text, context.job, context.mid, decision.after_s, extra=figured)


def _log_failure(
    context: Context, level: int, trace: str, figured: dict[str, Any], text: str, *values: object
) -> None:
    """Log a failed attempt. Formatters show `trace` in the same way as an exception's traceback."""
    if not failure_log.isEnabledFor(level):
        return
    _, given = job_logger(context, failure_log).process(text, {"extra": figured})
    record = failure_log.makeRecord(
        failure_log.name, level, __file__, 0, text, values, None, extra=given["extra"]
    )
    record.exc_text = trace or None
    failure_log.handle(record)


class Unrunnable:
    """Creates an `Ending` for each message that this process can't run, such as a message of an unregistered job."""

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
        """Return an `Ending` for a message whose job or envelope version this process doesn't know.

        The message is retried for a while, because workers of a newer release may run it. Then it is dead-lettered.
        """
        record = self._record(message, name, "jobq.errors.JobNotFoundError", headers or {})
        wait_s = self._rules.wait_s(message.unknowns)
        if wait_s is None:
            return self._dead(queue, message, why, record)
        # Log one line per job, not per message: a release may leave thousands of messages.
        level = logging.DEBUG if (queue, name) in self._seen else logging.WARNING
        if len(self._seen) < MAX_NAMES:
            self._seen.add((queue, name))
        failure_log.log(
            level,
            "%s of queue %s: %s Workers that have the job can run its messages for the next %g s",
            message.mid, queue, clean(why), self._rules.for_s,
        )  # fmt: skip
        return Ending(
            mid=message.mid, token=message.token, outcome="unknown",
            backoff=wait_s, record=record,
        )  # fmt: skip

    def expired(self, call: Call, expires_at: int) -> Ending:
        """Return an `Ending` for a message that expired before this attempt started.

        The message isn't run, and isn't dead-lettered.
        """
        why = f"expired at {in_utc(expires_at)}"
        context = Context(call, worker=self._worker)
        job_logger(context, failure_log).info("%s %s %s", context.job, context.mid, why)
        return self._unstarted(call, "expired", why, "expired")

    def too_late(self, call: Call) -> Ending:
        """Return an `Ending` that dead-letters a message whose next retry would start after `retry_within`."""
        why = f"attempt {call.message.attempt} did not run: {call.job.settings.rules.over().why}"
        context = Context(call, worker=self._worker)
        job_logger(context, failure_log).error(
            "%s %s was dead-lettered: %s", context.job, context.mid, why
        )
        return self._unstarted(call, "dead", why, "retry_within")

    def _unstarted(self, call: Call, outcome: OutcomeWord, why: str, kind: str) -> Ending:
        message = call.message
        record = attempt_record(
            call.job.name, message.attempt, ago_ms(call.enqueued_at), 0, 0, 0, self._worker, kind,
            nbytes=len(message.content), trace_id=trace_id(call.headers),
        )  # fmt: skip
        reason, ttl = why if outcome == "dead" else "", call.job.settings.remember_s
        stored: dict[str, Any] = {}
        if ttl is not None:
            failure = ended(encode_failure(why, kind), message.attempt)
            stored = {"result": failure, "result_ttl": ttl}
        return Ending(
            mid=message.mid, token=message.token, outcome=outcome, reason=reason, record=record,
            **stored,
        )  # fmt: skip

    def nothing(self, message: Message) -> Ending:
        """Return an `Ending` with the outcome `done` for an on_dead message, if there is no function to call."""
        record = self._record(message, "jobq.on_dead", "", {})
        return Ending(mid=message.mid, token=message.token, record=record)

    def broken(self, queue: str, message: Message, error: Exception) -> Ending:
        """Return an `Ending` for a message that couldn't be read because of an unexpected error.

        The message is retried for a while, and then dead-lettered.
        """
        why = f"it could not be read: {summary(error)}"
        record = self._record(message, "", class_name(error), {})
        with suppress(Exception):
            failure_log.error("%s of queue %s: %s", message.mid, queue, why, exc_info=error)
        ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
        wait_s = self._rules.wait_s(message.unknowns)
        if wait_s is None:
            return Ending(outcome="dead", reason=why, **ending)
        return Ending(outcome="unknown", backoff=wait_s, **ending)

    def unreadable(self, queue: str, message: Message, why: str) -> Ending:
        """Return an `Ending` that dead-letters an undecodable message."""
        record = self._record(message, "", "jobq.errors.CodecError", {})
        return self._dead(queue, message, why, record)

    def _dead(self, queue: str, message: Message, why: str, record: str) -> Ending:
        why = clean(why)
        failure_log.error("%s of queue %s was dead-lettered: %s", message.mid, queue, why)
        return Ending(
            mid=message.mid, token=message.token, outcome="dead", reason=why, record=record
        )

    def _record(self, message: Message, name: str, kind: str, headers: Mapping[str, str]) -> str:
        return attempt_record(
            one_column(name), message.attempt, 0, 0, 0, 0, self._worker, kind,
            nbytes=len(message.content), trace_id=trace_id(headers),
        )  # fmt: skip
