"""Report errors and traces to Sentry: a middleware, and hooks at a child's start and end.

Reporting is active if the program has initialised sentry_sdk. A worker's children also report if SENTRY_DSN is set.
This requires the extra `sentry`. The producer's trace continues in the job. Arguments of jobs are never sent. Local
variables, which may contain arguments, are sent only if the program enables that.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jobq import extras
from jobq.errors import Dead, JobAborted, JobTimeout, Snooze
from jobq.jobs.context import Context
from jobq.jobs.crashes import ChildDeath, CrashReport, MonitorListener
from jobq.jobs.job import Outgoing
from jobq.jobs.middleware import everywhere
from jobq.jobs.results import Receipt

FLUSH_S = 2.0
#: Causes of death to report. A child that exits with a code has logged the reason.
REPORTED = ("signal", "memory", "hard_timeout")
_ON_PURPOSE = (Dead, Snooze, JobAborted, KeyboardInterrupt, GeneratorExit)


class SentryMiddleware:
    """Creates spans around enqueues and runs, and sends an event to Sentry when an error dead-letters a message.

    Attributes:
        capture_retries: Send an event for each failed attempt, instead of only for the last attempt.
        propagate_traces: If false, each job starts a new trace.
        local_variables: Send local variables of stack frames if the SDK's `include_local_variables` is also set;
            otherwise they are removed from events of attempts, because they contain the job's arguments.
        monitor_crons: Send a check-in for each scheduled call. Sentry creates a monitor for each schedule.
    """

    def __init__(
        self,
        *,
        capture_retries: bool = False,
        propagate_traces: bool = True,
        local_variables: bool = False,
        monitor_crons: bool = False,
    ) -> None:
        self.capture_retries = capture_retries
        self.propagate_traces = propagate_traces
        self.local_variables = local_variables
        self.monitor_crons = monitor_crons

    def enqueue(
        self, outgoing: Outgoing, next: Callable[[Outgoing], list[Receipt[Any]]]
    ) -> list[Receipt[Any]]:
        """Enqueue messages within a `queue.publish` span, and add the trace to the messages' headers."""
        if not is_active():
            return next(outgoing)
        from jobq.observe import sentry_spans

        with sentry_spans.publishing(outgoing) as published:
            if self.propagate_traces:
                for name, value in sentry_spans.trace_headers().items():
                    outgoing.headers.setdefault(name, value)
            receipts = next(outgoing)
            published(outgoing, receipts)
        return receipts

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Run one attempt of a sync job in a separate scope and transaction."""
        if not is_active():
            return next()
        with self._attempt(context):
            return next()

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async job; see `run`."""
        if not is_active():
            return await next()
        with self._attempt(context):
            return await next()

    @contextmanager
    def _attempt(self, context: Context) -> Iterator[None]:
        import sentry_sdk

        from jobq.observe import sentry_crons, sentry_spans

        raised: BaseException | None = None
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, context)
            if not self.local_variables:
                scope.add_event_processor(_without_variables)
            headers = context.headers if self.propagate_traces else {}
            check_in = sentry_crons.checking_in(context) if self.monitor_crons else None
            with sentry_spans.processing(context, headers) as ended:
                try:
                    yield
                except BaseException as error:  # passed on below, once the spans have their status
                    raised = error
                    ended("aborted" if _on_purpose(error) else "internal_error")
                    self._report(context, error)
            if check_in and _is_final(context, raised):
                check_in("error" if raised else "ok")
        if raised is not None:
            raise raised

    def _report(self, context: Context, error: BaseException) -> None:
        import sentry_sdk
        from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

        with capture_internal_exceptions():
            if _on_purpose(error) or not (
                self.capture_retries or context.decide(error).outcome == "dead"
            ):
                return
            event, hint = event_from_exception(
                error,
                client_options=sentry_sdk.get_client().options,
                mechanism={"type": "jobq", "handled": False},
            )
            if isinstance(error, JobTimeout):
                event["fingerprint"] = ["jobq", "JobTimeout", context.job]
            sentry_sdk.capture_event(event, hint=hint)


class CrashEvents(MonitorListener):
    """Sends an event to Sentry for each killed child, and for each message that a crash dead-lettered.

    Runs in a worker's monitor process.
    """

    def start(self, pool: Any) -> None:
        """Initialise the SDK in the monitor process."""
        start()

    def died(self, death: ChildDeath) -> None:
        """Report that a child was killed by a signal, because of its memory use, or at a hard timeout."""
        if death.cause in REPORTED:
            _capture(death.how, {}, death, {}, ["jobq", "death", death.cause])

    def crashed(self, report: CrashReport) -> None:
        """Report a crash that dead-lettered a message. Other crashes aren't reported, because the next attempt may
        succeed.
        """
        if report.dead:
            text = f"{report.job} {report.mid} is dead: {report.death.how}"
            known = {name: getattr(report, name) for name in ("job", "mid", "attempt", "queue")}
            fingerprint = ["jobq", "crash", report.job, report.death.cause]
            _capture(text, known, report.death, report.headers, fingerprint)
            if is_active() and _watches_crons():
                from jobq.observe import sentry_crons

                sentry_crons.close(report.headers, report.queue, report.mid)

    def stop(self) -> None:
        """Send pending events."""
        finish()


