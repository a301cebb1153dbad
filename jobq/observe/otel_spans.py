"""Spans and metrics that follow OpenTelemetry's conventions for messaging systems.

A span is named `send {queue}` for an enqueue, and `process {queue}` for an attempt. Calls that settle or fetch
messages have no spans, because one call settles many messages and fetches other messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from jobq import __version__
from jobq.client.runtime import runtime
from jobq.errors import HoldKey, JobAborted, Snooze
from jobq.jobs.context import Context
from jobq.jobs.crashes import CrashReport
from jobq.jobs.failure import class_name, summary
from jobq.jobs.job import Outgoing
from jobq.jobs.registry import default_registry
from jobq.jobs.results import Receipt

#: An attempt that starts later than this after its enqueue begins a new trace, which links the enqueuer's.
MAX_WAIT_S = 3600.0
#: Maximum length of the header `baggage` of a message.
MAX_BAGGAGE = 1024
#: Exceptions that end an attempt without a failure.
_DELAYED = (Snooze, HoldKey)
_STOPPED = (JobAborted, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


class Spans:
    """Creates spans with a TracerProvider, and records metrics if there is a MeterProvider."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        provider = tracer_provider or trace.get_tracer_provider()
        self._tracer = provider.get_tracer("jobq", __version__)
        sampler = getattr(provider, "sampler", None)
        described = sampler.get_description() if sampler is not None else ""
        #: Whether the sampler drops all messages whose enqueuer isn't sampled, and all messages without a trace.
        self._drops_unsampled = "remoteParentNotSampled:AlwaysOffSampler" in described
        self._drops_roots = described.startswith("ParentBased{root:AlwaysOffSampler,")
        measured = meter_provider or metrics.get_meter_provider()
        self._figures = TraceMetrics(measured) if _is_real(measured) else None
        self._unsampled = ("", TraceContext())

    def send(
        self, outgoing: Outgoing, next: Callable[[Outgoing], list[Receipt[Any]]]
    ) -> list[Receipt[Any]]:
        """Enqueue messages within a span, and add the span's context to the messages' headers."""
        client = outgoing.job.settings.client or runtime.default
        described = _described(outgoing.queue, "send", "enqueue", outgoing.job.name, client)
        with self._tracer.start_as_current_span(
            f"send {outgoing.queue}", kind=SpanKind.PRODUCER, attributes=described
        ) as span:
            _carry(outgoing.headers)
            try:
                receipts = next(outgoing)
            except BaseException as error:
                span.set_attribute("error.type", class_name(error))
                raise
            if span.is_recording():
                span.set_attribute("messaging.message.body.size", outgoing.size)
                if len(receipts) == 1:
                    span.set_attribute("messaging.message.id", receipts[0].mid)
                else:
                    span.set_attribute("messaging.batch.message_count", len(receipts))
        if self._figures is not None:
            self._figures.sent(outgoing, len(receipts))
        return receipts

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Run one attempt of a sync job within a span."""
        around = self._around(context)
        if around is None:
            return next()
        if isinstance(around, TracedAttempt):
            with around:
                return next()
        token = attach(around)
        try:
            return next()
        finally:
            detach(token)

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async job; see `run`."""
        around = self._around(context)
        if around is None:
            return await next()
        if isinstance(around, TracedAttempt):
            with around:
                return await next()
        token = attach(around)
        try:
            return await next()
        finally:
            detach(token)

    def _around(self, context: Context) -> TracedAttempt | TraceContext | None:
        """Return the attempt's span. For an unsampled attempt, return a trace context, or None if the message has no
        headers.

        Unsampled attempts are handled first, because tracing must not slow down short jobs.
        """
        if self._figures is None:
            headers = context.headers
            if not headers:
                if self._drops_roots:
                    return None
            elif self._drops_unsampled:
                parent = headers.get("traceparent", "")
                if (
                    parent[-3:] == "-00"
                    and "baggage" not in headers
                    and (self._drops_roots or context.continues_trace(MAX_WAIT_S))
                ):
                    known, around = self._unsampled
                    if known != parent:
                        around = trace.set_span_in_context(Unsampled(parent), TraceContext())
                        # Messages of one enqueue have the same.
                        self._unsampled = (parent, around)
                    return around
        return TracedAttempt(self._tracer, self._figures, context)


class TraceMetrics:
    """Records metrics: numbers of messages and durations of attempts."""

    def __init__(self, provider: Any) -> None:
        meter = provider.get_meter("jobq", __version__)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Enqueued messages."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Started attempts."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration", "s", "Run times of attempts.",
            explicit_bucket_boundaries_advisory=[
                0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
            ],
        )  # fmt: skip

    def sent(self, outgoing: Outgoing, number: int) -> None:
        """Count enqueued messages."""
        named = _described(outgoing.queue, "send", "enqueue", outgoing.job.name, None)
        self._sent.add(number, named)

    def consumed(self, context: Context, seconds: float, error: str) -> None:
        """Count a finished attempt.

        Args:
            error: Class of the attempt's error, or '' if there was no error.
        """
        named = _described(context.queue, "process", "process", context.job, None)
        if error:
            named["error.type"] = error
        self._consumed.add(1, named)
        self._duration.record(seconds, named)


