"""What is reported of an attempt that raised: outcome, reason, event columns, result, and a log line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jobq.errors import Dead
from jobq.events import ago_ms, attempt_record, trace_id
from jobq.jobs import failure, log
from jobq.jobs.call import Call
from jobq.jobs.context import Context
from jobq.jobs.decision import Decision, Rules, checked
from jobq.jobs.results import encode_failure
from jobq.queue.types import Ending

#: run_us, cpu_us, rss_kib, worker
Figures = tuple[int, int, int, str]
Stops = Callable[[BaseException], bool]


def failed_ending(
    context: Context, call: Call, error: BaseException, figures: Figures, stops: Stops
) -> Ending:
    """The ending of an attempt that raised `error`. Total: what else raises here leads to the default policy.

    stops(raised): whether that must escape.
    """
    try:
        return _ending(context, call, error, figures, stops)
    except BaseException as broken:
        if stops(broken):
            raise
        # A log handler or an error with broken attributes, say: that too must not cost the message its ending.
        return _plain_ending(call, broken, figures)


def _ending(
    context: Context, call: Call, error: BaseException, figures: Figures, stops: Stops
) -> Ending:
    decision = _decision(context, call, error, stops)
    # The error's traceback leads to frames that hold the context: don't close the circle.
    context.forget_decision()
    message = call.message
    kind, mark = (
        ("", "")
        if decision.outcome == "snooze"
        else (failure.class_name(error), failure.fingerprint(error))
    )
    record = attempt_record(
        call.job.name, message.attempt, ago_ms(call.enqueued_at), *figures, kind, mark,
        len(message.content), trace_id(call.headers),
    )  # fmt: skip
    ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
    if decision.outcome != "dead":
        _log_return(context, error, decision)
        return Ending(outcome=decision.outcome, backoff_ms=round(decision.after_s * 1000), **ending)
    reason = _reason(error, decision.why)
    log.job_logger(context, log.failures).error(
        "%s %s is dead: %s", context.job, context.mid, reason
    )
    if call.job.stores_result:
        ending["result"] = encode_failure(reason.partition("\n")[0], kind)
        ending["result_ttl_ms"] = call.job.result_ttl_ms
    return Ending(outcome="dead", reason=reason, **ending)


def _plain_ending(call: Call, broken: BaseException, figures: Figures) -> Ending:
    decision = Rules(retries=call.job.retries).by_count(call.failures, broken)
    kind, message = failure.class_name(broken), call.message
    record = attempt_record(
        call.job.name, message.attempt, ago_ms(call.enqueued_at), *figures, kind,
        nbytes=len(message.content),
    )  # fmt: skip
    with suppress(Exception):
        log.failures.error(
            "%s %s: its failure can't be described: %s", call.job.name, message.mid, failure.summary(broken)
        )  # fmt: skip
    ending: dict[str, Any] = {"mid": message.mid, "token": message.token, "record": record}
    if decision.outcome == "dead":
        return Ending(outcome="dead", reason=failure.summary(broken), **ending)
    return Ending(outcome="retry", backoff_ms=round(decision.after_s * 1000), **ending)


def _decision(context: Context, call: Call, error: BaseException, stops: Stops) -> Decision:
    try:
        return checked(context.decide(error))
    except BaseException as broken:
        if stops(broken):
            raise
        # A broken policy must not cost the message its ending: the default ones don't break.
        log.job_logger(context, log.failures).exception(
            "the retry rules of %s failed; %s ends by the default policy", context.job, context.mid
        )
        return Rules(retries=call.job.retries).by_count(call.failures, error)


def _reason(error: BaseException, why: str) -> str:
    if isinstance(error, Dead) and error.__cause__ is None:
        return failure.clean(error.reason)[: failure.MAX_TEXT // 4]
    return failure.reason(error, why)


def _log_return(context: Context, error: BaseException, decision: Decision) -> None:
    logger = log.job_logger(context, log.failures)
    if decision.outcome == "snooze":
        logger.debug("%s %s snoozes %.1f s", context.job, context.mid, decision.after_s)
    else:
        what = failure.summary(error)
        logger.warning(
            "%s %s attempt %d failed: %s; again in %.1f s",
            context.job, context.mid, context.attempt, what, decision.after_s,
        )  # fmt: skip