#: Joins the middleware of every job once sentry_sdk is imported.
middleware = SentryMiddleware()


def is_active() -> bool:
    """Return whether this program has initialised the SDK."""
    sdk = sys.modules.get("sentry_sdk")
    return sdk is not None and bool(sdk.get_client().is_active())


def is_wanted() -> bool:
    """Return whether a worker's processes should report to Sentry."""
    return is_active() or bool(os.environ.get("SENTRY_DSN"))


def start(environ: Mapping[str, str] | None = None) -> bool:
    """Initialise the SDK in a child, before its first job, if SENTRY_DSN is set. Return whether the SDK is active.

    The SDK reads its settings from SENTRY_DSN and other environment variables.
    """
    dsn = (os.environ if environ is None else environ).get("SENTRY_DSN")
    if not dsn and not is_active():
        return False
    try:
        import sentry_sdk
    except ImportError:
        _warn_of_missing_sdk()
        return False
    if is_active():
        _renew_transport()
    else:
        sentry_sdk.init(dsn, include_local_variables=False)
    _attach()
    return True


def finish(timeout: float = FLUSH_S) -> None:
    """Send pending events before a child exits."""
    if is_active():
        sys.modules["sentry_sdk"].flush(timeout=timeout)


def _capture(
    text: str,
    known: Mapping[str, Any],
    death: ChildDeath,
    headers: Mapping[str, str],
    fingerprint: list[str],
) -> None:
    if not is_active():
        return
    import sentry_sdk

    tags = {f"jobq.{name}": value for name, value in known.items()} | {"jobq.cause": death.cause}
    figures = {
        name: getattr(death, name) for name in ("worker", "pid", "cause", "rss_kib", "cpu_s")
    }
    with sentry_sdk.isolation_scope():
        sentry_sdk.continue_trace(dict(headers))
        sentry_sdk.capture_event(
            {
                "level": "error", "logentry": {"formatted": text}, "fingerprint": fingerprint,
                "tags": tags, "contexts": {"jobq": {**known, **figures}},
            }
        )  # fmt: skip


def _watches_crons() -> bool:
    return any(
        isinstance(layer, SentryMiddleware) and layer.monitor_crons for layer in everywhere.layers
    )


def _attach() -> None:
    from sentry_sdk.integrations.logging import ignore_logger

    # The middleware reports failures with their trace; their log lines would duplicate the event.
    ignore_logger("jobq.job")
    if not any(isinstance(layer, SentryMiddleware) for layer in everywhere.layers):
        everywhere.add(middleware)


def _renew_transport() -> None:
    import sentry_sdk
    from sentry_sdk.transport import make_transport

    # The parent sends what was pending at the fork. A copy of its queue would send it twice, and would wait
    # for a thread that only the parent has.
    client = sentry_sdk.get_client()
    client.transport = make_transport(client.options)


def _describe(scope: Any, context: Context) -> None:
    scope.clear_breadcrumbs()
    for name in ("job", "mid", "attempt", "queue"):
        scope.set_tag(f"jobq.{name}", getattr(context, name))
    names = (
        "job",
        "mid",
        "attempt",
        "max_attempts",
        "queue",
        "enqueued_at",
        "generation",
        "worker",
    )
    scope.set_context("jobq", {name: getattr(context, name) for name in names})


def _without_variables(event: Any, hint: Any) -> Any:
    for part in (event, *_values(event, "exception"), *_values(event, "threads")):
        for frame in (part.get("stacktrace") or {}).get("frames") or ():
            frame.pop("vars", None)
    return event


def _values(event: Any, name: str) -> list[Any]:
    return [value for value in (event.get(name) or {}).get("values") or () if value]


def _on_purpose(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    cancelled = asyncio is not None and isinstance(error, asyncio.CancelledError)
    return cancelled or isinstance(error, _ON_PURPOSE)


def _is_final(context: Context, error: BaseException | None) -> bool:
    if error is None or isinstance(error, Dead):
        return True
    return not _on_purpose(error) and context.decide(error).outcome == "dead"


def _warn_of_missing_sdk() -> None:
    logging.getLogger("jobq.observe").warning(
        "SENTRY_DSN is set, but sentry_sdk is not installed: %s", extras.install("sentry")
    )