class TracedAttempt:
    """The `process` span of one attempt, which is the current span inside the `with` block."""

    __slots__ = ("_context", "_figures", "_span", "_started", "_token")

    def __init__(
        self, tracer: trace.Tracer, figures: TraceMetrics | None, context: Context
    ) -> None:
        self._figures, self._context, self._started = figures, context, time.perf_counter()
        carried, links = _carried(context.headers, context.continues_trace(MAX_WAIT_S))
        self._span = tracer.start_span(
            f"process {context.queue}", carried, SpanKind.CONSUMER, _attributes(context), links
        )
        made = self._span.get_span_context()
        if made.is_valid:
            context.set_trace(f"{made.trace_id:032x}", f"{made.span_id:016x}")
        self._token = attach(trace.set_span_in_context(self._span, carried))

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span, and don't suppress exceptions."""
        detach(self._token)
        context, span = self._context, self._span
        outcome, failed = _outcome(context, error)
        if span.is_recording():
            span.set_attribute("jobq.outcome", outcome)
            if failed:
                span.set_attribute("error.type", failed)
                span.set_status(Status(StatusCode.ERROR, summary(error) if error else None))
                if error is not None:
                    span.record_exception(error)
        span.end()
        if self._figures is not None:
            self._figures.consumed(context, time.perf_counter() - self._started, failed)


class Unsampled(NonRecordingSpan):
    """Represents the unsampled span of an enqueue, so that the job's spans aren't sampled either.

    The ids of the span are read from the message's header only if they are needed.
    """

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    def __repr__(self) -> str:
        return f"<Unsampled {self._traceparent}>"

    def get_span_context(self) -> SpanContext:
        """Return the context of the span in which the job was enqueued."""
        context = propagate.extract({"traceparent": self._traceparent}, TraceContext())
        return trace.get_current_span(context).get_span_context()


def crash_span(report: CrashReport) -> None:
    """Record the `process` span of an attempt whose process died.

    Unless the job has trace="link", the parent is the span in which the job was enqueued.
    """
    job = default_registry.find(report.job)
    continues = job is None or job.settings.trace != "link"
    carried, links = _carried(report.headers, continues)
    attributes = _described(report.queue, "process", "process", report.job, runtime.default) | {
        "messaging.message.id": report.mid,
        "messaging.client.id": report.death.worker,
        "jobq.attempt": report.attempt,
        "jobq.outcome": "dead" if report.dead else "crashed",
        "error.type": report.death.cause,
    }
    span = trace.get_tracer("jobq", __version__).start_span(
        f"process {report.queue}", carried, SpanKind.CONSUMER, attributes, links,
        (report.started_at or report.death.at) * 1_000_000,
    )  # fmt: skip
    span.set_status(Status(StatusCode.ERROR, report.death.how))
    span.end(report.death.at * 1_000_000)


def _carried(
    headers: Mapping[str, str], continues: bool
) -> tuple[TraceContext, list[trace.Link] | None]:
    """Return the trace context in a message's headers, and a link to the span in which the message was enqueued.

    Args:
        continues: True if that span is also the parent.
    """
    carried = propagate.extract(headers, TraceContext())
    creation = trace.get_current_span(carried).get_span_context()
    if not creation.is_valid:
        return carried, None
    if not continues:
        carried = trace.set_span_in_context(trace.INVALID_SPAN, carried)
    return carried, [trace.Link(creation)]


def _is_real(provider: Any) -> bool:
    # Before a provider is set, the API returns a placeholder.
    return not type(provider).__module__.startswith("opentelemetry.metrics")


def _outcome(context: Context, error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return "done", ""
    if isinstance(error, _DELAYED):
        return "snoozed", ""
    if isinstance(error, _STOPPED):
        return "aborted", ""
    try:
        outcome = context.decide(error).outcome
    except Exception:
        # The job's retry policy raised an error. The executor logs it and uses the default policy.
        outcome = "retry"
    return outcome, class_name(error)


def _described(
    queue: str, kind: str, operation: str, job: str, client: Any
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "jobq",
        "messaging.destination.name": queue,
        "messaging.operation.type": kind,
        "messaging.operation.name": operation,
        "jobq.job": job,
    }
    return attributes if client is None else attributes | _server(client.url)


def _attributes(context: Context) -> dict[str, str | int]:
    attributes = _described(context.queue, "process", "process", context.job, runtime.default) | {
        "messaging.message.id": context.mid,
        "messaging.message.body.size": context.size,
        "code.function.name": context.function_name,
        "jobq.attempt": context.attempt,
        "jobq.generation": context.generation,
    }
    if context.partition:
        attributes["messaging.destination.partition.id"] = context.partition
    if context.worker:
        attributes["messaging.client.id"] = context.worker
    if context.enqueued_at:
        attributes["jobq.wait_ms"] = max(0, round(time.time() * 1000) - context.enqueued_at)
    return attributes


def _server(url: str) -> dict[str, str | int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or parts.path, parts.port
    except ValueError:
        return {}
    attributes: dict[str, str | int] = {"server.address": host} if host else {}
    return attributes | ({"server.port": port} if port else {})


def _carry(headers: dict[str, str]) -> None:
    """Add the current trace to a message's headers, unless they already have a trace. Merge the baggage."""
    carried: dict[str, str] = {}
    propagate.inject(carried)
    baggage = [text for text in (headers.get("baggage"), carried.pop("baggage", None)) if text]
    if "traceparent" not in headers:
        headers.update(carried)
    if baggage:
        headers["baggage"] = _cut(",".join(baggage))


def _cut(baggage: str) -> str:
    """Return the first entries of the baggage, up to MAX_BAGGAGE characters."""
    if len(baggage) <= MAX_BAGGAGE:
        return baggage
    return baggage[: MAX_BAGGAGE + 1].rpartition(",")[0]
