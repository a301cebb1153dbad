"""Trace with OpenTelemetry: a middleware, and hooks at a child's start and end.

Tracing is active if the program has set a TracerProvider of the SDK. A worker's children also trace if
OTEL_EXPORTER_OTLP_ENDPOINT is set. This requires the extra `otel`. An enqueue and its attempts belong to the same
trace. Arguments of jobs are never sent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jobq import extras
from jobq.errors import ConfigError
from jobq.jobs.context import Context
from jobq.jobs.crashes import CrashReport, MonitorListener
from jobq.jobs.job import Outgoing
from jobq.jobs.middleware import everywhere
from jobq.jobs.results import Receipt

FLUSH_S = 2.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
#: How the SDK names its threads.
_THREADS = "Otel"


class OtelMiddleware:
    """Creates spans around enqueues and attempts, and adds the trace's headers to messages.

    Without a TracerProvider, the middleware is inactive.

    Attributes:
        tracer_provider, meter_provider: Providers of the SDK, by default the providers that the program has set.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        self._given = (tracer_provider, meter_provider)

    def enqueue(
        self, outgoing: Outgoing, next: Callable[[Outgoing], list[Receipt[Any]]]
    ) -> list[Receipt[Any]]:
        """Enqueue messages within a `send` span, and add the span's context to the messages' headers."""
        spans = self._spans()
        return next(outgoing) if spans is None else spans.send(outgoing, next)

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Run one attempt of a sync job within a `process` span."""
        spans = self._spans()
        return next() if spans is None else spans.run(context, next)

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async job; see `run`."""
        spans = self._spans()
        return await (next() if spans is None else spans.arun(context, next))

    def _spans(self) -> Any:
        """Return the object that creates spans, or None without a provider. The object's methods replace this
        middleware's `enqueue`, `run` and `arun`.
        """
        tracer_provider, meter_provider = self._given
        if tracer_provider is None and not is_active():
            return None
        from jobq.observe.otel_spans import Spans

        spans = Spans(tracer_provider, meter_provider)
        vars(self).update(enqueue=spans.send, run=spans.run, arun=spans.arun)
        return spans


#: Joins the middleware of every job once the SDK is imported.
middleware = OtelMiddleware()


def is_active() -> bool:
    """Return whether this program has set a TracerProvider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    # Without a provider, the API returns a placeholder that doesn't make spans.
    provider = api.get_tracer_provider()
    return not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider)


class CrashSpans(MonitorListener):
    """Runs in a worker's monitor process, and sends a span for each attempt whose process died."""

    def start(self, pool: Any) -> None:
        """Set up the SDK in the monitor process."""
        start()

    def crashed(self, report: CrashReport) -> None:
        """Record a span for an attempt whose process died."""
        if is_active():
            from jobq.observe.otel_spans import crash_span

            crash_span(report)

    def stop(self) -> None:
        """Send pending spans."""
        finish()


def is_wanted() -> bool:
    """Return whether a worker's processes should send traces to OpenTelemetry."""
    return is_active() or _wanted(os.environ)


def start(environ: Mapping[str, str] | None = None) -> bool:
    """Set up tracing in a child, before its first job. Return whether tracing is active.

    Tracing is active if the program has set a provider, or if the environment names an endpoint and the SDK is
    installed. The SDK reads its settings from OpenTelemetry's environment variables.
    """
    environ = os.environ if environ is None else environ
    if is_active():
        everywhere.add(middleware)
        return True
    if not _wanted(environ):
        return False
    try:
        from jobq.observe.otel_export import export_spans
    except ImportError:
        _logger().warning(
            "%s is set, but OpenTelemetry's SDK is not installed: %s",
            next(name for name in ENDPOINTS if environ.get(name)), extras.install("otel"),
        )  # fmt: skip
        return False
    for name in PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            _logger().warning(
                "%s=%s: spans are sent with http/protobuf instead; set its endpoint, often port 4318",
                name, environ[name],
            )  # fmt: skip
    export_spans(metrics=environ.get("OTEL_METRICS_EXPORTER") == "otlp")
    everywhere.add(middleware)
    return True


def finish(timeout: float = FLUSH_S) -> None:
    """Send pending spans before a child exits. Give up after `timeout` seconds."""
    if not is_active():
        return
    from opentelemetry import metrics, trace

    providers: list[Any] = [trace.get_tracer_provider(), metrics.get_meter_provider()]
    # An exporter retries rejected spans for longer than a child may take to exit. The thread ends with the process.
    sending = threading.Thread(
        target=lambda: [
            provider.force_flush() for provider in providers if hasattr(provider, "force_flush")
        ],
        daemon=True,
    )
    sending.start()
    sending.join(timeout)


def refuse_exporter_threads() -> None:
    """Raise ConfigError if the SDK runs a thread in this process, because forked children wouldn't have that thread."""
    if any(thread.name.startswith(_THREADS) for thread in threading.enumerate()):
        raise ConfigError(
            "OpenTelemetry's SDK exports from a thread of this process, but a fork doesn't copy threads; start jobq "
            f"worker without opentelemetry-instrument, and set {ENDPOINTS[0]}. Don't set a TracerProvider in imported "
            "modules, because each child process sets a provider"
        )


def _wanted(environ: Mapping[str, str]) -> bool:
    return (
        any(environ.get(name) for name in ENDPOINTS)
        and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


def _logger() -> logging.Logger:
    return logging.getLogger("jobq.observe")
